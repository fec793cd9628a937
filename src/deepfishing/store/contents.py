"""Features on disk: the contents of a store by number, so that a million of them stay small.

Comes in: a store and the factors that are needed. Goes out: keys in a fixed order and, for any
numbers of that order, the factors' values, through the reader of shards. An index keeps a checksum
of every row: of a million images a query reads some hundred rows, and hashing every shard that they
lie in would be to read most of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.errors import StoreError
from deepfishing.rank_one import Array
from deepfishing.store.reader import ELSEWHERE, Column, look, row_checks
from deepfishing.store.shards import PATTERN, read_keys
from deepfishing.store.store import Store

KEY_BYTES = 64  # hex digits of a SHA-256
BLOCK_ROWS = 4096


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
            ((_, _, shape),) = look(files[:1], factor, store.codec)
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


def with_checks(
    contents: Contents,
    state: Mapping[str, Array] | None = None,
    shards: Mapping[str, Sequence[str]] | None = None,
) -> Contents:
    """The contents with checksums of all rows, each from a shard that was hashed whole first.

    Parameters
    ----------
    contents : Contents
    state : mapping, optional
        The `state` of earlier contents, whose numbers come first: rows that lie where they lay
        keep their checksums and are not read.
    shards : mapping, optional
        By factor the names of the files that `state` counts.
    """
    columns = {
        factor: replace(column, checks=_checks(column, factor, state or {}, shards or {}))
        for factor, column in contents.columns.items()
    }
    return replace(contents, columns=columns)


def _checks(
    column: Column,
    factor: str,
    state: Mapping[str, Array],
    shards: Mapping[str, Sequence[str]],
) -> Array:
    checks = np.zeros(len(column.row), dtype=np.uint32)
    new = np.ones(len(column.row), dtype=bool)
    if f"{factor}/checks" in state and factor in shards:
        known, shard, row = (state[f"{factor}/{name}"] for name in ("checks", "shard", "row"))
        n = len(known)
        now = {path.name: number for number, path in enumerate(column.files)}
        moved = np.array([now.get(name, -1) for name in shards[factor]], dtype=np.int64)
        there = (row == column.row[:n]) & (moved[shard] == column.shard[:n])
        checks[:n][there] = known[there]
        new[:n] &= ~there
    numbers = np.flatnonzero(new)
    for start in range(0, len(numbers), BLOCK_ROWS):
        some = numbers[start : start + BLOCK_ROWS]
        checks[some] = row_checks(column.codes(some))
    return checks


def _scan(
    store: Store, factor: str
) -> tuple[pa.Array, tuple[Path, ...], Array, list[int], tuple[int, ...]]:
    """Keys of all rows of a factor; its files, where values start, rows of each, shape."""
    files = shard_files(store, factor)
    if not files:
        raise StoreError(f"{factor} must be in {store.folder}, got no shard; extract it first")
    found = list(look(files, factor, store.codec))
    keys = [read_keys(path) for path in files]
    offsets = np.array([offset for offset, _, _ in found], dtype=np.int64)
    return pa.concat_arrays(keys), files, offsets, [len(some) for some in keys], found[0][2]
