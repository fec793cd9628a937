"""Features on disk: the arrays of one factor as a Parquet column, and any rows of it again.

Comes in: values (n, d) or (n, P, d) and their keys. Goes out: a table of three columns, `sha256`,
`x7`, and `x7_norm` or `x7_scale`; what `x7` holds is up to the codec (`precision`). Back come the
values of the rows that are asked for: `Store.read` takes them with their norms, search at any norm,
since every recipe normalises.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deepfishing.errors import StoreError
from deepfishing.rank_one import Array, l2_norm
from deepfishing.store.precision import Codec
from deepfishing.store.shards import ONE_PAGE, check_projection, check_shard, damaged

BYTES = ("int8", "uint8")
BLOCK_VALUES = 1 << 18  # decoded at a time: the numbers on their way stay in the cache

# what json, numpy and pyarrow raise for a file that is not as it was written
_BROKEN = (OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError)

# Every float16 number as float32. Features are full of numbers below 6e-5, which numpy converts ten
# times slower than others; looking them up is as quick for all.
_SINGLE = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def encode(keys: Sequence[str], name: str, values: Array, codec: Codec) -> pa.Table:
    """The table of one factor of n images."""
    flat = values.reshape(len(keys), -1)
    norm = l2_norm(flat)
    if not np.isfinite(norm).all():
        bad = int(np.flatnonzero(~np.isfinite(norm))[0])
        raise StoreError(f"{name} must be finite, got NaN or infinity for {keys[bad]}")
    codes, scale = codec.encode(flat, norm)
    about = {"shape": json.dumps(values.shape[1:])}
    if codec.dtype.name in BYTES:  # one block per row: in a list Parquet gives each four bytes
        about["numbers"] = codec.dtype.name
        block = pa.py_buffer(np.ascontiguousarray(codes))
        column = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(codes.shape[1]), len(keys), [None, block]
        )
    else:
        # nothing is null: readers then need not look for it, which is most of their time
        item = pa.field("element", pa.from_numpy_dtype(codec.dtype), nullable=False)
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(codes.ravel()), type=pa.list_(item, codes.shape[1])
        )
    fields = [
        pa.field("sha256", pa.string(), nullable=False),
        pa.field(name, column.type, nullable=False, metadata=about),
        pa.field(f"{name}_{codec.scale}", pa.float64(), nullable=False),
    ]
    return pa.table([pa.array(keys, pa.string()), column, scale], schema=pa.schema(fields))


def stored(path: Path, name: str, codec: Codec) -> tuple[Array, Array, tuple[int, ...]]:
    """A shard's codes (n, width), their scales (n,), and the shape of one image.

    The codes are a view of the file: our shards are one uncompressed page per column, at whose
    end all codes lie one behind the other. Another writer's shard is decoded by pyarrow.
    """
    with _told(path), pq.ParquetFile(path, memory_map=True) as file:
        schema = file.schema_arrow
        check_projection(path, schema)
        beside = f"{name}_{codec.scale}"
        table = file.read(columns=["sha256", beside], use_threads=False)
        scale = table.column(beside).to_numpy()
        field = schema.field(name)
        shape = tuple(int(n) for n in json.loads(field.metadata[b"shape"]))
        dtype, width = codec.dtype, codec.width(shape)
        if (found := _numbers(field)) != (dtype, width):
            raise ValueError(f"values must be {width} x {dtype}, got {found[1]} x {found[0]}")
        if not ONE_PAGE.items() <= (schema.metadata or {}).items():
            return decoded(path), scale, shape
        types = [pa.string(), pa.float64()]
        if schema.names != ["sha256", name, beside] or table.schema.types != types:
            raise ValueError(f"columns must be sha256, {name} and {beside}")
        # between the two that were just read; to ask for a column that was not read can end
        # the process, for pyarrow does not catch what Parquet says of facts that do not fit
        keys, scales = (file.metadata.row_group(0).column(number) for number in (0, 2))
        start = scales.data_page_offset - len(scale) * width * dtype.itemsize
        if start < keys.data_page_offset + keys.total_compressed_size:
            raise ValueError("it has fewer values than rows")
        codes = np.memmap(path, dtype, mode="r", offset=start, shape=(len(scale), width))
        return codes, scale, shape


def decoded(path: Path) -> Array:
    """The codes of a shard as pyarrow reads them: slower, for any writer."""
    with _told(path), pq.ParquetFile(path) as file:
        dtype, width = _numbers(file.schema_arrow.field(1))
        column = file.read(use_threads=False).column(1).combine_chunks()
        if pa.types.is_fixed_size_binary(column.type):
            values = np.frombuffer(b"".join(column.to_pylist()), dtype)
        else:
            values = column.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(column), width)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Whatever a shard that is not as it was written leads to is one error."""
    try:
        yield
    except StoreError:
        raise  # which says more
    except (*_BROKEN, pa.ArrowException) as error:
        raise damaged(path, error) from None


