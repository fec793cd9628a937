"""Scores for a collection from a handful of labels."""

import numpy as np
import pytest

from deepfishing.errors import FeatureError
from deepfishing.learn.few_labels import RIDGE, FewLabels


@pytest.fixture
def collection():
    rng = np.random.default_rng(3)
    truth = np.arange(300) % 3
    x = rng.normal(size=(3, 16))[truth] + 1.2 * rng.normal(size=(300, 16))
    return x, truth


def test_unlabelled_photos_help(collection):
    """One label per class is right more often than with the embeddings alone."""
    x, truth = collection
    prepared, unit = FewLabels.prepare(x), x / np.linalg.norm(x, axis=1, keepdims=True)
    plain = FewLabels(unit)
    shares = []
    for draw in range(10):
        rows = [3 * draw, 3 * draw + 1, 3 * draw + 2]
        guesses = [
            one.fit(rows, truth[rows]).scores.argmax(axis=1)
            for one in (prepared, plain)
        ]
        shares.append([(guess == truth).mean() for guess in guesses])
    with_pool, without = np.mean(shares, axis=0)
    assert with_pool > without + 0.05


def test_leave_one_out_is_training_without_each_photo(collection):
    x, truth = collection
    prepared, rows = FewLabels.prepare(x), np.arange(24)
    right = 0
    for row in rows:
        others = rows[rows != row]
        v = prepared.vectors[others].astype(float)
        target = np.where(truth[others, None] == np.arange(3), 1.0, -1.0)
        dual = np.linalg.solve(v @ v.T + 1 + RIDGE * np.eye(len(v)), target)
        right += ((v @ prepared.vectors[row] + 1) @ dual).argmax() == truth[row]
    guess = prepared.fit(rows, truth[rows])
    assert guess.accuracy == pytest.approx(100 * right / 24)
    assert 0 <= guess.interval[0] < guess.accuracy <= guess.interval[1] <= 100


def test_one_label_per_class_has_scores_but_no_accuracy(collection):
    guess = FewLabels.prepare(collection[0]).fit([0, 1, 2], [0, 1, 2])
    assert guess.accuracy is None
    assert guess.scores.shape == (300, 3)


@pytest.mark.parametrize(
    ("rows", "classes"), [([], []), ([0, 1], [0]), ([300], [0]), ([0], [-1])]
)
def test_labels_of_no_photo_are_refused(collection, rows, classes):
    with pytest.raises(FeatureError, match="must be"):
        FewLabels(collection[0]).fit(rows, classes)
