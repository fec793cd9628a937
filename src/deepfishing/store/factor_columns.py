"""Features on disk: the arrays of one factor as a Parquet column, and back without a copy per row.

Comes in: values (n, d) or (n, P, d) and their keys. Goes out: a table of three columns, `sha256`,
`x7`, and `x7_norm` or `x7_scale`. What `x7` holds is up to the codec (`precision`):
floats are a fixed-size list; bytes are one block per row, since in a list Parquet would give each
of them four bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deepfishing.errors import StoreError
from deepfishing.rank_one import Array, l2_norm
from deepfishing.store.precision import Codec
from deepfishing.store.shards import ONE_PAGE, check_projection, damaged

BYTES = ("int8", "uint8")

# what json, numpy and pyarrow raise for a file that is not as it was written
_BROKEN = (
    *(OSError, pa.ArrowException, LookupError, TypeError, ValueError, OverflowError),
    RecursionError,
)


def encode(keys: Sequence[str], name: str, values: Array, codec: Codec) -> pa.Table:
    """The table of one factor of n images.

    Examples
    --------
    >>> from deepfishing.store.precision import CODECS
    >>> table = encode(["k"], "x7", np.array([[3.0, 4.0]]), CODECS["float32"])
    >>> table.column("x7_norm").to_pylist(), table.column("x7").to_pylist()[0][0].__round__(2)
    ([5.0], 0.6)
    >>> table = encode(["k"], "x7", np.array([[3.0, -12.0]]), CODECS["int8"])
    >>> np.frombuffer(table.column("x7")[0].as_py(), dtype=np.int8)
    array([  64, -127], dtype=int8)
    """
    flat = values.reshape(len(keys), -1)
    norm = l2_norm(flat)
    if not np.isfinite(norm).all():
        bad = int(np.flatnonzero(~np.isfinite(norm))[0])
        raise StoreError(f"{name} must be finite, got NaN or infinity for {keys[bad]}")
    codes, scale = codec.encode(flat, norm)
    about = {"shape": json.dumps(values.shape[1:])}
    if codec.dtype.name in BYTES:
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

    The codes are a view of the file: our shards are one uncompressed page a column, at whose
    end all codes lie one behind the other. Another writer's shard is decoded by pyarrow.
    """
    with _told(path):
        with pq.ParquetFile(path, memory_map=True) as file:
            schema = file.schema_arrow
            check_projection(path, schema)
            beside = f"{name}_{codec.scale}"
            table = file.read(columns=["sha256", beside], use_threads=False)
            scale = table.column(beside).to_numpy()
            field = schema.field(name)
            shape = tuple(int(n) for n in json.loads(field.metadata[b"shape"]))
            found = _numbers(field)
            dtype, width = codec.dtype, codec.width(shape)
            if found != (dtype, width):
                raise ValueError(f"values must be {width} x {dtype}, got {found[1]} x {found[0]}")
            if not ONE_PAGE.items() <= (schema.metadata or {}).items():
                return _decoded(path), scale, shape
            types = [pa.string(), pa.float64()]
            if schema.names != ["sha256", name, beside] or table.schema.types != types:
                raise ValueError(f"columns must be sha256, {name} and {beside}")
            # between the two that were just read; to ask for a column that was not read can end
            # the process, for pyarrow does not catch what Parquet says of facts that do not fit
            keys, scales = (file.metadata.row_group(0).column(number) for number in (0, 2))
        size = len(scale), width
        start = scales.data_page_offset - size[0] * size[1] * dtype.itemsize
        if start < keys.data_page_offset + keys.total_compressed_size:
            raise ValueError("it has fewer values than rows")
        return np.memmap(path, dtype, mode="r", offset=start, shape=size), scale, shape


def decoded(path: Path) -> Array:
    """The codes of a shard as pyarrow reads them: slower, for any writer."""
    with _told(path):
        return _decoded(path)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Whatever a shard that is not as it was written leads to is one error."""
    try:
        yield
    except StoreError:
        raise  # which says more
    except _BROKEN as error:
        raise damaged(path, error) from None


def _decoded(path: Path) -> Array:
    with pq.ParquetFile(path) as file:
        dtype, width = _numbers(file.schema_arrow.field(1))
        column = file.read(use_threads=False).column(1).combine_chunks()
    if pa.types.is_fixed_size_binary(column.type):
        values = np.frombuffer(b"".join(column.to_pylist()), dtype)
    else:
        values = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), width)


def _numbers(field: pa.Field) -> tuple[np.dtype[Any], int]:
    """Type of the codes and how many an image has; a file may come from anywhere."""
    if pa.types.is_fixed_size_binary(field.type):
        name = field.metadata[b"numbers"].decode()
        if name in BYTES:
            return np.dtype(name), int(field.type.byte_width)
    elif pa.types.is_fixed_size_list(field.type) and pa.types.is_floating(field.type.value_type):
        return np.dtype(field.type.value_type.to_pandas_dtype()), int(field.type.list_size)
    raise ValueError(f"values must be lists of floats or bytes, got {field.type}")
