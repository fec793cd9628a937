"""Labels of a collection as they are now, for filters and counts.

The label log is read again before each answer, so that labels of other tabs, people and programs
count at once. Every row has the number of its set of labels, of which there are few; a new label
changes one number, whatever the size of the collection.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.core.rank_one import Array
from deepfishing.search.collection import Collection
from deepfishing.store.label_log import SET, Act, LabelLog, Labels

SEPARATOR = "\x00"  # no name of a folder and no label of the log has it


class LiveLabels:
    """Labels of the rows of a collection; may be used from several threads.

    Parameters
    ----------
    folder : Path
        The store, beside whose features the label log is.
    collection : Collection
    keys : pa.Array
        Content hashes, by the number of the content.
    """

    def __init__(self, folder: Path, collection: Collection, keys: pa.Array) -> None:
        self.log = LabelLog.open(folder)
        self.collection = collection
        self.keys = keys
        self._lock = threading.RLock()
        self._source_sets, self._source_codes = _encode(
            collection.table.column("labels")
        )
        self._last: Act | None = None
        self._seen = 0
        self._version = 0
        self._start_again()

    @property
    def version(self) -> int:
        """A number that changes with the labels."""
        self.refresh()
        return self._version

    def refresh(self) -> None:
        """Read what was written to the log since."""
        with self._lock:
            last = (
                self.log.lines(self._seen - 1)
                if self._last is not None
                else self.log.lines()
            )
            if self._last is not None and (not last or last[0] != self._last):
                self._start_again()  # the file was replaced
                return
            new = last if self._last is None else last[1:]
            if not new:
                return
            if any(act.kind != SET for act in new):
                self._start_again()
                return
            for act in new:
                for change in act.changes:
                    self._set(change.content, change.labels)
            self._remember(new)

    def of_row(self, row: int) -> Labels:
        """Return the labels of a row: () for none of the classes, None for not labelled."""
        return self._sets[int(self._codes[row])]

    def of_source(self, row: int) -> Labels:
        """Return the labels that the source of the images gives to a row."""
        return self._source_sets[int(self._source_codes[row])]

    def from_source(self) -> Array:
        """Return the rows whose labels come from their source alone."""
        is_labelled = np.array(
            [labels is not None for labels in self._source_sets], dtype=bool
        )
        rows: Array = np.flatnonzero(is_labelled[self._source_codes] & ~self._in_log)
        return rows

    def of_rows(self, rows: Array) -> list[Labels]:
        """Return the labels of some rows."""
        return [self._sets[code] for code in self._codes[rows].tolist()]

    def has(self, label: str) -> Array:
        """Return whether each row has a label."""
        return self._rows_whose_set(
            lambda labels: labels is not None and label in labels
        )

    def is_labelled(self) -> Array:
        """Return whether each row is labelled, also with none of the classes."""
        return self._rows_whose_set(lambda labels: labels is not None)

    def is_none_of_these(self) -> Array:
        """Return whether each row is known to show none of the classes."""
        return self._rows_whose_set(lambda labels: labels == ())

    def has_state(self, state: str) -> Array:
        """Return whether each row is "labelled", "unlabelled", or has "none" of the classes."""
        if state == "none":
            return self.is_none_of_these()
        labelled = self.is_labelled()
        if state == "labelled":
            return labelled
        return ~labelled

    def counts(self, rows: Array | None = None) -> dict[str, int]:
        """Return the number of rows of each label, by name; a declared class may have none.

        With `rows`, only these are counted; all labels are named.
        """
        self.refresh()
        with self._lock:
            codes = self._codes
            if rows is not None:
                codes = codes[rows]
            everywhere = np.bincount(self._codes, minlength=len(self._sets)).tolist()
            rows_of_set = np.bincount(codes, minlength=len(self._sets)).tolist()
            counts: Counter[str] = Counter()
            names = set(self.log.classes())
            for labels, n, in_store in zip(
                self._sets, rows_of_set, everywhere, strict=True
            ):
                for label in labels or ():
                    counts[label] += n
                if in_store:
                    names.update(labels or ())
        return {name: counts[name] for name in sorted(names)}

    def _rows_whose_set(self, passes: Callable[[Labels], bool]) -> Array:
        chosen = np.array([bool(passes(labels)) for labels in self._sets], dtype=bool)
        rows: Array = chosen[self._codes]
        return rows

    def _start_again(self) -> None:
        """Take the labels of the source, then all of the log."""
        acts = self.log.lines()
        self._sets: list[Labels] = []
        self._number: dict[Labels, int] = {}
        renamed = [self.log.apply(None, labels) for labels in self._source_sets]
        codes = np.array([self._code(labels) for labels in renamed], dtype=np.int32)
        self._codes: Array = codes[self._source_codes]
        self._in_log: Array = np.zeros(len(self._codes), dtype=bool)
        current = self.log.current()
        contents = pa.array(list(current), pa.string())
        numbers = pc.index_in(contents, value_set=self.keys).to_pylist()
        for number, labels in zip(numbers, current.values(), strict=True):
            if number is not None:
                self._set_rows(self.collection.rows_of(number), labels)
        self._seen = 0
        self._last = None
        self._remember(acts)

    def _remember(self, acts: list[Act]) -> None:
        self._seen += len(acts)
        if acts:
            self._last = acts[-1]
        self._version += 1

    def _set(self, content: str, labels: Labels) -> None:
        number = pc.index(self.keys, content).as_py()
        if number >= 0:
            self._set_rows(self.collection.rows_of(number), labels)

    def _set_rows(self, rows: Array, labels: Labels) -> None:
        self._codes[rows] = self._code(labels)
        self._in_log[rows] = True

    def _code(self, labels: Labels) -> int:
        if labels not in self._number:
            self._number[labels] = len(self._sets)
            self._sets.append(labels)
        return self._number[labels]


def _encode(column: pa.ChunkedArray) -> tuple[list[Labels], Array]:
    """Return the different lists of a column, and the number of each row's list among them."""
    joined = pc.binary_join(column.combine_chunks(), SEPARATOR)
    lengths = pc.list_value_length(column.combine_chunks()).fill_null(-1)
    # () and the list of one empty name are joined to the same text
    marked = pc.binary_join_element_wise(
        pc.cast(lengths, pa.string()), joined.fill_null(""), SEPARATOR
    )
    encoded = marked.dictionary_encode()
    sets: list[Labels] = []
    for text in encoded.dictionary.to_pylist():
        length, *names = text.split(SEPARATOR)
        if int(length) < 0:
            sets.append(None)
        else:
            sets.append(tuple(names) if int(length) else ())
    return sets, encoded.indices.to_numpy().astype(np.int32)
