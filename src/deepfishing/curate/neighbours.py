"""Nearest images of every image of a store, under any recipe.

For each content the numbers and kernel values of its k nearest others are returned, nearest first.
Up to `EXACT_CONTENTS` all pairs are compared, a block of rows at a time; beyond that the search
index proposes candidates, which are compared exactly. A matrix of all pairs is never built.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deepfishing.core.kernels import Comparable, gram, nearest_columns
from deepfishing.core.rank_one import Array
from deepfishing.search import Searcher
from deepfishing.search.compare import DEFAULTS, Features, choose_recipe
from deepfishing.search.index import COARSE, Index, Notice
from deepfishing.store import Store
from deepfishing.store.manifest import count_rows
from deepfishing.util.progress import Progress, silent

EXACT_CONTENTS = 10_000
# compared at a time, exactly or by the index
BLOCK_ROWS, BLOCK_CANDIDATES = 1024, 1 << 14
PROBES = 8  # lists of the index that a content looks into
SPARE = 8  # candidates beyond k, since the index's order is not quite the kernel's


class Neighbours(NamedTuple):
    """Numbers (n, k) of the nearest contents, -1 where there are fewer, and their kernel values."""

    numbers: Array
    kernel: Array


def open_searcher(
    store: Store | str | Path,
    by: str | None = None,
    *,
    defaults: Sequence[str] = DEFAULTS,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> Searcher:
    """A searcher that can tell the neighbours of all images: with an index if there are many."""
    opened = store if isinstance(store, Store) else Store.open(store)
    method = "index" if count_rows(opened.folder) > EXACT_CONTENTS else "exact"
    recipe = choose_recipe(opened, by, defaults)
    return Searcher(opened, recipe.name, method, progress=progress, notice=notice)


def nearest(
    among: Searcher, k: int, of: Features | None = None, *, progress: Progress = silent
) -> Neighbours:
    """The k nearest contents of a searcher, for each of its own, or for each of another store's."""
    features = among.features
    asked = of or features
    n, k = len(asked), min(k, len(features) - (of is None))
    numbers, kernel = np.full((n, k), -1), np.full((n, k), -np.inf)
    parts = list(features.blocks()) if among.index is None else []
    many = (k + SPARE) * (
        COARSE if among.index is not None and among.index.is_coarse else 1
    )
    step = BLOCK_ROWS if among.index is None else max(1, BLOCK_CANDIDATES // many)
    for start in range(0, n if k else 0, step):
        rows = np.arange(start, min(start + step, n))
        block = features.fitted(asked.contents.read(rows, features.recipe.columns))
        itself = rows if of is None else None
        if among.index is None:
            K = np.concatenate([gram(block, part) for part in parts], axis=1)
            if itself is not None:
                K[np.arange(len(rows)), itself] = -np.inf
            near, K = nearest_columns(K, k)
        else:
            near, K = _candidates(features, among.index, block, many, itself)
        order = np.argsort(-K, axis=1, kind="stable")[:, :k]
        numbers[rows], kernel[rows] = (
            np.take_along_axis(a, order, axis=1) for a in (near, K)
        )
        progress("comparing", int(rows[-1]) + 1, n)
    return Neighbours(numbers, kernel)


def _candidates(
    features: Features, index: Index, block: Comparable, n: int, itself: Array | None
) -> Neighbours:
    """What the index proposes for each image of a block, with exact kernel values."""
    near = index.nearest(index.embedding(block), n, PROBES)
    if itself is not None:
        near[near == itself[:, None]] = -1
    known = np.unique(near[near >= 0])
    others, place = features.of(known), np.searchsorted(known, near)
    K = np.full(near.shape, -np.inf)
    for row, found in enumerate(near >= 0):
        if found.any():
            K[row, found] = gram(block[row : row + 1], others[place[row, found]])[0]
    return Neighbours(near, K)
