import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix

from deepfishing.core.accuracy import KEYS, has_one_class, measure_accuracy
from deepfishing.errors import DatasetError, FeatureError

CLASSES = ("ape", "bee", "cat", "dog")


def problem(rng, n=60, C=4, strength=1.5):
    truth = rng.choice(C, size=n, p=[0.5, 0.3, 0.15, 0.05][:C])
    labels = np.where(np.arange(C) == truth[:, None], 1, -1)
    return truth, labels, strength * (labels == 1) + rng.normal(size=(n, C))


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_figures_and_confusions_are_scikit_learns(rng):
    for _ in range(20):
        truth, labels, scores = problem(rng)
        found = measure_accuracy(labels, scores, CLASSES)
        answer = scores.argmax(axis=1)
        assert found.top1 == pytest.approx(100 * accuracy_score(truth, answer))
        assert found.balanced == pytest.approx(
            100 * balanced_accuracy_score(truth, answer)
        )
        table = confusion_matrix(truth, answer, labels=range(4))
        for i, name in enumerate(CLASSES):
            for j, taken_for in enumerate(CLASSES):
                assert found.confusion.get(name, {}).get(taken_for, 0) == table[i, j]


def simulated_coverage(accuracies, per_class, copies=1, tests=400):
    """How often intervals hold the true figures, over test sets drawn with these accuracies."""
    rng = np.random.default_rng(0)
    C = len(accuracies)
    truth = np.repeat(np.repeat(np.arange(C), per_class), copies)
    groups = np.repeat(np.arange(C * per_class), copies)
    labels = np.where(truth[:, None] == np.arange(C), 1, -1)
    # classes have as many images, so both figures are the same
    true = 100 * np.mean(accuracies)
    covered = np.zeros(2)
    for _ in range(tests):
        right = rng.random(C * per_class) < np.repeat(accuracies, per_class)
        answer = np.where(right[groups], truth, (truth + 1) % C)
        scores = np.eye(C)[answer]
        found = measure_accuracy(labels, scores, CLASSES[:C], groups=groups)
        for number, (low, high) in enumerate(
            (found.top1_interval, found.balanced_interval)
        ):
            covered[number] += low <= true <= high
    return covered / tests


def test_intervals_cover_where_nearly_all_answers_are_right():
    """The bootstrap covers 0.26 of such test sets: it has no width where all answers are right."""
    top1, balanced = simulated_coverage([0.99, 0.99, 0.99], per_class=10)
    assert 0.92 <= top1 <= 1.0
    assert 0.92 <= balanced <= 1.0


def test_intervals_cover_where_classes_differ():
    top1, balanced = simulated_coverage([0.95, 0.7, 0.5, 0.8], per_class=25)
    assert 0.92 <= top1 <= 0.99
    assert 0.92 <= balanced <= 0.99


def test_copies_of_a_test_photo_do_not_make_intervals_narrower():
    top1, balanced = simulated_coverage([0.8, 0.6], per_class=25, copies=5)
    assert 0.92 <= top1 <= 0.99
    assert 0.92 <= balanced <= 0.99


def test_a_class_without_a_machine_is_never_the_answer_and_its_images_do_not_count(rng):
    truth, labels, scores = problem(rng)
    scores[:, 1] = 99.0
    found = measure_accuracy(
        labels, scores, CLASSES, np.array([True, False, True, True])
    )
    kept = truth != 1
    answer = np.delete(scores, 1, axis=1)[kept].argmax(axis=1)
    assert found.top1 == pytest.approx(
        100 * np.mean(np.array([0, 2, 3])[answer] == truth[kept])
    )
    assert "bee" not in found.confusion
    assert not any("bee" in answers for answers in found.confusion.values())
    assert measure_accuracy(labels, scores, CLASSES, np.zeros(4, bool)) is None


def test_a_class_without_a_test_image_may_be_answered_and_is_not_in_the_mean():
    labels = np.array([[1, -1, -1], [1, -1, -1], [-1, 1, -1]])
    scores = np.array([[2.0, 0, 1], [0, 0, 1], [0, 2, 1]])
    found = measure_accuracy(labels, scores, CLASSES[:3])
    assert found.confusion == {"ape": {"ape": 1, "cat": 1}, "bee": {"bee": 1}}
    assert found.balanced == 75.0


def test_a_row_is_plain_json(rng):
    _, labels, scores = problem(rng)
    row = measure_accuracy(labels, scores, CLASSES).as_row()
    assert tuple(row) == KEYS
    assert json.loads(json.dumps(row, allow_nan=False)) == row


@given(st.integers(1, 30), st.integers(1, 4), st.data())
@settings(max_examples=80, deadline=None)
def test_every_accuracy_is_a_percentage_that_its_interval_holds(n, C, data):
    truth = np.array(data.draw(st.lists(st.integers(0, C - 1), min_size=n, max_size=n)))
    answer = np.array(
        data.draw(st.lists(st.integers(0, C - 1), min_size=n, max_size=n))
    )
    labels, scores = (
        np.where(np.arange(C) == v[:, None], 1, -1) for v in (truth, answer)
    )
    found = measure_accuracy(labels, scores, CLASSES[:C])
    for figure, (low, high) in (
        (found.top1, found.top1_interval),
        (found.balanced, found.balanced_interval),
    ):
        assert 0 <= low <= figure <= high <= 100
    assert sum(sum(answers.values()) for answers in found.confusion.values()) == n


def test_several_classes_per_image_or_none_have_no_accuracy():
    for labels in ([[1, 1]], [[-1, -1]], [[1, 0]]):
        assert not has_one_class(np.array(labels))
        with pytest.raises(DatasetError, match="one class per image"):
            measure_accuracy(np.array(labels), np.zeros((1, 2)), CLASSES[:2])
    with pytest.raises(FeatureError, match=r"\(n, 2\).*got \(1, 2\) and \(1, 3\)"):
        measure_accuracy(np.array([[1, -1]]), np.zeros((1, 3)), CLASSES[:2])
    with pytest.raises(FeatureError, match="finite"):
        measure_accuracy(np.array([[1, -1]]), np.array([[np.nan, 0]]), CLASSES[:2])
