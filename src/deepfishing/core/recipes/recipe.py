"""Recipes as values: kernels made of features, with what they learn and their names.

A `Recipe` is made of features and other recipes. It is fitted on the training images and then turns
factors into features that `gram` compares. `STEPS` has a
record for each way to make a recipe of others.

Whitening measures features in units of their own spread on the training images: rows v (n, d)
become L^-1 v, with L L^T = (1 - s) A + s tr(A)/d I, where A is the second moment of the rows and s
the shrinkage. For both factors of a gradient this gives K = (x^T A^-1 x')(delta^T G^-1 delta'), the
Fisher kernel (eqn:fk) with its information matrix approximated by a Kronecker product, and it stays
rank-1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np

from deepfishing.core.features import Factor, Feature, assemble, needed_factors
from deepfishing.core.kernels import (
    Comparable,
    KernelProduct,
    KernelRBF,
    KernelSum,
    arrays_of,
    average_rows,
)
from deepfishing.core.neighbours import Neighbours
from deepfishing.core.prototypes import DEFAULT_COUNT, Prototypes, fit_prototypes
from deepfishing.core.rank_one import Array, RankOne, l2_normalize
from deepfishing.errors import FeatureError

AUTO = "auto"  # what suits the training images, chosen by `deepfishing.learn.auto`
AUTO_FORWARD = "auto-forward"  # the same choice among forward features alone
FORWARD = "forward"  # among forward features that learn nothing from unlabelled photos
CHOSEN = (AUTO, AUTO_FORWARD, FORWARD)
BEST = "best"  # what did best on validation data, docs/recipes.md

Arrays = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A recipe that has seen the training images: makes of factors what `gram` compares."""

    transform: Callable[[Arrays], Comparable]
    # all that it learnt, the roots of its whitenings, for `Recipe.load`
    state: dict[str, Array]

    def __call__(self, arrays: Arrays) -> Comparable:
        """Turn the factors of some images into the feature, or the features, of this recipe."""
        return self.transform(arrays)


