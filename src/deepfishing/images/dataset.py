"""Stage 1, images: the value that every data set reader returns.

Comes in: ids, image paths and labels that a reader found (`records` lists the readers). Goes out: a
`Dataset` of two `Split`s, checked once, so that later stages need not check again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.errors import DatasetError
from deepfishing.images.item import Item
from deepfishing.images.show import pictures_html
from deepfishing.metrics import DEFINITIONS

# What difficult examples are in training, the default first: left out, as the devkit's
# example_classifier.m does (it trains on gt > 0 and gt < 0, and a difficult one has gt = 0), or
# negatives.
DIFFICULT = ("ignore", "negative")

# What a data set is compared by: the key of a measured row, and what it is called.
MEASURES = {
    "map": "mAP",
    "accuracy": "accuracy",
    "balanced_accuracy": "mean per-class accuracy",
}

SHOWN = 20  # classes that a notebook has a picture of


def is_plain_name(name: str) -> bool:
    """Whether a name from an untrusted file can be a file name without leaving its folder.

    Examples
    --------
    >>> is_plain_name("2008_000002"), is_plain_name("../../etc/passwd")
    (True, False)
    """
    return name not in ("", ".", "..") and not any(c in name for c in "/\\\0")


def is_folder(path: Path) -> bool:
    """Whether a folder is there to be read; also False where that cannot be found out.

    Examples
    --------
    >>> is_folder(Path(".")), is_folder(Path("x" * 5000))
    (True, False)
    """
    try:
        return path.is_dir()
    except OSError:  # no permission, or a name too long: for the reader that is "not there"
        return False


@dataclass(frozen=True, eq=False, repr=False)  # arrays are neither compared nor printed
class Split:
    """Images of one split, with or without labels.

    Parameters
    ----------
    name : str
        "trainval", "test" ...
    ids : tuple of n str
        Stable and unique: they name an image in stores, results and submissions.
    paths : tuple of n Path
        Where the images are, in the order of `ids`.
    labels : int8 array of shape (n, n_classes), or None
        1 present, -1 absent, 0 difficult; None where labels are not public.

    Examples
    --------
    >>> labels = np.array([[1, -1], [-1, 0]], dtype=np.int8)
    >>> split = Split("test", ("a", "b"), (Path("a.jpg"), Path("b.jpg")), labels)
    >>> len(split)
    2
    """

    name: str
    ids: tuple[str, ...]
    paths: tuple[Path, ...]
    labels: np.ndarray[Any, np.dtype[np.int8]] | None

    def __post_init__(self) -> None:
        if not self.ids:
            raise DatasetError(f"split {self.name} must have at least one image, got none")
        if len(self.paths) != len(self.ids):
            raise DatasetError(
                f"split {self.name} must have one path per id, "
                f"got {len(self.ids)} ids and {len(self.paths)} paths, first {self.paths[:1]}"
            )
        image_id, times = Counter(self.ids).most_common(1)[0]
        if times > 1:
            path = self.paths[self.ids.index(image_id)]
            raise DatasetError(
                f"ids of split {self.name} must be unique, got {image_id!r} {times} times ({path})"
            )
        if self.labels is None:
            return
        if self.labels.ndim != 2 or len(self.labels) != len(self.ids):
            raise DatasetError(
                f"labels of split {self.name} must have shape ({len(self.ids)}, n_classes), "
                f"got {self.labels.shape} for {self.paths[0]} ..."
            )
        if self.labels.dtype != np.int8 or not np.isin(self.labels, (-1, 0, 1)).all():
            raise DatasetError(
                f"labels of split {self.name} must be int8 of 1, -1 and 0, got {self.labels.dtype} "
                f"of {np.unique(self.labels)[:5].tolist()} ... for {self.paths[0]} ..."
            )

    def __repr__(self) -> str:
        labels = "with" if self.labels is not None else "without"
        return f"Split({self.name!r}, {len(self):,} images {labels} labels)"

    def __len__(self) -> int:
        return len(self.ids)

    def items(self, classes: Sequence[str]) -> list[Item]:
        """The images as a store knows them, each with the names of the classes that it shows.

        Examples
        --------
        >>> split = Split("test", ("a",), (Path("d/a.jpg"),), np.array([[1, -1]], dtype=np.int8))
        >>> split.items(["cat", "dog"])[0].labels
        ('cat',)
        """
        shown: list[tuple[str, ...] | None] = [None] * len(self)
        if self.labels is not None:
            shown = [tuple(np.array(classes)[row == 1].tolist()) for row in self.labels]
        return [Item(str(p), p, labels) for p, labels in zip(self.paths, shown, strict=True)]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Train and test images of one data set.

    Parameters
    ----------
    name : str
        "voc2007", "groceries" ...
    classes : tuple of str
        One per column of the labels.
    train : Split
        Always labelled.
    test : Split
        No image of it may be in `train`.
    official_ap : str
        The definition of average precision that is the data set's own, of
        `deepfishing.metrics.DEFINITIONS`.
    measure : str
        What its figures are compared by, of `MEASURES`.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split
    official_ap: str
    measure: str = "map"

    def __post_init__(self) -> None:
        unique = len(set(self.classes)) == len(self.classes)
        if not self.classes or not unique or not all(map(is_plain_name, self.classes)):
            raise DatasetError(
                f"classes of data set {self.name} must be unique plain names, got {self.classes} "
                f"for {self.train.paths[0]} ..."
            )
        if self.train.labels is None:
            raise DatasetError(
                f"the train split of data set {self.name} must have labels, got none "
                f"for {self.train.paths[0]} ..."
            )
        for split in (self.train, self.test):
            if split.labels is not None and split.labels.shape[1] != len(self.classes):
                raise DatasetError(
                    f"labels of split {split.name} must have {len(self.classes)} columns, "
                    f"one per class, got {split.labels.shape[1]} for {split.paths[0]} ..."
                )
        both = set(self.train.paths).intersection(self.test.paths)
        if both:
            raise DatasetError(
                f"splits {self.train.name} and {self.test.name} of data set {self.name} must not "
                f"share images, got {len(both)} in both, first {min(both)}; choose other splits"
            )
        if self.official_ap not in DEFINITIONS:
            raise DatasetError(
                f"official_ap of data set {self.name} must be one of {', '.join(DEFINITIONS)}, "
                f"got {self.official_ap!r}"
            )
        if self.measure not in MEASURES:
            raise DatasetError(
                f"measure of data set {self.name} must be one of {', '.join(MEASURES)}, "
                f"got {self.measure!r}"
            )

    def __repr__(self) -> str:
        sizes = " and ".join(f"{len(split):,} {split.name}" for split in (self.train, self.test))
        return f"Dataset({self.name!r}, {sizes} images of {len(self.classes)} classes)"

    def _repr_html_(self) -> str:
        shows = np.asarray(self.train.labels) == 1
        seen = [c for c in range(len(self.classes)) if shows[:, c].any()][:SHOWN]
        first = [(self.train.paths[shows[:, c].argmax()], self.classes[c]) for c in seen]
        return pictures_html(repr(self), first)
