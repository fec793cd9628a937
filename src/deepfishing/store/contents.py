"""Features on disk: the contents of a store by number, so that a million of them stay small.

Comes in: a store and the factors that are needed. Goes out: keys in a fixed order and, for any
numbers of that order, the factors' values, through the reader of shards. Of a million images a
query reads some hundred rows, which lie in as many shards: an index has them in one file of its own
(`PackedRows`), each with a checksum, so that a row is one read and no shard is hashed for it.
"""

from __future__ import annotations

import os
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.errors import StoreError
from deepfishing.files import replacing
from deepfishing.rank_one import Array
from deepfishing.store.columns import Column, numbers_of
from deepfishing.store.precision import Codec
from deepfishing.store.shards import PATTERN, read_keys
from deepfishing.store.store import Store

BLOCK_ROWS = 4096
CHECK_BYTES, COPY_BYTES = 4, 1 << 24


@dataclass(frozen=True, eq=False)
class Contents:
    """n contents that have all of some factors, numbered: the SHA-256 of each, a column per factor.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder, {"network": "toy"}, "float32")
    ...     store.append(["k1", "k2", "k3"], {"x7": np.eye(3)})
    ...     Contents.of(store, ["x7"]).read(np.array([2, 0]), ["x7"])["x7"]
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """

    keys: pa.Array
    columns: dict[str, Column]

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
            shard = np.searchsorted(begin, place, side="right") - 1
            row = (place - begin[shard]).astype(np.int32)
            columns[factor] = Column.of(
                files[factor], shard.astype(np.int32), row, store.codec, factor
            )
        return cls(keys, columns)

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, numbers: Array, factors: Sequence[str]) -> dict[str, Array]:
        """Factors of these contents, in their order."""
        return {factor: self.columns[factor].read(numbers) for factor in factors}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one image, by factor."""
        return {factor: column.shape for factor, column in self.columns.items()}


@dataclass(frozen=True, eq=False)
class PackedRows:
    """n contents in one file: of each the codes by factor, as `shapes` has them, then a CRC-32."""

    path: Path
    keys: pa.Array
    codec: Codec
    shapes: Mapping[str, tuple[int, ...]]
    file: int = field(init=False, repr=False)  # stays open: a newer index removes the name

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", os.open(self.path, os.O_RDONLY))
        weakref.finalize(self, os.close, self.file)
        if os.fstat(self.file).st_size != len(self) * self.width:
            raise ValueError(f"{self.path.name} must have {len(self)} rows of {self.width} bytes")

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def width(self) -> int:
        """Bytes per row."""
        return CHECK_BYTES + sum(map(self._bytes, self.shapes))

    def _bytes(self, factor: str) -> int:
        return self.codec.width(self.shapes[factor]) * self.codec.dtype.itemsize

    def read(self, numbers: Array, factors: Sequence[str]) -> dict[str, Array]:
        """Factors of these contents, in their order."""
        width = self.width
        rows = np.empty((len(numbers), width), dtype=np.uint8)
        to = rows.data.cast("B") if rows.size else memoryview(b"")
        # one read for each run of neighbours
        apart = np.diff(numbers, prepend=-2) != 1
        first = np.flatnonzero(apart | (np.arange(len(numbers)) % BLOCK_ROWS == 0))
        bounds = (np.append(first, len(numbers)) * width).tolist()
        at = (numbers[first].astype(np.int64) * width).tolist()
        whole = all(
            os.preadv(self.file, [to[a:b]], place) == b - a
            for a, b, place in zip(bounds, bounds[1:], at, strict=False)
        )
        written = rows[:, -CHECK_BYTES:].copy().view("<u4").ravel().tolist()
        begins = range(0, rows.size, width)
        found = [zlib.crc32(to[begin : begin + width - CHECK_BYTES]) for begin in begins]
        if not whole or found != written:
            raise StoreError(
                f"search index is damaged: {self.path} (a row is not as it was written); remove "
                f"{self.path.parent} and search again, which makes it anew"
            )
        values, begin = {}, 0
        for factor, shape in self.shapes.items():
            end = begin + self._bytes(factor)
            if factor in factors:
                codes = rows[:, begin:end].view(self.codec.dtype)
                values[factor] = numbers_of(self.codec, codes, shape)
            begin = end
        return values


def pack(path: Path, contents: Contents, codec: Codec, before: PackedRows | None) -> PackedRows:
    """Write the contents into one file, after those of `before`, which are the first of them."""
    begin = 0 if before is None else len(before)
    with replacing(path) as partial, partial.open("wb") as file:
        while before is not None and file.tell() < begin * before.width:
            file.write(os.pread(before.file, COPY_BYTES, file.tell()))
        for start in range(begin, len(contents), BLOCK_ROWS):
            numbers = np.arange(start, min(start + BLOCK_ROWS, len(contents)))
            codes = [column.codes(numbers).view(np.uint8) for column in contents.columns.values()]
            rows = np.concatenate(codes, axis=1)
            checks = np.array([zlib.crc32(row) for row in rows], dtype="<u4")
            file.write(np.concatenate([rows, checks[:, None].view(np.uint8)], axis=1).data)
    return PackedRows(path, contents.keys, codec, contents.shapes)


def shard_files(store: Store, factor: str) -> tuple[Path, ...]:
    """The shards of a factor; a name has the checksum of what is in it, and so stands for it."""
    files = tuple(sorted(store.shards_folder(factor).glob(PATTERN)))
    if not files:
        raise StoreError(f"{factor} must be in {store.folder}, got no shard; extract it first")
    return files
