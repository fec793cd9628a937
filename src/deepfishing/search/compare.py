"""Recipe, features and query of a search.

From a store and, if the user named one, a recipe this module makes

- the recipe, whose factors the store has, or the error with the command that adds them;
- features of any of the store's contents, and of all of them in blocks. If all fit into
  `KEEP_BYTES` they are kept after the first time; if not, memory is bounded by a block. Scores
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
PROTOTYPES_FROM, PROTOTYPES_UP_TO = 100, 100_000

BLOCK_BYTES = 1 << 26  # of features in a block, in single precision
KEEP_BYTES = 1 << 30
ROUNDING = 1e-6  # of a number of unit vectors
QUICK_ROWS = 128  # decoded at a time, which stay in the processor's cache
SEED = 0


def choose_recipe(
    store: Store, by: str | None = None, defaults: Sequence[str] = DEFAULTS
) -> Recipe:
    """The recipe of this name, or the default one; an error if the store lacks its factors."""
    layers, there = layers_of(store.settings), set(store.factors())
    if not there:
        raise StoreError(
            f"a store must have images to search in, got none in {store.folder}; add some with "
            "`deepfish extract`"
        )
    if by is None:
        for recipe in known_recipes(defaults, layers).values():
            if there.issuperset(recipe.columns):
                return recipe
        if others := features_of(there):
            # of a layer that has no number: a gradient, if any
            return parse_recipe(others[-1].name, layers)
        raise StoreError(
            f"{store.folder} has no factors of a default recipe, got {', '.join(sorted(there))}; "
            "name a recipe with --by"
        )
    recipe = parse_recipe(by, layers)
    if absent := [name for name in recipe.columns if name not in there]:
        names = [feature.name for feature in recipe.features]
        raise StoreError(
            f"store {store.folder} must hold {', '.join(recipe.columns)} for {recipe.name}, but "
            f"lacks {', '.join(absent)}; add them with `deepfish extract IMAGES {store.folder} "
            f"--features '{','.join(names)}'`"
        )
    return recipe


def search_defaults(photos: int) -> tuple[str, ...]:
    """Return the recipes that a search in so many photos takes, the first one that a store has."""
    if PROTOTYPES_FROM <= photos <= PROTOTYPES_UP_TO:
        return (*WITH_PROTOTYPES, *DEFAULTS)
    return DEFAULTS


@dataclass(frozen=True, eq=False)
class Features:
    """Contents as a fitted recipe sees them."""

    contents: Contents
    recipe: Recipe
    fitted: Fitted
    _kept: list[Comparable] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def is_quick(self) -> bool:
        """Whether the kernel follows from cosines of factors: no power, whitening or position."""
        shapes = self.contents.shapes.values()
        return _of_cosines(self.recipe) and all(len(shape) == 1 for shape in shapes)

    def of(self, numbers: Array) -> Comparable:
        """Features of these contents, in their order."""
        return self.fitted(self.contents.read(numbers, self.recipe.columns))

    def blocks(self, numbers: Array | None = None) -> Iterator[Comparable]:
        """Features of these contents, or of all, in order and a block at a time."""
        per_image = 4 * sum(
            math.prod(self.contents.shapes[c]) for c in self.recipe.columns
        )
        step = max(1, BLOCK_BYTES // per_image)
        chosen = np.arange(len(self)) if numbers is None else numbers
        blocks = (self.of(chosen[i : i + step]) for i in range(0, len(chosen), step))
        if numbers is not None or len(self) * per_image > KEEP_BYTES:
            yield from blocks
            return
        with self._lock:  # one thread reads, the others wait for it
            if not self._kept:
                self._kept.extend(share_arrays(block, []) for block in blocks)
        yield from self._kept

    def cosine_scores(self, numbers: Array, query: Query) -> Array:
        """Scores of these contents where `is_quick`, up to rounding in single precision."""
        cosines = {}
        for name, column in self.contents.columns.items():
            codes, parts = column.codes(numbers), []
            for start in range(0, len(codes), QUICK_ROWS):
                some = column.decode(codes[start : start + QUICK_ROWS])
                norm = np.sqrt(np.einsum("nd,nd->n", some, some))[:, None]
                parts.append(
                    some @ query.factors[name].T / np.maximum(norm, np.float32(1e-30))
                )
            cosines[name] = np.concatenate(parts)
        scores: Array = _kernel(self.recipe, cosines) @ query.weights
        return scores


def share_arrays(features: Comparable, seen: list[Array]) -> Comparable:
    """Return the features with arrays that are the same only once in memory.

    `dW8+x7+own(x7,64)` has three times x7, of unit length but for rounding.
    """
    if isinstance(features, Combination):
        return replace(
            features, parts=tuple(share_arrays(p, seen) for p in features.parts)
        )
    if isinstance(features, RankOne):
        return RankOne(_first_of(features.x, seen), _first_of(features.delta, seen))
    return _first_of(features, seen)


def _first_of(array: Array, seen: list[Array]) -> Array:
    for other in seen:
        alike = other.shape == array.shape and other.dtype == array.dtype
        if alike and np.abs(other - array).max(initial=0) <= ROUNDING:
            return other
    seen.append(array)
    return array


def _of_cosines(recipe: Recipe) -> bool:
    made = recipe.step in ("feature", "one", "mean", "product")
    return made and all(map(_of_cosines, recipe.parts))


def _kernel(recipe: Recipe, cosines: Mapping[str, Array]) -> Array:
    """The kernel (n, m) of a recipe by the cosines (n, m) of each factor."""
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
    K: Array = (
        np.prod(parts, axis=0)
        if is_product
        else np.average(parts, axis=0, weights=weights)
    )
    return K


def sample(n: int, m: int) -> Array:
    """At most m of the numbers below n, drawn with a fixed seed, rising."""
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
    def of(
        cls,
        factors: Mapping[str, Array],
        fitted: Fitted,
        positive: int,
        rows: tuple[int, ...],
    ) -> Query:
        """The query of these examples, the first `positive` of which are positive ones."""
        examples = fitted(factors)
        weights = np.full(len(examples), 1 / positive)
        weights[positive:] = -UNLIKE / max(1, len(examples) - positive)
        units = {name: l2_normalize(v) for name, v in factors.items() if v.ndim == 2}
        return cls(examples, positive, weights, units, rows)

    def scores(self, features: Comparable) -> Array:
        """Score of each image, (n,)."""
        scores: Array = gram(features, self.examples) @ self.weights
        return scores

    @property
    def likes(self) -> Comparable:
        """The positive examples."""
        return self.examples[: self.positive]
