"""Search by examples: share of the first ten photos that show the class.

The training images are searched with test images: with one example, two and three, and with two
and a counter-example.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepfishing.core.kernels import UNLIKE, Comparable, gram
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Recipe
from deepfishing.core.statistics import SEED, mean_interval
from deepfishing.errors import DatasetError
from deepfishing.evaluation.experiment import Experiment
from deepfishing.evaluation.protocols.low_shot import check_both_labels
from deepfishing.evaluation.protocols.points import Run
from deepfishing.evaluation.record import Result, point

# draws of examples to search by, and photos that are looked at
SEARCHES, FIRST = 1200, 10
SEARCH_BLOCK = 100  # searches at once, which bounds the memory

EXAMPLES = "examples"
SHOWN = "right in the first ten, %"
WITH_COUNTER_EXAMPLE = "with a counter-example, %"
# number of examples and axis of each figure of `search_by_examples`
FIGURES = ((1, SHOWN), (2, SHOWN), (3, SHOWN), (2, WITH_COUNTER_EXAMPLE))


def search_by_examples(
    features: Comparable,
    labels: Array,
    queries: Comparable,
    query_labels: Array,
    draws: int = SEARCHES,
    first: int = FIRST,
    seed: int = SEED,
) -> Array:
    """Return the share of the first photos that show the class, in percent, (draws, 4).

    A collection is searched with photos that it does not have: with one example, two, three, and
    two with a counter-example, the first photo of the search by the two that does not show the
    class, which somebody would mark as wrong; it counts as in `deepfish search`, and is not found
    again. Photos for which the class is difficult are passed over. Every class that three queries
    show, and that some photos of the collection show and some do not, is drawn equally often.
    """
    labels, query_labels = check_both_labels(
        labels, len(features), query_labels, len(queries)
    )
    classes = np.resize(_usable_classes(labels, query_labels), draws)
    examples = np.empty((draws, 3), dtype=np.intp)
    for draw, column in enumerate(classes):
        positives = np.flatnonzero(query_labels[:, column] == 1)
        examples[draw] = np.random.default_rng((seed, draw)).permutation(positives)[:3]
    shares = np.empty((draws, len(FIGURES)))
    for start in range(0, draws, SEARCH_BLOCK):
        block = slice(start, start + SEARCH_BLOCK)
        truth = labels[:, classes[block]].T
        shares[block] = _shares(features, truth, queries, examples[block], first)
    return shares


def search_runs(
    experiment: Experiment, recipes: Sequence[Recipe], largest: int
) -> list[Run]:
    """Return one run per feature."""

    def measure(recipe: Recipe) -> list[Result]:
        train, test = experiment.sides(recipe)
        labels = experiment.train_labels(), experiment.test_labels()
        shares = search_by_examples(train, labels[0], test, labels[1])
        points = []
        for (n_examples, y_axis), draws in zip(FIGURES, shares.T, strict=True):
            mean, interval = float(draws.mean()), mean_interval(draws.tolist())
            rounded = draws.round(3).tolist()
            points.append(
                point(EXAMPLES, n_examples, y_axis, mean, interval, draws=rounded)
            )
        return points

    decided_by = {"unlike": UNLIKE, "searched": "training"}
    return [Run.of_recipe(recipe, measure, **decided_by) for recipe in recipes]


def _usable_classes(labels: Array, query_labels: Array) -> list[int]:
    """Return the classes that three queries show, and that a photo shows and another does not."""
    usable = []
    for column in range(labels.shape[1]):
        n_shown = int((query_labels[:, column] == 1).sum())
        if n_shown > 2 and {1, -1} <= set(labels[:, column].tolist()):
            usable.append(column)
    if not usable:
        raise DatasetError(
            "search by examples needs a class that three test images show, and a training image "
            "with and one without it, got none"
        )
    return usable


def _shares(
    features: Comparable, truth: Array, queries: Comparable, examples: Array, first: int
) -> Array:
    """Return the shares (d, 4) of d draws: labels (d, n) of their classes, examples (d, 3)."""
    d = len(examples)
    # similarity of each photo to each example of a draw, (d, 3, n)
    K = gram(features, queries[examples.ravel()]).T.reshape(d, 3, -1)
    by_one, by_two, by_three = (K[:, :count].mean(axis=1) for count in (1, 2, 3))
    for scores in (by_one, by_two, by_three):
        scores[truth == 0] = -np.inf
    wrong = np.where(truth == -1, by_two, -np.inf).argmax(axis=1)
    corrected = by_two - UNLIKE * gram(features, features[wrong]).T
    corrected[np.arange(d), wrong] = -np.inf
    shares = [
        _share(truth, scores, first) for scores in (by_one, by_two, by_three, corrected)
    ]
    return np.stack(shares, axis=1)


def _share(truth: Array, scores: Array, first: int) -> Array:
    """Return the percent of the first photos, or of all if they are fewer, that show the class."""
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :first]
    is_photo = np.take_along_axis(scores, nearest, axis=1) > -np.inf
    right = (np.take_along_axis(truth, nearest, axis=1) == 1) & is_photo
    share: Array = 100.0 * right.sum(axis=1) / is_photo.sum(axis=1)
    return share
