"""The images of a store as columns, compact enough for a million of them.

Ids, paths and labels are found by the number of a row, rows by their content, and rows by a filter.
Two rows may have one content.
"""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deepfishing.core.rank_one import Array
from deepfishing.errors import OptionError, StoreError, did_you_mean
from deepfishing.store import Store
from deepfishing.store.contents import Contents
from deepfishing.store.label_log import LabelLog
from deepfishing.store.manifest import INDEX, SCHEMA
from deepfishing.util.files import check_regular

# those of the label log, or else `labels`, those of the source
CURRENT = "current_labels"
COLUMNS = ["id", "path", "sha256", "labels", "factors"]
MAX_LABELS_LISTED = 20  # in an error
MAX_IDS_TO_SUGGEST = 20_000  # beyond these a mistyped id is not looked for


@dataclass(frozen=True)
class Picture:
    """One image of a collection: id, path where it was seen last, labels (None: not known)."""

    id: str
    path: str
    labels: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class Collection:
    """The images that can be searched: a table of id, path and labels, and each row's content."""

    folder: str  # for messages
    table: pa.Table
    content: Array
    order: Array  # the rows sorted by content,
    starts: Array  # and where those of each content begin in it
    is_whole: bool  # whether every content has a row

    @classmethod
    def of(cls, store: Store, contents: Contents, factors: Sequence[str]) -> Collection:
        """Return the rows of the store's index whose contents have these factors."""
        path = store.folder / INDEX
        try:
            check_regular(path)
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                if file.schema_arrow.remove_metadata() != SCHEMA:
                    raise pa.ArrowInvalid("other columns")
                table = file.read(columns=COLUMNS)
            if any(table.column(name).null_count for name in ("id", "path", "factors")):
                raise pa.ArrowInvalid("rows without a name")
        except (OSError, pa.ArrowException, UnicodeDecodeError):
            store.rows()  # its error names the problem and what to do
            table = SCHEMA.empty_table().select(COLUMNS)
        table = table.combine_chunks()
        sha256 = table.column("sha256").combine_chunks()
        place = pc.index_in(sha256, value_set=contents.keys)
        _check_promises(store, table.filter(place.is_null()), factors)
        # index_in finds null in a set without null nowhere, so rows without content drop out here
        labels = _current_labels(table, LabelLog.open(store.folder))
        table = table.append_column(CURRENT, labels)
        table = table.drop_columns(["sha256", "factors"])
        table = table.filter(place.is_valid()).combine_chunks()
        numbers = place.drop_null().to_numpy(zero_copy_only=False).astype(np.int32)
        if not len(table):
            raise StoreError(
                f"a store must have images to search in, got none with these features in "
                f"{store.folder}; add some with `deepfish extract`"
            )
        order = np.argsort(numbers, kind="stable").astype(np.int32)
        counts = np.bincount(numbers, minlength=len(contents))
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return cls(str(store.folder), table, numbers, order, starts, bool(counts.all()))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> Picture:
        labels = self.table.column(CURRENT)[row].as_py()
        if labels is not None:
            labels = tuple(labels)
        id_ = self.table.column("id")[row].as_py()
        path = self.table.column("path")[row].as_py()
        return Picture(id_, path, labels)

    def rows_of(self, content: int) -> Array:
        """Return the rows that have a content."""
        rows: Array = self.order[self.starts[content] : self.starts[content + 1]]
        return rows

    def contents_of(self, passed: Array | None) -> Array | None:
        """Return which contents have a row that passed a filter; None if all have."""
        if passed is None and self.is_whole:
            return None
        contents = self.content
        if passed is not None:
            contents = contents[passed]
        allowed = np.zeros(len(self.starts) - 1, dtype=bool)
        allowed[contents] = True
        return allowed

    def row_of(self, id_: str) -> int | None:
        """Return the row of an id, or None."""
        ids = self.table.column("id")
        row = bisect_left(range(len(self)), id_, key=lambda number: str(ids[number]))
        if row < len(self) and ids[row].as_py() == id_:
            return row
        row = pc.index(ids, id_).as_py()  # another writer may not have sorted them
        if row < 0:
            return None
        return int(row)

    def suggestion(self, id_: str) -> str:
        """Return `; did you mean ...?` for an id that is not there, or ''."""
        if len(self) > MAX_IDS_TO_SUGGEST:
            return ""
        return did_you_mean(id_, self.table.column("id").to_pylist())

    def labels(self) -> list[str]:
        """Return all labels that occur, sorted."""
        flat = pc.list_flatten(self.table.column(CURRENT).combine_chunks())
        return sorted(label for label in flat.unique().to_pylist() if label is not None)

    def label_counts(self) -> dict[str, int]:
        """Return the number of images with each label, in the order of the labels."""
        flat = pc.list_flatten(self.table.column(CURRENT).combine_chunks())
        counts = {}
        for record in pc.value_counts(flat.drop_null()).to_pylist():
            counts[record["values"]] = record["counts"]
        return dict(sorted(counts.items()))

    def passing(
        self, labels: Sequence[str] = (), path: str | None = None
    ) -> Array | None:
        """Return which rows have all labels, and a path or id like the pattern; None if all do."""
        if not labels and path is None:
            return None
        passed = np.ones(len(self), dtype=bool)
        for label in labels:
            has_label = _rows_with(self.table.column(CURRENT), label)
            if not has_label.any():
                raise self._unknown_label(label)
            passed &= has_label
        if path is not None:
            matches = re.compile(fnmatch.translate(path)).match
            paths, ids = self.table.column("path"), self.table.column("id")
            for row in np.flatnonzero(passed):
                matches_path = matches(paths[row].as_py()) is not None
                passed[row] = matches_path or matches(ids[row].as_py()) is not None
        if not passed.any():
            conditions = [f"label {label}" for label in labels]
            if path:
                conditions.append(f"path {path}")
            raise OptionError(
                f"a filter must leave images to search in, got none of {len(self)} in "
                f"{self.folder} for {' and '.join(conditions)}; widen it"
            )
        return passed

    def _unknown_label(self, label: str) -> OptionError:
        """Return the error for a label that no image has."""
        labels = self.labels()
        listed = ", ".join(labels[:MAX_LABELS_LISTED]) or "it has none"
        if len(labels) > MAX_LABELS_LISTED:
            listed += " ..."
        return OptionError(
            f"label must be one that {self.folder} has ({listed}), got {label!r}"
            f"{did_you_mean(label, labels)}"
        )


