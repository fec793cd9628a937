"""Prototypes, neighbours and the recipes made of them."""

import numpy as np
import pytest

from deepfishing.core.kernels import gram
from deepfishing.core.neighbours import Neighbours
from deepfishing.core.prototypes import HEADS, TEMPERATURE, fit_prototypes
from deepfishing.core.rank_one import l2_normalize
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import FeatureError
from deepfishing.learn.vectors import Vectors


@pytest.fixture
def x():
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(4, 8))
    return (centres[np.arange(120) % 4] + 0.3 * rng.normal(size=(120, 8))).astype(
        np.float32
    )


def kernel(recipe, arrays, pool=None):
    return gram(parse_recipe(recipe).fit(arrays, pool)(arrays))


def test_own_gradients_are_those_of_a_softmax_on_the_prototypes(x):
    head = fit_prototypes(x, 5)
    unit = l2_normalize(x)
    z = l2_normalize(unit - unit.mean(axis=0))
    kernels = []
    for W in head.W:
        e = np.exp(z @ W / TEMPERATURE)
        delta = l2_normalize(e / e.sum(axis=1, keepdims=True) - 1 / 5)
        dense = np.einsum("ni,nj->nij", unit, delta).reshape(len(x), -1)
        kernels.append(dense @ dense.T)
    assert len(kernels) == HEADS
    mean = np.mean(kernels, axis=0)  # the heads together are the mean of their kernels
    np.testing.assert_allclose(kernel("own(x7,5)", {"x7": x}), mean, atol=1e-4)


def test_the_heads_differ_from_each_other(x):
    W = fit_prototypes(x, 6).W
    assert not np.allclose(W[0], W[1])


def test_the_same_pool_gives_the_same_prototypes(x):
    np.testing.assert_array_equal(fit_prototypes(x, 6).W, fit_prototypes(x, 6).W)
    assert fit_prototypes(x[:9], 64).W.shape == (HEADS, 8, 3)  # a small pool has fewer


def test_own_and_smooth_learn_from_the_pool_and_are_restored_from_their_state(x):
    few, recipe = {"x7": x[:4]}, parse_recipe("smooth(x7,3)+pow(own(x7,5),0.5)")
    fitted = recipe.fit(few, {"x7": x})
    assert fitted.state["own(x7,5)/1"].shape == (HEADS, 8, 5)
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
        # the pool is kept in half precision
        np.testing.assert_allclose(smooth[row], mean / np.linalg.norm(mean), atol=1e-3)


def smooth_weights(similarity, is_pool, n):
    """Weights of the n nearest photos, as a dense matrix."""
    W = np.zeros_like(similarity)
    for row, values in enumerate(similarity):
        others = [i for i in np.argsort(-values) if not (is_pool and i == row)][:n]
        W[row, others] = np.maximum(values[others], 0) ** 3
    return W


def smooth_kernels(K_pool, K_test, near_pool, near_test, n):
    """Smoothed kernels of a pool with itself and of test photos with it, by dense matrices."""
    A = smooth_weights(near_pool, True, n) + np.eye(len(K_pool))
    T = smooth_weights(near_test, False, n)
    pool = A @ K_pool @ A.T
    length = np.sqrt(np.diag(pool))
    squares = 1 + 2 * (T * K_test).sum(axis=1) + ((T @ K_pool) * T).sum(axis=1)
    test = (K_test + T @ K_pool) @ A.T / np.sqrt(squares)[:, None]
    return pool / length / length[:, None], test / length


