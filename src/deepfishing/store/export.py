"""Copies of a store in another precision, and exports into one file for other tools.

A copy is a store in another folder with the same images, labels and errors. An export is a
.parquet, .csv, .npz or .h5 file with a decoded row per usable image. Both process some thousand
images at a time, so a store may be larger than the memory. Parquet also keeps the settings, so that
`deepfish import` can make the same store again.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from deepfishing.core.rank_one import Array
from deepfishing.errors import OptionError, StoreError, need, reraise_as
from deepfishing.store.precision import check_precision
from deepfishing.store.store import FACTS, Store
from deepfishing.util.files import SEPARATOR, guarded, replacing
from deepfishing.util.progress import Progress, silent

COPIED_VALUES = 1 << 24  # numbers that are copied at a time
MAX_COPIED_ROWS = 4096
SETTINGS = b"deepfishing"  # the key of the settings in a Parquet file


def compress(
    source: Store, folder: str | Path, precision: str, progress: Progress = silent
) -> Store:
    """Write all of a store into another one, in another precision; the source is only read.

    A copy that was interrupted goes on, and one of a store that has grown since takes what is new.
    """
    folder = Path(folder)
    check_precision(precision)
    if folder.resolve() == source.folder.resolve():
        raise OptionError(
            f"a compressed copy must be another folder, got {folder} for both"
        )
    if precision == source.precision:
        raise OptionError(
            f"a compressed copy must have another precision than {source.folder}, got {precision} "
            "for both; int4 is the smallest"
        )
    settings = dict(source.settings)
    settings.pop("dtype", None)
    copy = Store(folder, settings, precision)
    with copy.writing():
        _copy_factors(source, copy, progress)
        copy.append([], {}, source.errors())
        rows = {**copy.rows(), **source.rows()}
        copy.write_rows(rows.values())
        needed = {row.sha256 for row in rows.values() if row.sha256}
        for name in source.factors():
            needed |= source.shards(name).keys()
        copy.compact(needed)
    return copy


def _copy_factors(source: Store, copy: Store, progress: Progress) -> None:
    """Write the features that the copy lacks."""
    missing = {}
    for name in source.factors():
        missing[name] = copy.missing(source.shards(name).keys(), [name])
    total = sum(map(len, missing.values()))
    done = 0
    for name, keys in missing.items():
        values_per_image = max(math.prod(source.shape(name)), 1)
        step = max(1, min(MAX_COPIED_ROWS, COPIED_VALUES // values_per_image))
        for start in range(0, len(keys), step):
            part = keys[start : start + step]
            copy.append(part, {name: source.read(part, name)})
            done += len(part)
            progress("copying", done, total)


def export(
    store: Store,
    path: str | Path,
    features: str | None = None,
) -> int:
    """Write a store into one file, in the format of its extension; return the number of images."""
    path = Path(path)
    write = WRITERS.get(path.suffix.lower())
    if write is None:
        raise OptionError(
            f"a file of features must end in {', '.join(WRITERS)}, got {path}"
        )
    if path.exists():
        raise OptionError(f"{path} exists; choose another name, or delete it first")
    n, columns = len(store.usable()), store.columns_of(features)
    if not n or not columns:
        raise StoreError(
            f"a store must have images to export, got none in {store.folder}"
        )
    cannot = reraise_as(StoreError, f"features cannot be written: {path}", of=OSError)
    with cannot, replacing(path) as partial:
        write(partial, store, columns)
    return n


def _parquet(path: Path, store: Store, columns: list[str]) -> None:
    reader = store.to_batches(columns)
    schema = reader.schema.with_metadata(
        {SETTINGS: json.dumps(store.settings).encode()}
    )
    with pq.ParquetWriter(path, schema) as file:
        for batch in reader:
            file.write_batch(batch)


def _csv(path: Path, store: Store, columns: list[str]) -> None:
    """Write numbers in columns `x7_0`, `x7_1`..., empty where an image lacks the factor."""
    fields = [(name, pa.string()) for name in FACTS]
    for name in columns:
        for i in range(math.prod(store.shape(name))):
            fields.append((f"{name}_{i}", pa.float32()))
    schema = pa.schema(fields)
    with pa_csv.CSVWriter(path, schema) as file:
        for batch in store.to_batches(columns):
            cells = []
            for name in FACTS:
                texts = map(_cell, batch[name].to_pylist())
                cells.append(pa.array(texts, pa.string()))
            for name in columns:
                values = filled(batch[name]).reshape(len(batch), -1)
                for numbers in values.T:
                    cells.append(pa.array(numbers, from_pandas=True))
            file.write_batch(pa.record_batch(cells, schema=schema))


def _cell(value: Any) -> str | None:
    """Return a fact as the text of a cell; None for an empty one."""
    if value is None:
        return None
    if isinstance(value, list):
        value = SEPARATOR.join(value)
    return guarded(value)


def _npz(path: Path, store: Store, columns: list[str]) -> None:
    with zipfile.ZipFile(path, "w", allowZip64=True) as file:
        facts = _facts(store)
        for name, values in facts.items():
            with file.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.array(values, dtype=str))
        for name in columns:
            shape = (len(facts["id"]), *store.shape(name))
            kind = {"descr": "<f4", "fortran_order": False, "shape": shape}
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, kind)
                for batch in store.to_batches([name]):
                    entry.write(np.ascontiguousarray(filled(batch[name]), "<f4").data)


def _h5(path: Path, store: Store, columns: list[str]) -> None:
    h5py = need("h5py", "hdf5")
    with h5py.File(path, "w") as file:
        file.attrs["settings"] = json.dumps(store.settings)
        facts = _facts(store)
        for name, values in facts.items():
            file.create_dataset(name, data=values, dtype=h5py.string_dtype())
        for name in columns:
            whole = file.create_dataset(
                name, (len(facts["id"]), *store.shape(name)), "f4"
            )
            start = 0
            for batch in store.to_batches([name]):
                whole[start : start + len(batch)] = filled(batch[name])
                start += len(batch)


WRITERS: Mapping[str, Callable[[Path, Store, list[str]], None]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".npz": _npz,
    ".h5": _h5,
}


def _facts(store: Store) -> dict[str, list[str]]:
    """Return id, path, hash and labels of the images, as text."""
    rows = store.usable()
    facts: dict[str, Any] = {}
    for name in FACTS:
        facts[name] = [getattr(row, name) for row in rows]
    facts["labels"] = [SEPARATOR.join(row.labels or ()) for row in rows]
    return facts


def filled(column: pa.Array) -> Array:
    """Return lists as an array, with NaN where there is no list."""
    values = column
    value_type = column.type
    shape = [len(column) - column.null_count]
    while pa.types.is_fixed_size_list(value_type):
        shape.append(value_type.list_size)
        value_type = value_type.value_type
        values = values.flatten()
    existing: Array = values.to_numpy(zero_copy_only=False).reshape(shape)
    if not column.null_count:
        return existing
    filled_rows = np.full((len(column), *shape[1:]), np.nan, dtype=np.float32)
    filled_rows[column.is_valid().to_numpy(zero_copy_only=False)] = existing
    return filled_rows
