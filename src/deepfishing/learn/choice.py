"""What `auto` has chosen, and the kernels that it compares."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import softmax

from deepfishing.core.features import TOP
from deepfishing.core.kernels import finite_gram
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Recipe, parse_recipe
from deepfishing.core.recipes.language import SCORES
from deepfishing.core.statistics import LEVEL, Difference, bootstrap, difference
from deepfishing.learn.pool import Pool

COSTS = (1.0, 3.0, 10.0)  # the paper's first: recipes are compared at it
RESAMPLES = 200
DELTA = f"delta{TOP}"


@dataclass(frozen=True)
class Tried:
    """One candidate: its mAP on held-out images in percent, and how far behind the best it is."""

    recipe: str
    tau: float | None  # None for the store's
    cost: float
    map: float
    behind: float
    error: float  # standard error of `behind` over images


@dataclass(frozen=True)
class Choice:
    """What was chosen, why in a sentence, and all that was tried in its order.

    `gain` is the mAP above that of `x7` on held-out training images, with its interval; None if
    x7 was chosen or nothing could be held out.
    """

    recipe: str
    why: str
    tau: float | None = None
    cost: float = COSTS[0]
    tried: tuple[Tried, ...] = ()
    gain: Difference | None = None


class Kernels:
    """Kernel matrices of labelled images; those of features are kept, others made of them."""

    def __init__(
        self,
        factors: Mapping[str, Array],
        layers: Mapping[int, str],
        pool: Pool | None = None,
    ) -> None:
        self.factors, self.layers = factors, layers
        self.pool = Pool(factors) if pool is None else pool
        self.computed: dict[tuple[str, float | None], Array] = {}

    def of(self, name: str, tau: float | None = None) -> Array:
        """The kernel of a recipe at a temperature, None for the store's."""
        factors = self.factors if tau is None else at_temperature(self.factors, tau)
        return self._of(parse_recipe(name, self.layers), tau, factors)

    def without(self, held: Array) -> Kernels:
        """Kernels of the same images, with a pool that lacks those with these numbers."""
        names = [name for name in self.pool.factors if name in self.factors]
        pool = self.pool.without({name: self.factors[name][held] for name in names})
        rest = Kernels(self.factors, self.layers, pool)
        for key, K in self.computed.items():
            if not parse_recipe(key[0], self.layers).uses_pool:
                rest.computed[key] = K
        return rest

    def _of(
        self, recipe: Recipe, tau: float | None, factors: Mapping[str, Array]
    ) -> Array:
        if recipe.step == "one":
            return np.ones((1, 1), dtype=np.float32)
        if recipe.step == "mean":
            total = sum(part.weight for part in recipe.parts)
            parts = (
                self._of(p, tau, factors) * np.float32(p.weight / total)
                for p in recipe.parts
            )
            return np.asarray(sum(parts))
        if recipe.step == "product":
            return functools.reduce(
                np.multiply, (self._of(p, tau, factors) for p in recipe.parts)
            )
        if recipe.step == "rbf":
            inner = self._of(recipe.parts[0], tau, factors)
            return np.asarray(np.exp(np.float32(2 * recipe.number) * (inner - 1)))
        key = (recipe.name, tau if recipe.is_gradient else None)
        if key not in self.computed:
            fitted = self.pool.fit(recipe, factors)
            self.computed[key] = finite_gram(fitted(factors)).astype(np.float32)
        return self.computed[key]


class HeldOut:
    """Bootstrap of the mAP of candidates on the same held-out images.

    Differences of two candidates are taken on the same draws of images, or of groups of them. So
    their error is one over images, which is also known where there are only one or two classes.
    """

    def __init__(self, labels: Array, groups: Array | None, measured: Array) -> None:
        self.labels, self.groups = labels[:, measured], groups
        self.measured = measured
        self.maps: list[float] = []
        self.draws: list[Array] = []

    def add(self, scores: Array) -> float:
        """Add the scores (n, C) of one candidate; return its mAP in percent."""
        names = [str(column) for column in range(self.labels.shape[1])]
        method = "area"
        found = bootstrap(
            self.labels,
            scores[:, self.measured],
            names,
            (method,),
            RESAMPLES,
            groups=self.groups,
        )
        mean = found.measured.map[method]
        self.maps.append(float("nan") if mean is None else mean)
        self.draws.append(found.map(method))
        return self.maps[-1]

    def difference(self, a: int, b: int) -> Difference:
        """The mAP of candidate a minus that of b, with its interval."""
        return difference(self.maps[a] - self.maps[b], self.draws[a] - self.draws[b])

    def simultaneous_difference(self, a: int, b: int) -> Difference:
        """As `difference`, with an interval that allows for a being picked from all candidates."""
        gaps = np.array(self.draws) - self.draws[b]
        centred = gaps - np.nanmean(gaps, axis=1, keepdims=True)
        errors = np.maximum(np.nanstd(gaps, axis=1), 1e-9)
        ratios = np.abs(centred) / errors[:, None]
        # some draws have no class to measure
        ratios = ratios[:, np.isfinite(ratios).any(axis=0)]
        largest = np.nanmax(ratios, axis=0)
        half = float(np.nanquantile(largest, LEVEL)) * float(errors[a])
        plain = self.difference(a, b)
        return replace(plain, low=plain.mean - half, high=plain.mean + half)

    def behind(self, best: int, some: Sequence[int]) -> tuple[Array, Array]:
        """How far these candidates are behind the best one, and the standard errors of that."""
        gaps = np.array([self.maps[best] - self.maps[number] for number in some])
        draws = np.array([self.draws[best] - self.draws[number] for number in some])
        return gaps, np.nanstd(draws, axis=1)


def at_temperature(factors: Mapping[str, Array], tau: float) -> dict[str, Array]:
    """The factors with delta8 of another temperature, of the scores: (softmax(y/tau) - 1/P)/tau.

    Right for a softmax and the uniform label, and for one view; lower deltas stay as they are.
    """
    y = np.asarray(factors[SCORES])
    delta = (softmax(y / tau, axis=-1) - 1 / y.shape[-1]) / tau
    return {**factors, DELTA: delta.astype(y.dtype)}
