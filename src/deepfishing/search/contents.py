"""Stage 7, search: the contents of a store by number, and their values wherever they lie.

Comes in: a store and the factors that a recipe needs. Goes out: keys in a fixed order and, for any
numbers of that order, the factors' values, reading those rows of the shards and nothing else. The
values are of norm 1, as the store has them: every recipe normalises, so the norms are not needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.errors import StoreError
from deepfishing.rank_one import Array
from deepfishing.store import Store
from deepfishing.store.factor_columns import decoded, stored
from deepfishing.store.shards import PATTERN, damaged, read_table

KEY_BYTES = 64  # hex digits of a SHA-256

# Where a shard of another writer starts: nowhere, it must be decoded.
ELSEWHERE = -1

# Every float16 number as float32. Features are full of numbers below 6e-5, which numpy converts ten
# times slower than others; looking them up is as quick for all.
_SINGLE = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Column:
    """Where the rows of one factor lie.

    Parameters
    ----------
    files : tuple of Path
        The shards.
    offsets : int64 array, one per file
        Of its first value; `ELSEWHERE` if it is not one uncompressed block.
    shard, row : int32 arrays (n,)
        For each content, the number of its file and its row there.
    dtype, shape
        Of one value on disk, and of one image.
    """

    files: tuple[Path, ...]
    offsets: Array
    shard: Array
    row: Array
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    _decoded: dict[int, Array] = field(default_factory=dict, repr=False)

    def read(self, numbers: Array) -> Array:
        """Values (m, d) or (m, P, d) of these contents as float32, in their order."""
        out = np.empty((len(numbers), int(np.prod(self.shape))), self.dtype)
        shard, row = self.shard[numbers], self.row[numbers].astype(np.int64)
        order = np.lexsort((row, shard))
        shard, row = shard[order], row[order]
        # one read for each run of rows that are neighbours on disk and in the result
        steps = (np.diff(shard) != 0) | (np.diff(row) != 1) | (np.diff(order) != 1)
        first = np.flatnonzero(np.concatenate([np.ones(min(len(order), 1), dtype=bool), steps]))
        runs = np.stack([order[first], row[first], np.diff(first, append=len(order))], axis=1)
        files, begin = np.unique(shard[first], return_index=True)
        ends = [*begin[1:].tolist(), len(runs)]  # one too many if nothing is asked for
        for file, a, b in zip(files.tolist(), begin.tolist(), ends, strict=False):
            self._fill(file, runs[a:b], out)
        if self.dtype == np.float16:
            values: Array = _SINGLE.take(out.view(np.uint16), mode="clip")
        else:
            values = out
        return values.reshape(len(numbers), *self.shape)

    def _fill(self, shard: int, runs: Array, out: Array) -> None:
        """Put runs of a shard, (where in `out`, first row, rows), into their places."""
        path, offset = self.files[shard], int(self.offsets[shard])
        if offset == ELSEWHERE:
            if shard not in self._decoded:
                self._decoded[shard] = decoded(path)
            for to, row, n in runs.tolist():
                out[to : to + n] = self._decoded[shard][row : row + n]
            return
        size = out.shape[1] * out.itemsize
        target = out.data.cast("B")
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise damaged(path, error) from None
        try:
            for to, begin, n in (runs * size).tolist():  # in bytes; quicker than numpy's numbers
                if os.preadv(file, [target[to : to + n]], offset + begin) != n:
                    raise damaged(path, EOFError("it ends too early"))
        finally:
            os.close(file)


@dataclass(frozen=True, eq=False)
class Contents:
    """n contents that have all of some factors, numbered.

    Parameters
    ----------
    keys : pyarrow array of n strings
        SHA-256 of each.
    columns : dict
        Where the values of each factor lie.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder, {"network": "toy"}, dtype="float32")
    ...     store.append(["k1", "k2", "k3"], {"x7": np.eye(3)})
    ...     Contents.of(store, ["x7"]).read(np.array([2, 0]), ["x7"])["x7"]
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """

    keys: pa.Array
    columns: dict[str, Column]

    @classmethod
    def of(
        cls,
        store: Store,
        factors: Sequence[str],
        optional: Sequence[str] = (),
        first: pa.Array | None = None,
    ) -> Contents:
        """All contents that have the factors; those of `first`, if given, come first.

        An optional factor may be lacking: `has` says where.
        """
        found = {factor: _scan(store, factor) for factor in (*factors, *optional)}
        keys = found[factors[0]][0]
        for factor in factors:
            keys = keys.filter(pc.is_in(keys, value_set=found[factor][0]))
        keys = keys.unique()
        if first is not None:
            new = keys.filter(pc.invert(pc.is_in(keys, value_set=first)))
            keys = pa.concat_arrays([first.filter(pc.is_in(first, value_set=keys)), new])
        columns = {}
        for factor, (listed, files, offsets, counts, dtype, shape) in found.items():
            place = pc.fill_null(pc.index_in(keys, value_set=listed), -1).to_numpy()
            begin = np.concatenate([[0], np.cumsum(counts)])
            shard = np.searchsorted(begin, place, side="right") - 1
            row = np.where(place < 0, -1, place - begin[shard])
            columns[factor] = Column(
                files, offsets, shard.astype(np.int32), row.astype(np.int32), dtype, shape
            )
        return cls(keys, columns)

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, numbers: Array, factors: Sequence[str]) -> dict[str, Array]:
        """Factors of these contents, in their order."""
        return {factor: self.columns[factor].read(numbers) for factor in factors}

    def has(self, numbers: Array, factor: str) -> bool:
        """Whether all of these contents have a factor."""
        return factor in self.columns and bool((self.columns[factor].row[numbers] >= 0).all())

    def state(self) -> dict[str, Array]:
        """Keys and places as arrays, for a file; `restored` makes contents of them again."""
        keys = np.array(self.keys.to_pylist(), dtype=f"S{KEY_BYTES}")
        arrays: dict[str, Array] = {"keys": keys.view(np.uint8).reshape(len(keys), KEY_BYTES)}
        for factor, column in self.columns.items():
            arrays |= {
                f"{factor}/offsets": column.offsets,
                f"{factor}/shard": column.shard,
                f"{factor}/row": column.row,
            }
        return arrays

    @staticmethod
    def keys_of(state: dict[str, Array]) -> pa.Array:
        """The keys in a `state`."""
        raw = np.ascontiguousarray(state["keys"]).view(f"S{KEY_BYTES}").ravel()
        keys = pa.array(raw, pa.binary())
        if isinstance(keys, pa.ChunkedArray):  # beyond 16 MB
            keys = keys.combine_chunks()
        return keys.cast(pa.string())

    @classmethod
    def restored(cls, store: Store, factors: Sequence[str], arrays: dict[str, Array]) -> Contents:
        """Contents whose `state` this is, of a store whose shards are the same."""
        columns = {}
        for factor in factors:
            files = shard_files(store, factor)
            offsets, shard, row = (arrays[f"{factor}/{n}"] for n in ("offsets", "shard", "row"))
            unit, _, shape = stored(files[0])
            columns[factor] = Column(files, offsets, shard, row, unit.dtype, shape)
        return cls(cls.keys_of(arrays), columns)


def shard_files(store: Store, factor: str) -> tuple[Path, ...]:
    """The shards of a factor; a name has the checksum of what is in it, and so stands for it."""
    return tuple(sorted(store.shards_folder(factor).glob(PATTERN)))


def _scan(
    store: Store, factor: str
) -> tuple[pa.Array, tuple[Path, ...], Array, list[int], np.dtype[np.generic], tuple[int, ...]]:
    """Keys of all rows of a factor; its files, where values start, rows of each, type, shape."""
    files = shard_files(store, factor)
    if not files:
        raise StoreError(f"{factor} must be in {store.folder}, got no shard; extract it first")
    keys, offsets, counts = [], [], []
    dtype, shape = None, None
    for path in files:
        unit, _, this = stored(path)
        if dtype is not None and (unit.dtype, this) != (dtype, shape):
            raise damaged(path, ValueError(f"values must be {dtype} of shape {shape}"))
        dtype, shape = unit.dtype, this
        offsets.append(unit.offset if isinstance(unit, np.memmap) else ELSEWHERE)
        column = read_table(path, ["sha256"]).column(0).combine_chunks()
        keys.append(column)
        counts.append(len(column))
    return (
        pa.concat_arrays(keys),
        files,
        np.array(offsets, dtype=np.int64),
        counts,
        np.dtype(dtype),
        shape or (),
    )
