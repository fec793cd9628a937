import numpy as np
import pytest

import deepfishing.core.kernels as kernels
from deepfishing.core.features import assemble, parse_feature
from deepfishing.core.kernels import gram, linear_kernel, trace_kernel
from deepfishing.core.rank_one import RankOne
from deepfishing.errors import FeatureError


@pytest.mark.parametrize("P", [None, 1, 3])
@pytest.mark.parametrize("Q", [None, 4])
def test_trace_kernel_is_the_dense_product(random_rank_one, P, Q):
    a, b = random_rank_one(4, P=P), random_rank_one(5, P=Q)
    dense = np.einsum("nij,mij->nm", a.dense(), b.dense())
    np.testing.assert_allclose(trace_kernel(a, b), dense, rtol=1e-10)


@pytest.mark.parametrize("P", [None, 3])
@pytest.mark.parametrize("block", [1, 40, 10**9])
def test_gram_does_not_depend_on_the_size_of_its_blocks(
    random_rank_one, monkeypatch, P, block
):
    a, b = random_rank_one(9, P=P), random_rank_one(7, P=P)
    monkeypatch.setattr(kernels, "BLOCK_VALUES", block)
    np.testing.assert_allclose(gram(a, b), trace_kernel(a, b), rtol=1e-12)
    np.testing.assert_allclose(gram(a), trace_kernel(a, a), rtol=1e-12)
    np.testing.assert_allclose(
        gram(b.x.reshape(7, -1)), gram(b.x.reshape(7, -1), b.x.reshape(7, -1))
    )


def test_gram_of_features_with_themselves_is_symmetric_with_a_unit_diagonal(
    random_rank_one,
):
    K = gram(random_rank_one(20, dtype=np.float32).normalize())
    assert K.dtype == np.float64
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_allclose(np.diag(K), 1, rtol=1e-5)


def test_the_sign_of_delta_does_not_change_the_kernel(random_rank_one):
    # the paper prints g - sigma, automatic differentiation sigma - g
    a = random_rank_one(4)
    flipped = RankOne(a.x, -a.delta)
    np.testing.assert_allclose(gram(flipped), gram(a), rtol=1e-12)


def test_half_precision_is_computed_in_single_precision(rng):
    a = rng.normal(size=(3, 5000)).astype(np.float16)
    exact = a.astype(np.float64) @ a.astype(np.float64).T
    np.testing.assert_allclose(gram(a), exact, rtol=1e-4, atol=0.05)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "bool"])
def test_products_of_whole_numbers_do_not_overflow(rng, dtype):
    rows = rng.integers(0, 100, size=(3, 50)).astype(dtype)
    exact = rows.astype(float) @ rows.astype(float).T
    np.testing.assert_array_equal(gram(rows), exact)
    np.testing.assert_array_equal(gram(RankOne(rows, rows)), exact**2)


def test_concatenation_is_the_mean_of_the_kernels_of_its_parts(rng):
    parts = [rng.normal(size=(6, 3)), rng.normal(size=(6, 50)) * 100]
    unit = [p / np.linalg.norm(p, axis=1, keepdims=True) for p in parts]
    joined = assemble(
        parse_feature("x6;x7"), dict(zip(("x6", "x7"), parts, strict=True))
    )
    mean = (linear_kernel(unit[0], unit[0]) + linear_kernel(unit[1], unit[1])) / 2
    np.testing.assert_allclose(gram(joined), mean, rtol=1e-10)


@pytest.mark.parametrize(
    "other", [np.ones((2, 4)), RankOne(np.ones((2, 3)), np.ones((2, 9)))]
)
def test_features_of_different_kinds_or_widths_are_refused(other):
    with pytest.raises(FeatureError, match="one kind and width"):
        gram(RankOne(np.ones((2, 3)), np.ones((2, 4))), other)
