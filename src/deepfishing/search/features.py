"""Stage 7, search: the images of a store as what a recipe compares, block by block.

Comes in: contents and a fitted recipe. Goes out: features of any of them, and of all of them in
blocks. If all fit into `KEEP_BYTES` they are kept after the first time; if not, memory is bounded
by a block.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from deepfishing.kernels import Comparable
from deepfishing.rank_one import Array
from deepfishing.recipes import Fitted, Recipe
from deepfishing.search.contents import Contents

BLOCK_BYTES = 1 << 26  # of features in a block, in single precision
KEEP_BYTES = 1 << 30
FIT_IMAGES = 20_000  # that whitening looks at
SEED = 0


@dataclass(frozen=True, eq=False)
class Features:
    """Contents as a fitted recipe sees them."""

    contents: Contents
    columns: tuple[str, ...]  # the factors that it takes
    fitted: Fitted
    _kept: list[Comparable] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __len__(self) -> int:
        return len(self.contents)

    def of(self, numbers: Array) -> Comparable:
        """Features of these contents, in their order."""
        return self.fitted(self.contents.read(numbers, self.columns))

    def blocks(self, numbers: Array | None = None) -> Iterator[Comparable]:
        """Features of these contents, or of all, in order and a block at a time."""
        per_image = 4 * sum(int(np.prod(self.contents.columns[c].shape)) for c in self.columns)
        step = max(1, BLOCK_BYTES // per_image)
        if numbers is None:
            numbers = np.arange(len(self))
            if len(self) * per_image <= KEEP_BYTES:
                with self._lock:  # one thread reads, the others wait for it
                    if not self._kept:
                        self._kept.extend(self._read(numbers, step))
                yield from self._kept
                return
        yield from self._read(numbers, step)

    def _read(self, numbers: Array, step: int) -> Iterator[Comparable]:
        for start in range(0, len(numbers), step):
            yield self.of(numbers[start : start + step])


def fit(recipe: Recipe, contents: Contents) -> Fitted:
    """Fit a recipe on the store's own images, `FIT_IMAGES` of them drawn if there are more."""
    if not recipe.learns:
        return recipe.fit({})  # nothing to learn, so nothing is read
    return recipe.fit(contents.read(sample(len(contents), FIT_IMAGES), recipe.columns))


def sample(n: int, m: int) -> Array:
    """At most m of the numbers below n, drawn with a fixed seed, rising.

    Examples
    --------
    >>> sample(3, 5), len(sample(100, 5))
    (array([0, 1, 2]), 5)
    """
    chosen: Array = np.sort(np.random.default_rng(SEED).permutation(n)[:m])
    return chosen
