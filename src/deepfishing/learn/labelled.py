"""Labels of training images.

Labels are those of the images' source, or of a table or a data set in VOC layout. The labelled
images are returned with one column of 1, -1 and 0 (difficult) per class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.errors import DatasetError
from deepfishing.images.folder import folder_classes, is_folder, training_folder
from deepfishing.images.matching import Matcher
from deepfishing.images.tables import TABLES, read_labelled_rows
from deepfishing.images.voc import read_split, voc_layout


class _Image(Protocol):
    """An item of a source, a row of a store, or a picture of search."""

    @property
    def id(self) -> str: ...
    @property
    def path(self) -> object: ...
    @property
    def labels(self) -> tuple[str, ...] | None: ...


AnImage = TypeVar("AnImage", bound=_Image)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Classes, and the rows of `labels` by image id."""

    classes: tuple[str, ...]
    rows: Mapping[str, Array]
    # of a data set in which all other images are of other splits
    is_split: bool = False

    def of(self, images: Sequence[AnImage]) -> tuple[list[AnImage], Array]:
        """Return the images that have labels, and the labels (n, C)."""
        labelled = [image for image in images if image.id in self.rows]
        if not labelled:
            raise DatasetError(
                f"images and labels must share ids, got none in common: images such as "
                f"{images[0].id!r}, labels such as {next(iter(self.rows))!r}"
            )
        return labelled, np.stack([self.rows[image.id] for image in labelled])

    def pool(self, images: Sequence[AnImage]) -> list[AnImage]:
        """Return the images, labelled or not, without those of other splits."""
        train = training_folder([image.id for image in images])
        pool = []
        for image in images:
            is_in_split = train is None or image.id.startswith(f"{train}/")
            if image.id in self.rows or (is_in_split and not self.is_split):
                pool.append(image)
        return pool

    def unused(self, images: Sequence[_Image]) -> str:
        """Return a line about the images that are not trained on, or ''."""
        others = [image.id for image in images if image.id not in self.rows]
        if not others:
            return ""
        words = "images that are"
        if len(others) == 1:
            words = "image that is"
        return f"not used: {len(others):,} {words} not labelled for training, such as {others[0]}"


def read_labels(
    images: Sequence[_Image], source: Path | None = None, split: str = "trainval"
) -> Labelled:
    """Return the labels of images: from a source, else their own, else their folders'.

    Without a source, where the images are divided into `train` and another split, only those in
    `train` have labels to train on. A source is a .csv, .tsv or .parquet table with the columns
    `path` (or `id`) and `label` or `labels`, whose rows name images by their id or by their file;
    or a folder in VOC layout, of which `split` is taken.
    """
    if source is not None and is_folder(source):
        return _voc(source, split)
    if source is not None:
        if source.suffix.lower() not in TABLES:
            raise DatasetError(
                f"labels must be a table ({', '.join(TABLES)}) or a folder in VOC layout, "
                f"got {source}"
            )
        return _from_names(_in_table(source, images), str(source))
    ids = [image.id for image in images]
    train = training_folder(ids)
    named = {image.id: image.labels for image in images if image.labels is not None}
    if not named:  # a list, or a store of an older version
        classes = zip(ids, folder_classes(ids), strict=True)
        named = {id_: (name,) for id_, name in classes if name is not None}
    if not named:
        raise DatasetError(
            f"an image must lie in the folder of its class, got {ids[0]!r}, and no other does "
            "either; sort them into folders, or pass --labels with a table"
        )
    if train:  # there is another split
        for id_ in list(named):
            if not id_.startswith(f"{train}/"):
                del named[id_]
    return _from_names(named, "the images")


def _in_table(
    source: Path, images: Sequence[_Image]
) -> dict[str, tuple[str, ...] | None]:
    """Return labels by image; a row names an image by its id or by its file."""
    listed = read_labelled_rows(source)
    matcher = Matcher(images)
    named: dict[str, tuple[str, ...] | None] = {}
    unmatched = []
    for item in listed:
        matches = matcher.find(item)
        if len(matches) == 1:
            named[matches[0].id] = item.labels
        else:
            unmatched.append(item.id)
    if unmatched:
        raise DatasetError(
            f"every row of {source} must name an image by its id or file, got {len(unmatched)} "
            f"of {len(listed)} that do not, first {unmatched[0]!r}; the images have ids such as "
            f"{images[0].id!r}. Delete such rows, or extract those images, too"
        )
    return named


def is_voc(folder: Path) -> bool:
    """Whether a folder is a data set in VOC layout, or holds one."""
    return is_folder(folder) and voc_layout(folder) is not None


def _from_names(named: Mapping[str, tuple[str, ...] | None], origin: str) -> Labelled:
    """Return the labels of images as rows of 1 and -1."""
    all_names: set[str] = set()
    for names in named.values():
        all_names.update(names or ())
    classes = tuple(sorted(all_names))
    if not classes:
        raise DatasetError(f"labels must name a class, got none in {origin}")
    if len(classes) == 1 and all(named.values()):
        raise DatasetError(
            f"two classes or more are needed to tell classes apart, got only {classes[0]!r} in "
            f"{origin}; of folders, give the one in which the class folders lie"
        )
    column = {name: number for number, name in enumerate(classes)}
    rows = {}
    for id_, names in named.items():
        row = np.full(len(classes), -1, dtype=np.int8)
        row[[column[name] for name in names or ()]] = 1
        rows[id_] = row
    return Labelled(classes, rows)


def _voc(source: Path, split: str) -> Labelled:
    folder = voc_layout(source)
    if folder is None:
        raise DatasetError(
            f"labels must be a table or a folder in VOC layout, got {source}, which has no "
            "JPEGImages and ImageSets/Main"
        )
    ids, classes, labels = read_split(folder, split, must_be_labelled=True)
    return Labelled(
        classes, dict(zip(ids, np.asarray(labels), strict=True)), is_split=True
    )
