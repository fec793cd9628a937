import joblib
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.svm import SVC

from deepfishing.core.kernels import gram
from deepfishing.core.metrics import average_precision
from deepfishing.errors import FeatureError, OptionError
from deepfishing.learn import svm as classify
from deepfishing.learn.folds import make_folds
from deepfishing.learn.linear import train_linear
from deepfishing.learn.svm import SEARCHES, platt, train_svm


def labelled(rng, random_rank_one, n=60, classes=3):
    features = random_rank_one(n).normalize()
    labels = np.where(rng.random((n, classes)) < 0.3, 1, -1).astype(np.int8)
    return features, labels


def test_scores_are_those_of_a_plain_loop_over_classes(rng, random_rank_one):
    features, labels = labelled(rng, random_rank_one)
    test = random_rank_one(17).normalize()
    scores = train_svm(features, labels, C=0.7).decision_function(test)
    for c in range(labels.shape[1]):
        svm = SVC(C=0.7, kernel="precomputed").fit(gram(features), labels[:, c])
        np.testing.assert_allclose(
            scores[:, c],
            svm.decision_function(gram(test, features)),
            rtol=1e-8,
            atol=1e-10,
        )


def test_scores_do_not_depend_on_the_block_of_test_images(
    rng, random_rank_one, monkeypatch
):
    features, labels = labelled(rng, random_rank_one)
    svm = train_svm(features, labels)
    whole = svm.decision_function(features)
    monkeypatch.setattr("deepfishing.learn.svm.SCORE_BLOCK", 7)
    np.testing.assert_allclose(svm.decision_function(features), whole, rtol=1e-10)


def test_difficult_examples_are_left_out_or_negatives(rng, random_rank_one):
    features, labels = labelled(rng, random_rank_one)
    difficult = labels.copy()
    difficult[:10] = 0
    negative = labels.copy()
    negative[:10] = -1
    as_negative = train_svm(
        features, difficult, difficult="negative"
    ).decision_function(features)
    np.testing.assert_allclose(
        as_negative,
        train_svm(features, negative).decision_function(features),
        rtol=1e-8,
    )
    ignored = train_svm(features, difficult).decision_function(features)
    left_out = train_svm(features[10:], labels[10:]).decision_function(features)
    np.testing.assert_allclose(ignored, left_out, rtol=1e-8, atol=1e-12)
    assert abs(ignored - as_negative).max() > 1e-3


def test_a_class_without_a_positive_or_negative_example_has_no_machine(
    rng, random_rank_one
):
    features, labels = labelled(rng, random_rank_one)
    labels[:, 0], labels[:, 2] = -1, 1
    svm = train_svm(features, labels)
    assert svm.trained.tolist() == [False, True, False]
    assert not svm.decision_function(features)[:, [0, 2]].any()


@pytest.mark.parametrize("C", [0, -1, float("nan"), float("inf")])
def test_a_cost_that_is_not_positive_is_refused(rng, random_rank_one, C):
    with pytest.raises(OptionError, match="C must be"):
        train_svm(*labelled(rng, random_rank_one), C=C)


def test_labels_of_another_length_and_features_with_nan_are_refused(
    rng, random_rank_one
):
    features, labels = labelled(rng, random_rank_one)
    with pytest.raises(FeatureError, match="labels must be"):
        train_svm(features, labels[:-1])
    features.x[3, 2] = np.nan
    with pytest.raises(FeatureError, match="finite"):
        train_svm(features, labels)
    with pytest.raises(OptionError, match="difficult must be"):
        train_svm(features, labels, difficult="maybe")


def overlapping(rng, n=90, classes=3):
    """Classes that can be told apart, but not without errors."""
    labels = np.where(rng.random((n, classes)) < 0.35, 1, -1).astype(np.int8)
    features = labels @ rng.normal(size=(classes, 6)) + 1.5 * rng.normal(size=(n, 6))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


