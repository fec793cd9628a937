"""Groups of photos that must not be separated by a fold or a split: copies and similar scenes.

Two photos are similar if they have the same content, or nearly the same embedding, or if they are
much nearer to each other than to the photos around them. The last condition is relative, so that a
class whose photos are all alike is not one group. Photos that are similar through others are in one
group, too. For validation only: photos of one group need not be copies, so nothing may be deleted
because of it.

The limits were measured with x7 of EfficientNet-Lite0; benchmarks/CURATION.md has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from deepfishing.core.neighbours import Neighbours
from deepfishing.core.rank_one import Array
from deepfishing.errors import FeatureError

# dot product of unit embeddings from which two photos always are similar
NEARLY_EQUAL = 0.99
MIN_SIMILAR = 0.85  # dot product below which they never are
# of their distance, 1 - dot product, to that of the neighbour of rank `RANK`
MAX_RATIO = 0.5
RANK = 20  # more neighbours of one scene than this are taken for a dense class
# of an embedding; shorter ones are near by chance, so only `EQUAL` ones count
MIN_NUMBERS = 32
EQUAL = 0.9999
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
    if not np.isfinite(x).all():
        raise FeatureError(
            "embeddings must be finite to be grouped, got NaN or infinity"
        )
    content = _contents(x)
    rows = np.unique(content, return_index=True)[1]  # one photo of each content
    links = [(np.arange(len(x)), rows[content])]
    first, second = _similar_pairs(x[rows])
    links.append((rows[first], rows[second]))
    if keys is not None:
        _, leader, number = np.unique(
            np.asarray(keys), return_index=True, return_inverse=True
        )
        links.append((np.arange(len(x)), leader[number]))
    return _components(links, len(x))


def _contents(x: Array) -> Array:
    """A number for each photo, the same for equal embeddings."""
    numbers: dict[bytes, int] = {}
    content = np.zeros(len(x), dtype=int)
    for row, vector in enumerate(np.ascontiguousarray(x)):
        content[row] = numbers.setdefault(vector.tobytes(), len(numbers))
    return content


def _similar_pairs(x: Array) -> tuple[Array, Array]:
    """Pairs of rows that are similar by their embeddings, all of which differ."""
    rank = min(RANK, len(x) // 2)
    if not rank:
        return np.zeros(0, dtype=int), np.zeros(0, dtype=int)
    pool = Neighbours.fit(x)
    near = np.zeros((len(x), rank + 1), dtype=int)
    kernel = np.zeros((len(x), rank + 1), dtype=np.float32)
    for start in range(0, len(x), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        near[rows], kernel[rows] = pool.nearest(pool.vectors[rows], rank + 1)
    distance = 1 - kernel
    # of the neighbour of this rank; the first is the photo itself
    around = distance[:, -1]
    limit = MAX_RATIO * np.minimum(around[:, None], around[near])
    is_close = (kernel >= MIN_SIMILAR) & (distance <= limit)
    is_similar = (kernel >= NEARLY_EQUAL) | is_close
    if x.shape[1] < MIN_NUMBERS:
        is_similar = kernel >= EQUAL
    is_found = near >= 0  # an index may find fewer
    first, place = np.nonzero(is_found & is_similar)
    return first, near[first, place]


def _components(links: Sequence[tuple[Array, Array]], n: int) -> Array:
    """The component of each of n photos, numbered in the order of the photos."""
    first = np.concatenate([a for a, _ in links])
    second = np.concatenate([b for _, b in links])
    graph = coo_array((np.ones(len(first), dtype=bool), (first, second)), shape=(n, n))
    _, group = connected_components(graph, directed=False)
    numbers: Array = np.asarray(group).astype(int)
    return numbers
