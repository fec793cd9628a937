from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from deepfishing.core.kernels import KernelSum
from deepfishing.core.metrics import DEFINITIONS, evaluate
from deepfishing.core.rank_one import l2_normalize
from deepfishing.core.statistics import bootstrap
from deepfishing.errors import DatasetError, FeatureError, OptionError
from deepfishing.evaluation.protocols.low_shot import LowShot, label_photos, low_shot
from deepfishing.evaluation.protocols.neighbours import nearest_neighbours
from deepfishing.evaluation.protocols.table import reproduce
from deepfishing.evaluation.results import Results


@pytest.fixture
def problem(rng):
    """Features that know three classes a little: 60 images to train, 80 to test."""
    labels = rng.choice([-1, 0, 1], p=[0.6, 0.1, 0.3], size=(140, 3))
    x = l2_normalize(
        labels @ rng.normal(size=(3, 12)) + 3.0 * rng.normal(size=(140, 12))
    )
    return x[:60], labels[:60], x[60:], labels[60:]


def test_low_shot_is_machines_trained_on_the_examples_drawn(problem):
    train, labels, test, truth = problem
    point = low_shot(*problem, positives=[3, 8], draws=2, negatives=4, C=2.0, seed=9)[0]
    for draw in range(2):
        scores = np.empty(truth.shape)
        for c in range(3):
            rng = np.random.default_rng((9, draw, c))
            positive = rng.permutation(np.flatnonzero(labels[:, c] == 1))[:3]
            negative = rng.permutation(np.flatnonzero(labels[:, c] == -1))[:12]
            seen = np.concatenate([positive, negative])
            svm = SVC(C=2.0, kernel="linear").fit(train[seen], labels[seen, c])
            scores[:, c] = svm.decision_function(test)
        expected = evaluate(truth, scores, "abc").map
        for method in DEFINITIONS:
            assert point.map[method][draw] == pytest.approx(expected[method], abs=0.5)


def test_all_negatives_and_all_positives_are_the_whole_training_set(problem):
    train, labels, test, truth = problem
    labels = np.where(labels == 1, 1, -1)
    labels[:, 1:] = labels[:, :1]  # as many positives in each
    n = int((labels[:, 0] == 1).sum())
    (point,) = low_shot(train, labels, test, truth, [n], draws=1, negatives=None)
    svm = SVC(kernel="linear").fit(train, labels[:, 0])
    scores = np.repeat(svm.decision_function(test)[:, None], 3, axis=1)
    assert point.mean("area") == pytest.approx(
        evaluate(truth, scores, "abc").map["area"], abs=0.2
    )
    assert point.interval("area") is None


def test_more_positives_help_and_the_curve_goes_up_to_the_rarest_class(problem):
    points = low_shot(*problem, draws=8)
    rarest = (problem[1] == 1).sum(axis=0).min()
    shots = [point.positives for point in points]
    assert shots == [1, 2, 4, 8, 16][: len(shots)]
    assert shots[-1] <= rarest < 2 * shots[-1]
    assert points[-1].mean("area") > points[0].mean("area") + 5


def test_draws_depend_on_labels_and_seed_and_not_on_the_feature(problem):
    train, labels, test, truth = problem
    first = low_shot(train, labels, test, truth, [4])
    assert low_shot(train, labels, test, truth, [2, 4])[1] == first[0]
    turned = KernelSum((train[:, ::-1], train)), KernelSum((test[:, ::-1], test))
    assert low_shot(turned[0], labels, turned[1], truth, [4])[0].mean(
        "area"
    ) == pytest.approx(first[0].mean("area"))
    assert low_shot(train, labels, test, truth, [4], seed=1) != first


def test_labelled_photos_train_machines_that_see_all_their_labels_and_nothing_else(
    problem,
):
    train, labels, test, truth = problem
    (point,) = label_photos(*problem, photos=[4], draws=2, C=2.0, seed=9)
    for draw in range(2):
        drawn = set()
        for c in range(3):
            rng = np.random.default_rng((9, draw, c))
            drawn |= set(
                rng.permutation(np.flatnonzero(labels[:, c] == 1))[:4].tolist()
            )
        seen = np.array(sorted(drawn))
        scores = np.empty(truth.shape)
        for c in range(3):
            known = seen[labels[seen, c] != 0]
            svm = SVC(C=2.0, kernel="linear").fit(train[known], labels[known, c])
            scores[:, c] = svm.decision_function(test)
        expected = evaluate(truth, scores, "abc").map
        for method in DEFINITIONS:
            assert point.map[method][draw] == pytest.approx(expected[method], abs=0.5)
    # photos with several classes have none
    assert point.accuracy == point.balanced == ()


