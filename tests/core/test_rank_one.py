import numpy as np
import pytest

from deepfishing.core.rank_one import RankOne, l2_normalize
from deepfishing.errors import FeatureError


@pytest.mark.parametrize("P", [None, 1, 4])
def test_normalized_gradients_have_frobenius_norm_one(random_rank_one, P):
    dense = random_rank_one(6, P=P).normalize().dense()
    np.testing.assert_allclose(np.linalg.norm(dense, axis=(1, 2)), 1, rtol=1e-12)


@pytest.mark.parametrize("P", [None, 3])
def test_normalizing_keeps_the_direction_of_the_dense_gradient(random_rank_one, P):
    g = random_rank_one(4, P=P)
    dense = g.dense()
    expected = dense / np.linalg.norm(dense, axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(g.normalize().dense(), expected, rtol=1e-10)


def test_one_position_is_the_same_as_none(random_rank_one):
    g = random_rank_one(4)
    single = RankOne(g.x[:, None], g.delta[:, None])
    np.testing.assert_allclose(
        single.normalize().dense(), g.normalize().dense(), rtol=1e-12
    )
    np.testing.assert_allclose(single.pool().dense(), g.dense(), rtol=1e-12)


def test_a_zero_gradient_stays_zero_without_a_warning():
    zero = RankOne(np.zeros((2, 3)), np.zeros((2, 4))).normalize()
    assert not zero.dense().any()
    zero = RankOne(np.zeros((2, 5, 3)), np.ones((2, 5, 4))).normalize()
    assert not zero.dense().any()


def test_pooling_is_exact_when_x_is_the_same_at_every_position(rng):
    x = np.repeat(rng.normal(size=(3, 1, 4)), 6, axis=1)
    g = RankOne(x, rng.normal(size=(3, 6, 2)))
    np.testing.assert_allclose(g.pool().dense(), g.dense(), rtol=1e-12)


def test_slices_masks_and_indices_choose_images(random_rank_one):
    g = random_rank_one(5)
    for index in (slice(1, 4), np.array([4, 0]), np.arange(5) % 2 == 0, [2]):
        np.testing.assert_array_equal(g[index].dense(), g.dense()[index])
    assert len(g[3]) == 1
    np.testing.assert_array_equal(g[3].x[0], g.x[3])


@pytest.mark.parametrize(
    ("x", "delta"),
    [((2, 3), (3, 4)), ((2, 3), (2, 1, 4)), ((2, 5, 3), (2, 6, 4)), ((3,), (3,))],
)
def test_factors_that_do_not_belong_together_are_refused(x, delta):
    with pytest.raises(FeatureError, match="x and delta must be"):
        RankOne(np.ones(x), np.ones(delta))


def test_half_precision_rows_do_not_overflow_when_normalized():
    rows = np.full((1, 4), 60000, dtype=np.float16)
    unit = l2_normalize(rows)
    assert unit.dtype == np.float16
    np.testing.assert_allclose(unit, 0.5, rtol=1e-3)


def test_whole_numbers_are_normalized_as_others_are():
    gradients = RankOne(x=[[1, 1], [0, 0]], delta=[[3, 4], [1, 0]])
    floats = RankOne(
        gradients.x.astype(float), gradients.delta.astype(float)
    ).normalize()
    np.testing.assert_array_equal(gradients.normalize().x, floats.x)
    np.testing.assert_array_equal(gradients.normalize().delta, floats.delta)


def test_an_array_of_gradients_is_refused_with_what_to_write(random_rank_one):
    for convert in (np.asarray, np.array, np.isfinite, lambda g: np.zeros(3) + g):
        with pytest.raises(FeatureError, match=r"\.x and \.delta, or \.dense\(\)"):
            convert(random_rank_one(4))
