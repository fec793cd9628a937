import numpy as np
import pytest
from safetensors.numpy import load, save
from sklearn.kernel_approximation import Nystroem as SklearnNystroem

from deepfishing.core.kernels import gram, trace_kernel
from deepfishing.core.projections import (
    KINDS,
    Nystroem,
    Principal,
    TensorSketch,
    TwoSided,
    fit_projection,
    restore,
    two_sided,
)
from deepfishing.core.rank_one import RankOne
from deepfishing.errors import FeatureError, OptionError

RANDOM = ("two-sided", "tensor-sketch")


def kernels(kind, g, m, seeds):
    """The approximate kernel of g for each seed."""
    vectors = (fit_projection(kind, g, m, seed)(g).astype(np.float64) for seed in seeds)
    return np.array([v @ v.T for v in vectors])


@pytest.mark.parametrize("P", [None, 3])
def test_the_projection_is_that_of_the_dense_gradient(random_rank_one, P):
    g = random_rank_one(4, d=11, D=9, P=P)
    project = TwoSided.draw(11, 9, 5, 6, seed=7)
    dense = np.einsum("ad,nde,be->nab", project.R, g.dense(), project.S).reshape(4, -1)
    np.testing.assert_allclose(project(g), dense, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(two_sided(g, 5, 6, seed=7), dense, rtol=1e-5, atol=1e-5)


def test_no_matrix_of_a_seed_is_that_of_another():
    drawn = [TwoSided.draw(9, 9, 4, 4, seed) for seed in range(20)]
    drawn += [TwoSided.draw(9, 7, 4, 4, seed) for seed in range(20)]
    matrices = {matrix.tobytes() for one in drawn for matrix in (one.R, one.S)}
    assert len(matrices) == 2 * len(drawn)


@pytest.mark.parametrize("m", [12, 13])
@pytest.mark.parametrize("P", [None, 3])
def test_the_tensor_sketch_is_the_slow_circular_convolution_of_count_sketches(
    random_rank_one, P, m
):
    g = random_rank_one(4, d=11, D=9, P=P)
    project = TensorSketch.draw(11, 9, m, seed=3)
    expected = np.zeros((4, m))
    for n in range(4):
        for x, delta in zip(
            g.x[n].reshape(-1, 11), g.delta[n].reshape(-1, 9), strict=True
        ):
            a, b = np.zeros(m), np.zeros(m)
            for i in range(11):
                a[project.bucket_x[i]] += project.sign_x[i] * x[i]
            for j in range(9):
                b[project.bucket_delta[j]] += project.sign_delta[j] * delta[j]
            for i in range(m):
                for j in range(m):
                    expected[n, (i + j) % m] += a[i] * b[j]
    np.testing.assert_allclose(project(g), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("P", [None, 3])
@pytest.mark.parametrize("kind", RANDOM)
def test_dot_products_are_the_trace_kernel_on_average_over_seeds(
    random_rank_one, kind, P
):
    g = random_rank_one(3, d=40, D=30, P=P).normalize()
    draws = kernels(kind, g, 64, range(800))
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - trace_kernel(g, g)) < 4 * error)


def variances(g, m):
    """Of each kind between all pairs, by the formulas of docs/projections.md.

    c and e are the cosines of x and of delta, alpha = sum_i x_i^2 x'_i^2, and beta that of delta.
    """
    c, e = g.x @ g.x.T, g.delta @ g.delta.T
    alpha, beta = ((f**2) @ (f**2).T for f in (g.x, g.delta))
    rows = round(m**0.5)

    def both(of_x, of_delta):
        return (c**2 + of_x) * (e**2 + of_delta) - (c * e) ** 2

    return {
        "two-sided": both((1 + c**2) / rows, (1 + e**2) / rows),
        # signs: E (r.a)^2 (r.b)^2 = 1 + 2 c^2 - 2 alpha
        "tensor-sketch": (
            c**2 * (1 + e**2 - 2 * beta)
            + e**2 * (1 + c**2 - 2 * alpha)
            + (1 - alpha) * (1 - beta)
            + (c**2 - alpha) * (e**2 - beta)
        )
        / m
        + ((1 - alpha) * (e**2 - beta) + (c**2 - alpha) * (1 - beta))
        * (2 - m % 2)
        / m**2,
    }


