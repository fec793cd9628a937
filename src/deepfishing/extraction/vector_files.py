"""Files of vectors that were made elsewhere, read a block of rows at a time.

A .parquet, .csv, .npz, .npy or .h5 file has a vector per image and, if it has them, the columns
`id`, `path` (or `filename` and the like), `sha256` and `label` or `labels`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from deepfishing.core.rank_one import Array
from deepfishing.errors import DatasetError, OptionError, need, reraise_as
from deepfishing.images.item import Item
from deepfishing.images.tables import column_names
from deepfishing.store.export import filled
from deepfishing.util.files import SEPARATOR, unguarded

FACTS = ("id", "path", "sha256", "label", "labels")
PLURALS = {"ids": "id", "paths": "path"}
UNNAMED = "x7"  # the factor of vectors without a name: what a classifier would take
BLOCK_ROWS = 4096
MAX_HEADER_BYTES = 1 << 24  # of a .csv
DAMAGED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    pa.ArrowException,
)


class Block(NamedTuple):
    """Some rows of a file: their number, what is known of the images, and their vectors."""

    size: int
    facts: dict[str, list[Any]]  # by one of `FACTS`
    vectors: dict[str, Array]  # by column


def read_vectors(path: Path, listed: list[Item] | None = None) -> Iterator[Block]:
    """Yield the rows of a file; `listed` are the images of its rows, in their order."""
    kind = path.suffix.lower()
    if kind not in READERS:
        raise OptionError(
            f"a file of vectors must end in {', '.join(READERS)}, got {path}"
        )
    if not path.is_file():
        raise DatasetError(f"a file of vectors must exist, got {path}, which does not")
    start = 0
    with reraise_as(DatasetError, f"vectors cannot be read: {path}", of=DAMAGED):
        for block in READERS[kind](path):
            if listed is not None:
                items = listed[start : start + block.size]
                facts = {**block.facts, **_facts_of_items(items, block.size)}
                block = block._replace(facts=facts)
            yield block
            start += block.size


def _facts_of_items(items: Sequence[Item], size: int) -> dict[str, list[Any]]:
    """Return the facts of rows by their images; there may be fewer images than rows."""
    missing = [None] * (size - len(items))
    ids = [item.id for item in items]
    paths = [str(Path(str(item)).absolute()) for item in items]
    labels = [SEPARATOR.join(item.labels) if item.labels else None for item in items]
    return {
        "id": [*ids, *missing],
        "path": [*paths, *missing],
        "labels": [*labels, *missing],
    }


def _fact_columns(names: Sequence[str]) -> dict[str, str]:
    """Return the columns that are no vectors, by their fact: `filename` is the path."""
    by_fact = dict(zip(column_names(names), names, strict=True))
    for plural, fact in PLURALS.items():  # as arrays are called
        if plural in by_fact:
            by_fact.setdefault(fact, by_fact[plural])
    return {fact: by_fact[fact] for fact in FACTS if fact in by_fact}


def _parquet(path: Path) -> Iterator[Block]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BLOCK_ROWS):
            lists = []
            others = []
            for name in batch.schema.names:
                is_list = hasattr(batch.schema.field(name).type, "value_type")
                if is_list:
                    lists.append(name)
                if not is_list or name in FACTS:
                    others.append(name)
            columns = _fact_columns(others)
            facts = {fact: batch[name].to_pylist() for fact, name in columns.items()}
            vectors = {}
            for name in lists:
                if name not in columns.values():
                    vectors[name] = _as_array(batch[name])
            yield Block(len(batch), facts, vectors)


def _as_array(column: pa.Array) -> Array:
    """Return lists of numbers as an array of float32, NaN where there is no list."""
    if not pa.types.is_fixed_size_list(column.type):
        sizes = pc.list_value_length(column).drop_null().unique().to_pylist()
        if len(sizes) != 1:
            raise ValueError(f"vectors must have one length, got {sorted(sizes)[:5]}")
        column = column.cast(pa.list_(column.type.value_type, sizes[0]))
    return filled(column).astype(np.float32, copy=False)


def _csv(path: Path) -> Iterator[Block]:
    with path.open("rb") as file:
        header = file.readline(MAX_HEADER_BYTES).decode("utf-8", "replace")
    parse = pa_csv.ParseOptions(delimiter=max(",;\t", key=header.count))
    names = pa_csv.open_csv(path, parse_options=parse).schema.names
    fact_columns = _fact_columns(names)
    vector_columns = _vector_columns(
        [name for name in names if name not in fact_columns.values()]
    )
    # given, not guessed by the first rows, in which a column may have only whole numbers
    types = dict.fromkeys(fact_columns.values(), pa.string())
    for columns in vector_columns.values():
        types.update(dict.fromkeys(columns, pa.float64()))
    convert = pa_csv.ConvertOptions(column_types=types)
    for batch in pa_csv.open_csv(path, parse_options=parse, convert_options=convert):
        facts = {}
        for fact, name in fact_columns.items():
            cells = batch[name].to_pylist()
            facts[fact] = [cell and unguarded(cell) for cell in cells]
        vectors = {}
        for name, columns in vector_columns.items():
            numbers = []
            for column in columns:
                values = batch[column].cast(pa.float32())
                numbers.append(values.to_numpy(zero_copy_only=False))
            vectors[name] = np.stack(numbers, axis=1)
        yield Block(len(batch), facts, vectors)


def _vector_columns(names: list[str]) -> dict[str, list[str]]:
    """Return the columns of each vector: v_0, v_1... of v, and v0 or 0 as data frames have them."""
    by_prefix: dict[str, list[str]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?_?)(\d+)", name)
        if match:
            by_prefix.setdefault(match[1], []).append(name)
    vectors = {}
    for prefix, columns in by_prefix.items():
        if columns == [f"{prefix}{i}" for i in range(len(columns))]:
            vectors[prefix.removesuffix("_") or "vector"] = columns
        elif prefix.endswith("_"):  # else some other fact, such as a year
            raise ValueError(
                f"columns of {prefix[:-1]} must be {prefix}0, {prefix}1 and so on"
            )
    return vectors


def _npz(path: Path) -> Iterator[Block]:
    with np.load(path, allow_pickle=False) as file:
        yield from _blocks_of_arrays({name: file[name] for name in file.files})


def _npy(path: Path) -> Iterator[Block]:
    vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    if vectors.ndim < 2 or vectors.dtype.kind not in "iuf":
        raise ValueError(
            f"an array must be (images, numbers), got {vectors.dtype} of shape {vectors.shape}"
        )
    yield from _blocks_of_arrays({UNNAMED: vectors})


def _h5(path: Path) -> Iterator[Block]:
    with need("h5py", "hdf5").File(path, "r") as file:
        columns = _fact_columns([name for name in file if file[name].ndim == 1])
        texts = {name: file[name].asstr() for name in columns.values()}
        yield from _blocks_of_arrays({**file, **texts})


def _blocks_of_arrays(arrays: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the rows of arrays of the same length: those with one axis are facts."""
    sizes = {len(values) for values in arrays.values()}
    if len(sizes) != 1:
        raise ValueError(f"arrays must be of the same images, got {sorted(sizes)} rows")
    (size,) = sizes
    columns = _fact_columns([n for n, values in arrays.items() if values.ndim == 1])
    for start in range(0, size, BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        facts = {}
        for fact, name in columns.items():
            facts[fact] = np.asarray(arrays[name][rows]).tolist()
        vectors = {}
        for name, values in arrays.items():
            if values.ndim > 1:
                vectors[name] = np.asarray(values[rows]).astype(np.float32)
        yield Block(min(BLOCK_ROWS, size - start), facts, vectors)


READERS: Mapping[str, Callable[[Path], Iterator[Block]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".npz": _npz,
    ".npy": _npy,
    ".h5": _h5,
}
