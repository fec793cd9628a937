import numpy as np
import pytest
from sklearn.svm import SVC, LinearSVC

from deepfishing.errors import FeatureError, OptionError
from deepfishing.learn.linear import train_linear
from deepfishing.learn.svm import train_svm

unfinished = pytest.mark.filterwarnings(r"ignore:\d+ of \d+ linear classifiers are not")


def labelled(rng, random_rank_one, n=120, classes=3):
    """Gradients whose labels depend on them, with noise, and rare positives."""
    features = random_rank_one(n).normalize()
    dense = features.dense().reshape(n, -1)
    truth = (
        dense @ rng.normal(size=(dense.shape[1], classes))
        + rng.normal(size=(n, classes)) / 2
    )
    labels = np.where(truth > np.quantile(truth, 0.8, axis=0), 1, -1).astype(np.int8)
    return features, dense, labels


def objective(w, b, vectors, y, C):
    return 0.5 * w @ w + C * np.maximum(1 - y * (vectors @ w + b), 0).sum()


def test_on_explicit_gradients_it_is_the_kernel_machine(rng, random_rank_one):
    features, dense, labels = labelled(rng, random_rank_one)
    test = random_rank_one(50).normalize()
    kernel = train_svm(features, labels).decision_function(test)
    svm = train_linear(dense, labels, tolerance=1e-5, rounds=5000)
    linear = svm.decision_function(test.dense().reshape(50, -1))
    np.testing.assert_allclose(linear, kernel, atol=5e-3)
    # the same ranking, but for images that are closer than the kernel classifier's own tolerance
    for ours, theirs in zip(linear.T, kernel.T, strict=True):
        assert np.all(np.diff(theirs[np.argsort(ours)]) > -5e-3)


@pytest.mark.parametrize("C", [0.1, 1.0, 10.0])
def test_the_objective_is_as_low_as_that_of_libsvm(rng, random_rank_one, C):
    _, dense, labels = labelled(rng, random_rank_one)
    svm = train_linear(dense, labels, C=C, tolerance=1e-3, rounds=5000)
    for c, y in enumerate(labels.T):
        theirs = SVC(C=C, kernel="linear", tol=1e-6).fit(dense, y)
        best = objective(theirs.coef_[0], theirs.intercept_[0], dense, y, C)
        ours = objective(svm.w[:, c].astype(float), svm.bias[c], dense, y, C)
        assert best * (1 - 1e-5) <= ours <= best * (1 + 2e-3)


def test_images_that_are_much_alike_are_trained_on_in_one_block(rng, random_rank_one):
    _, dense, labels = labelled(rng, random_rank_one)
    alike = dense / 3 + 1 / np.sqrt(dense.shape[1])
    svm = train_linear(alike, labels, tolerance=0.05, rounds=100)
    assert svm.gap.max() <= 0.05
    for c, y in enumerate(labels.T):
        theirs = SVC(C=1.0, kernel="linear", tol=1e-6).fit(alike, y)
        best = objective(theirs.coef_[0], theirs.intercept_[0], alike, y, 1.0)
        assert (
            objective(svm.w[:, c].astype(float), svm.bias[c], alike, y, 1.0)
            <= best / 0.95
        )


def test_the_intercept_is_free_where_that_of_liblinear_is_shrunk(rng, random_rank_one):
    _, dense, labels = labelled(rng, random_rank_one)
    y = labels[:, 0]
    shrunk = LinearSVC(loss="hinge", tol=1e-8, max_iter=100_000).fit(dense, y)
    svm = train_linear(dense, labels[:, :1], tolerance=1e-5, rounds=5000)
    ours = objective(svm.w[:, 0].astype(float), svm.bias[0], dense, y, 1.0)
    assert ours < objective(shrunk.coef_[0], shrunk.intercept_[0], dense, y, 1.0)


