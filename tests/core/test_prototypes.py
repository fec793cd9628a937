"""Prototypes, neighbours and the recipes made of them."""

import numpy as np
import pytest

from deepfishing.core.kernels import gram
from deepfishing.core.neighbours import Neighbours
from deepfishing.core.prototypes import TEMPERATURE, fit_prototypes
from deepfishing.core.rank_one import l2_normalize
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import FeatureError
from deepfishing.learn.model import Vectors


@pytest.fixture
def x():
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(4, 8))
    return (centres[np.arange(120) % 4] + 0.3 * rng.normal(size=(120, 8))).astype(np.float32)


def kernel(recipe, arrays, pool=None):
    return gram(parse_recipe(recipe).fit(arrays, pool)(arrays))


def test_own_gradients_are_those_of_a_softmax_on_the_prototypes(x):
    head = fit_prototypes(x, 5)
    unit = l2_normalize(x)
    scores = l2_normalize(unit - unit.mean(axis=0)) @ head.W / TEMPERATURE
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(head.deltas(x), p - 1 / 5, atol=1e-5)
    dense = np.einsum("ni,nj->nij", unit, l2_normalize(p - 1 / 5)).reshape(len(x), -1)
    np.testing.assert_allclose(kernel("own(x7,5)", {"x7": x}), dense @ dense.T, atol=1e-4)


def test_the_same_pool_gives_the_same_prototypes(x):
    np.testing.assert_array_equal(fit_prototypes(x, 6).W, fit_prototypes(x, 6).W)
    assert fit_prototypes(x[:9], 64).W.shape == (8, 3)  # a small pool has fewer


def test_own_and_smooth_learn_from_the_pool_and_are_restored_from_their_state(x):
    few, recipe = {"x7": x[:4]}, parse_recipe("smooth(x7,3)+pow(own(x7,5),0.5)")
    fitted = recipe.fit(few, {"x7": x})
    assert fitted.state["own(x7,5)/1"].shape == (8, 5)
    assert fitted.state["smooth(x7,3)/0"].shape == x.shape
    again = recipe.load(fitted.state)
    np.testing.assert_array_equal(gram(again(few)), gram(fitted(few)))
    assert not np.allclose(gram(fitted(few)), gram(recipe.fit(few)(few)))
    with pytest.raises(FeatureError, match="state of recipe"):
        recipe.load({})


def test_smoothing_is_the_weighted_mean_with_the_nearest_photos(x):
    smooth = parse_recipe("smooth(x7,3)").fit({"x7": x})({"x7": x})
    unit = l2_normalize(x)
    for row in (0, 50):
        similarity = unit @ unit[row]
        near = np.argsort(-similarity)[1:4]  # behind itself
        mean = unit[row] + (similarity[near, None] ** 3 * unit[near]).sum(axis=0)
        np.testing.assert_allclose(smooth[row], mean / np.linalg.norm(mean), atol=1e-5)


def test_copies_of_a_neighbour_have_one_vote(x):
    pool = np.concatenate([x, x[7:8], x[7:8]])
    numbers, weights = Neighbours.fit(x).find(x[:20], 4)
    again, same = Neighbours.fit(pool).find(x[:20], 4)
    np.testing.assert_array_equal(np.where(again >= len(x), 7, again), numbers)
    np.testing.assert_allclose(same, weights, atol=1e-6)


def test_the_index_finds_what_the_exact_search_finds(x, monkeypatch):
    exact, _ = Neighbours.fit(x).find(x, 3)
    monkeypatch.setattr("deepfishing.core.neighbours.EXACT_ROWS", 50)
    pool = Neighbours.fit(x)
    assert pool.index is not None
    found, _ = pool.find(x, 3)
    hits = [len(set(a) & set(b)) / 3 for a, b in zip(exact, found, strict=True)]
    assert np.mean(hits) > 0.9


def test_rbf_is_the_gaussian_kernel_of_unit_vectors(x):
    unit = l2_normalize(x).astype(np.float64)
    squares = np.square(unit[:, None] - unit).sum(axis=2)
    np.testing.assert_allclose(kernel("rbf(x7,2)", {"x7": x}), np.exp(-2 * squares), atol=1e-5)
    product = kernel("rbf(x7+own(x7,4),0.5)*x7", {"x7": x})
    inner = kernel("x7+own(x7,4)", {"x7": x})
    np.testing.assert_allclose(product, np.exp(inner - 1) * kernel("x7", {"x7": x}), atol=1e-5)


def test_vectors_of_rbf_have_its_kernel_and_are_restored(x):
    made = parse_recipe("rbf(x7,2)").fit({"x7": x})({"x7": x})
    project = Vectors.fit(made, 500)
    v = project(made)
    np.testing.assert_allclose(v @ v.T, gram(made), atol=1e-3)
    np.testing.assert_array_equal(Vectors.restore(project.state())(made), v)


def test_an_own_head_is_a_gradient_and_smoothing_is_not():
    assert parse_recipe("own(x7)").is_gradient
    assert not parse_recipe("rbf(smooth(x7,5),2)").is_gradient
    assert parse_recipe("x7+smooth(x7)").uses_pool
    assert not parse_recipe("rbf(whiten(x7),2)").uses_pool


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("own(dW8)", "own must take a forward feature such as x7, got the gradient dW8"),
        ("smooth(x7,2.5)", "a number of neighbours, a whole one, got 2.5"),
        ("rbf(x7)", "lacks a comma and a width"),
        ("rbf(x7,0)", "needs a width above 0 and up to 100, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(text, message):
    with pytest.raises(FeatureError, match=message):
        parse_recipe(text)