@dataclass(frozen=True)
class Recipe:
    """A parsed recipe: its name in one spelling, and a step with the parts that it is made of."""

    name: str
    step: str  # "feature", "one" (compares all images as 1), or one of `STEPS`
    parts: tuple[Recipe, ...] = ()
    feature: Feature | None = None  # of the step "feature"
    number: float = 0.0  # of a function; 0 where it has none
    weight: float = 1.0  # in the mean that it is a part of
    is_best: bool = False  # whether it is the formula of `best`

    @property
    def title(self) -> str:
        """The name in tables and on the page: `best`, or its name."""
        return BEST if self.is_best else self.name

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features that it is made of, each once."""
        if self.feature:
            return (self.feature,)
        features: dict[Feature, None] = {}
        for part in self.parts:
            features.update(dict.fromkeys(part.features))
        return tuple(features)

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The factors that it needs, each once."""
        return needed_factors(self.features)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its factors, which are columns of a store."""
        return tuple(factor.name for factor in self.factors)

    @property
    def gradients(self) -> tuple[Factor | None, ...]:
        """The delta of each gradient; None where its columns are not classes of the network."""
        if self.feature:
            if not self.feature.is_gradient:
                return ()
            return self.feature.factors[1:]
        if self.step == "own":
            return (None,)
        gradients: list[Factor | None] = []
        for part in self.parts:
            gradients += part.gradients
        if self.step == "whiten":  # it mixes the columns
            return (None,) * len(gradients)
        return tuple(gradients)

    @property
    def is_gradient(self) -> bool:
        """Whether one of its features is a gradient, of the network's head or of prototypes."""
        if self.feature:
            return self.feature.is_gradient
        return self.step == "own" or any(part.is_gradient for part in self.parts)

    @property
    def uses_pool(self) -> bool:
        """Whether it learns from unlabelled photos."""
        return any(recipe.step in POOLED for recipe in self._learning())

    @property
    def pool_columns(self) -> tuple[str, ...]:
        """The names of the factors that it learns from unlabelled photos."""
        columns: dict[str, None] = {}
        for recipe in self._learning():
            if recipe.step in POOLED:
                columns.update(dict.fromkeys(recipe.columns))
        return tuple(columns)

    @property
    def is_plain(self) -> bool:
        """Whether it is one feature or a transform of it, not a combination of kernels."""
        if self.feature is not None:
            return True
        return self.step in STEPS and STEPS[self.step].is_plain

    @property
    def is_chosen_later(self) -> bool:
        """Whether the recipe is chosen later, by the labels: one of `CHOSEN`."""
        return self.step == AUTO

    @property
    def learns(self) -> bool:
        """Whether it learns something from the training images."""
        return bool(self._learning()) or self.is_chosen_later

    def fit(
        self,
        train: Arrays,
        pool: Arrays | None = None,
        learnt: dict[str, Array] | None = None,
    ) -> Fitted:
        """Fit the recipe to the factors of the training images.

        Prototypes and neighbours are learnt from the factors of a `pool`, which need not be
        labelled; without one, from those of the training images. Arrays of the pool that `learnt`
        has are not computed again; those that it lacks are added to it.
        """
        if self.is_chosen_later:
            raise FeatureError(
                f"{self.name!r} is chosen by `deepfish train`; name a recipe here"
            )
        if learnt is None or pool is None:
            learnt = {}
        state: dict[str, Array] = {}
        for recipe in self._learning():
            learn = STEPS[recipe.step].learn
            names = recipe.state_names()
            if pool is None or recipe.step not in POOLED:
                values = learn(recipe, train, state)
                state |= dict(zip(names, values, strict=True))
                continue
            if not learnt.keys() >= set(names):
                values = learn(recipe, pool, state)
                learnt.update(zip(names, values, strict=True))
            state |= {name: learnt[name] for name in names}
        return Fitted(lambda arrays: self.value(arrays, state), state)

    def state_names(self) -> list[str]:
        """Return the names of the arrays that this step, without its parts, learns."""
        count = STEPS[self.step].arrays(self)
        return [f"{self.name}/{number}" for number in range(count)]

    def load(self, state: Arrays) -> Fitted:
        """Return the fitted recipe with the `state` of an earlier fit."""
        for recipe in self._learning():
            if not state.keys() >= set(recipe.state_names()):
                raise FeatureError(
                    f"state of recipe {self.name} must hold {recipe.name}, got none"
                )
        return Fitted(lambda arrays: self.value(arrays, state), dict(state))

    def value(self, arrays: Arrays, state: Arrays) -> Comparable:
        """Return the features that `gram` compares, of factors of images and the learnt state."""
        if self.feature:
            return assemble(self.feature, arrays)
        if self.step == "one":
            return np.ones((len(next(iter(arrays.values()))), 1), dtype=np.float32)
        if self.step == "smooth":
            return _smooth(self, arrays, state)
        parts = tuple(part.value(arrays, state) for part in self.parts)
        return STEPS[self.step].value(self, parts, state)

    def all_parts(self) -> list[Recipe]:
        """Return its parts, their parts and so on, and itself last."""
        parts = []
        for part in self.parts:
            parts += part.all_parts()
        return [*parts, self]

    def unsmoothed(self) -> Recipe:
        """Return the recipe without `smooth`: photos are not averaged with neighbours."""
        if self.step == "smooth":
            return replace(self.parts[0].unsmoothed(), weight=self.weight)
        return replace(self, parts=tuple(part.unsmoothed() for part in self.parts))

    def neighbour_vectors(self, arrays: Arrays) -> Array:
        """Return the vectors by which `smooth` finds neighbours.

        They are those of the feature that is smoothed or, for gradients and combinations, of the
        highest embedding that they are made of.
        """
        inner = self.parts[0]
        if inner.feature and not inner.is_gradient:
            (vectors,) = arrays_of(assemble(inner.feature, arrays))
            return vectors

        def height(factor: Factor) -> tuple[bool, str]:
            return factor.kind == "input", str(factor.layer)

        forward = [f for f in inner.factors if f.kind in ("input", "output")]
        return arrays[max(forward, key=height).name]

    def _learning(self) -> list[Recipe]:
        """Return the parts that learn, each after its own parts, and itself if it learns."""
        return [recipe for recipe in self.all_parts() if recipe.step in LEARNING]


@dataclass(frozen=True)
class Step:
    """One way to make a recipe: `value` computes its features from those of its parts."""

    value: Callable[[Recipe, tuple[Comparable, ...], Arrays], Comparable]
    # makes one feature of one feature, not a combination of kernels
    is_plain: bool = False
    number: str = ""  # name of a function's number: "an exponent"
    most: float = 1.0  # largest value of this number
    optional: bool = False  # whether the number may be left out
    # returns the arrays that it learns, of factors and the state of its parts
    learn: Callable[[Recipe, Arrays, Arrays], list[Array]] = (
        lambda recipe, arrays, state: []
    )
    # returns how many arrays it learns
    arrays: Callable[[Recipe], int] = lambda recipe: 1 + len(recipe.gradients)

    @property
    def needs(self) -> str:
        """Description of the number and its range."""
        return f"{self.number} above 0 and up to {self.most:g}"


