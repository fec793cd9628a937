"""Features on disk: the arrays of one factor as a Parquet column, and back without a copy per row.

Comes in: values (n, d) or (n, P, d) and their keys. Goes out: a table `sha256`, `x7`, `x7_norm`.
`x7` is a fixed-size list divided by its l2 norm, which stands beside it: so half precision keeps
three digits of any vector, however small (delta is about 1e-6) or large it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deepfishing.errors import StoreError
from deepfishing.rank_one import Array, l2_norm
from deepfishing.store.shards import ONE_PAGE, Shards, damaged


def encode(keys: Sequence[str], name: str, values: Array, dtype: np.dtype[Any]) -> pa.Table:
    """The table of one factor of n images.

    Examples
    --------
    >>> table = encode(["k"], "x7", np.array([[3.0, 4.0]]), np.dtype("float32"))
    >>> table.column("x7_norm").to_pylist(), table.column("x7").to_pylist()[0][0].__round__(2)
    ([5.0], 0.6)
    """
    flat = values.reshape(len(keys), -1)
    norm = l2_norm(flat)
    if not np.isfinite(norm).all():
        bad = int(np.flatnonzero(~np.isfinite(norm))[0])
        raise StoreError(f"{name} must be finite, got NaN or infinity for {keys[bad]}")
    unit = (flat / np.where(norm > 0, norm, 1)[:, None]).astype(dtype)
    # nothing is null: readers then need not look for it, which is most of their time
    item = pa.field("element", pa.from_numpy_dtype(dtype), nullable=False)
    column = pa.FixedSizeListArray.from_arrays(
        pa.array(unit.ravel()), type=pa.list_(item, flat.shape[1])
    )
    shape = {"shape": json.dumps(values.shape[1:])}
    fields = [
        pa.field("sha256", pa.string(), nullable=False),
        pa.field(name, column.type, nullable=False, metadata=shape),
        pa.field(f"{name}_norm", pa.float64(), nullable=False),
    ]
    return pa.table([pa.array(keys, pa.string()), column, norm], schema=pa.schema(fields))


def read_values(shards: Shards, keys: Sequence[str]) -> Array:
    """The values of these keys as float32, in their order: (n, d) or (n, P, d)."""
    places = shards.places(keys)
    if not places:
        raise StoreError(f"nothing to read: no keys were given for {shards.folder}")
    shape = stored(places[0][0])[2]
    out = np.empty((len(keys), int(np.prod(shape))), dtype=np.float32)

    def fill(place: tuple[Path, Array, Array]) -> None:
        path, to, rows = place
        unit, norm, _ = stored(path)
        target, source = _as_slice(to), _as_slice(rows)
        scale = norm[source].astype(np.float32)[:, None]
        if isinstance(target, slice):
            np.multiply(unit[source], scale, out=out[target], dtype=np.float32)
        else:
            out[target] = np.multiply(unit[source], scale, dtype=np.float32)

    # half precision is slower to convert than to read, and numpy lets threads do it side by side
    with ThreadPoolExecutor(min(len(places), os.cpu_count() or 1)) as pool:
        list(pool.map(fill, places))
    return out.reshape(len(keys), *shape)


def stored(path: Path) -> tuple[Array, Array, tuple[int, ...]]:
    """A shard's values (n, width) of norm 1, their norms (n,), and the shape of one image.

    The values are a view of the file: our shards are one uncompressed page a column, at whose
    end all values lie one behind the other. Another writer's shard is decoded by pyarrow.
    """
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            schema = file.schema_arrow
            name = schema.names[1]
            norm = file.read(columns=[f"{name}_norm"], use_threads=False).column(0).to_numpy()
            field = schema.field(name)
            shape = tuple(json.loads(field.metadata[b"shape"]))
            dtype = np.dtype(field.type.value_type.to_pandas_dtype())
            size = len(norm), int(field.type.list_size)
            if not ONE_PAGE.items() <= (schema.metadata or {}).items():
                return decoded(path), norm, shape
            column = file.metadata.row_group(0).column(1)
            end = column.data_page_offset + column.total_compressed_size
        start = end - size[0] * size[1] * dtype.itemsize
        return np.memmap(path, dtype, mode="r", offset=start, shape=size), norm, shape
    except (OSError, pa.ArrowException, LookupError, TypeError, ValueError) as error:
        raise damaged(path, error) from None


def decoded(path: Path) -> Array:
    """The values of a shard as pyarrow reads them: slower, for any writer."""
    with pq.ParquetFile(path) as file:
        column = file.read(use_threads=False).column(1).combine_chunks()
    values: Array = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1)


def _as_slice(index: Array) -> slice | Array:
    """Neighbours as a slice, which numpy reads and writes in place."""
    first, n = int(index[0]), len(index)
    if int(index[-1]) - first == n - 1 and (np.diff(index) == 1).all():
        return slice(first, first + n)
    return index
