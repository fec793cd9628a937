"""Data sets: the value that every reader returns, and the known data sets by name.

A `Dataset` of two `Split`s is checked once, when it is made. Each known data set has a record in
records.toml, from which the names and help of `deepfish reproduce` and `deepfish fetch`, their
errors, and the lines of docs/datasets.md are made. To add one, add its record there, and a reader
in `published.py` if none fits.
"""

from __future__ import annotations

import importlib
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.core.metrics import DEFINITIONS
from deepfishing.errors import DatasetError, check_choice
from deepfishing.images.item import Item
from deepfishing.images.show import pictures_html
from deepfishing.util.files import Remote

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


@dataclass(frozen=True, eq=False, repr=False)  # arrays are neither compared nor printed
class Split:
    """Images of one split, with or without labels.

    Labels are int8 of shape (n, n_classes): 1 present, -1 absent, 0 difficult; None where they are
    not public. Ids are stable and unique: they name an image in stores, results and submissions.
    """

    name: str
    ids: tuple[str, ...]
    paths: tuple[Path, ...]
    labels: np.ndarray[Any, np.dtype[np.int8]] | None

    def __post_init__(self) -> None:
        name, ids, paths, labels = self.name, self.ids, self.paths, self.labels
        if not ids:
            raise DatasetError(f"split {name} must have at least one image, got none")
        if len(paths) != len(ids):
            raise DatasetError(
                f"split {name} must have one path per id, got {len(ids)} ids and {len(paths)} "
                f"paths, first {paths[:1]}"
            )
        twice, times = Counter(ids).most_common(1)[0]
        if times > 1:
            path = paths[ids.index(twice)]
            raise DatasetError(
                f"ids of split {name} must be unique, got {twice!r} {times} times ({path})"
            )
        if labels is None:
            return
        if labels.ndim != 2 or len(labels) != len(ids):
            raise DatasetError(
                f"labels of split {name} must have shape ({len(ids)}, n_classes), got "
                f"{labels.shape} for {paths[0]} ..."
            )
        if labels.dtype != np.int8 or not np.isin(labels, (-1, 0, 1)).all():
            raise DatasetError(
                f"labels of split {name} must be int8 of 1, -1 and 0, got {labels.dtype} of "
                f"{np.unique(labels)[:5].tolist()} ... for {paths[0]} ..."
            )

    def __repr__(self) -> str:
        labels = "with" if self.labels is not None else "without"
        return f"Split({self.name!r}, {len(self):,} images {labels} labels)"

    def __len__(self) -> int:
        return len(self.ids)

    def items(self, classes: Sequence[str]) -> list[Item]:
        """The images as items of a store, each with the names of its classes."""
        labels: list[tuple[str, ...] | None] = [None] * len(self)
        if self.labels is not None:
            labels = [
                tuple(np.array(classes)[row == 1].tolist()) for row in self.labels
            ]
        return [
            Item(str(path), path, names)
            for path, names in zip(self.paths, labels, strict=True)
        ]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Train and test images of one data set.

    A class per column of the labels; the test split may be without labels and shares no image with
    the other. `official_ap` is the data set's own definition of average precision, of
    `core.metrics.DEFINITIONS`; `measure` is what its figures are compared by, of `MEASURES`.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split
    official_ap: str
    measure: str = "map"
    # the split was drawn by the reader, so images may change sides
    is_drawn: bool = False

    def __post_init__(self) -> None:
        first = self.train.paths[0]
        unique = len(set(self.classes)) == len(self.classes)
        if not self.classes or not unique or not all(map(is_plain_name, self.classes)):
            raise DatasetError(
                f"classes of data set {self.name} must be unique plain names, got {self.classes} "
                f"for {first} ..."
            )
        if self.train.labels is None:
            raise DatasetError(
                f"the train split of data set {self.name} must have labels, got none for {first}"
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
        for key, choices in (("official_ap", DEFINITIONS), ("measure", MEASURES)):
            check_choice(
                f"{key} of {self.name}", getattr(self, key), choices, DatasetError
            )

    def __repr__(self) -> str:
        sizes = " and ".join(
            f"{len(split):,} {split.name}" for split in (self.train, self.test)
        )
        return f"Dataset({self.name!r}, {sizes} images of {len(self.classes)} classes)"

    def _repr_html_(self) -> str:
        shows = np.asarray(self.train.labels) == 1
        seen = [c for c in range(len(self.classes)) if shows[:, c].any()][:SHOWN]
        first = [
            (self.train.paths[shows[:, c].argmax()], self.classes[c]) for c in seen
        ]
        return pictures_html(repr(self), first)


def is_plain_name(name: str) -> bool:
    """Whether a name from an untrusted file can be a file name without leaving its folder."""
    return name not in ("", ".", "..") and not any(c in name for c in "/\\\0")


@dataclass(frozen=True, kw_only=True)
class DatasetRecord:
    """Facts about a data set that are known before it is read."""

    name: str
    about: str  # what it shows, in a few words
    # "module:function" of this folder, called with the data set's folder, `fixed`, and those of
    # `options` that were given
    reader: str
    split: str  # the official one in words; what is drawn where there is none
    measure: str  # what figures are compared by, of `dataset.MEASURES`
    licence: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    # what may be asked of the reader: "train", "test" (names of splits), "seed" (which draw), and
    # "into" (a folder to unpack pictures into)
    options: tuple[str, ...] = ()
    sizes: tuple[int, int] | None = None  # images to train and to test as published
    files: tuple[Remote, ...] = ()  # what `deepfish fetch` gets
    embedded: bool = False  # in this package, so that no folder is needed
    # what `deepfish reproduce` measures by default
    protocols: tuple[str, ...] = ("table",)
    table: str = "all,forward,auto-forward,auto"

    def read(self, folder: str | Path | None, **asked: Any) -> Dataset:
        """The data set in this folder."""
        module, _, function = self.reader.partition(":")
        reader = getattr(
            importlib.import_module(f"deepfishing.images.{module}"), function
        )
        dataset: Dataset = reader(folder, **{**self.fixed, **asked})
        return dataset


def find_record(name: str) -> DatasetRecord:
    """The record of a data set."""
    if name == "scenes":
        raise DatasetError(
            "scenes, drawn digits, has made way for real photographs; "
            "run `deepfish reproduce groceries`"
        )
    check_choice("data set", name, DATASETS, DatasetError)
    return DATASETS[name]


def _record(name: str, facts: dict[str, Any]) -> DatasetRecord:
    files = tuple(
        Remote(url, f"sha256:{sha256}", size, max(1, round(size / 1e6)), tuple(inner))
        for url, size, sha256, *inner in facts.pop("files", ())
    )
    lists = {
        key: tuple(value) for key, value in facts.items() if isinstance(value, list)
    }
    return DatasetRecord(name=name, files=files, **{**facts, **lists})


_TEXT = Path(__file__).with_name("records.toml").read_text(encoding="utf-8")
DATASETS = {name: _record(name, facts) for name, facts in tomllib.loads(_TEXT).items()}
