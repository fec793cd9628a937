"""How often a classifier is right for photos without a label, estimated from the labelled ones.

Photos that are labelled first are harder than the others: they were chosen because they are unlike
each other, or because the classifier was unsure. The share of labelled photos that are right when
they are left out is therefore far too low for the rest of a collection.

Here a photo without a label is right with the probability that its margin says, which is how far
its best class is ahead of the second. That probability is fitted on the left-out photos. Each of
them counts as many times as there are photos to which it is the nearest one. Both are the usual
corrections for samples that were not drawn at random. benchmarks/SESSION.md has the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from deepfishing.core.rank_one import Array
from deepfishing.core.statistics import Interval, proportion_interval

SAMPLE = 5000  # photos of a collection that are looked at, evenly spread
BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Expected:
    """The share of photos without a label that is right, in percent, and its interval."""

    accuracy: float
    interval: Interval


def margins(scores: Array) -> Array:
    """Return by how much the first class is above the second one."""
    best = np.partition(scores, -2, axis=1)
    margin: Array = best[:, -1] - best[:, -2]
    return margin


def even_sample(n: int, most: int = SAMPLE) -> Array:
    """Return at most so many of n numbers, evenly spread."""
    return np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)


def stands_for(vectors: Array, rows: Array) -> Array:
    """Return to how many photos (n, m) each of some rows is the nearest one, itself included."""
    among = even_sample(len(vectors))
    chosen = vectors[rows].astype(np.float32)
    nearest = np.empty(len(among), dtype=np.int64)
    for start in range(0, len(among), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        photos = vectors[among[part]].astype(np.float32)
        nearest[part] = (photos @ chosen.T).argmax(axis=1)
    share = len(vectors) / len(among)
    counts: Array = np.bincount(nearest, minlength=len(rows)) * share
    return np.maximum(counts, 1.0)


def fit_chance(
    margin: Array, right: Array, weights: Array | None = None
) -> tuple[float, float]:
    """Fit the probability that the first class is right, given its margin (Platt's method).

    Targets are moved towards one half by one photo of each kind, so that ten right answers of ten
    are not taken for certainty. Return slope and offset of a logistic function.
    """
    weight = np.ones(len(margin)) if weights is None else weights / weights.mean()
    n_right = float(weight[right].sum())
    n_wrong = float(weight[~right].sum())
    goal = np.where(right, (n_right + 1) / (n_right + 2), 1 / (n_wrong + 2))

    def loss(parameters: Array) -> tuple[float, Array]:
        slope, offset = parameters
        z = slope * margin + offset
        value = float((weight * (np.logaddexp(0, z) - goal * z)).sum())
        difference = weight * (expit(z) - goal)
        return value, np.array([(difference * margin).sum(), difference.sum()])

    start = np.array([1.0, 0.0])
    best = minimize(loss, start, jac=True, bounds=[(0, None), (None, None)])
    return float(best.x[0]), float(best.x[1])


def expected_accuracy(
    margin: Array, right: Array, weights: Array, groups: Array, others: Array
) -> Expected:
    """Return how often photos without a label are right.

    Parameters
    ----------
    margin : ndarray of shape (n,)
        Of the labelled photos, each left out together with its group.
    right : ndarray of bool, shape (n,)
        Whether the first class of each was one of its labels.
    weights : ndarray of shape (n,)
        How many photos each stands for.
    groups : ndarray of shape (n,)
        Copies and similar scenes have the same number.
    others : ndarray of shape (m,)
        Margins of the photos without a label, from all labels.
    """
    slope, offset = fit_chance(margin, right, weights)
    if not len(others):
        others = margin
    share = float(expit(slope * others + offset).mean())
    # groups with weights w are as good as (sum w)^2 / sum w^2 independent photos
    of_group = np.bincount(np.unique(groups, return_inverse=True)[1], weights)
    independent = float(of_group.sum() ** 2 / (of_group**2).sum())
    return Expected(100 * share, proportion_interval(share * independent, independent))
