"""Features on disk: rows of a factor from shards that stay mapped into memory, each row checked.

Comes in: a `Column`. Goes out: one that reads a few rows out of each of thousands of shards, as a
search through an index does, in a microsecond per row: no file is opened, and none is hashed, since
a checksum of each row is known from a time when all were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from deepfishing.rank_one import Array
from deepfishing.store.columns import Column, decoded, stored
from deepfishing.store.precision import Codec
from deepfishing.store.shards import damaged

BLOCK_ROWS = 4096
PLACES = ("shard", "row", "offsets", "sums")  # what is known of a column, as arrays
ELSEWHERE = -1  # offset of a shard of another writer, which must be decoded


@dataclass(frozen=True, eq=False)
class MappedColumn(Column):
    """A column whose shards are mapped: where in each file its values begin, a sum of each row."""

    offsets: Array
    sums: Array
    _mapped: list[memoryview] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        # all of them now: they can be read even if their names are removed
        for path, offset in zip(self.files, self.offsets.tolist(), strict=True):
            if offset == ELSEWHERE:
                self._mapped.append(memoryview(decoded(path).tobytes()))
                continue
            try:
                with pa.memory_map(str(path)) as file:  # which need not stay open
                    self._mapped.append(memoryview(file.read_buffer())[offset:])
            except OSError as error:
                raise damaged(path, error) from None

    @classmethod
    def of_column(cls, column: Column) -> MappedColumn:
        """Look into all shards, which are hashed."""
        blocks = np.array_split(np.arange(len(column.row)), -(-len(column.row) // BLOCK_ROWS))
        sums = np.concatenate([row_sums(column.codes(block)) for block in blocks])
        offsets = []
        for path in column.files:
            codes, _, _ = stored(path, column.factor, column.codec)
            offsets.append(codes.offset if isinstance(codes, np.memmap) else ELSEWHERE)
        places = dict(zip(PLACES, (column.shard, column.row, np.array(offsets), sums), strict=True))
        return cls.at(column.files, column.codec, column.factor, column.shape, places)

    @classmethod
    def at(
        cls,
        files: Sequence[Path],
        codec: Codec,
        factor: str,
        shape: tuple[int, ...],
        places: Mapping[str, Array],
    ) -> MappedColumn:
        """From the arrays of `PLACES`."""
        return cls(files, codec=codec, factor=factor, shape=shape, **places)

    def codes(self, numbers: Array) -> Array:
        """Rows (m, width) of these contents as they lie in the shards, each checked."""
        width = self.codec.width(self.shape)
        size = width * self.codec.dtype.itemsize
        shard, row = self.shard[numbers], self.row[numbers].astype(np.int64)
        # one copy for each run of rows that are neighbours
        first = np.flatnonzero((np.diff(shard, prepend=-1) != 0) | (np.diff(row, prepend=-2) != 1))
        begin = row[first] * size
        end = begin + np.diff(first, append=len(numbers)) * size
        runs = zip(shard[first].tolist(), begin.tolist(), end.tolist(), strict=True)
        found = b"".join([self._mapped[file][a:b] for file, a, b in runs])
        codes = np.frombuffer(found, self.codec.dtype, len(found) // size * width)
        codes = codes.reshape(-1, width)
        if len(codes) != len(numbers) or (row_sums(codes) != self.sums[numbers]).any():
            raise self._damaged(numbers)
        return codes

    def _damaged(self, numbers: Array) -> Exception:
        """The error for the first of these rows that is not as it was."""
        for number in numbers if len(numbers) > 1 else ():
            try:
                self.codes(np.array([number]))
            except Exception as error:
                return error
        path = self.files[int(self.shard[numbers[0]])]
        return damaged(path, ValueError("a row is not as it was when it was indexed"))


def row_sums(codes: Array) -> Array:
    """A checksum (n,) of each row (n, width): the sum of its bytes, eight at a time if they fit.

    Examples
    --------
    >>> row_sums(np.array([[1, 2], [3, -1]], dtype=np.int8)).tolist()
    [513, 65283]
    """
    words = np.dtype(f"<u{math.gcd(8, codes.shape[1] * codes.itemsize)}")
    sums: Array = codes.view(words).sum(axis=1, dtype=np.uint64)
    return sums
