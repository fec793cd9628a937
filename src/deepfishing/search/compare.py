"""Recipe, features and query of a search.

From a store and, if the user named one, a recipe this module makes

- the recipe, whose factors the store has, or the error with the command that adds them;
- features of any of the store's contents, and of all of them in blocks. If all fit into
  `MAX_CACHE_BYTES` they are kept after the first time; if not, memory is bounded by a block. Scores
  by a recipe of factors as they are stored follow from cosines, in a quarter of the time;
- a `Query` of examples, whose score of an image is sum_i weight_i K(image, example_i): the mean of
  the kernels of the positive ones, minus a quarter of that of the negative ones. It is linear in
  the kernel, so one index serves them all.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from deepfishing.core.features import features_of
from deepfishing.core.kernels import UNLIKE, Combination, Comparable, gram
from deepfishing.core.rank_one import Array, RankOne, l2_normalize
from deepfishing.core.recipes import Fitted, Recipe, parse_recipe
from deepfishing.core.recipes.language import known_recipes
from deepfishing.errors import StoreError
from deepfishing.networks.reference import layers_of
from deepfishing.store import Store
from deepfishing.store.contents import Contents

# The first of these that a store has all factors of: gradients from the top, then forward features.
DEFAULTS = ("dW8+x7", "dW8", "dW7", "dW6", "x7", "x6", "y8")
# Before them in a search, with the gradient of a head made of the store's own photos: 1.9 points
# more precise on ten kinds of pictures (docs/search.md). It takes enough photos to make a head of,
# and few enough to compare them all.
WITH_PROTOTYPES = ("dW8+x7+own(x7,64)", "x7+own(x7,64)")
MIN_PHOTOS_FOR_PROTOTYPES = 100
MAX_PHOTOS_FOR_PROTOTYPES = 100_000

BLOCK_BYTES = 1 << 26  # of features in a block, in single precision
MAX_CACHE_BYTES = 1 << 30
ROUNDING = 1e-6  # of a number of unit vectors
QUICK_ROWS = 128  # decoded at a time, which stay in the processor's cache
SEED = 0


def choose_recipe(
    store: Store, by: str | None = None, defaults: Sequence[str] = DEFAULTS
) -> Recipe:
    """Return the recipe of this name, or the default one; the store must have its factors."""
    layers = layers_of(store.settings)
    stored = set(store.factors())
    if not stored:
        raise StoreError(
            f"a store must have images to search in, got none in {store.folder}; add some with "
            "`deepfish extract`"
        )
    if by is None:
        for recipe in known_recipes(defaults, layers).values():
            if stored.issuperset(recipe.columns):
                return recipe
        others = features_of(stored)
        if others:
            # of a layer that has no number: a gradient, if any
            return parse_recipe(others[-1].name, layers)
        raise StoreError(
            f"{store.folder} has no factors of a default recipe, got {', '.join(sorted(stored))}; "
            "name a recipe with --features"
        )
    recipe = parse_recipe(by, layers)
    absent = [name for name in recipe.columns if name not in stored]
    if absent:
        names = [feature.name for feature in recipe.features]
        raise StoreError(
            f"store {store.folder} must hold {', '.join(recipe.columns)} for {recipe.name}, but "
            f"lacks {', '.join(absent)}; add them with `deepfish extract IMAGES {store.folder} "
            f"--features '{','.join(names)}'`"
        )
    return recipe


def search_defaults(photos: int) -> tuple[str, ...]:
    """Return the default recipes for this many photos; a search takes the first that it can."""
    if MIN_PHOTOS_FOR_PROTOTYPES <= photos <= MAX_PHOTOS_FOR_PROTOTYPES:
        return (*WITH_PROTOTYPES, *DEFAULTS)
    return DEFAULTS


@dataclass(frozen=True, eq=False)
class Features:
    """Features of contents, by a fitted recipe."""

    contents: Contents
    recipe: Recipe
    fitted: Fitted
    _cache: list[Comparable] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def is_quick(self) -> bool:
        """Whether the kernel follows from cosines of factors: no power, whitening or position."""
        shapes = self.contents.shapes.values()
        return _of_cosines(self.recipe) and all(len(shape) == 1 for shape in shapes)

    def of(self, numbers: Array) -> Comparable:
        """Return features of these contents, in their order."""
        return self.fitted(self.contents.read(numbers, self.recipe.columns))

    def blocks(self, numbers: Array | None = None) -> Iterator[Comparable]:
        """Yield features of these contents, or of all, in order and a block at a time."""
        bytes_per_image = 0
        for name in self.recipe.columns:
            bytes_per_image += 4 * math.prod(self.contents.shapes[name])
        step = max(1, BLOCK_BYTES // bytes_per_image)
        is_cached = numbers is None and len(self) * bytes_per_image <= MAX_CACHE_BYTES
        if not is_cached:
            yield from self._read_blocks(numbers, step)
            return
        with self._lock:  # one thread reads, the others wait for it
            if not self._cache:
                for block in self._read_blocks(None, step):
                    self._cache.append(share_arrays(block, []))
        yield from self._cache

    def _read_blocks(self, numbers: Array | None, step: int) -> Iterator[Comparable]:
        """Yield features of these contents, or of all, `step` images at a time."""
        if numbers is None:
            numbers = np.arange(len(self))
        for start in range(0, len(numbers), step):
            yield self.of(numbers[start : start + step])

    def cosine_scores(self, numbers: Array, query: Query) -> Array:
        """Return scores of these contents where `is_quick`, up to rounding in single precision."""
        cosines = {}
        for name, column in self.contents.columns.items():
            codes = column.codes(numbers)
            examples = query.factors[name].T
            parts = []
            for start in range(0, len(codes), QUICK_ROWS):
                values = column.decode(codes[start : start + QUICK_ROWS])
                norm = np.sqrt(np.einsum("nd,nd->n", values, values))[:, None]
                parts.append(values @ examples / np.maximum(norm, np.float32(1e-30)))
            cosines[name] = np.concatenate(parts)
        scores: Array = _kernel(self.recipe, cosines) @ query.weights
        return scores


def share_arrays(features: Comparable, seen: list[Array]) -> Comparable:
    """Return the features with arrays that are the same only once in memory.

    `dW8+x7+own(x7,64)` has three times x7, of unit length but for rounding.
    """
    if isinstance(features, Combination):
        parts = [share_arrays(part, seen) for part in features.parts]
        return replace(features, parts=tuple(parts))
    if isinstance(features, RankOne):
        return RankOne(_first_of(features.x, seen), _first_of(features.delta, seen))
    return _first_of(features, seen)


def _first_of(array: Array, seen: list[Array]) -> Array:
    """Return the array, or one that was seen before and has the same numbers."""
    for other in seen:
        alike = other.shape == array.shape and other.dtype == array.dtype
        if alike and np.abs(other - array).max(initial=0) <= ROUNDING:
            return other
    seen.append(array)
    return array


def _of_cosines(recipe: Recipe) -> bool:
    """Whether a recipe's kernel is made of cosines of its factors."""
    made = recipe.step in ("feature", "one", "mean", "product")
    return made and all(map(_of_cosines, recipe.parts))