def _power(recipe: Recipe, parts: tuple[Comparable, ...], state: Arrays) -> Comparable:
    """Return a feature, or both factors of a gradient, to a signed power: sign(v) |v|^p."""
    powers = []
    for values in arrays_of(parts[0]):
        powers.append(np.sign(values) * np.abs(values) ** recipe.number)
    return _unit(powers)


def _whiten(recipe: Recipe, parts: tuple[Comparable, ...], state: Arrays) -> Comparable:
    """The Fisher kernel with the information matrix factored as A (x) G, docs/recipes.md."""
    white = []
    for number, values in enumerate(arrays_of(parts[0])):
        white.append(whiten(state[f"{recipe.name}/{number}"], values))
    return _unit(white)


def _learn_roots(recipe: Recipe, arrays: Arrays, state: Arrays) -> list[Array]:
    """The roots of the second moments of a feature, or of the two factors of a gradient."""
    features = arrays_of(recipe.parts[0].value(arrays, state))
    return [second_moment_root(values, recipe.number or None) for values in features]


def _learn_prototypes(recipe: Recipe, arrays: Arrays, state: Arrays) -> list[Array]:
    """Centre and weights of a head."""
    (x,) = arrays_of(recipe.parts[0].value(arrays, state))
    head = fit_prototypes(x, int(recipe.number) or DEFAULT_COUNT)
    return [head.centre, head.W]


def _own(recipe: Recipe, parts: tuple[Comparable, ...], state: Arrays) -> Comparable:
    """The gradient with respect to a head that is made of a pool (`prototypes`)."""
    (x,) = arrays_of(parts[0])
    return Prototypes(state[f"{recipe.name}/0"], state[f"{recipe.name}/1"]).gradients(x)


def _learn_pool(recipe: Recipe, arrays: Arrays, state: Arrays) -> list[Array]:
    """Return the factors of the pool in half precision; of copies only the first is kept."""
    rows = Neighbours.fit(recipe.neighbour_vectors(arrays)).without_copies()
    learnt = []
    for name in recipe.columns:
        if arrays[name].ndim != 2:
            raise FeatureError(
                f"smooth takes pooled features, got {name} with positions"
            )
        values = l2_normalize(arrays[name][rows].astype(np.float32))
        learnt.append(values.astype(np.float16))
    return learnt


def _smooth(recipe: Recipe, arrays: Arrays, state: Arrays) -> Comparable:
    """Return the mean of each photo and its nearest ones in the pool, of unit length."""
    pool = _pool_of(recipe, state)
    count = int(recipe.number) or DEFAULT_NEIGHBOURS
    vectors = recipe.neighbour_vectors(arrays)
    numbers, weights, own_rows = pool.neighbours.find_with_own_row(vectors, count)
    # rows: the photos of the pool that are used, then those that are not in the pool
    is_new = own_rows < 0
    new_rows = len(pool.neighbours) + np.cumsum(is_new) - 1
    own_rows = np.where(is_new, new_rows, own_rows)
    # each photo counts once itself
    own_weights = np.ones((len(numbers), 1), weights.dtype)
    numbers = np.concatenate([own_rows[:, None], numbers], axis=1)
    weights = np.concatenate([own_weights, weights], axis=1)
    used, numbers = np.unique(numbers, return_inverse=True)
    from_pool = used[used < len(pool.neighbours)]
    stacked = {}
    for name in recipe.columns:
        new = l2_normalize(arrays[name][is_new].astype(np.float32))
        stacked[name] = np.concatenate([pool.factors[name][from_pool], new])
    return average_rows(recipe.parts[0].value(stacked, state), numbers, weights)


@dataclass(frozen=True, eq=False)
class _Pool:
    """Factors of the photos of a pool in single precision, ready to be searched."""

    factors: Arrays
    neighbours: Neighbours


def _pool_of(recipe: Recipe, state: Arrays) -> _Pool:
    """The pool of a fitted recipe; that of the last call is kept."""
    learnt = [state[f"{recipe.name}/{n}"] for n in range(len(recipe.columns))]
    if _LAST_POOL and _LAST_POOL[0][0] is learnt[0]:
        return _LAST_POOL[0][1]
    factors = {}
    for name, values in zip(recipe.columns, learnt, strict=True):
        factors[name] = l2_normalize(values.astype(np.float32))
    pool = _Pool(factors, Neighbours.fit(recipe.neighbour_vectors(factors)))
    _LAST_POOL[:] = [(learnt[0], pool)]
    return pool


DEFAULT_NEIGHBOURS = 10
_LAST_POOL: list[tuple[Array, _Pool]] = []

