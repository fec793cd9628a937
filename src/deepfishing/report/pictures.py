"""Stage 7, report: which test images tell something about two kernels.

Comes in: labels, and the scores that two rows give the same images. Goes out, for a class and each
of the two: the images that it ranks first, those that show the class and that it ranks last, and
those that it finds and the other does not. Only ids and ranks: `thumbnails` has the pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepfishing.rank_one import Array

TILES = 5  # in a strip


@dataclass(frozen=True)
class Tile:
    """One test image: its rank by this kernel and by the other one, 1 being the highest score."""

    id: str
    shows: bool
    rank: int
    other: int


@dataclass(frozen=True)
class Strips:
    """What one kernel makes of one class.

    `first` has the highest scores; `last` the lowest scores of images that show the class, the
    worst one first. `higher` is where the two disagree most: of the first P images of this kernel,
    P being how many show the class, those that the other one ranks lowest, and lower than this one.
    """

    first: tuple[Tile, ...]
    last: tuple[Tile, ...]
    higher: tuple[Tile, ...]


def strips(
    truth: Array, scores: Array, other: Array, ids: Sequence[str], most: int = TILES
) -> Strips:
    """The telling images of one class for one kernel, beside another.

    Parameters
    ----------
    truth : array of shape (n,)
        1 present, -1 absent, 0 difficult: left out, as in every AP here.
    scores, other : arrays of shape (n,)
        By the kernel and by the one that it is compared with. Equal scores keep the images' order.
    ids : sequence of n str
    most : int
        How many images a strip has at most.

    Examples
    --------
    >>> truth, ids = np.array([1, -1, 1, 0]), ["a", "b", "c", "d"]
    >>> found = strips(truth, np.array([3.0, 2.0, 1.0, 9.0]), np.array([1.0, 3.0, 2.0, 9.0]), ids)
    >>> [tile.id for tile in found.first], [tile.id for tile in found.last]
    (['a', 'b', 'c'], ['c', 'a'])
    >>> found.higher
    (Tile(id='a', shows=True, rank=1, other=3),)
    """
    kept = np.flatnonzero(truth != 0)
    rank, rank_other = _ranks(scores[kept]), _ranks(other[kept])
    shows = truth[kept] == 1
    positive = np.flatnonzero(shows)
    found = np.flatnonzero((rank <= len(positive)) & (rank < rank_other))

    def tiles(chosen: Array) -> tuple[Tile, ...]:
        return tuple(
            Tile(ids[kept[i]], bool(shows[i]), int(rank[i]), int(rank_other[i]))
            for i in chosen[:most]
        )

    return Strips(
        first=tiles(np.argsort(rank)),
        last=tiles(positive[np.argsort(-rank[positive])]),
        higher=tiles(found[np.argsort(-rank_other[found])]),
    )


def _ranks(scores: Array) -> Array:
    """1 for the highest score, 2 for the next one..."""
    ranks = np.empty(len(scores), dtype=np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return ranks
