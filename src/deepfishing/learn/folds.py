"""Folds for every cross-validation of the package: groups of copies are never split.

A classifier that was trained on a copy of a photo knows its label. So images are held out in
groups (`core.groups.similar_groups`): all copies and similar scenes of a photo are in one fold. A
class of which there are fewer groups than folds has no cross-validated figure, which `Folds` says
in words instead of a number.

>>> labels = np.array([[1], [1], [1], [-1], [-1], [-1]])
>>> folds = make_folds(labels, groups=[0, 0, 1, 2, 3, 4], folds=2)
>>> folds.number[0] == folds.number[1]
np.True_
>>> folds.measurable.tolist()
[True]
>>> make_folds(labels, groups=[0, 0, 0, 2, 3, 4], folds=2).reason(0)
'not measurable: needs 2 different photos with the class, has 1; similar ones count once'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deepfishing.core.groups import similar_groups
from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.errors import FeatureError, OptionError

FOLDS = 3
EMBEDDING = "x7"
EXACT_IMAGES = 20_000  # whose embeddings are compared as they are
PROJECTED_NUMBERS = 128
BLOCK_ROWS = 1024
NOT_MEASURABLE = "not measurable"


@dataclass(frozen=True, eq=False)
class Folds:
    """The fold of each image, and which classes can be measured with them."""

    number: Array  # (n,), from 0 to count - 1
    count: int
    positive_groups: Array  # (C,) groups with an image that shows the class
    negative_groups: Array  # (C,) groups with an image that does not

    @property
    def measurable(self) -> Array:
        """Whether each class (C,) has at least as many groups as folds, on both sides."""
        fewest: Array = np.minimum(self.positive_groups, self.negative_groups)
        return fewest >= self.count

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        """Yield rows to train on and rows to hold out, by fold; none where all are one group."""
        for fold in range(self.count):
            held = np.flatnonzero(self.number == fold)
            train = np.flatnonzero(self.number != fold)
            if len(held) and len(train):
                yield train, held

    def reason(self, column: int) -> str:
        """Return why a class has no cross-validated figure; empty if it has one."""
        sides = {
            "with": self.positive_groups,
            "without": self.negative_groups,
        }
        for side, groups in sides.items():
            n_groups = int(groups[column])
            if n_groups < self.count:
                return (
                    f"{NOT_MEASURABLE}: needs {self.count} different photos {side} the class, "
                    f"has {n_groups}; similar ones count once"
                )
        return ""


def make_folds(
    labels: Array,
    groups: Array | Sequence[int] | None = None,
    folds: int = FOLDS,
    seed: int = 0,
) -> Folds:
    """Assign images to folds: whole groups, every class spread as evenly as they allow.

    Parameters
    ----------
    labels : ndarray of shape (n, n_classes)
        1 present, -1 absent, 0 difficult.
    groups : sequence of int, optional
        The group of each image; by default each image is a group.
    folds : int
        At least 2.
    seed : int
        Of the order in which groups of one class are assigned.
    """
    labels = np.asarray(labels)
    if labels.ndim != 2:
        raise FeatureError(
            f"labels must be (n, n_classes), got an array of shape {labels.shape}"
        )
    if folds < 2:
        raise OptionError(f"folds must be at least 2, got {folds}")
    group = check_groups(groups, len(labels))
    rarest = _rarest_class(labels, group)
    sizes = np.bincount(group)
    class_of_group = np.full(len(sizes), labels.shape[1])
    np.minimum.at(class_of_group, group, rarest)
    shuffled = np.random.default_rng(seed).permutation(len(sizes))
    # class by class, in each the large groups first: the small ones even out the differences
    order = shuffled[np.lexsort((-sizes[shuffled], class_of_group[shuffled]))]
    fold_of_group = _assign(order, class_of_group, sizes, folds)
    return Folds(
        fold_of_group[group],
        folds,
        _count_groups(labels == 1, group),
        _count_groups(labels == -1, group),
    )


def validation_groups(
    arrays: Mapping[str, Array], keys: Sequence[str] | None = None
) -> Array:
    """Return the group of each image by its factors and, if they are given, its content hashes."""
    return similar_groups(find_embedding(arrays), keys)


def read_groups(
    read: Callable[[Array], Mapping[str, Array]], keys: Sequence[str]
) -> Array:
    """Return `validation_groups` of images whose factors are read a block at a time.

    `read` returns the factors of the images with these numbers. Embeddings of very many images are
    projected to a few numbers, which keeps their dot products to about 0.02.
    """
    projected, random = [], None
    for start in range(0, len(keys), BLOCK_ROWS):
        rows = np.arange(start, min(start + BLOCK_ROWS, len(keys)))
        x = l2_normalize(find_embedding(read(rows)))
        if len(keys) > EXACT_IMAGES:
            if random is None:
                shape = (x.shape[1], PROJECTED_NUMBERS)
                random = np.random.default_rng(0).normal(size=shape)
            x = x @ random
        projected.append(x.astype(np.float32))
    return similar_groups(np.concatenate(projected), keys)


def find_embedding(arrays: Mapping[str, Array]) -> Array:
    """Return the factor by which images are compared: x7, else the first; positions averaged."""
    if EMBEDDING in arrays:
        x = np.asarray(arrays[EMBEDDING])
    else:
        x = np.asarray(next(iter(arrays.values())))
    if x.ndim == 2:
        return x
    return np.asarray(x.mean(axis=1))


def check_groups(groups: Array | Sequence[int] | None, n: int) -> Array:
    """Return the groups of n images as numbers from 0 on; one for each image if they are None."""
    if groups is None:
        return np.arange(n)
    values = np.asarray(groups)
    if values.shape != (n,):
        raise FeatureError(
            f"groups must have one entry for each of {n} images, got shape {values.shape}"
        )
    numbers: Array = np.unique(values, return_inverse=True)[1]
    return numbers


def _rarest_class(labels: Array, group: Array) -> Array:
    """Return the class of each image that the fewest groups have; n_classes if it has none."""
    counts = _count_groups(labels == 1, group)
    order = np.argsort(counts, kind="stable")
    first_class = np.full(len(labels), labels.shape[1])
    for column in order[::-1]:
        first_class[labels[:, column] == 1] = column
    return first_class


def _count_groups(chosen: Array, group: Array) -> Array:
    """Return the number of groups with a chosen image, for each column (C,)."""
    counts = np.zeros(chosen.shape[1], dtype=int)
    for column in range(chosen.shape[1]):
        counts[column] = len(np.unique(group[chosen[:, column]]))
    return counts


def _assign(order: Array, class_of_group: Array, sizes: Array, folds: int) -> Array:
    """Assign each group to the fold with the fewest images of its class, then the smallest fold."""
    fold_of_group = np.zeros(len(sizes), dtype=int)
    images = [0] * folds
    of_class = [0] * folds  # images of the current class
    current_class = -1
    for number in order.tolist():
        if class_of_group[number] != current_class:
            current_class = int(class_of_group[number])
            of_class = [0] * folds
        fold = min(range(folds), key=lambda fold: (of_class[fold], images[fold]))
        of_class[fold] += int(sizes[number])
        images[fold] += int(sizes[number])
        fold_of_group[number] = fold
    return fold_of_group
