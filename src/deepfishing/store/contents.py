"""Features on disk: the contents of a store by number, so that a million of them stay small.

Comes in: a store and the factors that are needed. Goes out: keys in a fixed order and, for any
numbers of that order, the factors' values, through the reader of shards; `mapped` for those who
read a few rows of many shards, again and again.
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
from deepfishing.store.columns import Column
from deepfishing.store.mapped import MappedColumn
from deepfishing.store.shards import PATTERN, read_keys
from deepfishing.store.store import Store


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
    files = tuple(sorted(store.shards_folder(factor).glob(PATTERN)))
    if not files:
        raise StoreError(f"{factor} must be in {store.folder}, got no shard; extract it first")
    return files
