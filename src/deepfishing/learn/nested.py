"""Figures of classifiers whose recipe or cost was chosen on the same images.

The best of many candidates looks better on the images that it was chosen on than on others; on
labels that are noise it is the luckiest one. So the choice is made again without each fold, and
the images of the fold are scored by classifiers of that choice (nested cross-validation).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from deepfishing.core.metrics import average_precision
from deepfishing.core.rank_one import Array
from deepfishing.learn.auto import MAX_IMAGES
from deepfishing.learn.folds import Folds
from deepfishing.learn.svm import train_svm

if TYPE_CHECKING:
    from deepfishing.learn.training import Task

# images outside a fold on which the choice is made again: as many as outside a fold of all those
# that the choice itself looks at
CHOICE_IMAGES = MAX_IMAGES * 2 // 3


def nested_scores(task: Task, arrays: Mapping[str, Array], folds: Folds) -> Array:
    """Return the scores (n, C) of images for a task whose recipe or cost is still to be chosen."""
    scores = np.zeros(task.labels.shape)
    for train, held in folds:
        scores[held] = _scores_of_fold(task, arrays, train, held)
    return scores


def nested_ap(task: Task, scores: Array, folds: Folds) -> Array:
    """Return the AP (C,) of held-out scores, in percent; NaN where folds cannot measure it."""
    truth = task.counted_labels
    ap = np.full(truth.shape[1], np.nan)
    for column in np.flatnonzero(folds.measurable):
        known = truth[:, column] != 0
        ap[column] = average_precision(
            truth[known, column], scores[known, column], "area"
        )
    return ap


def _scores_of_fold(
    task: Task, arrays: Mapping[str, Array], train: Array, held: Array
) -> Array:
    """Scores (m, C) of the held images by classifiers that were chosen and trained without them."""
    random = np.random.default_rng(task.seed)
    rows = np.sort(random.permutation(train)[:CHOICE_IMAGES])
    chosen = task.decide({name: values[rows] for name, values in arrays.items()}, rows)
    factors = chosen.factors(arrays)
    columns = chosen.parsed.columns
    to_train_on = {name: factors[name][train] for name in columns}
    fitted = chosen.fit(to_train_on)
    svm = train_svm(
        fitted(to_train_on),
        chosen.labels[train],
        chosen.C,
        chosen.difficult,
        class_weight=chosen.class_weight,
        seed=chosen.seed,
        groups=None if chosen.groups is None else chosen.groups[train],
    )
    return svm.decision_function(
        fitted({name: factors[name][held] for name in columns})
    )