def _current_labels(table: pa.Table, log: LabelLog) -> pa.ChunkedArray:
    """Return labels of the log, or else those of the images' source, as a column."""
    labels = table.column("labels")
    if not log.history():
        return labels
    keys = table.column("sha256").to_pylist()
    current = []
    for key, names in zip(keys, labels.to_pylist(), strict=True):
        if names is not None:
            names = tuple(names)
        current.append(log.apply(key, names))
    return pa.chunked_array([pa.array(current, labels.type)])


def _check_promises(store: Store, table: pa.Table, factors: Sequence[str]) -> None:
    """Refuse a table whose rows are said to have the factors, which were not found for them."""
    promised = np.ones(len(table), dtype=bool)
    for factor in factors:
        promised &= _rows_with(table.column("factors"), factor)
    if not promised.any():
        return
    ids = table.column("id").filter(promised).to_pylist()
    keys = table.column("sha256").filter(promised).to_pylist()
    store.look_again()  # another process may have added them meanwhile
    missing = set(store.missing(keys, factors))
    absent = [id_ for id_, key in zip(ids, keys, strict=True) if key in missing]
    if absent:
        raise StoreError(
            f"{', '.join(factors)} of {len(absent)} images must be in {store.folder}, got none, "
            f"first {absent[0]!r}; see `deepfish store verify {store.folder}`, then extract again"
        )


def _rows_with(column: pa.ChunkedArray, text: str) -> Array:
    """Return which rows of a column of lists have this text."""
    lists = column.combine_chunks()
    is_text = pc.equal(pc.list_flatten(lists), text).to_numpy(zero_copy_only=False)
    rows = pc.list_parent_indices(lists).to_numpy()[is_text.astype(bool)]
    return np.bincount(rows, minlength=len(column)).astype(bool)
