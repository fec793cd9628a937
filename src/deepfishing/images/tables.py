"""Lists of images in a CSV, TSV or Parquet file.

A table has a column `path`, and optionally `id`, `label` (one) or `labels` (several, separated by
`;`, a list in Parquet, or a row for each). Paths are relative to the table's folder. A CSV may be
separated by commas, semicolons or tabs, as spreadsheets write it.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq

from deepfishing.errors import DatasetError, reraise_as
from deepfishing.images.item import Item, as_labels, item_at
from deepfishing.util.files import check_regular, read_regular, unguarded

TABLES = (".csv", ".tsv", ".parquet")
MAX_TABLE_BYTES = 4 * 2**30
# What others call the column of paths.
OTHER_PATHS = ("filename", "file_name", "filepath", "file", "image_path", "image")
_COLUMNS = ("path", "id", "label", "labels")
# the first by which there is a column path
_DELIMITERS = {".csv": ",;\t", ".tsv": "\t,;"}


def read_table(path: Path) -> list[Item]:
    """Return the images that a table lists."""
    # damaged in some way: a column twice, a time beyond all years...
    with reraise_as(DatasetError, f"table cannot be read: {path}"):
        if path.suffix.lower() == ".parquet":
            columns = _parquet(path)
        else:
            columns = _csv(path)
    if "path" not in columns:
        names = ", ".join(map(str, columns)) or "none"
        raise DatasetError(
            f"a table of images must have a column path, got {names} in {path}; "
            "rename the one that holds the paths, or put a line such as path,label above the rows"
        )
    if {"label", "labels"} <= columns.keys():
        raise DatasetError(
            f"a table must have one column label or labels, got both in {path}"
        )
    paths = columns["path"]
    ids = columns.get("id", paths)
    several = "labels" in columns
    labels = columns.get("labels", columns.get("label", [None] * len(paths)))
    items: dict[str, Item] = {}
    rows = zip(paths, ids, labels, strict=True)
    for row, (name, id_, label) in enumerate(rows, start=1):
        if not name or not isinstance(name, str) or id_ is None or id_ == "":
            raise DatasetError(
                f"each row of a table must have a path and an id, got {name!r} and {id_!r} in "
                f"row {row} of {path}"
            )
        item = item_at(path.parent, name, str(id_), as_labels(label, several=several))
        if item.id in items:
            item = _join(items[item.id], item, several, f"row {row} of {path}")
        items[item.id] = item
    return list(items.values())


def read_labelled_rows(table: Path) -> list[Item]:
    """Return the images of a table that have a label there; an error if none has."""
    items = read_table(table)
    labelled = [item for item in items if item.labels is not None]
    if labelled:
        return labelled
    raise DatasetError(
        f"a table of labels must have a label in its column label or labels, got none in {table}; "
        "fill in that column, or rename the one that has the labels"
    )


def _join(first: Item, item: Item, several: bool, where: str) -> Item:
    """Return an image that two rows name; in a column `labels` it has the labels of both."""
    if first.path != item.path:
        raise DatasetError(
            f"ids of images must be unique, got {item.id!r} for {first} and {item} in {where}"
        )
    if first.labels == item.labels or not item.labels:
        return first
    if first.labels and not several:
        raise DatasetError(
            f"a column label has one label per image, got {first.labels[0]!r} and "
            f"{item.labels[0]!r} for {item.id!r} in {where}; delete one of the rows, or call the "
            "column labels if an image may have several"
        )
    labels = dict.fromkeys((*(first.labels or ()), *item.labels))
    return replace(first, labels=tuple(labels))


def is_table(source: str | Path) -> bool:
    """Whether a source of images is a table, by the end of its name."""
    return PurePosixPath(str(source)).suffix.lower() in TABLES


def labels_in(path: Path) -> int:
    """Return the number of filled label cells of a .csv; 0 for any other file."""
    if path.suffix.lower() not in _DELIMITERS:
        return 0
    try:
        columns = _csv(path, errors="replace")
    except (OSError, DatasetError, csv.Error):
        return 0
    return sum(map(bool, columns.get("labels", columns.get("label", []))))


def _csv(path: Path, errors: str = "strict") -> dict[str, list[Any]]:
    content = read_regular(path, MAX_TABLE_BYTES, links=True)
    encoding = "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    do = "; save it again as `CSV UTF-8`"
    with reraise_as(DatasetError, f"table cannot be read: {path} is not UTF-8", do):
        text = content.decode(encoding, errors)
    delimiters = _DELIMITERS[path.suffix.lower()]
    delimiter = delimiters[0]
    for candidate in delimiters:
        if "path" in column_names(_rows(text, candidate)[0]):
            delimiter = candidate
            break
    head, *rows = _rows(text, delimiter)
    for number, row in enumerate(rows, start=1):
        if len(row) != len(head):
            raise DatasetError(
                f"each row of a table must have {len(head)} values as its head, got {len(row)} in "
                f"row {number} of {path}"
            )
    columns = {}
    for number, name in enumerate(column_names(head)):
        columns[name] = [unguarded(row[number]) for row in rows]
    return columns


def _rows(text: str, delimiter: str) -> list[list[str]]:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return [row for row in rows if row] or [[]]


def column_names(head: Sequence[str]) -> list[str]:
    """Return names of columns in our spelling: `Path` is path, and so is `filename`."""
    names = []
    for name in map(str.strip, head):
        if name.lower() in _COLUMNS:
            name = name.lower()
        names.append(name)
    if "path" not in names:
        lower = [name.lower() for name in names]
        for other in OTHER_PATHS:
            if other in lower:
                names[lower.index(other)] = "path"
                break
    return names


def _parquet(path: Path) -> dict[str, list[Any]]:
    check_regular(path, links=True)
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        pairs = zip(column_names(names), names, strict=True)
        name_of = {column: name for column, name in pairs if column in _COLUMNS}
        if "path" not in name_of:
            return {name: [] for name in names}
        table = file.read(columns=list(name_of.values()))
        columns = {}
        for column, name in name_of.items():
            columns[column] = table.column(name).to_pylist()
        return columns
