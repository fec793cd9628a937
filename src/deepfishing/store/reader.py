"""Features on disk: the one reader of shards, for any rows of a factor.

Comes in: the shards of a factor and, for each content that is wanted, which shard and which row it
is. Goes out: its codes as they lie there, checked, or its numbers. Those rows are read and nothing
else. `Store.read` takes the numbers with their norms; search takes them at any norm, as the store
has them, since every recipe normalises.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from deepfishing.errors import StoreError
from deepfishing.rank_one import Array
from deepfishing.store.factor_columns import decoded, stored
from deepfishing.store.intact import check_shards
from deepfishing.store.precision import Codec
from deepfishing.store.shards import Shards, damaged

BLOCK_VALUES = 1 << 18  # decoded at a time: the numbers on their way stay in the cache

# Where a shard of another writer starts: nowhere, it must be decoded.
ELSEWHERE = -1

# Every float16 number as float32. Features are full of numbers below 6e-5, which numpy converts ten
# times slower than others; looking them up is as quick for all.
_SINGLE = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Column:
    """Where the rows of one factor lie, of n contents.

    Parameters
    ----------
    files : tuple of Path
        The shards.
    offsets : int64 array, one per file
        Of its first value; `ELSEWHERE` if it is not one uncompressed block.
    shard, row : integer arrays (n,)
        For each content, the number of its file and its row there.
    codec, factor, shape
        How numbers are written, whose they are, and the shape of one image.
    """

    files: tuple[Path, ...]
    offsets: Array
    shard: Array
    row: Array
    codec: Codec
    factor: str
    shape: tuple[int, ...]
    _decoded: dict[int, Array] = field(default_factory=dict, repr=False)

    def read(self, numbers: Array) -> Array:
        """Values (m, d) or (m, P, d) of these contents as float32 at any norm, in their order."""
        return numbers_of(self.codec, self.codes(numbers), self.shape)

    def scaled(self, scale: Array) -> Array:
        """Values of all contents as float32, each times its scale: with the norm that it had.

        The files must have been checked before.
        """
        n, size = len(self.row), int(np.prod(self.shape))
        out = np.empty((n, size), dtype=np.float32)
        order = np.lexsort((self.row, self.shard))
        step = max(1, BLOCK_VALUES // max(size, 1))

        def fill(start: int) -> None:
            some = order[start : start + step]
            target = _as_slice(some)
            numbers = self.codec.decode(self._codes(some), size)
            factor = scale[target].astype(np.float32)[:, None]
            if isinstance(target, slice):
                np.multiply(numbers, factor, out=out[target], dtype=np.float32)
            else:
                out[target] = np.multiply(numbers, factor, dtype=np.float32)

        # decoding is slower than reading, and numpy lets threads do it side by side
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(fill, range(0, n, step)))
        return out.reshape(n, *self.shape)

    def codes(self, numbers: Array) -> Array:
        """Rows (m, width) of these contents as they lie in the shards, which are hashed first."""
        check_shards(self.files[file] for file in np.unique(self.shard[numbers]))
        return self._codes(numbers)

    def _codes(self, numbers: Array) -> Array:
        out = np.empty((len(numbers), self.codec.width(self.shape)), self.codec.dtype)
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


def read_values(shards: Shards, keys: Sequence[str], factor: str, codec: Codec) -> Array:
    """The values of these keys as float32, in their order: (n, d) or (n, P, d)."""
    if not keys:
        raise StoreError(f"nothing to read: no keys were given for {shards.folder}")
    shard, row = shards.find(keys)
    used, shard = np.unique(shard, return_inverse=True)  # the others are not looked at
    files = tuple(shards.files[number] for number in used.tolist())
    check_shards(files)
    found = list(look(files, factor, codec))
    offsets = np.array([offset for offset, _, _ in found], dtype=np.int64)
    begin = np.cumsum([0, *(len(scale) for _, scale, _ in found)])
    place = begin[shard] + row
    if (place >= begin[shard + 1]).any():
        raise damaged(files[0], EOFError("a shard has fewer values than keys"))
    scale = np.concatenate([scale for _, scale, _ in found])[place]
    return Column(files, offsets, shard, row, codec, factor, found[0][2]).scaled(scale)


def look(
    files: Sequence[Path], factor: str, codec: Codec
) -> Iterator[tuple[int, Array, tuple[int, ...]]]:
    """Of each shard where its values start, their scales, and the shape of one image."""
    check_shards(files[:1])  # whose word is taken for the shape of all
    shape: tuple[int, ...] | None = None
    for path in files:
        codes, scale, this = stored(path, factor, codec)
        shape = shape or this
        if this != shape:
            raise damaged(path, ValueError(f"one image must have shape {shape}, got {this}"))
        yield (codes.offset if isinstance(codes, np.memmap) else ELSEWHERE), scale, shape


def numbers_of(codec: Codec, codes: Array, shape: tuple[int, ...]) -> Array:
    """Codes (m, width) as float32 numbers (m, *shape), each row at a norm of its own."""
    if codes.dtype == np.float16:
        values: Array = _SINGLE.take(codes.view(np.uint16), mode="clip")
    else:
        values = codec.decode(codes, int(np.prod(shape))).astype(np.float32, copy=False)
    return values.reshape(len(codes), *shape)


def _as_slice(index: Array) -> slice | Array:
    """Neighbours as a slice, which numpy reads and writes in place."""
    first, n = int(index[0]), len(index)
    if int(index[-1]) - first == n - 1 and (np.diff(index) == 1).all():
        return slice(first, first + n)
    return index