@pytest.mark.parametrize("kind", RANDOM)
def test_the_variance_is_the_one_that_theory_gives(random_rank_one, kind):
    g = random_rank_one(3, d=20, D=15).normalize()
    # alike, as features after a ReLU are
    g = RankOne(g.x + 0.3, g.delta + 0.2).normalize()
    measured = kernels(kind, g, 64, range(3000)).var(axis=0)
    np.testing.assert_allclose(measured, variances(g, 64)[kind], rtol=0.25)


def test_the_variance_of_a_sketch_is_one_over_m_for_unlike_pairs_and_several_times_for_alike(
    random_rank_one,
):
    same = random_rank_one(1, d=300, D=200).normalize()
    x, delta = (np.concatenate([f, np.roll(f, 1)]) for f in (same.x, same.delta))
    unlike = RankOne(x, delta)  # c and e are about 0 between the two, 1 with themselves
    measured = 64 * kernels("tensor-sketch", unlike, 64, range(2000)).var(axis=0)
    assert measured[0, 1] == pytest.approx(1, rel=0.15)
    assert measured[0, 0] == pytest.approx(6, rel=0.15)


def test_the_variance_falls_as_one_over_the_dimension(random_rank_one):
    g = random_rank_one(6, d=40, D=30).normalize()
    small, large = (
        kernels("tensor-sketch", g, m, range(400)).var(axis=0).mean() for m in (16, 256)
    )
    assert 13 < small / large < 19


@pytest.mark.parametrize("P", [None, 3])
def test_nystroem_is_exact_when_all_images_are_landmarks(random_rank_one, P):
    g = random_rank_one(30, d=11, D=9, P=P).normalize()
    v = Nystroem.fit(g, 30)(g)
    np.testing.assert_allclose(v @ v.T, trace_kernel(g, g), atol=1e-4)


def test_nystroem_is_that_of_scikit_learn(random_rank_one):
    g, other = random_rank_one(30).normalize(), random_rank_one(8).normalize()
    project = Nystroem.fit(g, 12, seed=1)
    landmarks = RankOne(project.x, project.delta)
    theirs = SklearnNystroem(kernel="precomputed", n_components=12).fit(gram(landmarks))
    expected = theirs.transform(gram(other, landmarks))
    ours = project(other)
    np.testing.assert_allclose(ours @ ours.T, expected @ expected.T, atol=1e-4)


def test_landmarks_that_are_alike_do_no_harm(random_rank_one):
    g = random_rank_one(10).normalize()
    twice = g[np.arange(20) % 10]
    project = Nystroem.fit(twice, 20)
    assert project.shape[0] == 10
    v = project(g)
    np.testing.assert_allclose(v @ v.T, trace_kernel(g, g), atol=1e-4)


@pytest.mark.parametrize("P", [None, 3])
def test_all_principal_entries_are_the_whole_gradient(random_rank_one, P):
    g = random_rank_one(30, d=6, D=5, P=P)
    v = Principal.fit(g, 30)(g)
    np.testing.assert_allclose(v @ v.T, trace_kernel(g, g), rtol=1e-3, atol=1e-3)


def test_principal_entries_are_the_largest_of_the_gradient_in_its_own_axes(
    random_rank_one,
):
    g = random_rank_one(50, d=6, D=5)
    g = RankOne(g.x * [9, 5, 3, 2, 1, 0.1], g.delta * [7, 3, 1, 0.5, 0.1])
    axes = [np.linalg.svd(f, full_matrices=False)[2] for f in (g.x, g.delta)]
    entries = np.einsum("ad,nde,be->nab", axes[0], g.dense(), axes[1]).reshape(50, -1)
    largest = np.argsort(-np.mean(entries**2, axis=0))[:7]
    v = Principal.fit(g, 7)(g)
    expected = np.sort(np.mean(entries[:, largest] ** 2, axis=0))
    np.testing.assert_allclose(np.sort(np.mean(v**2, axis=0)), expected, rtol=1e-3)


