"""Which recipe, temperature and cost suit these training images.

Nothing but the training images, and unlabelled photos of the pool, is looked at.

With few labels per class the candidates are mixtures of forward features, neighbours and gradients
(`mixtures`), judged by leaving out one labelled image at a time and by what they gained on other
collections (`leave_one_out`). With many, SVMs are cross-validated: one kernel per feature is
computed once, the candidates are sums and products of these, and a Cholesky factor of each is a set
of vectors on which `train_linear` trains all classes at once. Copies and similar scenes are in one
fold (`learn.folds`). Unless a preferred recipe is clearly better than x7 on the held-out images, x7
is kept. Of candidates within one standard error of the best the preferred is taken, else the
simplest (docs/recipes.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.linalg import lapack

from deepfishing.core.features import features_of
from deepfishing.core.rank_one import Array, l2_norm
from deepfishing.core.recipes import AUTO, parse_recipe
from deepfishing.core.recipes.language import (
    SCORES,
    TEMPERED,
    best_recipe,
    candidates,
    forward_prior,
    prior,
)
from deepfishing.core.recipes.recipe import FORWARD
from deepfishing.core.statistics import Difference
from deepfishing.errors import FeatureError
from deepfishing.images.dataset import DIFFICULT
from deepfishing.learn.choice import (
    COSTS,
    DELTA,
    Choice,
    HeldOut,
    Kernels,
    Tried,
    at_temperature,
)
from deepfishing.learn.folds import (
    FOLDS,
    Folds,
    check_groups,
    make_folds,
    validation_groups,
)
from deepfishing.learn.leave_one_out import choose_by_leaving_out
from deepfishing.learn.linear import train_linear
from deepfishing.learn.mixtures import likeness, mixtures_for
from deepfishing.learn.pool import Pool
from deepfishing.util.progress import Progress, silent

MAX_IMAGES = 2000  # that the candidates are compared on
ENOUGH = 20  # examples per class
# photos, labelled or not, from which neighbours and prototypes are learnt
MIN_POOL = 100
# per class, below which mixtures are compared instead of all candidates
FEW_LABELS = 24
MIN_EXAMPLES_FOR_FOLDS = 5  # per class, below which folds say nothing about costs
MIN_GAIN = 0.05  # points of mAP that count as better
CLEARLY = 0.97  # share of draws in which no candidate would look so good by chance
# of the length of delta8, which int8 changes by 0.01 and int4 by 0.3
OTHER_SCORES = 0.4
JITTER = 1e-3  # keeps a kernel matrix in single precision positive

# a recipe, and a temperature; None for the store's
Candidate = tuple[str, float | None]


def looked_at(labels: Array, seed: int = 0) -> Array:
    """The images that `choose` looks at, all if they are few: sorted numbers."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(labels))
    # of very many classes some are drawn, so that there are enough examples of each
    if len(rows) > MAX_IMAGES and labels.shape[1] > MAX_IMAGES // ENOUGH:
        drawn = rng.permutation(labels.shape[1])[: MAX_IMAGES // ENOUGH]
        rows = rows[(labels[rows][:, drawn] == 1).any(axis=1)]
    return np.sort(rows[:MAX_IMAGES])


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

    Parameters
    ----------
    factors : dict of ndarray (n, ...)
        Of the labelled images; candidates that need others are not tried.
    labels : ndarray of shape (n, C)
        1 present, -1 absent, 0 difficult or unknown.
    layers : dict
        Number and path of the network's numbered layers.
    recipe : str, optional
        If it is given, only its cost is chosen.
    kind : "auto", "auto-forward" or "forward"
        All candidates, those of forward features, or those of them that learn nothing from the
        pool.
    pool : Pool, optional
        The photos, labelled or not, that prototypes and neighbours may be learnt from.
    groups : ndarray of shape (n,), optional
        Folds keep groups together; by default those of `validation_groups`.
    tempered : float, optional
        The temperature of the factors; others are tried with delta8 of `at_temperature`.
    difficult : "ignore" or "negative"
        As in `train_svm`.
    seed : int
        Of the images looked at and of the folds.
    progress : callable, optional
        Called with a stage, how much is done and how much there is.
    """
    usable = _usable_recipes(recipe, factors, layers, kind)
    rows = looked_at(labels, seed)
    factors = {name: values[rows] for name, values in factors.items()}
    labels = labels[rows]
    groups = validation_groups(factors) if groups is None else np.asarray(groups)[rows]
    counted = np.where(labels == 0, -1, labels) if difficult == "negative" else labels
    examples = examples_per_class(counted)
    if recipe is None and examples < FEW_LABELS:
        few_pool = None if kind == FORWARD else _usable_pool(pool)
        mixtures = mixtures_for(kind, layers, factors, few_pool is not None)
        if mixtures:
            kernels = Kernels(factors, layers, few_pool)
            of_pool = {} if pool is None else pool.factors
            alike = likeness(of_pool.get(SCORES, factors.get(SCORES)))
            return choose_by_leaving_out(
                mixtures, kernels, counted, examples, groups, alike
            )
    folds = make_folds(counted, groups, FOLDS, seed)
    if examples < MIN_EXAMPLES_FOR_FOLDS:
        words = "example per class is" if examples == 1 else "examples per class are"
        return Choice(usable[0], f"{examples:g} {words} too few to compare by")
    if not folds.measurable.any():
        return Choice(usable[0], f"cross-validation is {folds.reason(0)}")
    names: list[Candidate] = [(name, None) for name in usable]
    if tempered and recipe is None and kind == AUTO and _has_scores(factors, tempered):
        names += [(name, tau) for name, tau in TEMPERED if (name, None) in names]
    search = _Search(Kernels(factors, layers, pool), labels, folds, groups, difficult)
    return search.choose(names, _preferred(recipe, kind, layers), progress or silent)


def _usable_recipes(
    recipe: str | None,
    factors: Mapping[str, Array],
    layers: Mapping[int, str],
    kind: str,
) -> list[str]:
    """The recipe, or the candidates whose factors are there, the simplest first."""
    if recipe:
        return [recipe]
    usable = []
    for name in candidates(layers, kind):
        if set(parse_recipe(name, layers).columns) <= set(factors):
            usable.append(name)
    # of a store without the usual features what it has, gradients first
    for feature in [] if usable else reversed(features_of(factors)):
        if kind == AUTO or not feature.is_gradient:
            usable.append(feature.name)
    if not usable:
        had = ", ".join(factors) or "none of them"
        raise FeatureError(
            f"{kind} needs features that can be compared, got {had}; extract x7"
        )
    return usable


def _usable_pool(pool: Pool | None) -> Pool | None:
    """The pool, if it has enough photos and what mixtures learn from."""
    if pool is None or len(pool) < MIN_POOL or not pool.has(parse_recipe("smooth(x7)")):
        return None
    return pool


def examples_per_class(labels: Array) -> float:
    """The median number of positive examples of the classes that can be trained."""
    positives = (labels == 1).sum(axis=0)
    trained = positives[(positives > 0) & (labels == -1).any(axis=0)]
    return float(np.median(trained)) if len(trained) else 0.0


def _preferred(
    recipe: str | None, kind: str, layers: Mapping[int, str]
) -> tuple[str, ...]:
    """The candidates that are taken where they are as good as the best one."""
    if recipe:
        return ()
    forward = forward_prior(layers)
    return (prior(layers), best_recipe(layers), forward) if kind == AUTO else (forward,)


class _Search:
    """Candidates that are compared by cross-validated SVMs."""

    def __init__(
        self,
        kernels: Kernels,
        labels: Array,
        folds: Folds,
        groups: Array,
        difficult: str,
    ) -> None:
        self.kernels, self.labels, self.folds, self.difficult = (
            kernels,
            labels,
            folds,
            difficult,
        )
        self.groups = check_groups(groups, len(labels))
        self.rests: dict[bytes, Kernels] = {}

    def choose(
        self,
        names: Sequence[Candidate],
        preferred: Sequence[str],
        report_progress: Progress,
    ) -> Choice:
        """Compare recipes at a cost of 1, then costs of the recipe that was chosen."""
        held_out = HeldOut(self.labels, self.groups, self.folds.measurable)
        for number, candidate in enumerate(names):
            report_progress("recipes", number, len(names) + 1)
            held_out.add(self._held_out_scores(candidate, COSTS[0]))
        chosen, best = _pick(held_out, [name for name, _ in names], preferred)
        everyone = range(len(names))
        behind, errors = held_out.behind(best, everyone)
        tried = []
        for number, (recipe, temperature) in enumerate(names):
            figures = (
                held_out.maps[number],
                float(behind[number]),
                float(errors[number]),
            )
            tried.append(Tried(recipe, temperature, COSTS[0], *figures))
        report_progress("recipes", len(names), len(names) + 1)
        name, tau = names[chosen]
        at_costs = [chosen]
        for cost in COSTS[1:]:
            at_costs.append(len(held_out.maps))
            held_out.add(self._held_out_scores(names[chosen], cost))
        top = max(at_costs, key=lambda number: held_out.maps[number])
        behind, errors = held_out.behind(top, at_costs)
        cost = COSTS[int(np.flatnonzero(behind <= errors)[0])]
        for number in range(1, len(COSTS)):
            figures = (
                held_out.maps[at_costs[number]],
                float(behind[number]),
                float(errors[number]),
            )
            tried.append(Tried(name, tau, COSTS[number], *figures))
        report_progress("recipes", len(names) + 1, len(names) + 1)
        gain = held_out.difference(chosen, 0) if chosen else None
        return Choice(
            name, _why(tried, tried[chosen], cost, gain), tau, cost, tuple(tried), gain
        )

    def _held_out_scores(self, candidate: Candidate, C: float) -> Array:
        """Scores (n, C) of images by classifiers that were trained without their fold."""
        recipe, _ = candidate
        learns_from_pool = parse_recipe(recipe, self.kernels.layers).uses_pool
        if not learns_from_pool:
            vectors = _vectors(self.kernels.of(*candidate))
        scores = np.zeros(self.labels.shape)
        for train, held in self.folds:
            if learns_from_pool:
                rest = self._rest(held)
                if not len(rest.pool):
                    continue
                vectors = _vectors(rest.of(*candidate))
            svm = train_linear(vectors[train], self.labels[train], C, self.difficult)
            scores[held] = svm.decision_function(vectors[held])
        return scores

    def _rest(self, held: Array) -> Kernels:
        """Kernels whose pool lacks the images of a fold, made once for all candidates."""
        key = held.tobytes()
        if key not in self.rests:
            self.rests[key] = self.kernels.without(held)
        return self.rests[key]


def _pick(
    held_out: HeldOut, names: Sequence[str], preferred: Sequence[str]
) -> tuple[int, int]:
    """Numbers of the candidate to take and of the best one.

    The first and simplest is kept unless one of the preferred, or of all, is clearly better. Then
    the first of the preferred that is as good as the best is taken, else the simplest that is.
    """
    maps = held_out.maps
    best = int(np.argmax(maps))
    first = [names.index(name) for name in preferred if name in names[1:]]
    is_better = _is_clearly_better(held_out, first) or _is_clearly_better(
        held_out, range(len(maps))
    )
    if maps[best] < maps[0] + MIN_GAIN or not is_better:
        return 0, best
    everyone = [number for number in first if maps[number] > maps[0]] + list(
        range(len(names))
    )
    behind, errors = held_out.behind(best, everyone)
    return everyone[int(np.flatnonzero(behind <= errors)[0])], best


def _is_clearly_better(held_out: HeldOut, some: Sequence[int]) -> bool:
    """Whether one of these is better than the first candidate by more than chance.

    Chance is the distribution of the largest of their differences, in standard errors, over draws
    of images, as if none was better.
    """
    if not some:
        return False
    gains = np.array([held_out.maps[number] - held_out.maps[0] for number in some])
    draws = np.array([held_out.draws[number] - held_out.draws[0] for number in some])
    draws = draws[:, np.isfinite(draws).all(axis=0)]
    if not draws.shape[1]:
        return False
    errors = np.maximum(draws.std(axis=1), 1e-9)
    by_chance = ((draws - draws.mean(axis=1, keepdims=True)) / errors[:, None]).max(
        axis=0
    )
    return bool((gains / errors).max() > np.quantile(by_chance, CLEARLY))


def _has_scores(factors: Mapping[str, Array], tau: float) -> bool:
    """Whether delta8 is that of y8: of two heads, or a scale behind layer 8, it is not."""
    if not {SCORES, DELTA} <= factors.keys():
        return False
    delta, made = factors[DELTA], at_temperature(factors, tau)[DELTA]
    error, size = l2_norm(made - delta), l2_norm(delta)
    return bool(np.median(error) < OTHER_SCORES * np.median(size))


def _vectors(K: Array) -> Array:
    """Vectors (n, n) whose dot products are the kernel: a Cholesky factor."""
    A = np.array(K, dtype=np.float32, order="F")
    A.flat[:: len(A) + 1] += JITTER
    root, failed = lapack.spotrf(A, lower=1, clean=1, overwrite_a=1)
    if failed:  # a kernel of few directions, in single precision
        values, axes = np.linalg.eigh(K.astype(np.float64))
        root = axes * np.sqrt(np.maximum(values, 0.0))
    return np.ascontiguousarray(root, dtype=np.float32)


def _why(
    tried: Sequence[Tried], chosen: Tried, cost: float, gain: Difference | None
) -> str:
    if gain is not None:
        change = f"{gain.mean:+.1f} ({gain.low:+.1f} to {gain.high:+.1f})"
        why = f"{change} to {tried[0].recipe} in the comparison"
    elif len({(one.recipe, one.tau) for one in tried}) > 1:
        why = "nothing is clearly better in the comparison"
    else:
        why = "the cost is chosen by cross-validation"
    best = max((one for one in tried if one.cost == COSTS[0]), key=lambda one: one.map)
    if best is not chosen and gain is not None:
        why += f"; {best.recipe} with {best.map:.1f} is not clearly better"
    at = next((one for one in tried if one.cost == cost != COSTS[0]), None)
    return why + (f"; a cost of {cost:g} gives {at.map:.1f}" if at else "")
