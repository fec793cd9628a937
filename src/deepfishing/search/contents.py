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
from deepfishing.rank_one import Array, l2_normalize
from deepfishing.search.checks import row_checks
from deepfishing.store import Store
from deepfishing.store.factor_columns import decoded, stored
from deepfishing.store.intact import check_shards
from deepfishing.store.precision import Codec
from deepfishing.store.shards import PATTERN, damaged, read_keys

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
    codec, factor, shape
        How numbers are written, whose they are, and the shape of one image.
    checks : uint32 array (n,), optional
        Checksums of the rows (`checks`). Without them a shard is hashed whole before it is read.
    """

    files: tuple[Path, ...]
    offsets: Array
    shard: Array
    row: Array
    codec: Codec
    factor: str
    shape: tuple[int, ...]
    checks: Array | None = None
    _decoded: dict[int, Array] = field(default_factory=dict, repr=False)

    def read(self, numbers: Array) -> Array:
        """Values (m, d) or (m, P, d) of these contents as float32, in their order."""
        out = self.codes(numbers)
        if out.dtype == np.float16:
            values: Array = _SINGLE.take(out.view(np.uint16), mode="clip")
        elif out.dtype == np.float32:
            values = out
        else:
            size = int(np.prod(self.shape))
            values = l2_normalize(self.codec.decode(self.factor, out, size).astype(np.float32))
        return values.reshape(len(numbers), *self.shape)

    def codes(self, numbers: Array) -> Array:
        """Rows (m, width) of these contents as they lie in the shards, checked."""
        out = np.empty((len(numbers), self.codec.width(self.factor, self.shape)), self.codec.dtype)
        shard, row = self.shard[numbers], self.row[numbers].astype(np.int64)
        order = np.lexsort((row, shard))
        shard, row = shard[order], row[order]
        # one read for each run of rows that are neighbours on disk and in the result
        steps = (np.diff(shard) != 0) | (np.diff(row) != 1) | (np.diff(order) != 1)
        first = np.flatnonzero(np.concatenate([np.ones(min(len(order), 1), dtype=bool), steps]))
        runs = np.stack([order[first], row[first], np.diff(first, append=len(order))], axis=1)
        files, begin = np.unique(shard[first], return_index=True)
        ends = [*begin[1:].tolist(), len(runs)]  # one too many if nothing is asked for
        if self.checks is None:
            check_shards(self.files[file] for file in files)
        for file, a, b in zip(files.tolist(), begin.tolist(), ends, strict=False):
            self._fill(file, runs[a:b], out)
        if self.checks is not None:
            wrong = np.flatnonzero(row_checks(out) != self.checks[numbers])
            if len(wrong):
                path = self.files[int(self.shard[numbers[wrong[0]]])]
                raise damaged(path, ValueError("a row is not as it was written"))
        return out

    def _fill(self, shard: int, runs: Array, out: Array) -> None:
        """Put runs of a shard, (where in `out`, first row, rows), into their places."""
        path, offset = self.files[shard], int(self.offsets[shard])
        if offset == ELSEWHERE:
            if shard not in self._decoded:
                self._decoded[shard] = decoded(path)
            for to, row, n in runs.tolist():
                rows = self._decoded[shard][row : row + n]
                if rows.shape != out[to : to + n].shape:
                    raise damaged(path, EOFError("it ends too early"))
                out[to : to + n] = rows
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
        except (OSError, OverflowError) as error:  # a disk that fails, a place that no file has
            raise damaged(path, error) from None
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
        first: pa.Array | None = None,
    ) -> Contents:
        """All contents that have the factors; those of `first`, if given, come first."""
        found = {factor: _scan(store, factor) for factor in factors}
        keys = found[factors[0]][0]
        for factor in factors:
            keys = keys.filter(pc.is_in(keys, value_set=found[factor][0]))
        keys = keys.unique()
        if first is not None:
            new = keys.filter(pc.invert(pc.is_in(keys, value_set=first)))
            keys = pa.concat_arrays([first.filter(pc.is_in(first, value_set=keys)), new])
        columns = {}
        for factor, (listed, files, offsets, counts, shape) in found.items():
            place = pc.index_in(keys, value_set=listed).to_numpy()
            begin = np.concatenate([[0], np.cumsum(counts)])
            shard = np.searchsorted(begin, place, side="right") - 1
            row = place - begin[shard]
            columns[factor] = Column(
                files,
                offsets,
                shard.astype(np.int32),
                row.astype(np.int32),
                store.codec,
                factor,
                shape,
            )
        return cls(keys, columns)

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, numbers: Array, factors: Sequence[str]) -> dict[str, Array]:
        """Factors of these contents, in their order."""
        return {factor: self.columns[factor].read(numbers) for factor in factors}

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
            if column.checks is not None:
                arrays[f"{factor}/checks"] = column.checks
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
            check_shards(files[:1])  # whose word is taken for the shape of all
            shape = stored(files[0], factor, store.codec)[2]
            checks = arrays.get(f"{factor}/checks")
            n, whole = len(arrays["keys"]), all(a.dtype.kind == "i" for a in (offsets, shard, row))
            if not whole or (offsets.shape, shard.shape, row.shape) != ((len(files),), (n,), (n,)):
                raise ValueError(f"{factor} must have one place for each image")
            inside = (shard >= 0) & (shard < len(files)) & (row >= 0)
            if not inside.all() or not (offsets >= ELSEWHERE).all():
                raise ValueError(f"{factor} lies in other places than the shards have")
            columns[factor] = Column(files, offsets, shard, row, store.codec, factor, shape, checks)
        return cls(cls.keys_of(arrays), columns)


def shard_files(store: Store, factor: str) -> tuple[Path, ...]:
    """The shards of a factor; a name has the checksum of what is in it, and so stands for it."""
    return tuple(sorted(store.shards_folder(factor).glob(PATTERN)))


def _scan(
    store: Store, factor: str
) -> tuple[pa.Array, tuple[Path, ...], Array, list[int], tuple[int, ...]]:
    """Keys of all rows of a factor; its files, where values start, rows of each, shape."""
    files = shard_files(store, factor)
    if not files:
        raise StoreError(f"{factor} must be in {store.folder}, got no shard; extract it first")
    keys, offsets, counts = [], [], []
    check_shards(files[:1])  # whose word is taken for the shape of all
    shape = stored(files[0], factor, store.codec)[2]
    for path in files:
        codes, _, this = stored(path, factor, store.codec)
        if this != shape:
            raise damaged(path, ValueError(f"one image must have shape {shape}, got {this}"))
        offsets.append(codes.offset if isinstance(codes, np.memmap) else ELSEWHERE)
        keys.append(read_keys(path))
        counts.append(len(keys[-1]))
    return pa.concat_arrays(keys), files, np.array(offsets, dtype=np.int64), counts, shape
