"""Nearest neighbours: accuracy and mAP of the votes of the k nearest training images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepfishing.core.kernels import Comparable, finite_gram, nearest_columns
from deepfishing.core.metrics import Evaluation
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Recipe
from deepfishing.core.statistics import (
    Bootstrap,
    Interval,
    bootstrap,
    proportion_interval,
)
from deepfishing.errors import DatasetError, OptionError
from deepfishing.evaluation.experiment import Experiment
from deepfishing.evaluation.protocols.low_shot import check_both_labels
from deepfishing.evaluation.protocols.points import Run
from deepfishing.evaluation.record import ACCURACY, Result, map_axis, point
from deepfishing.learn.svm import SCORE_BLOCK

NEIGHBOURS = (1, 5, 10, 20, 50)
K = "neighbours k"


@dataclass(frozen=True, eq=False)
class Votes:
    """Votes of the k nearest training images for each test image.

    `accuracy`, in percent, is the share of test images that show the class with most votes; with
    one class per image that is the usual accuracy. Images that show no class, and those for which
    that class is difficult, are left out.
    """

    k: int
    accuracy: float
    interval: Interval  # of the accuracy, at 95 percent
    scores: Array  # the votes (m, C)
    draws: Bootstrap  # of their AP

    @property
    def measured(self) -> Evaluation:
        """AP per class and mAP."""
        return self.draws.measured


def nearest_neighbours(
    train: Comparable,
    train_labels: Array,
    test: Comparable,
    test_labels: Array,
    classes: Sequence[str],
    ks: Sequence[int] = (10,),
) -> list[Votes]:
    """For each k, mAP and accuracy of the votes of the k training images with the largest kernel.

    Features are normalised: then the largest kernel is the nearest image. An image votes for the
    classes that it shows, not for those where it is difficult.
    """
    train_labels, test_labels = check_both_labels(
        train_labels, len(train), test_labels, len(test)
    )
    for k in ks:
        if not 1 <= k <= len(train):
            raise OptionError(
                f"k must be from 1 to {len(train)}, the training images, got {k}"
            )
    nearest = _nearest(train, test, max(ks))
    has_class = train_labels[nearest] == 1  # (m, max k, C)
    return [_count_votes(has_class[:, :k], test_labels, classes) for k in ks]


def neighbour_runs(
    experiment: Experiment, recipes: Sequence[Recipe], largest: int
) -> list[Run]:
    """Return one run per feature, of every k up to the number of training images."""
    method, classes = experiment.dataset.official_ap, experiment.dataset.classes

    def measure(recipe: Recipe) -> list[Result]:
        train, test = experiment.sides(recipe)
        all_votes = nearest_neighbours(
            train,
            experiment.train_labels(),
            test,
            experiment.test_labels(),
            classes,
            [k for k in NEIGHBOURS if k <= len(train)],
        )
        points = []
        for votes in all_votes:
            points.append(point(K, votes.k, ACCURACY, votes.accuracy, votes.interval))
            mean, interval = (
                votes.measured.map[method],
                votes.draws.map_interval(method),
            )
            points.append(point(K, votes.k, map_axis(method), mean, interval))
        return points

    return [Run.of_recipe(recipe, measure) for recipe in recipes]


def _nearest(train: Comparable, test: Comparable, k: int) -> Array:
    """Return indices (m, k) of the training images with the largest kernel, nearest first."""
    nearest: Array = np.empty((len(test), k), dtype=np.intp)
    for start in range(0, len(test), SCORE_BLOCK):
        rows = slice(start, start + SCORE_BLOCK)
        nearest[rows], _ = nearest_columns(finite_gram(test[rows], train), k)
    return nearest


def _count_votes(has_class: Array, test_labels: Array, classes: Sequence[str]) -> Votes:
    """Count the votes (m, k, C) of the k nearest images."""
    k = has_class.shape[1]
    # A vote is 1; nearer neighbours add so little that all of it together stays below 1, so it
    # only decides between classes with equally many votes.
    weight = 1 + np.arange(k - 1, -1, -1) / (k * k)
    scores: Array = np.einsum("k,mkc->mc", weight, has_class)
    answer = scores.argmax(axis=1)
    answer_label = test_labels[np.arange(len(answer)), answer]
    is_counted = (test_labels == 1).any(axis=1) & (answer_label != 0)
    if not is_counted.any():
        raise DatasetError(
            "nearest neighbours need a test image that shows a class, got none"
        )
    n = int(is_counted.sum())
    is_right = (answer_label == 1) & (scores.max(axis=1) > 0)
    share = float(is_right[is_counted].mean())
    return Votes(
        k=k,
        accuracy=100 * share,
        interval=proportion_interval(share * n, n),
        scores=scores,
        draws=bootstrap(test_labels, scores, classes),
    )