STEPS = {
    "mean": Step(
        lambda recipe, parts, _: KernelSum(parts, tuple(p.weight for p in recipe.parts))
    ),
    "product": Step(lambda recipe, parts, _: KernelProduct(parts)),
    "pow": Step(_power, is_plain=True, number="an exponent", most=4.0),
    # Ledoit and Wolf's shrinkage unless one is given
    "whiten": Step(
        _whiten, is_plain=True, number="a shrinkage", optional=True, learn=_learn_roots
    ),
    "rbf": Step(
        lambda recipe, parts, _: KernelRBF(parts, recipe.number),
        number="a width",
        most=100.0,
    ),
    "own": Step(
        _own,
        is_plain=True,
        number="a number of prototypes",
        most=4096.0,
        optional=True,
        learn=_learn_prototypes,
    ),
    # its value is made of the factors, not of the values of its parts: `_smooth`
    "smooth": Step(
        lambda recipe, parts, _: parts[0],
        number="a number of neighbours",
        most=100.0,
        optional=True,
        learn=_learn_pool,
        arrays=lambda recipe: len(recipe.columns),
    ),
}
POOLED = ("own", "smooth")  # learn from unlabelled photos
LEARNING = ("whiten", *POOLED)
FUNCTIONS = {name: step for name, step in STEPS.items() if step.number}
ONE = Recipe("1", "one")


def leaf(feature: Feature) -> Recipe:
    """A feature as it is."""
    return Recipe(feature.name, "feature", feature=feature)


def apply(function: str, inner: Recipe, number: float | None = None) -> Recipe:
    """A function of the language, such as the signed power of a feature."""
    step = FUNCTIONS[function]
    is_number = isinstance(number, Real) and 0 < number <= step.most
    if not is_number and not (number is None and step.optional):
        raise FeatureError(f"recipe needs {step.needs}, got {number}")
    arguments = inner.name
    if number is not None:
        arguments += f",{spell(number)}"
    name = f"{function}({arguments})"
    if function == "own" and inner.is_gradient:
        raise FeatureError(
            f"{function} must take a forward feature such as x7, got the gradient {inner.name}"
        )
    is_smoothed = any(part.step == "smooth" for part in inner.all_parts())
    if function == "smooth" and is_smoothed:
        raise FeatureError(
            f"smooth must not be smoothed again, got {inner.name}; use it once"
        )
    if function in POOLED and number is not None and number != int(number):
        raise FeatureError(f"recipe needs {step.number}, a whole one, got {number}")
    for feature in inner.features:
        if function == "pow" and feature.is_projected:
            # the power of a projection is another thing
            whole = replace(feature.factors[0], positions="pooled").name
            raise FeatureError(
                f"{name} cannot be computed: of {feature.name} only a projection is known, and pow "
                f"takes the gradient itself; write {name.replace(feature.name, whole)}"
            )
    return Recipe(name, function, (inner,), number=number or 0.0)


def spell(number: float) -> str:
    """Return a number as text, as short as possible without changing its value."""
    short = f"{number:g}"
    if float(short) == number:
        return short
    return repr(number)


def _unit(factors: list[Array]) -> Array | RankOne:
    """Return the normalised feature of one array, or the gradient of two."""
    if len(factors) == 2:
        return RankOne(*factors).normalize()
    return l2_normalize(factors[0])


def second_moment_root(rows: Array, shrinkage: float | None = None) -> Array:
    """L of rows (n, d) or (n, P, d), shrunk by a given value or Ledoit and Wolf's."""
    # it takes a second to load, and commands that only read a recipe's name do not need it
    from scipy.linalg import cholesky

    flat = np.asarray(rows, dtype=np.float64).reshape(-1, rows.shape[-1])
    if shrinkage is None:
        from sklearn.covariance import ledoit_wolf_shrinkage

        # rounding can make it negative where all rows are the same
        shrinkage = max(0.0, float(ledoit_wolf_shrinkage(flat, assume_centered=True)))
    A = flat.T @ flat / len(flat)
    level = np.trace(A) / len(A)
    A *= 1 - shrinkage
    # a floor for directions without any spread, far below what counts
    A[np.diag_indices_from(A)] += max(shrinkage, 1e-10) * level + 1e-30
    root: Array = cholesky(A, lower=True, overwrite_a=True).astype(rows.dtype)
    return root


def whiten(root: Array, rows: Array) -> Array:
    """L^-1 v of rows (n, d) or (n, P, d)."""
    from scipy.linalg import solve_triangular

    flat = rows.reshape(-1, rows.shape[-1])
    white: Array = solve_triangular(root, flat.T, lower=True, check_finite=False).T
    return np.ascontiguousarray(white).reshape(rows.shape)
