"""Stage 1, images: lists of images in a CSV, TSV or Parquet file.

Comes in: a table with a column `path`, and optionally `id`, `label` (one) or `labels` (several,
separated by `;`, or a list in Parquet). Goes out: items. Paths are relative to the table's folder.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from deepfishing.errors import DatasetError, one_line
from deepfishing.files import unguarded
from deepfishing.images.item import Item, located

TABLES = (".csv", ".tsv", ".parquet")
SEPARATOR = ";"


def read_table(path: Path) -> list[Item]:
    """The images that a table lists.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder, "t.csv")
    ...     _ = table.write_text("path,labels\\na.jpg,cat;dog\\nb.jpg,\\n")
    ...     print([(item.id, item.labels) for item in read_table(table)])
    [('a.jpg', ('cat', 'dog')), ('b.jpg', None)]
    """
    try:
        columns = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    except DatasetError:
        raise
    except Exception as error:  # text that is not UTF-8, a column twice, a time beyond all years...
        raise DatasetError(f"table cannot be read: {path} ({one_line(error)})") from None
    if "path" not in columns:
        names = ", ".join(map(str, columns)) or "none"
        raise DatasetError(
            f"a table of images must have a column path, got {names} in {path}; "
            "rename the one that holds the paths"
        )
    if {"label", "labels"} <= columns.keys():
        raise DatasetError(f"a table must have one column label or labels, got both in {path}")
    paths = columns["path"]
    ids = columns.get("id", paths)
    labels = columns.get("labels", columns.get("label", [None] * len(paths)))
    items = []
    for row, (name, id_, label) in enumerate(zip(paths, ids, labels, strict=True), start=1):
        if not name or not isinstance(name, str) or id_ is None or id_ == "":
            raise DatasetError(
                f"each row of a table must have a path and an id, got {name!r} and {id_!r} in "
                f"row {row} of {path}"
            )
        named = _labels(label, several="labels" in columns)
        items.append(Item(str(id_), located(path.parent, name), named))
    return items


def _labels(value: Any, *, several: bool) -> tuple[str, ...] | None:
    if value is None or value == "":
        return None
    if isinstance(value, list):
        return tuple(str(label) for label in value)
    parts = str(value).split(SEPARATOR) if several else [str(value)]
    return tuple(part.strip() for part in parts if part.strip())


def _csv(path: Path) -> dict[str, list[Any]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(newline="", encoding="utf-8-sig") as file:
        head, *rows = [row for row in csv.reader(file, delimiter=delimiter) if row] or [[]]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(head):
            raise DatasetError(
                f"each row of a table must have {len(head)} values as its head, got {len(row)} in "
                f"row {number} of {path}"
            )
    return {name.strip(): [unguarded(row[i]) for row in rows] for i, name in enumerate(head)}


def _parquet(path: Path) -> dict[str, list[Any]]:
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        known = [name for name in ("path", "id", "label", "labels") if name in names]
        if "path" not in known:
            return {name: [] for name in names}
        table = file.read(columns=known)
        return {name: table.column(name).to_pylist() for name in known}
