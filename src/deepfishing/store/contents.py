"""Numbered contents of a store, so that a million of them take little memory.

`Contents` has keys in a fixed order and, for any numbers of that order, the values of the factors.
To read a few rows of thousands of shards again and again, as a search through an index does, use
`Contents.mapped`: the shards stay mapped into memory, and each is hashed when it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.core.rank_one import Array
from deepfishing.errors import StoreError
from deepfishing.store.shards import (
    Column,
    check_content,
    check_shard,
    decoded,
    read_keys,
    stored,
    undamaged,
)
from deepfishing.store.shards import shard_files as files_in
from deepfishing.store.store import Store
from deepfishing.util.machine import release_pages

PLACES = ("shard", "row", "offsets")  # arrays of a mapped column that an index keeps
DECODED = -1  # offset of a shard that another program wrote


@dataclass(frozen=True, eq=False)
class Contents:
    """n contents that have all of some factors, numbered: SHA-256 of each, a column per factor."""

    keys: pa.Array
    columns: Mapping[str, Column]

    @classmethod
    def of(
        cls, store: Store, factors: Sequence[str], first: pa.Array | None = None
    ) -> Contents:
        """Return all contents that have the factors; those of `first` have the first numbers."""
        files = {factor: shard_files(store, factor) for factor in factors}
        keys_of_shards: dict[str, list[pa.Array]] = {}
        keys_of_factor: dict[str, pa.Array] = {}
        for factor in factors:
            keys_of_shards[factor] = [read_keys(path) for path in files[factor]]
            keys_of_factor[factor] = pa.concat_arrays(keys_of_shards[factor])
        keys = keys_of_factor[factors[0]]
        for others in keys_of_factor.values():
            keys = keys.filter(pc.is_in(keys, value_set=others))
        keys = keys.unique()
        if first is not None:
            new = keys.filter(pc.invert(pc.is_in(keys, value_set=first)))
            remaining = first.filter(pc.is_in(first, value_set=keys))
            keys = pa.concat_arrays([remaining, new])
        columns = {}
        for factor in factors:
            position = pc.index_in(keys, value_set=keys_of_factor[factor]).to_numpy()
            begin = np.cumsum([0, *map(len, keys_of_shards[factor])])
            shard = np.searchsorted(begin, position, side="right").astype(np.int32) - 1
            row = (position - begin[shard]).astype(np.int32)
            columns[factor] = Column.of(files[factor], shard, row, store.codec, factor)
        return cls(keys, columns)

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, numbers: Array, factors: Sequence[str]) -> dict[str, Array]:
        """Return the factors of these contents, in their order."""
        return {factor: self.columns[factor].read(numbers) for factor in factors}

    def mapped(self) -> Contents:
        """Return the same contents with shards mapped into memory."""
        columns = {}
        for name, column in self.columns.items():
            columns[name] = MappedColumn.from_column(column)
        return replace(self, columns=columns)

    def release(self) -> None:
        """Let go of the pages of files that are mapped into memory; they are read again."""
        for column in self.columns.values():
            if isinstance(column, MappedColumn):
                column.release()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one image, by factor."""
        return {factor: column.shape for factor, column in self.columns.items()}


def shard_files(store: Store, factor: str) -> tuple[Path, ...]:
    """Return the shards of a factor, of which there must be at least one."""
    files = tuple(files_in(store.shards_folder(factor)))
    if not files:
        raise StoreError(
            f"{factor} must be in {store.folder}, got no shard; extract it first"
        )
    return files


@dataclass(frozen=True, eq=False)
class MappedColumn(Column):
    """A column whose shards are mapped into memory.

    `offsets` has the byte of each file at which the values begin, or `DECODED` for a shard that
    another program wrote. A mapped file need not stay open, and can be read even if it is removed.
    """

    offsets: Array
    _shards: list[MappedShard] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        width = self.codec.width(self.shape)
        shards = []
        for path, offset in zip(self.files, self.offsets.tolist(), strict=True):
            shards.append(MappedShard.open(path, offset, width, self.codec.dtype))
        counts = np.array([len(shard.codes) for shard in shards])
        if (self.row < 0).any() or (self.row >= counts[self.shard]).any():
            raise ValueError(f"rows of {self.factor} must be in their files")
        object.__setattr__(self, "_shards", shards)

    @classmethod
    def from_column(cls, column: Column) -> MappedColumn:
        """Map the shards of a column."""
        offsets = []
        for path in column.files:
            check_shard(path)
            codes, _, _ = stored(path, column.factor, column.codec)
            offsets.append(codes.offset if isinstance(codes, np.memmap) else DECODED)
        return cls(**vars(column), offsets=np.array(offsets))

    def codes(self, numbers: Array) -> Array:
        """Return rows (m, width) of these contents as they are in the shards, which are checked."""
        shard = self.shard[numbers]
        row = self.row[numbers]
        out = np.empty((len(numbers), self.codec.width(self.shape)), self.codec.dtype)
        order = np.argsort(shard, kind="stable")
        used, first = np.unique(shard[order], return_index=True)
        ends = [*first[1:], len(order)]
        for number, begin, end in zip(used, first, ends, strict=False):
            positions = order[begin:end]
            mapped = self._shards[number]
            mapped.check()
            out[positions] = mapped.codes[row[positions]]
        return out

    def release(self) -> None:
        """Let go of the pages of all shards, see `release_pages`."""
        for shard in self._shards:
            if shard.codes is not shard.content:  # not decoded into memory
                release_pages(shard.content)


@dataclass(eq=False)
class MappedShard:
    """One shard in memory: all bytes of its file, and the rows (n, width) of codes in there."""

    path: Path
    content: Array
    codes: Array
    is_checked: bool = False

    @classmethod
    def open(
        cls, path: Path, offset: int, width: int, dtype: np.dtype[Any]
    ) -> MappedShard:
        """Map a file, or decode it if another program wrote it.

        Columns that map the same file share its shard, as long as the file stays as it is.
        """
        if offset == DECODED:
            codes = decoded(path)
            return cls(path, codes, codes, is_checked=True)
        with undamaged(path):
            stat = path.stat()
        identity = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        key = (path, offset, width, dtype, *identity)
        shard = _mapped.get(key)
        if shard is None:
            shard = _mapped.setdefault(key, cls._map(path, offset, width, dtype))
        return shard

    @classmethod
    def _map(
        cls, path: Path, offset: int, width: int, dtype: np.dtype[Any]
    ) -> MappedShard:
        with undamaged(path), pa.memory_map(str(path)) as file:
            content = np.frombuffer(file.read_buffer(), np.uint8)
        row_bytes = width * dtype.itemsize
        rows = max(0, len(content) - offset) // row_bytes
        values = content[offset : offset + rows * row_bytes]
        return cls(path, content, values.view(dtype).reshape(rows, width))

    def check(self) -> None:
        """Compare the content with the checksum in the file's name, the first time."""
        if not self.is_checked:
            check_content(self.path, self.content)
            self.is_checked = True


# shards that are mapped by this process, by the identity of their files
_mapped: WeakValueDictionary[tuple[Any, ...], MappedShard] = WeakValueDictionary()
