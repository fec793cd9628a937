"""Stage "evaluation": average precision (AP) in its three definitions, and mAP.

Comes in: the truth of test images (1 present, -1 absent, 0 difficult) and their scores. Goes
out: AP per class and the mean over classes, in percent and not rounded.

All three start from the same precision-recall curve:

- "11point": mean of the best precision at recall >= t, for t = 0, 0.1, ..., 1 (VOC 2007);
- "area": area under the curve after each precision is raised to the best one at the same or
  a higher recall (VOC 2010 and later);
- "sklearn": sum of (R_n - R_(n-1)) P_n, without raising, as scikit-learn defines it.

Two rules where the official devkit leaves the answer to chance. Images with the same score
enter the curve together, in all three, so the order of the images does not matter (the devkit
takes them in the order of its sort). Recall is compared with t in integers, so 3 of 10 found
is a recall of at least 0.3 (in floating point that depends on how 0.3 was computed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfishing.errors import DatasetError, FeatureError, OptionError, did_you_mean

Array = np.ndarray[Any, Any]

METHODS = ("11point", "area", "sklearn")


@dataclass(frozen=True)
class Evaluation:
    """AP of every class and their mean, by each method, in percent.

    Parameters
    ----------
    ap : dict
        {method: {class: AP}}; None for a skipped class.
    map : dict
        {method: mean AP over the classes that were not skipped}; None if all were.
    skipped : tuple of str
        Classes without a positive test example: they have no AP and are not in the mean.
    """

    ap: dict[str, dict[str, float | None]]
    map: dict[str, float | None]
    skipped: tuple[str, ...]


def evaluate(labels: Array, scores: Array, classes: Sequence[str]) -> Evaluation:
    """AP by all three methods, per class and in the mean.

    Parameters
    ----------
    labels : array of shape (n, C)
        1 present, -1 absent, 0 difficult (left out, in its class only).
    scores : array of shape (n, C)
        Higher means more probably present.
    classes : sequence of C names

    Examples
    --------
    >>> labels = np.array([[1, -1], [-1, -1], [1, -1]])
    >>> scores = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> result = evaluate(labels, scores, ["cat", "dog"])
    >>> result.ap["area"]
    {'cat': 83.33333333333333, 'dog': None}
    >>> result.map["area"], result.skipped
    (83.33333333333333, ('dog',))
    """
    labels, scores = np.asarray(labels), np.asarray(scores)
    if labels.ndim != 2 or labels.shape != scores.shape or labels.shape[1] != len(classes):
        raise FeatureError(
            f"labels and scores must both have shape (n, {len(classes)}), one column per class, "
            f"got {labels.shape} and {scores.shape}"
        )
    ap: dict[str, dict[str, float | None]] = {method: {} for method in METHODS}
    for column, name in enumerate(classes):
        positive, ranked = _counts(labels[:, column], scores[:, column])
        for method in METHODS:
            ap[method][name] = _ap(positive, ranked, method) if len(positive) else None
    means: dict[str, float | None] = {}
    for method in METHODS:
        known = [value for value in ap[method].values() if value is not None]
        means[method] = float(np.mean(known)) if known else None
    skipped = tuple(name for name in classes if ap["area"][name] is None)
    return Evaluation(ap, means, skipped)


def average_precision(truth: Array, scores: Array, method: str) -> float:
    """AP of one class, in percent.

    Parameters
    ----------
    truth : array of shape (n,)
        1 present, -1 absent, 0 difficult (left out).
    scores : array of shape (n,)
        Higher means more probably present.
    method : str
        One of `METHODS`.

    Examples
    --------
    >>> truth, scores = np.array([1, -1, 1, 0]), np.array([0.9, 0.8, 0.7, 0.6])
    >>> [round(average_precision(truth, scores, method), 1) for method in METHODS]
    [84.8, 83.3, 83.3]
    """
    if method not in METHODS:
        raise OptionError(
            f"method must be one of {METHODS}, got {method!r}{did_you_mean(method, METHODS)}"
        )
    return _ap(*_some_counts(truth, scores), method)


def precision_recall(truth: Array, scores: Array) -> tuple[Array, Array]:
    """Precision and recall (0..1) after each distinct score, from the highest score down.

    Examples
    --------
    >>> precision, recall = precision_recall(np.array([1, -1, 1]), np.array([0.9, 0.8, 0.7]))
    >>> precision.round(2), recall
    (array([1.  , 0.5 , 0.67]), array([0.5, 0.5, 1. ]))
    """
    positive, ranked = _some_counts(truth, scores)
    return positive / ranked, positive / positive[-1]


def _some_counts(truth: Array, scores: Array) -> tuple[Array, Array]:
    positive, ranked = _counts(np.asarray(truth), np.asarray(scores))
    if not len(positive):
        raise DatasetError(
            f"average precision needs an image that shows the class, got none of {len(truth)}; "
            "leave the class out of the mean"
        )
    return positive, ranked


def _counts(truth: Array, scores: Array) -> tuple[Array, Array]:
    """Positives, and all images, whose score is at least s: for each distinct s, descending.

    Empty without a positive image.
    """
    if truth.ndim != 1 or truth.shape != scores.shape:
        raise FeatureError(
            f"truth and scores must have the same shape (n,), got {truth.shape} and {scores.shape}"
        )
    scores = scores.astype(np.float64)
    if not np.isin(truth, (-1, 0, 1)).all():
        raise DatasetError(
            f"truth must be 1, -1 or 0, got {sorted(set(truth.tolist()) - {-1, 0, 1})[:5]}"
        )
    if not np.isfinite(scores).all():
        raise FeatureError(
            f"scores must be finite, got {int((~np.isfinite(scores)).sum())} NaN or infinite "
            f"of {len(scores)}"
        )
    truth, scores = truth[truth != 0], scores[truth != 0]
    if not (truth == 1).any():
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    order = np.argsort(-scores, kind="stable")
    last_of_its_score = np.append(np.diff(scores[order]) != 0, True)
    ranked = np.flatnonzero(last_of_its_score) + 1
    return np.cumsum(truth[order] == 1)[ranked - 1], ranked


def _ap(positive: Array, ranked: Array, method: str) -> float:
    precision = positive / ranked
    best = np.maximum.accumulate(precision[::-1])[::-1]  # at the same or a higher recall
    total = positive[-1]
    if method == "11point":
        # the first point with recall >= j / 10; the last point has recall 1
        at = np.searchsorted(10 * positive, np.arange(11) * total)
        return float(100.0 * best[at].mean())
    gained = np.diff(positive, prepend=0) / total
    return float(100.0 * (gained * (best if method == "area" else precision)).sum())