@unfinished
@pytest.mark.parametrize("rounds", [1, 3])
def test_no_other_intercept_is_better_even_before_the_optimum(
    rng, random_rank_one, rounds
):
    _, dense, labels = labelled(rng, random_rank_one)
    labels[:10] = 0
    svm = train_linear(dense, labels, difficult="ignore", tolerance=1e-9, rounds=rounds)
    for c, y in enumerate(labels[10:].T):
        w = svm.w[:, c].astype(float)
        found = objective(w, svm.bias[c], dense[10:], y, 1.0)
        others = [
            objective(w, svm.bias[c] + d, dense[10:], y, 1.0)
            for d in np.linspace(-1, 1, 99)
        ]
        assert found <= min(others) + 1e-4
        assert max(others) > found + 1  # it does depend on the intercept


@unfinished
def test_the_gap_is_a_bound_of_the_distance_to_the_optimum(rng, random_rank_one):
    _, dense, labels = labelled(rng, random_rank_one)
    best = train_linear(dense, labels, tolerance=1e-5, rounds=5000)
    for rounds in (1, 3, 10, 30):
        early = train_linear(dense, labels, rounds=rounds, tolerance=1e-9)
        assert early.rounds == rounds
        for c, y in enumerate(labels.T):
            now, optimum = (
                objective(svm.w[:, c].astype(float), svm.bias[c], dense, y, 1.0)
                for svm in (early, best)
            )
            assert now - optimum <= early.gap[c] * now + 1e-4