def _kernel(recipe: Recipe, cosines: Mapping[str, Array]) -> Array:
    """Return the kernel (n, m) of a recipe by the cosines (n, m) of each factor."""
    weights = None
    if recipe.step == "one":
        return np.ones_like(next(iter(cosines.values())))
    if recipe.feature:
        # factors side by side, each of norm 1, have the mean of their cosines
        parts = [cosines[factor.name] for factor in recipe.feature.factors]
        is_product = recipe.feature.is_gradient and not recipe.feature.is_projected
    else:
        parts = [_kernel(part, cosines) for part in recipe.parts]
        is_product = recipe.step == "product"
        weights = [part.weight for part in recipe.parts]
    if is_product:
        return np.asarray(np.prod(parts, axis=0))
    return np.asarray(np.average(parts, axis=0, weights=weights))


def sample(n: int, m: int) -> Array:
    """Return at most m of the numbers below n, drawn with a fixed seed, in order."""
    chosen: Array = np.sort(np.random.default_rng(SEED).permutation(n)[:m])
    return chosen


@dataclass(frozen=True, eq=False)
class Query:
    """Examples, the positive ones first, and how much each counts."""

    examples: Comparable
    positive: int
    weights: Array
    factors: Mapping[str, Array]  # of the examples, each of norm 1
    # of the collection, given as examples and not to be found again
    rows: tuple[int, ...] = ()

    @classmethod
    def from_factors(
        cls,
        factors: Mapping[str, Array],
        fitted: Fitted,
        positive: int,
        rows: tuple[int, ...],
    ) -> Query:
        """Return the query of these examples, the first `positive` of which are positive ones."""
        examples = fitted(factors)
        weights = np.full(len(examples), 1 / positive)
        weights[positive:] = -UNLIKE / max(1, len(examples) - positive)
        units = {}
        for name, values in factors.items():
            if values.ndim == 2:
                units[name] = l2_normalize(values)
        return cls(examples, positive, weights, units, rows)

    def scores(self, features: Comparable) -> Array:
        """Return the score of each image, (n,)."""
        scores: Array = gram(features, self.examples) @ self.weights
        return scores

    @property
    def likes(self) -> Comparable:
        """The positive examples."""
        return self.examples[: self.positive]
