"""Stage 1, images: the data sets that are known by name, one record each, in records.toml.

From a record come the names that `deepfish reproduce` and `deepfish fetch` take, their help, their
errors, and the lines of `deepfish doctor` and of docs/datasets.md. To add a data set, add its
record there, and a reader in `published.py` if none fits.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepfishing.errors import DatasetError, check_choice
from deepfishing.files import Remote

if TYPE_CHECKING:  # readers are only loaded when a data set is read
    from deepfishing.images.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class DatasetRecord:
    """All that is known of a data set before it is read."""

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
    protocols: tuple[str, ...] = ("table",)  # what `deepfish reproduce` measures by default
    table: str = "all"

    def read(self, folder: str | Path | None, **asked: Any) -> Dataset:
        """The data set in this folder."""
        module, _, function = self.reader.partition(":")
        reader = getattr(importlib.import_module(f"deepfishing.images.{module}"), function)
        found: Dataset = reader(folder, **{**self.fixed, **asked})
        return found


def find_record(name: str) -> DatasetRecord:
    """The record of a data set.

    >>> find_record("pet")
    Traceback (most recent call last):
    deepfishing.errors.DatasetError: data set must be one of groceries, folder, voc2007, voc2012,
        caltech101, pets, flowers102, food101, dtd, cifar10, cifar100, sun397, eurosat, got 'pet';
        did you mean pets?
    """
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
    lists = {key: tuple(value) for key, value in facts.items() if isinstance(value, list)}
    return DatasetRecord(name=name, files=files, **{**facts, **lists})


_TEXT = Path(__file__).with_name("records.toml").read_text(encoding="utf-8")
DATASETS = {name: _record(name, facts) for name, facts in tomllib.loads(_TEXT).items()}
