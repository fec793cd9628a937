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
    """Return a searcher for `nearest`, with an index if there are many images."""
    if not isinstance(store, Store):
        store = Store.open(store)
    method = "exact"
    if count_rows(store.folder) > EXACT_CONTENTS:
        method = "index"
    recipe = choose_recipe(store, by, defaults)
    return Searcher(store, recipe.name, method, progress=progress, notice=notice)


def nearest(
    among: Searcher, k: int, of: Features | None = None, *, progress: Progress = silent
) -> Neighbours:
    """Return the k nearest contents of a searcher, for each of its own, or of another store's.

    `of` has the features of the other store.
    """
    features = among.features
    index = among.index
    own = of is None
    queries = of or features
    n = len(queries)
    k = min(k, len(features) - own)
    numbers = np.full((n, k), -1)
    kernel = np.full((n, k), -np.inf)
    if not k:
        return Neighbours(numbers, kernel)
    parts: list[Comparable] = []
    candidates = k + SPARE
    step = BLOCK_ROWS
    if index is None:
        parts = list(features.blocks())
    else:
        if index.is_coarse:
            candidates *= COARSE
        step = max(1, BLOCK_CANDIDATES // candidates)
    for start in range(0, n, step):
        rows = np.arange(start, min(start + step, n))
        block = features.fitted(queries.contents.read(rows, features.recipe.columns))
        left_out = None
        if own:
            left_out = rows
        if index is None:
            near, K = _compare(block, parts, k, left_out)
        else:
            near, K = _candidates(features, index, block, candidates, left_out)
        order = np.argsort(-K, axis=1, kind="stable")[:, :k]
        numbers[rows] = np.take_along_axis(near, order, axis=1)
        kernel[rows] = np.take_along_axis(K, order, axis=1)
        progress("comparing", int(rows[-1]) + 1, n)
    return Neighbours(numbers, kernel)


def _compare(
    block: Comparable, parts: Sequence[Comparable], k: int, left_out: Array | None
) -> Neighbours:
    """Return the k nearest of all contents for each image of a block; one may be left out."""
    K = np.concatenate([gram(block, part) for part in parts], axis=1)
    if left_out is not None:
        K[np.arange(len(K)), left_out] = -np.inf
    return Neighbours(*nearest_columns(K, k))


def _candidates(
    features: Features, index: Index, block: Comparable, n: int, left_out: Array | None
) -> Neighbours:
    """Return the candidates of the index for each image of a block, with exact kernel values."""
    near = index.nearest(index.embedding(block), n, PROBES)
    if left_out is not None:
        near[near == left_out[:, None]] = -1
    used = np.unique(near[near >= 0])
    others = features.of(used)
    place = np.searchsorted(used, near)
    K = np.full(near.shape, -np.inf)
    for row, exists in enumerate(near >= 0):
        if exists.any():
            candidates = others[place[row, exists]]
            K[row, exists] = gram(block[row : row + 1], candidates)[0]
    return Neighbours(near, K)