def slow_scores(features, y, number, cost=1.0, weight=None):
    """Scores of images by scikit-learn's classifier that was trained without their fold."""
    K, scores = features @ features.T, np.zeros(len(y))
    for fold in np.unique(number):
        train, held = np.flatnonzero(number != fold), np.flatnonzero(number == fold)
        svm = SVC(C=cost, kernel="precomputed", class_weight=weight)
        svm.fit(K[np.ix_(train, train)], y[train])
        scores[held] = svm.decision_function(K[np.ix_(held, train)])
    return scores


def slow_search(features, labels, costs, weight=None):
    """Mean AP over the folds of every class (rows) and cost (columns), by scikit-learn alone."""
    number = make_folds(labels).number
    table = np.zeros((labels.shape[1], len(costs)))
    for c, y in enumerate(labels.T):
        for column, cost in enumerate(costs):
            scores = slow_scores(features, y, number, cost, weight)
            rows = [number == fold for fold in range(3)]
            table[c, column] = np.mean(
                [average_precision_score(y[r] == 1, scores[r]) for r in rows]
            )
    return table


@pytest.mark.parametrize(("name", "weight"), [("cv", None), ("vissl", {1: 2, -1: 1})])
def test_the_cost_of_a_class_is_the_one_a_plain_cross_validation_finds(
    rng, name, weight
):
    features, labels = overlapping(rng)
    costs = SEARCHES[name].costs
    slow = slow_search(features, labels, costs, weight)
    svm = train_svm(features, labels, C=name)
    assert len(set(svm.cost)) > 1, (
        "the classes should not all agree, or the test shows nothing"
    )
    np.testing.assert_array_equal(svm.cost, np.array(costs)[slow.argmax(axis=1)])
    number = make_folds(labels).number
    for c, cost in enumerate(svm.cost):
        held_out = slow_scores(features, labels[:, c], number, cost, weight)
        np.testing.assert_allclose(
            svm.ap[c], average_precision(labels[:, c], held_out, "area")
        )
    scores = svm.decision_function(features)
    for c, cost in enumerate(svm.cost):
        alone = SVC(C=cost, kernel="precomputed", class_weight=weight)
        alone.fit(features @ features.T, labels[:, c])
        np.testing.assert_allclose(
            scores[:, c], alone.decision_function(features @ features.T), atol=1e-9
        )


def test_a_shared_cost_has_the_best_mean_over_the_classes(rng):
    features, labels = overlapping(rng)
    costs = SEARCHES["cv-shared"].costs
    best = slow_search(features, labels, costs).mean(axis=0).argmax()
    assert train_svm(features, labels, C="cv-shared").cost.tolist() == [costs[best]] * 3


def test_folds_have_only_what_is_kept_where_difficult_examples_are_ignored(rng):
    features, labels = overlapping(rng)
    hidden = rng.random(len(labels)) < 0.3
    marked = labels.copy()
    marked[hidden, 1] = 0
    svm = train_svm(features, marked, C="cv", difficult="ignore")
    number = make_folds(marked).number[~hidden]
    held_out = slow_scores(features[~hidden], labels[~hidden, 1], number, svm.cost[1])
    expected = average_precision(labels[~hidden, 1], held_out, "area")
    np.testing.assert_allclose(svm.ap[1], expected)
    assert not svm.dual[hidden, 1].any()


@pytest.mark.parametrize("weight", ["balanced", 3.0])
def test_class_weights_are_scikit_learns(rng, weight):
    features, labels = overlapping(rng, classes=1)
    K = features @ features.T
    theirs = weight if weight == "balanced" else {1: weight, -1: 1}
    slow = SVC(kernel="precomputed", class_weight=theirs).fit(K, labels[:, 0])
    scores = train_svm(features, labels, class_weight=weight).decision_function(
        features
    )
    np.testing.assert_allclose(scores[:, 0], slow.decision_function(K), atol=1e-9)


