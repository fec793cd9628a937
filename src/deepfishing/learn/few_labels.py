"""Scores for a whole collection from a handful of labels, in a fraction of a second.

`FewLabels` is prepared once for a collection of photos: each photo becomes one vector, of its
embedding and of its gradients with respect to a head made of the collection (`prototypes`),
averaged with its nearest photos (`neighbours`). After that, labels are turned into scores for all
photos by ridge regression, and their accuracy is estimated by leaving out one labelled photo at a
time, both in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepfishing.core.neighbours import Neighbours, average
from deepfishing.core.projections import FIT_IMAGES
from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.core.recipes import parse_recipe
from deepfishing.core.recipes.recipe import DEFAULT_NEIGHBOURS
from deepfishing.core.statistics import Interval, proportion_interval
from deepfishing.errors import FeatureError
from deepfishing.learn.vectors import Vectors

RECIPE = "2*x7+own(x7,64)+pow(own(x7),0.5)"
GRADIENT_NUMBERS = 1024  # of a vector that come from the two gradients
RIDGE = 0.3  # on the diagonal of the kernel of unit vectors
BLOCK_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Guess:
    """Scores (n, C) of all photos, and how often they are right for a photo that is left out.

    `accuracy`, in percent, is that of the labelled photos; None with fewer than two of each class
    that has any. The labelled photos may be neighbours of each other, so it is slightly optimistic.
    `left_out` (n_labelled, C) are the scores of each labelled photo without it and its group.
    """

    scores: Array
    accuracy: float | None
    interval: Interval | None
    left_out: Array


@dataclass(frozen=True, eq=False)
class FewLabels:
    """A collection that is ready for labels: unit vectors (n, m), averaged with their neighbours.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = np.eye(6)[np.arange(90) % 3] + 0.1 * rng.normal(size=(90, 6))
    >>> guess = FewLabels.prepare(x).fit([0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2])
    >>> bool((guess.scores.argmax(axis=1) == np.arange(90) % 3).all()), guess.accuracy
    (True, 100.0)
    """

    vectors: Array

    @classmethod
    def prepare(
        cls, x: Array, neighbours: int = DEFAULT_NEIGHBOURS, seed: int = 0
    ) -> FewLabels:
        """Describe all photos by their embeddings (n, d), such as the factor x7 of a store."""
        x = np.asarray(x, dtype=np.float32)
        pool = Neighbours.fit(x)
        fitted = parse_recipe(RECIPE).fit({"x7": x})
        sample = np.sort(np.random.default_rng(seed).permutation(len(x))[:FIT_IMAGES])
        project = Vectors.fit(fitted({"x7": x[sample]}), GRADIENT_NUMBERS, seed)
        blocks = [
            slice(start, start + BLOCK_ROWS) for start in range(0, len(x), BLOCK_ROWS)
        ]
        parts = [project(fitted({"x7": x[rows]})).astype(np.float16) for rows in blocks]
        plain = np.concatenate(parts)
        vectors: Array = np.empty(plain.shape, dtype=np.float32)
        for rows in blocks:
            numbers, weights = pool.find(x[rows], neighbours)
            mean = average(numbers, weights, plain[rows].astype(np.float32), plain)
            vectors[rows] = l2_normalize(mean)
        return cls(vectors)

    def fit(self, rows: Array | list[int], classes: Array | list[int]) -> Guess:
        """Return scores of all photos, from the numbers of some photos and of their classes.

        There are as many columns as the largest class number says. A class without a label scores
        lowest everywhere.
        """
        rows, classes = (
            np.asarray(rows, dtype=np.int64),
            np.asarray(classes, dtype=np.int64),
        )
        if rows.ndim != 1 or rows.shape != classes.shape or not len(rows):
            raise FeatureError(
                "labels must be numbers of photos and as many numbers of classes, got "
                f"{rows.shape} and {classes.shape}; label at least one photo"
            )
        if rows.min() < 0 or rows.max() >= len(self.vectors) or classes.min() < 0:
            raise FeatureError(
                f"photos must be numbered from 0 to {len(self.vectors) - 1} and classes from 0 on, "
                f"got photos {rows.min()} to {rows.max()} and classes from {classes.min()} on"
            )
        target = np.where(classes[:, None] == np.arange(classes.max() + 1), 1.0, -1.0)
        scores, left_out = self.fit_targets(rows, target)
        counts = np.bincount(classes)
        if len(counts[counts > 0]) < 2 or counts[counts > 0].min() < 2:
            return Guess(scores, None, None, left_out)
        right = int((left_out.argmax(axis=1) == classes).sum())
        interval = proportion_interval(right, len(rows))
        return Guess(scores, 100 * right / len(rows), interval, left_out)

    def fit_targets(
        self, rows: Array, target: Array, groups: Array | None = None
    ) -> tuple[Array, Array]:
        """Return scores (n, C) of all photos and left-out scores of the labelled ones.

        Parameters
        ----------
        rows : ndarray of shape (n_labelled,)
            Numbers of the labelled photos.
        target : ndarray of shape (n_labelled, C)
            1 for a class that the photo shows, -1 for one that it does not.
        groups : ndarray of shape (n_labelled,), optional
            Photos of one group, such as copies, are left out together.
        """
        weights, bias, left_out = self._solve(rows, target, groups)
        weights, bias = weights.astype(np.float32), bias.astype(np.float32)
        scores = np.empty((len(self.vectors), target.shape[1]), dtype=np.float32)
        # by blocks: a product of all vectors in half precision copies them first
        for start in range(0, len(scores), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            scores[part] = self.vectors[part].astype(np.float32) @ weights + bias
        return scores, left_out

    def left_out(
        self, rows: Array, target: Array, groups: Array | None = None
    ) -> Array:
        """Return the left-out scores of `fit_targets` alone, which costs less."""
        return self._solve(rows, target, groups)[2]

    def _solve(
        self, rows: Array, target: Array, groups: Array | None
    ) -> tuple[Array, Array, Array]:
        """Ridge regression: weights (m, C), bias (C,), left-out scores (n_labelled, C)."""
        v = self.vectors[rows].astype(np.float64)
        # the constant 1 in the kernel is the bias
        inverse = np.linalg.inv(v @ v.T + 1 + RIDGE * np.eye(len(v)))
        dual = inverse @ target
        left_out = target - dual / np.diag(inverse)[:, None]
        if groups is not None:
            for group in _larger_groups(groups):
                block = inverse[np.ix_(group, group)]
                left_out[group] = target[group] - np.linalg.solve(block, dual[group])
        return v.T @ dual, dual.sum(axis=0), left_out


def _larger_groups(groups: Array) -> list[Array]:
    """Return the members of each group that has several."""
    _, numbers, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return [np.flatnonzero(numbers == number) for number in np.flatnonzero(counts > 1)]
