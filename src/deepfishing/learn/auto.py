"""Stage 5, classification: which recipe, temperature and cost suit these training images.

Comes in: factors of the training images and their labels. Goes out: a `Choice` among some thirty
candidates, with all that was tried. Nothing but the training images is looked at.

SVMs are cross-validated: one kernel per feature is computed once, the candidates are sums and
products of these, and a Cholesky factor of each is a set of vectors on which `train_linear` trains
all classes at once. Copies and similar scenes are in one fold (`learn.folds`). Candidates within
one standard error of the best are as good; of these the prior is taken, else `best`, else the
simplest, and x7 if nothing is better. Where classes have too few examples, a rule decides
(docs/recipes.md).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack
from scipy.special import softmax

from deepfishing.core.features import TOP, features_of
from deepfishing.core.kernels import finite_gram
from deepfishing.core.rank_one import Array, l2_norm
from deepfishing.core.recipes import AUTO, Recipe, parse_recipe
from deepfishing.core.recipes.language import (
    FORWARD_POOL_RULE,
    POOL_RULE,
    SCORES,
    TEMPERED,
    best_recipe,
    candidates,
    few_rule,
    prior,
)
from deepfishing.core.recipes.recipe import FORWARD
from deepfishing.errors import FeatureError
from deepfishing.images.dataset import DIFFICULT
from deepfishing.learn.folds import FOLDS, Folds, make_folds, validation_groups
from deepfishing.learn.linear import train_linear
from deepfishing.learn.pool import Pool
from deepfishing.metrics import average_precision
from deepfishing.util.progress import Progress, silent

MOST_IMAGES = 2000  # that the candidates are compared on
ENOUGH = 20  # examples per class
COSTS = (1.0, 3.0, 10.0)  # the paper's first: recipes are compared at it
MIN_POOL = 100  # photos, labelled or not, from which neighbours and prototypes are learnt
FEW = 5  # examples of a class below which its folds say nothing
LEAST = 0.05  # points of mAP that count as better
DELTA = f"delta{TOP}"
OTHER_SCORES = 0.4  # of the length of delta8, which int8 changes by 0.01 and int4 by 0.3
JITTER = 1e-3  # keeps a kernel matrix in single precision positive


@dataclass(frozen=True)
class Tried:
    """One candidate: its cross-validated mAP in percent, and how far behind the best it is."""

    recipe: str
    tau: float | None  # None for the store's
    cost: float
    map: float
    behind: float
    error: float  # standard error of `behind` over classes


@dataclass(frozen=True)
class Choice:
    """What was chosen, why in a sentence, and all that was tried in its order."""

    recipe: str
    why: str
    tau: float | None = None
    cost: float = COSTS[0]
    tried: tuple[Tried, ...] = ()


def looked_at(labels: Array, seed: int = 0) -> Array:
    """The images that `choose` looks at, all if they are few: sorted numbers."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(labels))
    # of very many classes some are drawn, so that there are enough examples of each
    if len(rows) > MOST_IMAGES and labels.shape[1] > MOST_IMAGES // ENOUGH:
        drawn = rng.permutation(labels.shape[1])[: MOST_IMAGES // ENOUGH]
        rows = rows[(labels[rows][:, drawn] == 1).any(axis=1)]
    return np.sort(rows[:MOST_IMAGES])


def choose(
    factors: Mapping[str, Array],
    labels: Array,
    layers: Mapping[int, str],
    *,
    recipe: str | None = None,
    kind: str = AUTO,
    pool: Pool | None = None,
    groups: Array | None = None,
    tempered: float | None = None,
    difficult: str = DIFFICULT[0],
    seed: int = 0,
    progress: Progress | None = None,
) -> Choice:
    """Choose recipe, temperature and cost for the images whose factors and labels these are.

    `pool` has the photos, labelled or not, that the recipe may learn from. With few examples in a
    larger pool the rule is `POOL_RULE`, which needs no classes of the network's own. `kind` is
    "auto", "auto-forward" for forward features alone, or "forward" for those of them that learn
    nothing from the pool. Candidates that need other factors are not tried; with a `recipe`, only
    its cost is chosen. If
    the factors are `tempered`, at that temperature, delta8 of others is made of y8 by
    `at_temperature`. Folds keep `groups` together, by default those of `validation_groups`; a class
    of fewer groups than folds has no part in the comparison. Labels (n, classes) and `difficult`
    are as in `train_svm`.
    """
    tell = progress or silent
    positives = (labels == 1).sum(axis=0)
    shown = positives[(positives > 0) & ((labels == -1).any(axis=0))]
    examples = float(np.median(shown)) if len(shown) else 0.0

    def known(name: str) -> bool:
        return set(parse_recipe(name, layers).columns) <= set(factors)

    names: list[tuple[str, float | None]]
    possible = [recipe] if recipe else [n for n in candidates(layers, kind) if known(n)]
    # of a store without the usual features what it has, gradients first
    possible = possible or [feature.name for feature in reversed(features_of(factors))]
    if not possible:
        had = ", ".join(factors) or "none of them"
        raise FeatureError(f"auto needs features that can be compared, got {had}; extract x7")
    names = [(name, None) for name in possible]
    if examples < FEW:
        rule = recipe or (few_rule(examples, layers) if kind == AUTO else "pow(x7,0.5)")
        photos = 0 if pool is None or kind == FORWARD else len(pool)
        if not recipe and photos >= MIN_POOL and photos > len(labels) and known(POOL_RULE):
            rule = POOL_RULE if kind == AUTO else FORWARD_POOL_RULE
        words = "example per class is" if examples == 1 else "examples per class are"
        why = f"{examples:g} {words} too few to compare {'costs' if recipe else 'recipes'} by"
        if rule == POOL_RULE:
            why += f", so neighbours and prototypes among {photos:,} photos are used"
        if rule == FORWARD_POOL_RULE:
            why += f", so neighbours among {photos:,} photos are used"
        return Choice(rule if known(rule) else names[0][0], why)
    if tempered and not recipe and kind == AUTO and _has_scores(factors, tempered):
        names += [(name, tau) for name, tau in TEMPERED if (name, None) in names]
    kept = looked_at(labels, seed)
    kernels = _Kernels({name: values[kept] for name, values in factors.items()}, layers)
    labels = labels[kept]
    groups = validation_groups(kernels.factors) if groups is None else np.asarray(groups)[kept]
    counted = np.where(labels == 0, -1, labels) if difficult == "negative" else labels
    folds = make_folds(counted, groups, FOLDS, seed)
    if not folds.measurable.any():
        rule = recipe or (few_rule(examples, layers) if kind == AUTO else "x7")
        reason = f"cross-validation is {folds.reason(0)}"
        return Choice(rule if known(rule) else names[0][0], reason)

    def judged(name: str, tau: float | None, costs: Sequence[float]) -> list[Array]:
        vectors = _vectors(kernels.of(name, tau))
        return [_validated(vectors, labels, folds, cost, difficult) for cost in costs]

    ap = []
    for number, (name, tau) in enumerate(names):
        tell("recipes", number, len(names) + 1)
        ap += judged(name, tau, COSTS[:1])
    means = [float(np.nanmean(one)) for one in ap]
    preferred = () if recipe or kind != AUTO else (prior(layers), best_recipe(layers))
    order = _order([name for name, tau in names], preferred, means)
    best, errors = _errors(np.array(ap))
    behind = means[best] - np.array(means)
    chosen = next(i for i in order if behind[i] <= errors[i])
    name, tau = names[chosen]
    tell("recipes", len(names), len(names) + 1)
    by_cost = np.array([ap[chosen], *judged(name, tau, COSTS[1:])])
    top, doubt = _errors(by_cost)
    at_cost = np.nanmean(by_cost, axis=1)
    cost = COSTS[int(np.flatnonzero(at_cost[top] - at_cost <= doubt)[0])]
    tell("recipes", len(names) + 1, len(names) + 1)
    tried = [
        Tried(*one, COSTS[0], mean, float(gap), float(error))
        for one, mean, gap, error in zip(names, means, behind, errors, strict=True)
    ]
    tried += [
        Tried(name, tau, at, float(mean), float(at_cost[top] - mean), float(error))
        for at, mean, error in list(zip(COSTS, at_cost, doubt, strict=True))[1:]
    ]
    return Choice(name, _why(tried, tried[chosen], cost), tau, cost, tuple(tried))


def at_temperature(factors: Mapping[str, Array], tau: float) -> dict[str, Array]:
    """The factors with delta8 of another temperature, of the scores: (softmax(y/tau) - 1/P)/tau.

    Right for a softmax and the uniform label, and for one view; lower deltas stay as they are.
    """
    y = np.asarray(factors[SCORES])
    delta = (softmax(y / tau, axis=-1) - 1 / y.shape[-1]) / tau
    return {**factors, DELTA: delta.astype(y.dtype)}


def _has_scores(factors: Mapping[str, Array], tau: float) -> bool:
    """Whether delta8 is that of y8: of two heads, or a scale behind layer 8, it is not."""
    if not {SCORES, DELTA} <= factors.keys():
        return False
    delta, made = factors[DELTA], at_temperature(factors, tau)[DELTA]
    error, size = l2_norm(made - delta), l2_norm(delta)
    return bool(np.median(error) < OTHER_SCORES * np.median(size))


class _Kernels:
    """Kernel matrices in single precision; those of features are kept, the others made of them."""

    def __init__(self, factors: Mapping[str, Array], layers: Mapping[int, str]) -> None:
        self.factors, self.layers = factors, layers
        self.kept: dict[tuple[str, float | None], Array] = {}

    def of(self, name: str, tau: float | None = None) -> Array:
        """The kernel of a recipe at a temperature, None for the store's."""
        factors = self.factors if tau is None else at_temperature(self.factors, tau)
        return self._of(parse_recipe(name, self.layers), tau, factors)

    def _of(self, recipe: Recipe, tau: float | None, factors: Mapping[str, Array]) -> Array:
        if recipe.step == "one":
            return np.ones((1, 1), dtype=np.float32)
        if recipe.step == "mean":
            total = sum(part.weight for part in recipe.parts)
            parts = (self._of(p, tau, factors) * np.float32(p.weight / total) for p in recipe.parts)
            return np.asarray(sum(parts))
        if recipe.step == "product":
            return functools.reduce(np.multiply, (self._of(p, tau, factors) for p in recipe.parts))
        if recipe.step == "rbf":
            inner = self._of(recipe.parts[0], tau, factors)
            return np.asarray(np.exp(np.float32(2 * recipe.number) * (inner - 1)))
        key = (recipe.name, tau if recipe.is_gradient else None)
        if key not in self.kept:
            self.kept[key] = finite_gram(recipe.fit(factors)(factors)).astype(np.float32)
        return self.kept[key]


def _vectors(K: Array) -> Array:
    """Vectors (n, n) whose dot products are the kernel: a Cholesky factor."""
    A = np.array(K, dtype=np.float32, order="F")
    A.flat[:: len(A) + 1] += JITTER
    root, failed = lapack.spotrf(A, lower=1, clean=1, overwrite_a=1)
    if failed:  # a kernel of few directions, in single precision
        values, axes = np.linalg.eigh(K.astype(np.float64))
        root = axes * np.sqrt(np.maximum(values, 0.0))
    return np.ascontiguousarray(root, dtype=np.float32)


def _validated(vectors: Array, labels: Array, folds: Folds, C: float, difficult: str) -> Array:
    """AP (classes,) of images held out, in percent; NaN for a class that is not measurable."""
    scores = np.zeros(labels.shape)
    for train, held in folds:
        svm = train_linear(vectors[train], labels[train], C, difficult)
        scores[held] = svm.decision_function(vectors[held])
    ap = np.full(labels.shape[1], np.nan)
    for c in np.flatnonzero(folds.measurable):
        ap[c] = average_precision(labels[:, c], scores[:, c], "area")
    return ap


def _errors(ap: Array) -> tuple[int, Array]:
    """The best of ap (candidates, classes), and the standard errors of what it is better by."""
    best = int(np.nanmean(ap, axis=1).argmax())
    gaps = ap[best] - ap
    known = np.isfinite(gaps).sum(axis=1)
    if known[0] < 2:
        return best, np.zeros(len(ap))
    return best, np.nanstd(gaps, axis=1, ddof=1) / np.sqrt(known)


def _order(names: Sequence[str], first: Sequence[str], means: Sequence[float]) -> list[int]:
    """In which order candidates are asked whether they will do."""
    order = list(range(len(names)))
    if max(means) < means[0] + LEAST:
        return order
    known = [names.index(name) for name in first if name in names]
    return [i for i in known if means[i] > means[0]] + order


def _why(tried: Sequence[Tried], chosen: Tried, cost: float) -> str:
    gain = chosen.map - tried[0].map
    why = f"cross-validated mAP {chosen.map:.1f}, {gain:+.1f} to {tried[0].recipe}"
    best = max((one for one in tried if one.cost == COSTS[0]), key=lambda one: one.map)
    if best is not chosen:
        why += f"; {best.recipe} with {best.map:.1f} is not clearly better"
    at = next((one for one in tried if one.cost == cost != COSTS[0]), None)
    return why + (f"; a cost of {cost:g} gives {at.map:.1f}" if at else "")
