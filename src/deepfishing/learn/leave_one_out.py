"""Few labels: which mixture suits them, by leaving out one labelled image at a time.

Two things decide: what a mixture gained on other collections with as many labels
(`Mixture.expected`), and its mAP on labelled images that are held out. Both are estimates of one
gain, and their weighted mean is taken. The second counts for more the more labels there are; with
one label per class there is nothing to hold out.

Kernel ridge regression with targets +1 and -1 has the solution alpha = G^-1 y with
G = K + 1 + ridge I, where the constant 1 is the intercept. Without the images of a group g, the
prediction for them is off by

    y_g - f_g = (G^-1)_gg^-1 alpha_g,

so all images are held out at the price of one inverse. A group is held out as a whole: a copy of a
photo knows its label.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepfishing.core.accuracy import has_one_class
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import parse_recipe
from deepfishing.learn.choice import COSTS, Choice, HeldOut, Kernels, Tried
from deepfishing.learn.folds import check_groups, make_folds
from deepfishing.learn.mixtures import UNKNOWN, Mixture

RIDGE = 1.0
FEW_LABELS_COST = 3.0  # which gives a higher accuracy than 1, and about the same mAP
# labels per class from which it does so, too, with several classes per photo
MANY_FOR_COST = 4
MAX_SHARE_OF_POOL = 1 / 4  # of labelled photos that the pool can do without
# held-out positive images with which their gain counts as much as the expected one
EQUAL_COUNT = 100


def choose_by_leaving_out(
    mixtures: Sequence[Mixture],
    kernels: Kernels,
    labels: Array,
    examples: float,
    groups: Array | None = None,
    alike: float = UNKNOWN,
) -> Choice:
    """Choose the mixture with the largest expected gain after what the labels say.

    Parameters
    ----------
    mixtures : sequence of Mixture
        The first is the one that the others are compared with.
    kernels : Kernels
        Of the labelled images.
    labels : ndarray of shape (n, C)
        1 present, -1 absent, 0 unknown.
    examples : float
        Positive images per class.
    groups : ndarray of shape (n,), optional
        Copies and similar scenes, which are held out together.
    alike : float
        The `likeness` of the photos.
    """
    group = check_groups(groups, len(labels))
    measured = measurable_classes(labels, group)
    names = [mixture.recipe(kernels.layers) for mixture in mixtures]
    expected = np.array([mixture.expected(examples, alike) for mixture in mixtures])
    cost = COSTS[0]
    if examples >= MANY_FOR_COST or has_one_class(labels):
        cost = FEW_LABELS_COST
    words = f"{examples:g} label{'' if examples == 1 else 's'} per class"
    if not measured.any():
        chosen = int(expected.argmax())
        why = f"{words} cannot be held out, so what was best on other collections is taken"
        return Choice(names[chosen], f"{why}: {mixtures[chosen].words}", cost=cost)
    held_out = HeldOut(labels, group, measured)
    for scores in held_out_scores(names, kernels, labels, group):
        held_out.add(scores)
    count = int((labels[:, measured] == 1).sum())
    evidence = np.array(held_out.maps) - held_out.maps[0]
    chosen = int(combined_gains(expected, evidence, count).argmax())
    best = int(np.argmax(held_out.maps))
    behind, errors = held_out.behind(best, range(len(names)))
    tried = []
    for number, name in enumerate(names):
        figures = held_out.maps[number], float(behind[number]), float(errors[number])
        tried.append(Tried(name, None, cost, *figures))
    why = f"{words}: {mixtures[chosen].words}, compared on images left out"
    gain = None
    if chosen:
        gain = held_out.simultaneous_difference(chosen, 0)
        why += f", {gain.mean:+.1f} ({gain.low:+.1f} to {gain.high:+.1f}) to {mixtures[0].words}"
    return Choice(names[chosen], why, cost=cost, tried=tuple(tried), gain=gain)


def combined_gains(expected: Array, evidence: Array, count: int) -> Array:
    """Return the mean of expected gains (n,) and of those on `count` held-out positive images.

    Examples
    --------
    >>> combined_gains(np.array([0.0, 4.0]), np.array([0.0, -4.0]), 100).tolist()
    [0.0, 0.0]
    """
    trust = count / (count + EQUAL_COUNT)
    gains: Array = (1 - trust) * expected + trust * evidence
    return gains


def held_out_scores(
    names: Sequence[str], kernels: Kernels, labels: Array, group: Array
) -> list[Array]:
    """Return the scores (n, C) of `left_out_scores` for each recipe, as of new photos.

    A photo that is held out is held out of the pool, too, or else its prototypes and neighbours
    would fit it better than they fit a new photo. While labels are few beside the pool, none of
    the labelled photos is in it; otherwise it lacks one half of them after the other.
    """
    pooled = [parse_recipe(name, kernels.layers).uses_pool for name in names]
    scores = []
    for name, is_pooled in zip(names, pooled, strict=True):
        if is_pooled:
            scores.append(np.zeros(labels.shape))
        else:
            scores.append(left_out_scores(kernels.of(name), labels, RIDGE, group))
    if not any(pooled):
        return scores
    half = np.zeros(len(labels), dtype=int)
    if len(labels) > MAX_SHARE_OF_POOL * len(kernels.pool):
        half = make_folds(labels, group, 2).number
    for number in np.unique(half):
        held = half == number
        rest = kernels.without(held)
        if not len(rest.pool):  # all photos are alike: scores of 0 speak for no recipe
            continue
        for place, is_pooled in enumerate(pooled):
            if is_pooled:
                K = rest.of(names[place])
                scores[place][held] = left_out_scores(K, labels, RIDGE, group)[held]
    return scores


def measurable_classes(labels: Array, group: Array) -> Array:
    """Which classes (C,) have two groups with positive images, and a negative image."""
    measurable = np.zeros(labels.shape[1], dtype=bool)
    for column in range(labels.shape[1]):
        positive = np.unique(group[labels[:, column] == 1])
        measurable[column] = len(positive) > 1 and (labels[:, column] == -1).any()
    return measurable


def left_out_scores(
    K: Array, labels: Array, ridge: float = RIDGE, groups: Array | None = None
) -> Array:
    """Return the score (n, C) of each image by ridge regression without its group.

    The closed form: with G = K + 1 + ridge I, where the constant 1 is the intercept, targets t and
    alpha = G^-1 t, the prediction for a group g of images that is held out is off by

        t_g - f_g = (G^-1)_gg^-1 alpha_g.

    It is linear in the targets of the other images. So the positive ones among these share a
    target sum of 1, the negative ones of -1, whichever image is held out; otherwise holding out a
    positive image alone would lower its score, on noise, too.

    Parameters
    ----------
    K : ndarray of shape (n, n)
        The kernel of the images, with unit diagonal.
    labels : ndarray of shape (n, C)
        1 present, -1 absent, 0 unknown: the image has no part in that class and scores 0.
    ridge : float
        Added to the diagonal.
    groups : ndarray of shape (n,), optional
        Images of one group are held out together; by default each image is a group.

    Examples
    --------
    >>> x = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> labels = np.array([[1], [1], [-1], [-1]])
    >>> left_out_scores(x @ x.T, labels).ravel().round(1).tolist()
    [0.5, 0.5, -0.5, -0.5]
    """
    scores = np.zeros(labels.shape)
    group = check_groups(groups, len(labels))
    # classes whose labels are known for the same images share the inverse
    shared: dict[bytes, list[int]] = {}
    for column in range(labels.shape[1]):
        shared.setdefault(np.flatnonzero(labels[:, column]).tobytes(), []).append(
            column
        )
    for numbers in shared.values():
        columns = np.array(numbers)
        rows = np.flatnonzero(labels[:, columns[0]])
        if len(rows) > 1:
            known = labels[np.ix_(rows, columns)]
            inverse = np.linalg.inv(
                K[np.ix_(rows, rows)] + (1.0 + ridge * np.eye(len(rows)))
            )
            total = np.zeros(known.shape)
            for sign in (1, -1):
                target = (known == sign).astype(np.float64)
                predicted = _held_out(inverse, target, group[rows])
                total += sign * predicted / _others(target, group[rows])
            scores[np.ix_(rows, columns)] = total
    return scores


def _held_out(inverse: Array, target: Array, group: Array) -> Array:
    """Predictions (n, C) for the images of each group without it."""
    alpha = inverse @ target
    predicted: Array = target - alpha / np.diag(inverse)[:, None]
    numbers, counts = np.unique(group, return_counts=True)
    for number in numbers[counts > 1]:
        rows = np.flatnonzero(group == number)
        predicted[rows] = target[rows] - np.linalg.solve(
            inverse[np.ix_(rows, rows)], alpha[rows]
        )
    return predicted


def _others(target: Array, group: Array) -> Array:
    """The sum of the targets (n, C) outside the group of each image, at least 1."""
    number = np.unique(group, return_inverse=True)[1]
    inside = np.zeros((number.max() + 1, target.shape[1]))
    np.add.at(inside, number, target)
    outside: Array = np.maximum(target.sum(axis=0) - inside[number], 1.0)
    return outside