def test_probabilities_are_a_sigmoid_fitted_to_scores_of_held_out_images(rng):
    features, labels = overlapping(rng, classes=1)
    svm = train_svm(features, labels, calibrated=True)
    held_out = slow_scores(features, labels[:, 0], make_folds(labels).number)
    expected = platt(held_out, labels[:, 0])
    np.testing.assert_allclose(svm.calibration[:, 0], expected, rtol=1e-6)
    scores = svm.decision_function(features)
    by_hand = 1 / (1 + np.exp(-expected[0] * scores - expected[1]))
    np.testing.assert_allclose(svm.probabilities(features), by_hand, rtol=1e-6)


def test_platt_is_the_logistic_regression_on_smoothed_targets(rng):
    target = np.where(rng.random(200) < 0.3, 1, -1)
    scores = 50 * target + 100 * rng.normal(size=200) - 30  # far from unit size
    p, q = (target == 1).sum(), (target == -1).sum()
    # a smoothed target is a positive and a negative example that share its weight
    wanted = np.where(target == 1, (p + 1) / (p + 2), 1 / (q + 2))
    slow = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(
        np.tile(scores, 2)[:, None] / 100,
        np.repeat([1, -1], 200),
        sample_weight=np.concatenate([wanted, 1 - wanted]),
    )
    slope, offset = platt(scores, target)
    np.testing.assert_allclose(slope, slow.coef_[0, 0] / 100, rtol=1e-4)
    np.testing.assert_allclose(offset, slow.intercept_[0], rtol=1e-4)


def test_probabilities_never_turn_the_order_of_scores_around(rng):
    target = np.where(rng.random(50) < 0.5, 1, -1)
    slope, offset = platt(-target + 0.1 * rng.normal(size=50), target)
    assert slope == 0
    np.testing.assert_allclose(
        1 / (1 + np.exp(-offset)), (target == 1).mean(), atol=0.02
    )


def test_classes_with_few_examples_still_get_a_cost_and_a_probability(rng):
    features, labels = overlapping(rng, n=30, classes=4)
    labels[:, 0] = -1
    labels[:, 1] = 1
    labels[:, 2] = np.where(np.arange(30) == 3, 1, -1)
    svm = train_svm(features, labels, C="cv", calibrated=True)
    assert svm.trained.tolist() == [False, False, True, True]
    assert svm.cost[:3].tolist() == [1.0, 1.0, 1.0]
    assert np.isnan(svm.ap[:3]).all()
    assert not np.isnan(svm.ap[3])
    probabilities = svm.probabilities(features)
    np.testing.assert_allclose(probabilities[:, 0], 1 / 32)  # none of 30, smoothed
    np.testing.assert_allclose(probabilities[:, 1], 31 / 32)
    assert probabilities[:, 2].argmax() == 3


def test_the_same_seed_gives_the_same_machines_with_any_number_of_threads(rng):
    features, labels = overlapping(rng)
    one = train_svm(features, labels, C="cv", calibrated=True, n_jobs=1)
    many = train_svm(features, labels, C="cv", calibrated=True, n_jobs=4)
    np.testing.assert_array_equal(one.dual, many.dual)
    np.testing.assert_array_equal(one.calibration, many.calibration)


def test_probabilities_must_be_asked_for(rng):
    features, labels = overlapping(rng)
    with pytest.raises(OptionError, match="calibrated=True"):
        train_svm(features, labels).probabilities(features)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"C": "vissel"}, "did you mean vissl"),
        ({"C": float("nan")}, "positive number"),
        ({"class_weight": "equal"}, "'balanced'"),
        ({"class_weight": -1.0}, "positive number"),
    ],
)
def test_unknown_costs_and_weights_are_refused(rng, options, words):
    features, labels = overlapping(rng)
    with pytest.raises(OptionError, match=words):
        train_svm(features, labels, **options)


