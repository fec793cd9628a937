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
    """

    scores: Array
    accuracy: float | None
    interval: Interval | None


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
    def prepare(cls, x: Array, neighbours: int = DEFAULT_NEIGHBOURS, seed: int = 0) -> FewLabels:
        """Describe all photos by their embeddings (n, d), such as the factor x7 of a store."""
        x = np.asarray(x, dtype=np.float32)
        pool = Neighbours.fit(x)
        fitted = parse_recipe(RECIPE).fit({"x7": x})
        sample = np.sort(np.random.default_rng(seed).permutation(len(x))[:FIT_IMAGES])
        project = Vectors.fit(fitted({"x7": x[sample]}), GRADIENT_NUMBERS, seed)
        blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, len(x), BLOCK_ROWS)]
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
        rows, classes = np.asarray(rows, dtype=np.int64), np.asarray(classes, dtype=np.int64)
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
        v = self.vectors[rows].astype(np.float64)
        # the constant 1 in the kernel is the bias
        inverse = np.linalg.inv(v @ v.T + 1 + RIDGE * np.eye(len(v)))
        dual = inverse @ target
        scores = self._products((v.T @ dual).astype(np.float32)) + dual.sum(axis=0)
        counts = np.bincount(classes)
        if len(counts[counts > 0]) < 2 or counts[counts > 0].min() < 2:
            return Guess(scores, None, None)
        left_out = target - dual / np.diag(inverse)[:, None]
        right = int((left_out.argmax(axis=1) == classes).sum())
        return Guess(scores, 100 * right / len(rows), proportion_interval(right, len(rows)))

    def _products(self, weights: Array) -> Array:
        """The vectors times weights (m, C), a block of rows at a time: they may be on disk."""
        products = np.empty((len(self.vectors), weights.shape[1]), dtype=np.float32)
        for start in range(0, len(self.vectors), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            products[rows] = self.vectors[rows].astype(np.float32) @ weights
        return products
