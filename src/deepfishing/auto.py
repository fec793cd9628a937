"""Stage 5, classification: which recipe suits these training images.

Comes in: factors of the training images and their labels. Goes out: a `Choice`, one recipe out of
some twenty, with all that was tried. Nothing but the training images is looked at.

The judge is cross-validation of kernel ridge regression, since one inverse answers it for all
classes and all folds at once. With A = K + ridge I and the targets Y, the residuals of the images F
of a fold, predicted from all others, are

    Y_F - Y_hat_F = ((A^-1)_FF)^-1 (A^-1 Y)_F,

so no machine is trained in the search. Images that are nearly the same are in one fold. Among the
candidates whose mean AP is within one standard error of the best one's, the first is taken: they
are listed from the simplest, x7, to `best`. Where classes have too few examples to be validated, a
rule decides (docs/recipes.md says how it was found).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from deepfishing.errors import FeatureError
from deepfishing.features import TOP
from deepfishing.kernels import gram
from deepfishing.metrics import average_precision
from deepfishing.rank_one import Array
from deepfishing.recipes import candidates, parse_recipe

MOST_IMAGES = 2500  # that the candidates are compared on
FOLDS = 5
RIDGES = (1.0, 0.3, 0.1)
SAME = 0.97  # kernel of x7 from which two photographs are nearly the same
FEW = 5  # examples of a class below which its folds say nothing

Progress = Callable[[str, int, int], None]  # stage, done, to do


@dataclass(frozen=True)
class Tried:
    """One candidate: its cross-validated mAP in percent, and how far behind the best it is.

    `error` is the standard error of that difference over classes.
    """

    recipe: str
    map: float
    behind: float
    error: float


@dataclass(frozen=True)
class Choice:
    """The recipe that was chosen, why in a sentence, and the candidates in their order."""

    recipe: str
    why: str
    tried: tuple[Tried, ...] = ()


def few_rule(examples: float, layers: Mapping[int, str]) -> str:
    """The recipe for so few examples per class that nothing can be validated.

    Examples
    --------
    >>> few_rule(1, {7: "_conv_head", 8: "_fc"}), few_rule(4, {7: "_conv_head", 8: "_fc"})
    ('2*dW8+pow(dW8,0.5)', 'pow(dW8,0.5)+dW8+dW7')
    """
    if examples < 2 or TOP - 1 not in layers:
        return "2*dW8+pow(dW8,0.5)"
    return "pow(dW8,0.5)+dW8+dW7"


def choose_recipe(
    factors: Mapping[str, Array],
    labels: Array,
    layers: Mapping[int, str],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Choice:
    """Choose a recipe for the images whose factors and labels these are.

    Parameters
    ----------
    factors : mapping
        By name, those of all `candidates`: (n, d) each.
    labels : ndarray of shape (n, n_classes)
        1 present, -1 absent, 0 difficult.
    layers : mapping
        Of the network, k -> module path.
    seed : int
        Of the folds and of the images that are drawn if there are more than `MOST_IMAGES`.
    progress : callable, optional
        Called with a stage, how much of it is done and how much there is.
    """
    tell = progress or (lambda stage, done, total: None)
    positives = (labels == 1).sum(axis=0)
    shown = positives[(positives > 0) & (positives < len(labels))]
    examples = float(np.median(shown)) if len(shown) else 0.0
    if examples < FEW:
        rule = few_rule(examples, layers)
        return Choice(rule, f"{examples:g} examples per class are too few to compare recipes by")
    rng = np.random.default_rng(seed)
    kept = np.sort(rng.permutation(len(labels))[:MOST_IMAGES])
    labels = labels[kept]
    arrays = {name: values[kept] for name, values in factors.items()}
    folds = _folds(arrays, labels, layers, rng)
    names = candidates(layers)
    ap = []
    for number, name in enumerate(names):
        tell("recipes", number, len(names))
        recipe = parse_recipe(name, layers)
        ap.append(_validated(gram(recipe.fit(arrays)(arrays)), labels, folds))
    tell("recipes", len(names), len(names))
    return _simplest(names, np.array(ap))


def _simplest(names: tuple[str, ...], ap: Array) -> Choice:
    """The first candidate within one standard error of the best; AP (candidates, classes)."""
    means = np.nanmean(ap, axis=1)
    best = int(means.argmax())
    gaps = ap[best] - ap
    known = np.isfinite(gaps).sum(axis=1)
    errors = np.nanstd(gaps, axis=1, ddof=1) / np.sqrt(known) if known[0] > 1 else 0 * means
    chosen = int(np.flatnonzero(means[best] - means <= errors)[0])
    tried = tuple(
        Tried(name, float(mean), float(means[best] - mean), float(error))
        for name, mean, error in zip(names, means, errors, strict=True)
    )
    gain = means[chosen] - means[0]
    why = f"cross-validated mAP {means[chosen]:.1f}, {gain:+.1f} to {names[0]}"
    if chosen != best:
        why += f"; {names[best]} with {means[best]:.1f} is not clearly better"
    return Choice(names[chosen], why, tried)


def _validated(K: Array, labels: Array, folds: Array) -> Array:
    """AP (classes,) of images held out, at the best ridge; NaN for a class without positives."""
    targets = labels - labels.mean(axis=0)
    best = np.full(labels.shape[1], np.nan)
    for ridge in RIDGES:
        scores = held_out(K, targets, folds, ridge)
        ap = np.array(
            [
                average_precision(truth, score, "area") if (truth == 1).any() else np.nan
                for truth, score in zip(labels.T, scores.T, strict=True)
            ]
        )
        if np.isnan(best).all() or np.nanmean(ap) > np.nanmean(best):
            best = ap
    return best


def held_out(K: Array, targets: Array, folds: Array, ridge: float) -> Array:
    """Predictions (n, C) of kernel ridge regression, each from the images of other folds.

    Examples
    --------
    >>> K, targets = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([[1.0], [3.0]])
    >>> held_out(K, targets, folds=np.array([0, 1]), ridge=1.0)  # 1/3 of the other's target
    array([[1.        ],
           [0.33333333]])
    """
    n = len(K)
    A = np.array(K, order="F")
    A.flat[:: n + 1] += ridge
    root, failed = lapack.dpotrf(A, lower=1, overwrite_a=1)
    inverse, failed = lapack.dpotri(root, lower=1, overwrite_c=1) if not failed else (A, failed)
    if failed:
        raise FeatureError("features must be finite, got NaN or infinity in the Gram matrix")
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    weights = inverse @ targets
    predicted: Array = np.empty(targets.shape)
    for fold in np.unique(folds):
        held = np.flatnonzero(folds == fold)
        residual = np.linalg.solve(inverse[np.ix_(held, held)], weights[held])
        predicted[held] = targets[held] - residual
    return predicted


def _folds(
    arrays: Mapping[str, Array], labels: Array, layers: Mapping[int, str], rng: np.random.Generator
) -> Array:
    """The fold of each image: near-duplicates together, classes spread evenly."""
    K = gram(parse_recipe("x7", layers).fit(arrays)(arrays))
    _, group = connected_components(csr_matrix(K > SAME), directed=False)
    # a class whose images are all alike is an easy class, and must not be held out as a whole
    crowded = np.bincount(group)[group] > max(2, len(labels) // (2 * FOLDS * labels.shape[1]))
    group = np.unique(
        np.where(crowded, len(group) + np.arange(len(group)), group), return_inverse=True
    )[1]
    # groups are dealt out in the order of their rarest class, so every fold has some of each
    rare = np.where(labels == 1, (labels == 1).sum(axis=0), len(labels) + 1)
    key = np.where((labels == 1).any(axis=1), rare.argmin(axis=1), labels.shape[1])
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(key[shuffled], kind="stable")]
    _, first = np.unique(group[order], return_index=True)
    dealt = group[order][np.sort(first)]
    fold = np.empty(len(dealt), dtype=int)
    fold[dealt] = np.arange(len(dealt)) % FOLDS
    numbered: Array = fold[group]
    return numbered