def test_labelled_photos_have_accuracies_where_each_shows_one_class(rng):
    y = rng.choice(3, p=[0.6, 0.2, 0.2], size=160)
    x = l2_normalize(np.eye(3)[y] @ rng.normal(size=(3, 8)) + rng.normal(size=(160, 8)))
    labels = np.where(np.eye(3)[y] == 1, 1, -1)
    (point,) = label_photos(
        x[:80], labels[:80], x[80:], labels[80:], photos=[3], draws=3
    )
    for draw in range(3):
        seen = []
        for c in range(3):
            shown = np.flatnonzero(y[:80] == c)
            seen += np.random.default_rng((0, draw, c)).permutation(shown)[:3].tolist()
        scores = np.empty((80, 3))
        for c in range(3):
            svm = SVC(kernel="linear").fit(x[seen], labels[seen, c])
            scores[:, c] = svm.decision_function(x[80:])
        right = scores.argmax(axis=1) == y[80:]
        by_class = [right[y[80:] == c].mean() for c in range(3)]
        assert point.accuracy[draw] == pytest.approx(100 * right.mean(), abs=2)
        assert point.balanced[draw] == pytest.approx(100 * np.mean(by_class), abs=3)


def test_features_may_be_chosen_by_the_labels_that_were_drawn_in_both_forms(problem):
    train, labels, test, _ = problem
    seen = []

    def pick(told):
        seen.append(told)
        return train, test, 1.0

    fixed = label_photos(*problem, photos=[2], draws=2)
    assert label_photos(*problem, photos=[2], draws=2, pick=pick) == fixed
    for told in seen:
        drawn = told.any(axis=1)
        np.testing.assert_array_equal(told[drawn], labels[drawn])
        assert drawn.sum() <= 6
    assert low_shot(*problem, [2], draws=2, pick=pick) == low_shot(
        *problem, [2], draws=2
    )


def test_a_class_that_all_drawn_photos_show_has_no_part_in_the_mean(rng):
    labels = np.array([[1, 1, -1], [-1, 1, 1], [-1, -1, -1]])
    truth = np.array([[1, 1, -1], [-1, -1, 1]])
    x = l2_normalize(rng.normal(size=(5, 4)))
    (point,) = label_photos(x[:3], labels, x[3:], truth, photos=[1], draws=1)
    scores = np.stack(
        [x[3:] @ (x[0] - x[1]), np.zeros(2), x[3:] @ (x[1] - x[0])], axis=1
    )
    expected = evaluate(np.where([True, False, True], truth, -1), scores, "abc").map[
        "area"
    ]
    assert point.map["area"] == (pytest.approx(expected),)


def test_trace_kernels_are_used_for_gradients(random_rank_one, rng):
    train, test = random_rank_one(30), random_rank_one(20)
    labels, truth = rng.choice([-1, 1], size=(30, 2)), rng.choice([-1, 1], size=(20, 2))
    flat = [side.dense().reshape(len(side), -1) for side in (train, test)]
    got = low_shot(train, labels, test, truth, [2, 5])
    slow = low_shot(flat[0], labels, flat[1], truth, [2, 5])
    for a, b in zip(got, slow, strict=True):
        assert a.map["area"] == pytest.approx(b.map["area"], abs=1)


def test_the_interval_of_a_point_is_students():
    values = (50.0, 53.0, 52.0, 49.0)
    low, high = LowShot(1, {"area": values}).interval("area")
    # the table's value for 3 degrees of freedom
    half = 3.182446 * np.std(values, ddof=1) / 2
    assert (low, high) == pytest.approx((51 - half, 51 + half), abs=1e-5)


def test_classes_that_cannot_be_learned_are_left_out(problem):
    train, labels, test, truth = problem
    labels = np.concatenate([labels, -np.ones((60, 1), int)], axis=1)
    both = np.concatenate([truth, np.ones((80, 1), int)], axis=1)
    assert low_shot(train, labels, test, both, [2]) == low_shot(*problem, [2])
    with pytest.raises(DatasetError, match="got none"):
        low_shot(train, labels[:, 3:], test, both[:, 3:])