def unit_vectors_around_a_mean(n=200, m=50, mean=2.0, seed=0, share=0.5):
    """Unit vectors whose mean is far from 0, noisy labels and this share of positives."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, m)) + mean * rng.normal(size=m)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    truth = (vectors - vectors.mean(axis=0)) @ rng.normal(size=m)
    target = np.where(truth > np.quantile(truth, 1 - share), 1, -1)
    target[rng.random(n) < 0.1] *= -1
    return vectors, target


@unfinished
@pytest.mark.parametrize("mean", [0.0, 3.0, 10.0])
@pytest.mark.parametrize("C", [0.1, 100.0])
def test_the_gap_is_a_bound_where_vectors_share_a_mean(C, mean):
    for seed in range(4):
        vectors, target = unit_vectors_around_a_mean(mean=mean, seed=seed, share=0.05)
        theirs = SVC(C=C, kernel="linear", tol=1e-6).fit(vectors, target)
        best = objective(theirs.coef_[0], theirs.intercept_[0], vectors, target, C)
        for rounds in (1, 2, 3, 10):
            svm = train_linear(
                vectors, target[:, None], C, tolerance=1e-9, rounds=rounds
            )
            now = objective(svm.w[:, 0].astype(float), svm.bias[0], vectors, target, C)
            assert (now - best) / now <= svm.gap[0] + 1e-4


@pytest.mark.parametrize("mean", [0.0, 1.0, 3.0])
def test_a_high_cost_ends_at_the_optimum(mean):
    vectors, target = unit_vectors_around_a_mean(mean=mean)
    svm = train_linear(vectors, target[:, None], 100.0)
    assert svm.gap[0] <= 0.1
    assert svm.rounds < 1000


def test_a_shared_mean_changes_no_score(rng, random_rank_one):
    _, dense, labels = labelled(rng, random_rank_one)
    exact = {"tolerance": 1e-4, "rounds": 5000}
    expected = train_linear(dense, labels, **exact).decision_function(dense)
    moved = dense + 20 * rng.normal(size=dense.shape[1])
    found = train_linear(moved, labels, **exact).decision_function(moved)
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_classifiers_that_are_not_at_their_optimum_are_reported():
    vectors, target = unit_vectors_around_a_mean()
    targets = np.stack([target, np.roll(target, 1), np.ones_like(target)], axis=1)
    with pytest.warns(UserWarning, match=r"2 of 2 .* after 2 rounds: .* not 10%"):
        svm = train_linear(vectors, targets, 100.0, rounds=2)
    assert svm.gap.max() > 0.1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_precision_and_block_do_not_matter(rng, random_rank_one, monkeypatch, dtype):
    _, dense, labels = labelled(rng, random_rank_one)
    expected = train_linear(
        dense, labels, tolerance=1e-4, rounds=5000
    ).decision_function(dense)
    monkeypatch.setattr("deepfishing.learn.linear.BLOCK", 7)
    svm = train_linear(dense.astype(dtype), labels, tolerance=1e-4, rounds=5000)
    np.testing.assert_allclose(svm.decision_function(dense), expected, atol=0.03)


def test_difficult_examples_are_left_out_or_negatives(rng, random_rank_one):
    _, dense, labels = labelled(rng, random_rank_one)
    exact = {"tolerance": 1e-5, "rounds": 5000}
    difficult, negative = labels.copy(), labels.copy()
    difficult[:10], negative[:10] = 0, -1
    as_negative = train_linear(
        dense, difficult, difficult="negative", **exact
    ).decision_function(dense)
    expected = train_linear(dense, negative, **exact).decision_function(dense)
    np.testing.assert_allclose(as_negative, expected, atol=5e-3)
    ignored = train_linear(dense, difficult, **exact).decision_function(dense)
    left_out = train_linear(dense[10:], labels[10:], **exact).decision_function(dense)
    np.testing.assert_allclose(ignored, left_out, atol=5e-3)
    assert abs(ignored - as_negative).max() > 0.05


def test_a_class_without_a_positive_or_negative_example_has_no_machine(
    rng, random_rank_one
):
    _, dense, labels = labelled(rng, random_rank_one)
    labels[:, 0], labels[:, 2] = -1, 1
    svm = train_linear(dense, labels, tolerance=0.05)
    assert svm.trained.tolist() == [False, True, False]
    assert not svm.decision_function(dense)[:, [0, 2]].any()
    assert svm.gap.max() <= 0.05
    assert (
        train_linear(dense[:0], labels[:0]).decision_function(dense).shape
        == labels.shape
    )


def test_large_and_zero_vectors_are_trained_on(rng, random_rank_one):
    _, dense, labels = labelled(rng, random_rank_one)
    dense[:3] = 0
    for scale in (1e-2, 1e2):
        svm = train_linear(
            dense * scale, labels, C=scale**-2, tolerance=0.01, rounds=5000
        )
        expected = train_linear(dense, labels, tolerance=0.01, rounds=5000)
        np.testing.assert_allclose(
            svm.decision_function(dense * scale),
            expected.decision_function(dense),
            atol=0.02,
        )
    assert not train_linear(np.zeros_like(dense), labels).w.any()


def test_wrong_shapes_values_and_options_are_refused(rng, random_rank_one):
    _, dense, labels = labelled(rng, random_rank_one)
    with pytest.raises(FeatureError, match="labels"):
        train_linear(dense, labels[:-1])
    with pytest.raises(FeatureError, match="same n images"):
        train_linear(dense[0], labels)
    with pytest.raises(OptionError, match="C must be"):
        train_linear(dense, labels, C=0)
    with pytest.raises(OptionError, match="difficult must be"):
        train_linear(dense, labels, difficult="maybe")
    with pytest.raises(OptionError, match="tolerance must be"):
        train_linear(dense, labels, tolerance=0)
    with pytest.raises(FeatureError, match="as in training"):
        train_linear(dense, labels).decision_function(dense[:, 1:])
    dense[3, 2] = np.nan
    with pytest.raises(FeatureError, match="finite"):
        train_linear(dense, labels)


@pytest.mark.parametrize("weight", ["balanced", 4.0])
def test_weighted_classes_are_those_of_scikit_learn(rng, weight):
    vectors = rng.normal(size=(80, 6)).astype(np.float32)
    target = np.where(vectors[:, 0] + 0.5 * rng.normal(size=80) > 0.9, 1, -1)
    svm = train_linear(
        vectors, target[:, None], class_weight=weight, tolerance=1e-4, rounds=2000
    )
    known = weight if weight == "balanced" else {1: weight, -1: 1.0}
    exact = SVC(kernel="linear", class_weight=known, tol=1e-6).fit(vectors, target)
    found = svm.decision_function(vectors)[:, 0]
    np.testing.assert_allclose(found, exact.decision_function(vectors), atol=0.03)


def test_rounds_are_told_one_by_one_and_the_last_is_the_end(rng, random_rank_one):
    _, dense, labels = labelled(rng, random_rank_one)
    told = []
    svm = train_linear(dense, labels, progress=lambda *told_of: told.append(told_of))
    assert told[:-1] == [("rounds", done, 1000) for done in range(svm.rounds)]
    assert told[-1] == ("rounds", svm.rounds, svm.rounds)