@pytest.mark.parametrize(
    "inner", ["x7", "x7+own(x7,6)", "rbf(x7,2)+x7*dW8", "rbf(own(x7,6),1)"]
)
def test_smoothing_any_recipe_is_the_dense_product_of_weights_and_kernels(inner):
    rng = np.random.default_rng(3)
    arrays = {"x7": rng.normal(size=(60, 8)) + 1, "delta8": rng.normal(size=(60, 5))}
    arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
    pool = {name: values[:45] for name, values in arrays.items()}
    test = {name: values[45:] for name, values in arrays.items()}
    plain = parse_recipe(inner).fit(pool)
    x7 = parse_recipe("x7").fit(pool)
    expected = smooth_kernels(
        gram(plain(pool)),
        gram(plain(test), plain(pool)),
        gram(x7(pool)),
        gram(x7(test), x7(pool)),
        n=4,
    )
    smooth = parse_recipe(f"smooth({inner},4)").fit(pool)
    a, b = smooth(pool), smooth(test)
    np.testing.assert_allclose(gram(a), expected[0], atol=2e-3)
    np.testing.assert_allclose(gram(b, a), expected[1], atol=2e-3)
    np.testing.assert_allclose(np.diag(gram(b)), 1, atol=1e-4)
    np.testing.assert_allclose(
        gram(b[2:5], a[[7, 3]]), gram(b, a)[2:5][:, [7, 3]], atol=1e-6
    )
    not_averaged = (
        parse_recipe(f"smooth({inner},4)").unsmoothed().value(test, smooth.state)
    )
    A = smooth_weights(gram(x7(pool)), True, 4) + np.eye(45)
    length = np.sqrt(np.diag(A @ gram(plain(pool)) @ A.T))
    halfway = gram(plain(test), plain(pool)) @ A.T / length
    np.testing.assert_allclose(gram(not_averaged, a), halfway, atol=2e-3)


def test_vectors_of_a_smoothed_recipe_have_its_kernel(x):
    made = parse_recipe("smooth(x7+own(x7,5),4)").fit({"x7": x})({"x7": x})
    v = Vectors.fit(made, 2000)(made)
    np.testing.assert_allclose(v @ v.T, gram(made), atol=0.02)


def test_copies_of_a_neighbour_have_one_vote(x):
    pool = np.concatenate([x, x[7:8], x[7:8]])
    numbers, weights = Neighbours.fit(x).find(x[:20], 4)
    again, same = Neighbours.fit(pool).find(x[:20], 4)
    np.testing.assert_array_equal(np.where(again >= len(x), 7, again), numbers)
    np.testing.assert_allclose(same, weights, atol=1e-6)


def test_the_index_finds_what_the_exact_search_finds(x, monkeypatch):
    exact = Neighbours.fit(x).find(x, 3)[0]
    monkeypatch.setattr("deepfishing.core.neighbours.EXACT_ROWS", 50)
    pool = Neighbours.fit(x)
    assert pool.index is not None
    found = pool.find(x, 3)[0]
    hits = [len(set(a) & set(b)) / 3 for a, b in zip(exact, found, strict=True)]
    assert np.mean(hits) > 0.9


def test_rbf_is_the_gaussian_kernel_of_unit_vectors(x):
    unit = l2_normalize(x).astype(np.float64)
    squares = np.square(unit[:, None] - unit).sum(axis=2)
    np.testing.assert_allclose(
        kernel("rbf(x7,2)", {"x7": x}), np.exp(-2 * squares), atol=1e-5
    )
    product = kernel("rbf(x7+own(x7,4),0.5)*x7", {"x7": x})
    inner = kernel("x7+own(x7,4)", {"x7": x})
    np.testing.assert_allclose(
        product, np.exp(inner - 1) * kernel("x7", {"x7": x}), atol=1e-5
    )


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
        (
            "own(dW8)",
            "own must take a forward feature such as x7, got the gradient dW8",
        ),
        ("smooth(x7,2.5)", "a number of neighbours, a whole one, got 2.5"),
        ("smooth(smooth(x7)+x7)", "smooth must not be smoothed again"),
        ("rbf(x7)", "lacks a comma and a width"),
        ("rbf(x7,0)", "needs a width above 0 and up to 100, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(text, message):
    with pytest.raises(FeatureError, match=message):
        parse_recipe(text)