@pytest.mark.parametrize("k", [1, 4, 7])
def test_neighbours_are_those_of_scikit_learn_where_each_image_has_one_class(rng, k):
    y = rng.integers(0, 4, size=150)
    x = l2_normalize(
        np.eye(4)[y] @ rng.normal(size=(4, 6)) + 1.5 * rng.normal(size=(150, 6))
    )
    labels = np.where(np.eye(4)[y] == 1, 1, -1)
    (found,) = nearest_neighbours(x[:90], labels[:90], x[90:], labels[90:], "abcd", [k])
    slow = KNeighborsClassifier(k, metric="cosine").fit(x[:90], y[:90])
    share = slow.predict_proba(x[90:])
    np.testing.assert_array_equal(
        (found.scores // 1).astype(int), (k * share).round().astype(int)
    )
    if k == 1:
        assert found.accuracy == pytest.approx(100 * slow.score(x[90:], y[90:]))
    assert found.measured == evaluate(labels[90:], found.scores, "abcd")
    assert found.draws.map_interval("area") == bootstrap(
        labels[90:], found.scores, "abcd"
    ).map_interval("area")


def test_equal_votes_go_to_the_nearer_neighbours():
    train = l2_normalize(
        np.array([[1.0, 0.1], [1.0, 0.3], [1.0, 0.35], [1.0, 0.2], [-1.0, 0.0]])
    )
    labels = np.array([[-1, 1], [1, -1], [1, -1], [-1, 1], [1, -1]])
    test, truth = np.array([[1.0, 0.0]]), np.array([[-1, 1]])
    assert nearest_neighbours(train, labels, test, truth, "ab", [4])[0].accuracy == 100
    assert nearest_neighbours(train, labels, test, -truth, "ab", [4])[0].accuracy == 0
    assert nearest_neighbours(train, labels, test, truth, "ab", [5])[0].accuracy == 0


def test_accuracy_counts_images_that_show_something_and_get_a_vote_that_is_not_difficult():
    x = np.eye(4)
    labels = np.array([[1, -1], [-1, 1], [-1, 1], [-1, -1]])
    truth = np.array([[1, 1], [1, -1], [1, 0], [1, -1]])
    # right, wrong, difficult, and a neighbour that shows nothing
    (found,) = nearest_neighbours(x, labels, x, truth, "ab", [1])
    assert found.accuracy == pytest.approx(100 / 3)
    nothing = np.vstack([truth[:1], [[-1, -1]]])
    assert nearest_neighbours(x, labels, x[:2], nothing, "ab", [1])[0].accuracy == 100


def test_blocks_of_test_images_give_the_same_votes(problem, monkeypatch):
    (whole,) = nearest_neighbours(*problem, "abc", [5])
    monkeypatch.setattr("deepfishing.evaluation.protocols.neighbours.SCORE_BLOCK", 7)
    np.testing.assert_array_equal(
        nearest_neighbours(*problem, "abc", [5])[0].scores, whole.scores
    )


def test_several_k_are_each_k_alone(problem):
    found = nearest_neighbours(*problem, "abc", (1, 4, 9))
    for k, votes in zip((1, 4, 9), found, strict=True):
        (alone,) = nearest_neighbours(*problem, "abc", [k])
        assert (votes.k, votes.accuracy, votes.interval) == (
            k,
            alone.accuracy,
            alone.interval,
        )
        np.testing.assert_array_equal(votes.scores, alone.scores)


def test_the_interval_of_accuracy_is_wilsons(problem):
    train, labels, test, truth = problem
    truth = np.where(truth == 0, -1, truth)
    truth[:, 0] = 1  # every image counts
    truth[:40, 0] = -1
    truth[:40, 2] = 1
    (found,) = nearest_neighbours(train, labels, test, truth, "abc", [5])
    top = found.scores.argmax(axis=1)
    right = truth[np.arange(80), top] == 1
    assert found.accuracy == 100 * right.mean()
    expected = binomtest(int(right.sum()), 80).proportion_ci(method="wilson")
    np.testing.assert_allclose(
        found.interval, (100 * expected.low, 100 * expected.high)
    )


def test_wrong_input_is_one_clear_error(problem):
    train, labels, test, truth = problem
    rarest = (labels == 1).sum(axis=0).min()
    with pytest.raises(OptionError, match=rf"from 1 to {rarest}.*got \[1, 60\]"):
        low_shot(*problem, [1, 60])
    with pytest.raises(OptionError, match="draws must be at least 1, got 0"):
        low_shot(*problem, draws=0)
    with pytest.raises(OptionError, match=r"C must be a positive number, got -1"):
        low_shot(*problem, C=-1)
    with pytest.raises(
        OptionError, match="k must be from 1 to 60, the training images, got 61"
    ):
        nearest_neighbours(*problem, "abc", [61])
    with pytest.raises(FeatureError, match=r"train labels must be \(60, n_classes\)"):
        low_shot(train, labels[:9], test, truth)
    with pytest.raises(FeatureError, match="got 3 and 2 columns"):
        nearest_neighbours(train, labels, test, truth[:, :2], "ab")
    with pytest.raises(FeatureError, match="NaN"):
        low_shot(train * np.nan, labels, test, truth)
    with pytest.raises(FeatureError, match="NaN"):
        nearest_neighbours(train * np.nan, labels, test, truth, "abc")
    with pytest.raises(DatasetError, match="a test image that shows a class"):
        nearest_neighbours(train, labels, test, -np.ones((80, 3), int), "abc")


def test_a_measured_row_has_the_intervals_of_its_scores(dataset, network, tmp_path):
    wrong = dataset.test.labels.copy()
    wrong[:4] *= -1  # or every class would have an AP of 100
    dataset = replace(dataset, test=replace(dataset.test, labels=wrong))
    (row,) = reproduce(dataset, network, tmp_path, "dW7")
    scores, labels, _ = Results(tmp_path).scores(row)
    expected = bootstrap(labels, scores, dataset.classes).as_row()
    assert {key: row[key] for key in expected} == expected
    low, high = row["map_interval"]["area"]
    assert low < row["map"]["area"] < high