def _numbers(field: pa.Field) -> tuple[np.dtype[Any], int]:
    """Type of the codes and how many there are per image; a file may come from anywhere."""
    if pa.types.is_fixed_size_binary(field.type):
        name = field.metadata[b"numbers"].decode()
        if name in BYTES:
            return np.dtype(name), int(field.type.byte_width)
    elif pa.types.is_fixed_size_list(field.type) and pa.types.is_floating(field.type.value_type):
        return np.dtype(field.type.value_type.to_pandas_dtype()), int(field.type.list_size)
    raise ValueError(f"values must be lists of floats or bytes, got {field.type}")


@dataclass(frozen=True, eq=False)
class Column:
    """Where the rows of one factor lie, of n contents: of each the number of its file, and its row.

    `shape` is that of one image.
    """

    files: Sequence[Path]
    shard: Array
    row: Array
    codec: Codec
    factor: str
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls, files: Sequence[Path], shard: Array, row: Array, codec: Codec, factor: str
    ) -> Column:
        """With the shape that the first content's file says."""
        first = files[int(shard[0]) if len(shard) else 0]
        check_shard(first)
        return cls(files, shard, row, codec, factor, stored(first, factor, codec)[2])

    def codes(self, numbers: Array) -> Array:
        """Rows (m, width) of these contents as they lie in the shards."""
        out = np.empty((len(numbers), self.codec.width(self.shape)), self.codec.dtype)

        def take(places: Array, rows: Array, codes: Array, _: Array) -> None:
            out[places] = codes[rows]

        self._each_shard(numbers, take)
        return out

    def read(self, numbers: Array) -> Array:
        """Values (m, d) or (m, P, d) of these contents as float32 at any norm, in their order."""
        return numbers_of(self.codec, self.codes(numbers), self.shape)

    def read_scaled(self) -> Array:
        """Values of all contents as float32, each with the norm that it had."""
        n, size = len(self.row), int(np.prod(self.shape))
        out = np.empty((n, size), dtype=np.float32)
        step = max(1, BLOCK_VALUES // max(size, 1))

        def take(places: Array, rows: Array, codes: Array, scale: Array) -> None:
            factor = scale.astype(np.float32)[:, None]
            for start in range(0, len(rows), step):
                some = rows[start : start + step]
                numbers = self.codec.decode(codes[some], size)
                out[places[start : start + step]] = np.multiply(
                    numbers, factor[some], dtype=np.float32
                )

        self._each_shard(np.arange(n), take)
        return out.reshape(n, *self.shape)

    def _each_shard(
        self, numbers: Array, take: Callable[[Array, Array, Array, Array], None]
    ) -> None:
        """Have places among the numbers, rows, codes and scales taken, of several shards at once.

        A shard is hashed before; numpy lets threads decode side by side.
        """
        shard, row = self.shard[numbers], self.row[numbers]
        order = np.lexsort((row, shard))
        files, first = np.unique(shard[order], return_index=True)

        def work(file: int, places: Array) -> None:
            path = self.files[file]
            check_shard(path)
            codes, scale, shape = stored(path, self.factor, self.codec)
            if shape != self.shape:
                reason = f"one image must have shape {self.shape}, got {shape}"
                raise damaged(path, ValueError(reason))
            if row[places[-1]] >= len(codes):
                raise damaged(path, EOFError("it has fewer values than keys"))
            take(places, row[places], np.asarray(codes), scale)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(work, files.tolist(), np.split(order, first[1:])))


def numbers_of(codec: Codec, codes: Array, shape: tuple[int, ...]) -> Array:
    """Codes (m, width) as float32 numbers (m, *shape), each row at a norm of its own."""
    if codes.dtype == np.float16:
        values: Array = _SINGLE.take(codes.view(np.uint16), mode="clip")
    else:
        values = codec.decode(codes, int(np.prod(shape))).astype(np.float32, copy=False)
    return values.reshape(len(codes), *shape)
