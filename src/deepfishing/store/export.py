"""Features on disk: a store as one file for other tools: .parquet, .csv, .npz or .h5.

Comes in: a store and, if not all are wanted, names of features. Goes out: the file with a row per
usable image, decoded, some thousand images at a time, so that a store may be larger than the
memory. The settings go along in Parquet, so that `deepfish import` makes the same store again.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from deepfishing.errors import OptionError, StoreError, need
from deepfishing.files import guarded, replacing
from deepfishing.rank_one import Array
from deepfishing.store.reading import FACTS
from deepfishing.store.store import Store

SEPARATOR = ";"  # of the labels of an image, where a cell is text
SETTINGS = b"deepfishing"  # the key of the settings in a Parquet file


def export(
    store: Store, path: str | Path, features: str | None = None, *, overwrite: bool = False
) -> int:
    """Write a store into one file, whose ending says which kind; how many images it has."""
    path = Path(path)
    write = WRITERS.get(path.suffix.lower())
    if write is None:
        raise OptionError(f"a file of features must end in {', '.join(WRITERS)}, got {path}")
    if path.is_dir() or (path.exists() and not overwrite):
        raise OptionError(f"{path} exists; choose another name, or replace a file by --overwrite")
    n, columns = len(store.usable()), store.columns_of(features)
    if not n or not columns:
        raise StoreError(f"a store must have images to export, got none in {store.folder}")
    try:
        with replacing(path) as partial:
            write(partial, store, columns)
    except OSError as error:
        raise StoreError(f"features cannot be written: {path} ({error})") from None
    return n


def _parquet(path: Path, store: Store, columns: list[str]) -> None:
    reader = store.to_batches(columns)
    schema = reader.schema.with_metadata({SETTINGS: json.dumps(store.settings).encode()})
    with pq.ParquetWriter(path, schema) as file:
        for batch in reader:
            file.write_batch(batch)


def _csv(path: Path, store: Store, columns: list[str]) -> None:
    """Numbers are columns `x7_0`, `x7_1`..., empty where an image lacks the factor."""
    file = None
    try:
        for batch in store.to_batches(columns):
            cells = {}
            for name in FACTS:
                texts = (
                    SEPARATOR.join(cell) if isinstance(cell, list) else cell
                    for cell in batch[name].to_pylist()
                )
                text = [None if one is None else guarded(one) for one in texts]
                cells[name] = pa.array(text, pa.string())
            for name in batch.schema.names[len(FACTS) :]:
                values = filled(batch[name]).reshape(len(batch), -1)
                cells |= {
                    f"{name}_{i}": pa.array(v, from_pandas=True) for i, v in enumerate(values.T)
                }
            flat = pa.record_batch(cells)
            file = file or pa_csv.CSVWriter(path, flat.schema)
            file.write_batch(flat)
    finally:
        if file is not None:
            file.close()


def _npz(path: Path, store: Store, columns: list[str]) -> None:
    with zipfile.ZipFile(path, "w", allowZip64=True) as file:
        for name, values in _facts(store).items():
            with file.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.array(values, dtype=str))
        for name in columns:
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                for start, n, block in _blocks(store, name):
                    if not start:
                        kind = {
                            "descr": "<f4",
                            "fortran_order": False,
                            "shape": (n, *block.shape[1:]),
                        }
                        np.lib.format.write_array_header_1_0(entry, kind)
                    entry.write(np.ascontiguousarray(block, "<f4").data)


def _h5(path: Path, store: Store, columns: list[str]) -> None:
    h5py = need("h5py", "hdf5")
    with h5py.File(path, "w") as file:
        file.attrs["settings"] = json.dumps(store.settings)
        for name, values in _facts(store).items():
            file.create_dataset(name, data=values, dtype=h5py.string_dtype())
        for name in columns:
            for start, n, block in _blocks(store, name):
                if not start:
                    whole = file.create_dataset(name, (n, *block.shape[1:]), "f4")
                whole[start : start + len(block)] = block


WRITERS: Mapping[str, Callable[[Path, Store, list[str]], None]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".npz": _npz,
    ".h5": _h5,
}


def _facts(store: Store) -> dict[str, list[str]]:
    """What is known of the images beside their features, as text."""
    found: dict[str, Any] = {n: [getattr(row, n) for row in store.usable()] for n in FACTS}
    found["labels"] = [SEPARATOR.join(labels or ()) for labels in found["labels"]]
    return found


def _blocks(store: Store, name: str) -> Iterator[tuple[int, int, Array]]:
    """One factor of all images: where a block of them begins, how many there are, the block."""
    start, n = 0, len(store.usable())
    for batch in store.to_batches([name]):
        yield start, n, filled(batch[name])
        start += len(batch)


def filled(column: pa.Array) -> Array:
    """Lists as an array, of NaN where there is no list."""
    values, kind, shape = column, column.type, [len(column) - column.null_count]
    while pa.types.is_fixed_size_list(kind):
        values, kind, shape = values.flatten(), kind.value_type, [*shape, kind.list_size]
    found: Array = values.to_numpy(zero_copy_only=False).reshape(shape)
    if not column.null_count:
        return found
    whole = np.full((len(column), *shape[1:]), np.nan, dtype=np.float32)
    whole[column.is_valid().to_numpy(zero_copy_only=False)] = found
    return whole