def test_principal_entries_have_less_error_than_a_sketch_where_features_have_structure(
    random_rank_one,
):
    g = random_rank_one(60, d=40, D=30)
    fall = 1 / np.arange(1, 41) ** 1.5
    g = RankOne(g.x * fall, g.delta * fall[:30]).normalize()
    train, test = g[:40], g[40:]
    exact = trace_kernel(test, test)

    def error(kind):
        v = fit_projection(kind, train, 128)(test)
        return np.sqrt(np.mean((v @ v.T - exact) ** 2))

    assert error("principal") < 0.5 * error("tensor-sketch")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("P", [None, 3])
def test_blocks_do_not_change_the_vectors(random_rank_one, monkeypatch, kind, P):
    g = random_rank_one(23, P=P, dtype=np.float32)
    project = fit_projection(kind, g, 16)
    whole = project(g)
    assert whole.dtype == np.float32
    assert whole.shape == (23, project.shape[0])
    monkeypatch.setattr("deepfishing.core.projections.BLOCK_VALUES", 500)
    np.testing.assert_allclose(project(g), whole, rtol=1e-4, atol=1e-4)
    assert project(g[:0]).shape == (0, project.shape[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_projection_gives_the_same_vectors(random_rank_one, kind):
    g = random_rank_one(23, dtype=np.float32)
    project = fit_projection(kind, g, 16, seed=5)
    again = restore(load(save(project.state())))
    assert type(again) is type(project)
    np.testing.assert_array_equal(again(g), project(g))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_vectors(random_rank_one, kind):
    g = random_rank_one(23, dtype=np.float32)
    first, second = (fit_projection(kind, g, 16, seed=5)(g) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    if kind != "principal":  # which is the same for every seed
        assert np.abs(fit_projection(kind, g, 16, seed=8)(g) - first).max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_close_to_single(random_rank_one, kind):
    g = random_rank_one(23, dtype=np.float32).normalize()
    coarse = RankOne(g.x.astype(np.float16), g.delta.astype(np.float16))
    project = fit_projection(kind, g, 16)
    np.testing.assert_allclose(project(coarse), project(g), atol=0.01)


@pytest.mark.parametrize(("m", "size"), [(1, 1), (12, 12), (20, 20), (1000, 35)])
def test_a_two_sided_projection_has_at_most_the_asked_size(random_rank_one, m, size):
    g = random_rank_one(3, d=7, D=5)
    assert fit_projection("two-sided", g, m).shape[0] == size


def test_wrong_sizes_names_and_widths_are_refused(random_rank_one):
    g = random_rank_one(3)
    with pytest.raises(OptionError, match="did you mean principal"):
        fit_projection("principle", g, 8)
    with pytest.raises(OptionError, match="at least 1"):
        fit_projection("two-sided", g, 0)
    with pytest.raises(OptionError, match=r"whole number, at least 1, got 8\.5"):
        fit_projection("two-sided", g, 8.5)
    with pytest.raises(
        OptionError, match="a seed must be a whole number from 0 on, got -1"
    ):
        fit_projection("two-sided", g, 8, -1)
    with pytest.raises(OptionError, match="at least 1"):
        fit_projection("two-sided", g, -1)
    with pytest.raises(FeatureError, match="widths 7 and 5, got 6 and 5"):
        fit_projection("two-sided", g, 8)(random_rank_one(3, d=6))
    with pytest.raises(FeatureError, match="arrays must be those"):
        restore({"TwoSided.R": g.x})
    with pytest.raises(FeatureError, match="arrays must be those"):
        restore({})