@pytest.mark.parametrize("train", [train_svm, train_linear])
def test_labels_of_0_and_1_are_refused_unless_0_is_absent(train, rng):
    x, labels = rng.normal(size=(8, 3)), np.eye(8, 2, dtype=int)
    with pytest.raises(FeatureError, match="-1 for absent"):
        train(x, labels)
    signed = train(x, np.where(labels > 0, 1, -1)).decision_function(x)
    negative = train(x, labels, difficult="negative").decision_function(x)
    np.testing.assert_array_equal(negative, signed)


def test_lists_are_compared_as_arrays():
    assert gram([[1, 0], [0.5, 1]]).tolist() == [[1, 0.5], [0.5, 1.25]]


def test_threads_are_as_many_as_have_room_for_their_part_of_the_matrix(
    rng, monkeypatch
):
    asked = []
    parallel = joblib.Parallel
    monkeypatch.setattr(
        joblib, "Parallel", lambda **of: asked.append(of["n_jobs"]) or parallel(**of)
    )
    monkeypatch.setattr(classify.os, "cpu_count", lambda: 64)
    x, labels = rng.normal(size=(30, 3)), np.where(np.arange(30)[:, None] % 2, 1, -1)
    found = []
    for matrices in (0.5, 6.5, 1000):
        monkeypatch.setattr(classify, "memory", lambda m=matrices: int(m * 30 * 30 * 8))
        found.append(train_svm(x, labels, calibrated=True).dual)
    assert asked == [1, 2, 64]
    np.testing.assert_array_equal(found[0], found[2])


def copies_with_random_labels(seed, photos=60, copies=4):
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(photos, 40)), copies, axis=0)
    labels = np.where(np.repeat(rng.random(photos) < 0.4, copies), 1, -1)[:, None]
    return x / np.linalg.norm(x, axis=1, keepdims=True), labels


def chance(labels, copies=4):
    """AP of scores that have nothing to do with the labels, the same for all copies of a photo."""
    rng = np.random.default_rng(0)
    scores = [np.repeat(rng.random(len(labels) // copies), copies) for _ in range(40)]
    return np.mean([average_precision(labels[:, 0], one, "area") for one in scores])


def test_copies_do_not_raise_the_cross_validated_ap_of_random_labels():
    """Without groups the classifier knows the label of every held-out image."""
    gains, leaks = [], []
    for seed in range(1000, 1012):
        x, labels = copies_with_random_labels(seed)
        grouped = train_svm(
            x, labels, calibrated=True, groups=np.repeat(np.arange(60), 4)
        )
        gains.append(grouped.ap[0] - chance(labels))
        leaks.append(train_svm(x, labels, calibrated=True).ap[0] - chance(labels))
    assert abs(np.mean(gains)) < 5
    assert np.mean(leaks) > 30


def test_a_class_of_fewer_groups_than_folds_has_no_ap_and_says_why():
    x, labels = copies_with_random_labels(0, photos=6)
    labels[:] = -1
    labels[:8] = 1
    svm = train_svm(
        x, labels, C="cv", calibrated=True, groups=np.repeat(np.arange(6), 4)
    )
    assert np.isnan(svm.ap).all()
    assert svm.cost.tolist() == [1.0]
    assert svm.folds.reason(0).startswith(
        "not measurable: needs 3 different photos with"
    )
    assert ((svm.probabilities(x) > 0) & (svm.probabilities(x) < 1)).all()


def test_a_fold_without_a_positive_image_is_left_out_of_the_search(rng):
    labels = np.where(np.arange(24)[:, None] % 4 == np.arange(4), 1, -1)
    for seed in range(5):  # groups of several classes cannot be spread evenly
        groups = np.random.default_rng(seed).integers(0, 12, 24)
        svm = train_svm(
            rng.normal(size=(24, 5)), labels, "auto", calibrated=True, groups=groups
        )
        assert np.isfinite(svm.ap[svm.folds.measurable]).all()
        assert svm.trained.all()
