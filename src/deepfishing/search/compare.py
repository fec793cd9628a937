"""Stage 7, search: what is compared: a recipe, the images of the store by it, and a query.

Comes in: a store and, if the user named one, a recipe. Goes out:

- the recipe, whose factors the store has, or the error with the command that adds them;
- features of any of the store's contents, and of all of them in blocks. If all fit into
  `KEEP_BYTES` they are kept after the first time; if not, memory is bounded by a block;
- a `Query` of examples, whose score of an image is sum_i weight_i K(image, example_i): the mean of
  the kernels of the positive ones, minus a quarter of that of the negative ones. It is linear in
  the kernel, so one index serves them all.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from deepfishing.errors import FeatureError, StoreError
from deepfishing.kernels import UNLIKE, Comparable, gram
from deepfishing.networks.reference import layers_of
from deepfishing.rank_one import Array
from deepfishing.recipes import Fitted, Recipe, parse_recipe
from deepfishing.store import Store
from deepfishing.store.contents import Contents, PackedRows

# The first of these that a store has all factors of. The first one was the most precise on the
# trainval images of VOC 2007 and level with x7 on groceries (docs/search.md); then gradients from
# the top, then forward features.
DEFAULTS = ("dW8+x7", "dW8", "dW7", "dW6", "x7", "x6", "y8")

BLOCK_BYTES = 1 << 26  # of features in a block, in single precision
KEEP_BYTES = 1 << 30
FIT_IMAGES = 20_000  # that whitening looks at
SEED = 0


def choose_recipe(
    store: Store, by: str | None = None, defaults: Sequence[str] = DEFAULTS
) -> Recipe:
    """The recipe of this name, or the default one; an error if the store lacks its factors."""
    layers = layers_of(store.settings)
    there = set(store.factors())
    if not there:
        raise StoreError(
            f"a store must have images to search in, got none in {store.folder}; add some with "
            "`deepfish extract`"
        )
    if by is None:
        for name in defaults:
            with contextlib.suppress(FeatureError):  # of a layer that the network does not have
                recipe = parse_recipe(name, layers)
                if there.issuperset(recipe.columns):
                    return recipe
        raise StoreError(
            f"{store.folder} has no factors of a default recipe, got {', '.join(sorted(there))}; "
            "name a recipe with --by"
        )
    recipe = parse_recipe(by, layers)
    absent = [name for name in recipe.columns if name not in there]
    if absent:
        names = [feature.name for feature in recipe.features]
        raise StoreError(
            f"store {store.folder} must hold {', '.join(recipe.columns)} for {recipe.name}, but "
            f"lacks {', '.join(absent)}; add them with `deepfish extract IMAGES {store.folder} "
            f"--features '{','.join(names)}'`"
        )
    return recipe


@dataclass(frozen=True, eq=False)
class Features:
    """Contents as a fitted recipe sees them."""

    contents: Contents | PackedRows
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
        per_image = 4 * sum(int(np.prod(self.contents.shapes[c])) for c in self.columns)
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


def fit(recipe: Recipe, contents: Contents | PackedRows) -> Fitted:
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


@dataclass(frozen=True, eq=False)
class Query:
    """Examples (m of them) and how much each counts.

    Parameters
    ----------
    examples : Comparable
        Their features, the positive ones first.
    positive : int
        How many are positive.
    weights : ndarray (m,)

    Examples
    --------
    >>> one = Query.of(np.array([[1.0, 0.0]]))
    >>> one.scores(np.array([[0.6, 0.8]]))
    array([0.6])
    """

    examples: Comparable
    positive: int
    weights: Array

    @classmethod
    def of(cls, examples: Comparable, positive: int | None = None) -> Query:
        """The query of these examples, of which the first `positive` (all by default) are so."""
        m = len(examples)
        positive = m if positive is None else positive
        weights = np.full(m, 1 / positive)
        weights[positive:] = -UNLIKE / max(1, m - positive)
        return cls(examples, positive, weights)

    def scores(self, features: Comparable) -> Array:
        """Score of each image, (n,)."""
        scores: Array = gram(features, self.examples) @ self.weights
        return scores

    @property
    def likes(self) -> Comparable:
        """The positive examples."""
        return self.examples[: self.positive]
