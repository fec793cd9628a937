"""Groups of photos that must not be separated by a fold or a split: copies and similar scenes.

Two photos are in one group if their content is the same or their embeddings nearly are, directly or
through others. For validation only: what is in one group need not be a copy, so nothing may be
deleted because of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.errors import FeatureError

SIMILAR = 0.97  # dot product of unit embeddings from which two photos are a similar scene
BLOCK_ROWS = 1024


def similar_groups(x: Array, keys: Sequence[str] | None = None) -> Array:
    """Return the group of each photo, numbered from 0 on.

    Parameters
    ----------
    x : ndarray of shape (n, d)
        Embeddings, such as x7, of any length.
    keys : sequence of str, optional
        Content hashes: photos with the same key are in one group, whatever their embeddings.

    Examples
    --------
    >>> similar_groups(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.01], [1.0, 1.0]]))
    array([0, 1, 0, 2])
    >>> similar_groups(np.eye(3), ["a", "b", "a"])
    array([0, 1, 0])
    """
    x = np.asarray(x)
    if x.ndim != 2 or (keys is not None and len(keys) != len(x)):
        raise FeatureError(
            f"embeddings must be (n, d) and keys one for each photo, got {x.shape}"
            + ("" if keys is None else f" and {len(keys)} keys")
        )
    n = len(x)
    first, second = _similar_pairs(x)
    if keys is not None:
        _, content = np.unique(np.asarray(keys), return_inverse=True)
        leader = np.zeros(n, dtype=int)
        leader[content[::-1]] = np.arange(n)[::-1]  # the first photo of each content
        first = np.concatenate([first, np.arange(n)])
        second = np.concatenate([second, leader[content]])
    graph = coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(n, n))
    _, group = connected_components(graph, directed=False)
    numbers: Array = np.asarray(group).astype(int)
    return numbers


def _similar_pairs(x: Array) -> tuple[Array, Array]:
    """Pairs of photos whose embeddings are at least `SIMILAR`, a block of rows at a time."""
    unit = l2_normalize(x.astype(np.float32))
    first, second = [np.zeros(0, dtype=int)], [np.zeros(0, dtype=int)]
    for start in range(0, len(unit), BLOCK_ROWS):
        K = unit[start : start + BLOCK_ROWS] @ unit[start:].T
        rows, columns = np.nonzero(K >= SIMILAR)
        first.append(rows + start)
        second.append(columns + start)
    return np.concatenate(first), np.concatenate(second)
