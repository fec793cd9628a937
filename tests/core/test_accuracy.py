import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix

from deepfishing.core.accuracy import KEYS, has_one_class, measure_accuracy
from deepfishing.core.statistics import bounded
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
        found = measure_accuracy(labels, scores, CLASSES, resamples=2)
        answer = scores.argmax(axis=1)
        assert found.top1 == pytest.approx(100 * accuracy_score(truth, answer))
        assert found.balanced == pytest.approx(100 * balanced_accuracy_score(truth, answer))
        table = confusion_matrix(truth, answer, labels=range(4))
        for i, name in enumerate(CLASSES):
            for j, taken_for in enumerate(CLASSES):
                assert found.confusion.get(name, {}).get(taken_for, 0) == table[i, j]


def test_intervals_are_the_percentiles_of_the_draws_moved_to_the_figures(rng):
    truth, labels, scores = problem(rng)
    found = measure_accuracy(labels, scores, CLASSES, resamples=50, seed=3)
    drawn, top1, balanced = np.random.default_rng(3), [], []
    right = scores.argmax(axis=1) == truth
    for _ in range(50):
        images = drawn.integers(0, 60, 60)
        top1.append(100 * right[images].mean())
        each = [right[images][truth[images] == c].mean() for c in set(truth[images].tolist())]
        balanced.append(100 * np.mean(each))
    for figure, interval, draws in (
        (found.top1, found.top1_interval, top1),
        (found.balanced, found.balanced_interval, balanced),
    ):
        moved = np.array(draws) + figure - np.mean(draws)
        expected = bounded(tuple(np.percentile(moved, [2.5, 97.5])), figure)
        assert interval == pytest.approx(expected)
        assert interval[0] < figure < interval[1]


def test_a_class_without_a_machine_is_never_the_answer_and_its_images_do_not_count(rng):
    truth, labels, scores = problem(rng)
    scores[:, 1] = 99.0
    found = measure_accuracy(labels, scores, CLASSES, np.array([True, False, True, True]))
    kept = truth != 1
    answer = np.delete(scores, 1, axis=1)[kept].argmax(axis=1)
    assert found.top1 == pytest.approx(100 * np.mean(np.array([0, 2, 3])[answer] == truth[kept]))
    assert "bee" not in found.confusion
    assert not any("bee" in answers for answers in found.confusion.values())
    assert measure_accuracy(labels, scores, CLASSES, np.zeros(4, bool)) is None


def test_a_class_without_a_test_image_may_be_answered_and_is_not_in_the_mean():
    labels = np.array([[1, -1, -1], [1, -1, -1], [-1, 1, -1]])
    scores = np.array([[2.0, 0, 1], [0, 0, 1], [0, 2, 1]])
    found = measure_accuracy(labels, scores, CLASSES[:3], resamples=5)
    assert found.confusion == {"ape": {"ape": 1, "cat": 1}, "bee": {"bee": 1}}
    assert found.balanced == 75.0


def test_a_row_is_plain_json(rng):
    _, labels, scores = problem(rng)
    row = measure_accuracy(labels, scores, CLASSES, resamples=5).as_row()
    assert tuple(row) == KEYS
    assert json.loads(json.dumps(row, allow_nan=False)) == row


@given(st.integers(1, 30), st.integers(1, 4), st.data())
@settings(max_examples=80, deadline=None)
def test_every_accuracy_is_a_percentage_that_its_interval_holds(n, C, data):
    truth = np.array(data.draw(st.lists(st.integers(0, C - 1), min_size=n, max_size=n)))
    answer = np.array(data.draw(st.lists(st.integers(0, C - 1), min_size=n, max_size=n)))
    labels, scores = (np.where(np.arange(C) == v[:, None], 1, -1) for v in (truth, answer))
    found = measure_accuracy(labels, scores, CLASSES[:C], resamples=15)
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
