"""Features on disk: the contents of a store by number, so that a million of them stay small.

Comes in: a store and the factors that are needed. Goes out: keys in a fixed order and, for any
numbers of that order, the factors' values, through the reader of shards. For those who read a few
rows of thousands of shards again and again, as a search through an index does, `mapped` takes a
microsecond per row: the shards stay mapped into memory, so that no file is opened and none is
hashed, since a checksum of each row is known from a time when all were.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.core.rank_one import Array
from deepfishing.errors import StoreError
from deepfishing.store.shards import Column, decoded, read_keys, stored, undamaged
from deepfishing.store.shards import shard_files as files_in
from deepfishing.store.store import Store

BLOCK_ROWS = 4096
PLACES = ("shard", "row", "offsets", "sums")  # what is known of a mapped column, as arrays
ELSEWHERE = -1  # offset of a shard of another writer, which must be decoded
_MAP_FIXED = 0x10  # which Python's mmap does not name


@dataclass(frozen=True, eq=False)
class Contents:
    """n contents that have all of some factors, numbered: SHA-256 of each, a column per factor."""

    keys: pa.Array
    columns: Mapping[str, Column]

    @classmethod
    def of(cls, store: Store, factors: Sequence[str], first: pa.Array | None = None) -> Contents:
        """All contents that have the factors; those of `first`, if given, come first."""
        files = {factor: shard_files(store, factor) for factor in factors}
        listed = {factor: [read_keys(path) for path in files[factor]] for factor in factors}
        found = {factor: pa.concat_arrays(some) for factor, some in listed.items()}
        keys = found[factors[0]]
        for others in found.values():
            keys = keys.filter(pc.is_in(keys, value_set=others))
        keys = keys.unique()
        if first is not None:
            new = keys.filter(pc.invert(pc.is_in(keys, value_set=first)))
            keys = pa.concat_arrays([first.filter(pc.is_in(first, value_set=keys)), new])
        columns = {}
        for factor in factors:
            place = pc.index_in(keys, value_set=found[factor]).to_numpy()
            begin = np.cumsum([0, *map(len, listed[factor])])
            shard = np.searchsorted(begin, place, side="right").astype(np.int32) - 1
            row = (place - begin[shard]).astype(np.int32)
            columns[factor] = Column.of(files[factor], shard, row, store.codec, factor)
        return cls(keys, columns)

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, numbers: Array, factors: Sequence[str]) -> dict[str, Array]:
        """Factors of these contents, in their order."""
        return {factor: self.columns[factor].read(numbers) for factor in factors}

    def mapped(self) -> Contents:
        """The same, with shards mapped into memory."""
        columns = {name: MappedColumn.of_column(column) for name, column in self.columns.items()}
        return replace(self, columns=columns)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one image, by factor."""
        return {factor: column.shape for factor, column in self.columns.items()}


def shard_files(store: Store, factor: str) -> tuple[Path, ...]:
    """The shards of a factor; a name has the checksum of what is in it, and so stands for it."""
    files = tuple(files_in(store.shards_folder(factor)))
    if not files:
        raise StoreError(f"{factor} must be in {store.folder}, got no shard; extract it first")
    return files


@dataclass(frozen=True, eq=False)
class MappedColumn(Column):
    """A column whose shards are mapped: where in each file its values begin, a sum of each row."""

    offsets: Array
    sums: Array
    _windows: Array = field(init=False, repr=False)  # the bytes of a row, by where it begins
    _begin: Array = field(init=False, repr=False)  # of each content's row

    def __post_init__(self) -> None:
        content, starts = _map(self.files, (self.offsets == ELSEWHERE).tolist())
        size = self.codec.width(self.shape) * self.codec.dtype.itemsize
        begin = (starts[:-1] + np.maximum(self.offsets, 0))[self.shard]
        begin += self.row.astype(np.int64) * size
        if (self.row < 0).any() or (begin + size > starts[1:][self.shard]).any():
            raise ValueError(f"rows of {self.factor} must lie in their files")
        windows = np.lib.stride_tricks.sliding_window_view(content, size)
        object.__setattr__(self, "_windows", windows)
        object.__setattr__(self, "_begin", begin)

    @classmethod
    def of_column(cls, column: Column) -> MappedColumn:
        """Look into all shards, which are hashed."""
        blocks = np.array_split(np.arange(len(column.row)), -(-len(column.row) // BLOCK_ROWS))
        sums = np.concatenate([row_sums(column.codes(block)) for block in blocks])
        offsets = []
        for path in column.files:
            codes, _, _ = stored(path, column.factor, column.codec)
            offsets.append(codes.offset if isinstance(codes, np.memmap) else ELSEWHERE)
        return cls(**vars(column), offsets=np.array(offsets), sums=sums)

    def codes(self, numbers: Array) -> Array:
        """Rows (m, width) of these contents as they lie in the shards, each checked."""
        codes: Array = self._windows[self._begin[numbers]].view(self.codec.dtype)
        wrong = numbers[row_sums(codes) != self.sums[numbers]]
        for number in wrong[:1]:
            with undamaged(self.files[int(self.shard[number])]):
                raise ValueError("a row is not as it was when it was indexed")
        return codes


def _map(files: Sequence[Path], foreign: Sequence[bool]) -> tuple[Array, Array]:
    """All files in one array of bytes, those of other writers decoded, and where each starts.

    They lie side by side in one stretch of addresses, so that numpy takes rows of all of them in
    one call. A mapped file need not stay open, and is there even if its name is removed.
    """
    values = {
        path: decoded(path).tobytes() for path, own in zip(files, foreign, strict=True) if own
    }
    sizes = []
    for path in files:
        with undamaged(path):
            sizes.append(len(values[path]) if path in values else path.stat().st_size)
    page = mmap.ALLOCATIONGRANULARITY
    starts = np.cumsum([0, *(-(-size // page) * page for size in sizes)])
    area = mmap.mmap(-1, int(starts[-1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    content = np.frombuffer(area, np.uint8)
    place = ctypes.CDLL(None, use_errno=True).mmap
    place.restype = ctypes.c_void_p
    place.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_size_t]
    for path, size, start in zip(files, sizes, starts.tolist(), strict=False):
        if path in values:
            area[start : start + size] = values[path]
            continue
        with path.open("rb") as file:
            at, flags = content.ctypes.data + start, mmap.MAP_PRIVATE | _MAP_FIXED
            if place(at, size, mmap.PROT_READ, flags, file.fileno(), 0) != at:
                reason = os.strerror(ctypes.get_errno())
                raise StoreError(
                    f"shards must be mapped into memory to search, got {path} ({reason}); compare "
                    "all images with --exact"
                )
    return content, starts


def row_sums(codes: Array) -> Array:
    """A checksum (n,) of each row (n, width): the sum of its bytes, eight at a time if they fit."""
    words = np.dtype(f"<u{math.gcd(8, codes.shape[1] * codes.itemsize)}")
    sums: Array = codes.view(words).sum(axis=1, dtype=np.uint64)
    return sums
