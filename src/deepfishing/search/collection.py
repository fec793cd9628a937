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
SUGGEST = 20_000  # ids beyond which a mistyped one is not looked for


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
        """The rows of the store's index whose contents have these factors; there must be one."""
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
            store.rows()  # which says what is wrong and what to do
            table = SCHEMA.empty_table().select(COLUMNS)
        table = table.combine_chunks()
        sha256 = table.column("sha256").combine_chunks()
        place = pc.index_in(sha256, value_set=contents.keys)
        _check_promises(store, table.filter(place.is_null()), factors)
        # index_in finds null in a set without null nowhere, so rows without content drop out here
        table = table.append_column(
            CURRENT, _current_labels(table, LabelLog.open(store.folder))
        )
        table = (
            table.drop_columns(["sha256", "factors"])
            .filter(place.is_valid())
            .combine_chunks()
        )
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
        id_, path, labels = (
            self.table.column(n)[row].as_py() for n in ("id", "path", CURRENT)
        )
        return Picture(id_, path, None if labels is None else tuple(labels))

    def rows_of(self, content: int) -> Array:
        """The rows that have a content."""
        rows: Array = self.order[self.starts[content] : self.starts[content + 1]]
        return rows

    def contents_of(self, passed: Array | None) -> Array | None:
        """Which contents have a row that passed a filter; None if all have."""
        if passed is None and self.is_whole:
            return None
        allowed = np.zeros(len(self.starts) - 1, dtype=bool)
        allowed[self.content if passed is None else self.content[passed]] = True
        return allowed

    def row_of(self, id_: str) -> int | None:
        """The row of an id, or None."""
        ids = self.table.column("id")
        row = bisect_left(range(len(self)), id_, key=lambda number: str(ids[number]))
        if row < len(self) and ids[row].as_py() == id_:
            return row
        row = pc.index(ids, id_).as_py()  # another writer may not have sorted them
        return None if row < 0 else int(row)

    def suggestion(self, id_: str) -> str:
        """`; did you mean ...?` for an id that is not there, or nothing."""
        few = len(self) <= SUGGEST
        return did_you_mean(id_, self.table.column("id").to_pylist()) if few else ""

    def labels(self) -> list[str]:
        """All labels that occur, sorted."""
        flat = pc.list_flatten(self.table.column(CURRENT).combine_chunks())
        return sorted(label for label in flat.unique().to_pylist() if label is not None)

    def label_counts(self) -> dict[str, int]:
        """The number of images with each label, in the order of the labels."""
        flat = pc.list_flatten(self.table.column(CURRENT).combine_chunks())
        counts = {}
        for found in pc.value_counts(flat.drop_null()).to_pylist():
            counts[found["values"]] = found["counts"]
        return dict(sorted(counts.items()))

    def passing(
        self, labels: Sequence[str] = (), path: str | None = None
    ) -> Array | None:
        """Which rows have all of the labels and a path or id like the pattern; None if all do."""
        if not labels and path is None:
            return None
        passed = np.ones(len(self), dtype=bool)
        for label in labels:
            has = _holding(self.table.column(CURRENT), label)
            if not has.any():
                known = self.labels()
                some = ", ".join(known[:20]) + (" ..." if len(known) > 20 else "")
                raise OptionError(
                    f"label must be one that {self.folder} has ({some or 'it has none'}), "
                    f"got {label!r}{did_you_mean(label, known)}"
                )
            passed &= has
        if path is not None:
            like = re.compile(fnmatch.translate(path)).match
            for number in np.flatnonzero(passed):
                texts = (
                    self.table.column(name)[number].as_py() for name in ("path", "id")
                )
                passed[number] = any(like(text) for text in texts)
        if not passed.any():
            asked = [
                *(f"label {label}" for label in labels),
                *([f"path {path}"] if path else []),
            ]
            raise OptionError(
                f"a filter must leave images to search in, got none of {len(self)} in "
                f"{self.folder} for {' and '.join(asked)}; widen it"
            )
        return passed


def _current_labels(table: pa.Table, log: LabelLog) -> pa.ChunkedArray:
    """Labels of the log, or else those of the images' source, as a column."""
    labels = table.column("labels")
    if not log.history():
        return labels
    keys = table.column("sha256").to_pylist()
    current = [
        log.apply(key, None if names is None else tuple(names))
        for key, names in zip(keys, labels.to_pylist(), strict=True)
    ]
    return pa.chunked_array([pa.array(current, labels.type)])


def _check_promises(store: Store, table: pa.Table, factors: Sequence[str]) -> None:
    """Raise if the index says that rows have the factors, for none of these was found."""
    promised = np.ones(len(table), dtype=bool)
    for factor in factors:
        promised &= _holding(table.column("factors"), factor)
    if not promised.any():
        return
    ids, keys = (
        table.column(name).filter(promised).to_pylist() for name in ("id", "sha256")
    )
    store.look_again()  # another process may have added them meanwhile
    lost = set(store.missing(keys, factors))
    absent = [id_ for id_, key in zip(ids, keys, strict=True) if key in lost]
    if absent:
        raise StoreError(
            f"{', '.join(factors)} of {len(absent)} images must be in {store.folder}, got none, "
            f"first {absent[0]!r}; see `deepfish store verify {store.folder}`, then extract again"
        )


def _holding(column: pa.ChunkedArray, text: str) -> Array:
    """Which rows of a column of lists have this text."""
    lists = column.combine_chunks()
    found = (
        pc.equal(pc.list_flatten(lists), text)
        .to_numpy(zero_copy_only=False)
        .astype(bool)
    )
    rows = pc.list_parent_indices(lists).to_numpy()[found]
    return np.bincount(rows, minlength=len(column)).astype(bool)
