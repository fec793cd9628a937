"""The nearest photos of a pool, for averaging a photo with them.

`Neighbours` finds them by the dot product of unit vectors: exactly, a block of rows at a time, in a
pool of up to 20,000 photos, and through an inverted-file index above. There never is a matrix of
all pairs. Copies of a photo have one vote together: a photo's own copies are no neighbours of it,
and of several copies of another photo the first one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfishing.core.kernels import nearest_columns, weighted_sum
from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.errors import FeatureError

EXACT_ROWS = 20_000  # of a pool that is compared exactly
COPY = 0.9995  # similarity from which two embeddings are of the same photo
# similarity from which an embedding is that of the pool, but for rounding
EQUAL = 1 - 1e-5
POWER = 3  # a neighbour of similarity s has the weight s^3; the photo itself has 1
SPARE = 6  # candidates beyond n, for copies that do not count
LISTS_PER_ROOT = 4  # inverted lists of an index: 4 sqrt(n)
PROBES = 16  # of these lists that are looked into
BLOCK_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Neighbours:
    """A pool of unit vectors (m, d) in which neighbours are looked up."""

    vectors: Array
    index: Any = None  # faiss, of a large pool

    @classmethod
    def fit(cls, pool: Array) -> Neighbours:
        """Prepare a pool of embeddings (m, d) of any length."""
        pool = np.asarray(pool)
        if pool.ndim != 2 or not len(pool):
            raise FeatureError(
                f"a pool must be embeddings (n, d) of photos, got {pool.shape}"
            )
        vectors = l2_normalize(pool.astype(np.float32))
        return cls(vectors, _index(vectors) if len(vectors) > EXACT_ROWS else None)

    def __len__(self) -> int:
        return len(self.vectors)

    def find(self, x: Array, n: int) -> tuple[Array, Array]:
        """Return the n nearest photos of each embedding (m, d), and their weights.

        Numbers (m, n) are rows of the pool, nearest first. Weights are 0 where there are fewer.

        Examples
        --------
        >>> pool = Neighbours.fit(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
        >>> numbers, weights = pool.find(np.array([[1.0, 0.0]]), 2)
        >>> numbers[0, 0], weights.astype(float).round(2).tolist()  # its copies do not count
        (np.int64(2), [[0.35, 0.0]])
        """
        numbers, weights, _ = self.find_with_own_row(x, n)
        return numbers, weights

    def find_with_own_row(self, x: Array, n: int) -> tuple[Array, Array, Array]:
        """Return the result of `find`, and the row (m,) of each photo in the pool, or -1."""
        x = np.asarray(x)
        if x.ndim != 2 or x.shape[1] != self.vectors.shape[1]:
            raise FeatureError(
                f"embeddings must be (n, {self.vectors.shape[1]}) as in the pool, got {x.shape}"
            )
        numbers = np.zeros((len(x), n), dtype=np.int64)
        weights = np.zeros((len(x), n), dtype=np.float32)
        itself = np.full(len(x), -1, dtype=np.int64)
        for start in range(0, len(x), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            queries = l2_normalize(x[rows].astype(np.float32))
            near, similarity = self.nearest(queries, min(n + SPARE, len(self)))
            itself[rows] = np.where(similarity[:, 0] >= EQUAL, near[:, 0], -1)
            similarity = np.where(self._is_vote(near, similarity), similarity, 0.0)
            order = np.argsort(similarity <= 0, axis=1, kind="stable")[:, :n]
            found = order.shape[1]
            numbers[rows, :found] = np.take_along_axis(near, order, axis=1)
            chosen = np.take_along_axis(similarity, order, axis=1)
            weights[rows, :found] = np.maximum(chosen, 0.0) ** POWER
        return numbers, weights, itself

    def without_copies(self) -> Array:
        """Return the rows of the pool without those that are copies of an earlier one."""
        kept = np.ones(len(self), dtype=bool)
        for start in range(0, len(self), BLOCK_ROWS):
            rows = np.arange(start, min(start + BLOCK_ROWS, len(self)))
            near, similarity = self.nearest(
                self.vectors[rows], min(1 + SPARE, len(self))
            )
            is_copy = (near >= 0) & (near < rows[:, None]) & (similarity >= COPY)
            kept[rows] = ~is_copy.any(axis=1)
        rows_kept: Array = np.flatnonzero(kept)
        return rows_kept

    def nearest(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Return the k nearest rows of unit vectors and their similarity; -1 for no row."""
        if self.index is not None:
            similarity, near = self.index.search(queries, k)
            return near, np.where(near >= 0, similarity, 0.0)
        K = queries @ self.vectors.T
        return nearest_columns(K, k)

    def _is_vote(self, near: Array, similarity: Array) -> Array:
        """Whether a candidate is a copy neither of the query nor of one before it."""
        votes: Array = (near >= 0) & (similarity < COPY)
        # copies of each other are about as near to the query
        gaps = np.abs(np.diff(similarity, axis=1)) < 1 - COPY
        for row, column in np.argwhere(gaps & votes[:, 1:] & votes[:, :-1]):
            first, second = (
                self.vectors[near[row, column]],
                self.vectors[near[row, column + 1]],
            )
            if first @ second >= COPY:
                votes[row, column + 1] = False
        return votes


def _index(vectors: Array) -> Any:
    import faiss  # half a second to load

    lists = int(LISTS_PER_ROOT * len(vectors) ** 0.5)
    quantizer = faiss.IndexFlatIP(vectors.shape[1])
    index = faiss.IndexIVFScalarQuantizer(
        quantizer,
        vectors.shape[1],
        lists,
        faiss.ScalarQuantizer.QT_fp16,
        faiss.METRIC_INNER_PRODUCT,
    )
    index.cp.niter = 8
    sample = np.random.default_rng(0).permutation(len(vectors))[: 40 * lists]
    index.train(vectors[np.sort(sample)])
    index.add(vectors)
    index.nprobe = PROBES
    return index


def average(numbers: Array, weights: Array, own: Array, pool: Array) -> Array:
    """Average rows (m, C) with those of their neighbours in a pool (p, C), itself with weight 1.

    Examples
    --------
    >>> numbers, weights = np.array([[0, 1]]), np.array([[1.0, 0.0]])
    >>> average(numbers, weights, np.array([[1.0]]), np.array([[3.0], [100.0]]))
    array([[2.]])
    """
    mean: Array = own + weighted_sum(pool, numbers, weights)
    mean /= 1 + weights.sum(axis=1, keepdims=True)
    return mean
