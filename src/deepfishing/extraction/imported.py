"""Import of vectors that were made elsewhere into a store, as `deepfish import` does it.

The store is searched, curated and classified like others. A Parquet file of `deepfish export`
contains its settings, so that the store can encode new photos, too; of other vectors the network
is not known. The file is read twice, a block at a time: first all of it is checked, then written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from deepfishing.core.features import NO_CLASSIFIER, TOP, Factor, parse_factor
from deepfishing.core.rank_one import Array
from deepfishing.errors import DatasetError, FeatureError, OptionError, StoreError
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.vector_files import UNNAMED, Block, read_vectors
from deepfishing.images.item import as_labels
from deepfishing.images.preprocess import Preprocess
from deepfishing.images.sources import find_images
from deepfishing.networks.reference import EMBEDDING, NetworkRef
from deepfishing.store import Row, Store
from deepfishing.store.export import SETTINGS
from deepfishing.store.manifest import MANIFEST, OK
from deepfishing.store.precision import MAX_VECTORS, suited_precision
from deepfishing.util.files import file_sha256

MAX_SAMPLE = 256  # vectors that the precision of a new store is chosen by
# Vectors of one image that differ by no more than this part of their length are the same: networks
# round differently in batches of other sizes, and files keep fewer digits.
ROUNDING = 1e-3


def import_vectors(
    source: str | Path,
    store: str | Path,
    *,
    column: str | None = None,
    network: str | None = None,
    precision: str | None = None,
    overwrite: bool = False,
    paths: str | Path | None = None,
) -> Store:
    """Import vectors that were made elsewhere into a store.

    Rows without an `id` have their `path` or their number as one. An image is identified by
    `sha256`, else by the file at `path`, if it exists, else by its id and vector. Of images that
    are listed twice the first vector is taken, and the others may differ from it by rounding.
    Columns with names of factors, such as `x7` and `delta8`, keep their names and are all taken.

    Parameters
    ----------
    source : path
        .parquet (lists), .csv (columns `name_0`, `name_1`...), .npz or .h5 (arrays), or .npy (one
        array).
    store : path
        Folder, made if absent.
    column : str, optional
        The vectors to take if they have another name than a factor; they become `x7`.
    network : str, optional
        Name of what made the vectors, for display.
    precision : str, optional
        Numbers on disk: int8, int4, float16 or float32.
    overwrite : bool
        Replace images that the store has; otherwise they are refused.
    paths : path, optional
        A list or a table with the image of each row, for files that do not name them.
    """
    source, folder = Path(source), Path(store)
    listed = None
    if paths is not None:
        listed = find_images(paths)
    read = partial(read_vectors, source, listed)
    checked = _check_file(read(), column, source)
    rows = checked.rows
    if listed is not None and len(listed) != len(rows):
        raise DatasetError(
            f"{paths} must list an image for each of {len(rows):,} rows of {source}, got "
            f"{len(listed):,}"
        )
    if checked.differing:
        _check_rounding(read(), checked, source)
    if not rows:
        raise DatasetError(f"a file must have rows, got none in {source}")
    if len({row.id for row in rows}) < len(rows):
        raise DatasetError(f"ids must be unique, got one twice in {source}")
    settings = _settings_in(source)
    if settings is None:
        settings = settings_of(checked.factors.values(), network or source.stem)
    opened = Store(folder, settings, precision or _precision(folder, checked.samples))
    with opened.writing():
        before = opened.rows()
        _make_room(opened, checked, before, overwrite, source)
        _write_vectors(opened, read(), checked)
        _write_index(opened, rows, before)
    return opened


@dataclass
class _CheckedFile:
    """Result of the first reading of a file."""

    factors: dict[str, str] = field(default_factory=dict)  # by column
    rows: list[Row] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by factor
    # by content: a checksum of its first vectors, and the contents that have others, too
    checksums: dict[str, int] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)
    samples: dict[str, Array] = field(default_factory=dict)  # by factor


def _check_file(
    blocks: Iterable[Block], column: str | None, source: Path
) -> _CheckedFile:
    """Read a file for the first time: its factors, its rows, and which vectors differ."""
    checked = _CheckedFile()
    for block in blocks:
        if not checked.factors:
            checked.factors = _factors_of_columns(list(block.vectors), column, source)
        vectors = {}
        for name, factor in checked.factors.items():
            values = block.vectors[name]
            shape = checked.shapes.setdefault(factor, values.shape[1:])
            if shape != values.shape[1:]:
                raise DatasetError(
                    f"vectors of {name} must have one length, got two in {source}"
                )
            _add_sample(checked.samples, factor, values)
            vectors[factor] = values
        first = len(checked.rows)
        for row, checksum in _rows_of_block(block, vectors, first, source):
            content = str(row.sha256)
            if checked.checksums.setdefault(content, checksum) != checksum:
                checked.differing.add(content)
            checked.rows.append(row)
    return checked


def _factors_of_columns(
    columns: list[str], column: str | None, source: Path
) -> dict[str, str]:
    """Return the columns that are taken, and the factors that they become."""
    if column is not None and column not in columns:
        raise OptionError(
            f"column must be one of {', '.join(columns)} of {source}, got {column!r}"
        )
    factors = {}
    for name in columns if column is None else [column]:
        with contextlib.suppress(FeatureError):
            factors[name] = parse_factor(name).name
    if factors:
        return factors
    if column is not None:
        return {column: UNNAMED}
    if not columns:
        raise OptionError(
            f"one column must hold vectors, got none in {source}; name them by a list per image, "
            "or in a .csv v_0, v_1 and so on"
        )
    if len(columns) > 1:
        raise OptionError(
            f"one column must hold vectors, got {', '.join(columns)} in {source}; say --column NAME"
        )
    return {columns[0]: UNNAMED}


def _add_sample(samples: dict[str, Array], factor: str, vectors: Array) -> None:
    """Add some vectors of a block to those that the precision is chosen by."""
    before = samples.get(factor, vectors[:0])
    if len(before) < MAX_SAMPLE:
        present = vectors[_is_present(vectors)]
        step = max(1, len(present) // MAX_VECTORS)
        samples[factor] = np.concatenate([before, present[::step]])


def _rows_of_block(
    block: Block, vectors: Mapping[str, Array], first: int, source: Path
) -> Iterator[tuple[Row, int]]:
    """Yield the rows of a block by number from `first`, each with a checksum of its vectors."""
    present = {factor: _is_present(values) for factor, values in vectors.items()}
    for i in range(block.size):
        facts = {name: values[i] for name, values in block.facts.items()}
        path = _as_text(facts.get("path"))
        id_ = _as_text(facts.get("id")) or path or f"{first + i:07d}"
        path = path or id_
        factors = tuple(sorted(factor for factor in vectors if present[factor][i]))
        values = [vectors[factor][i] for factor in factors]
        if not values or not all(np.isfinite(value).all() for value in values):
            raise DatasetError(
                f"numbers of an image must be finite, got others: {id_} in {source}"
            )
        content = b"".join(value.tobytes() for value in values)
        key = facts.get("sha256") or _file_hash(source.parent, path)
        if not key:
            key = hashlib.sha256(id_.encode() + content).hexdigest()
        key = str(key)
        if not re.fullmatch("[0-9a-f]{64}", key):
            raise DatasetError(
                f"sha256 must be 64 hex digits, got {key[:80]!r} in {source}"
            )
        cell = facts.get("labels", facts.get("label"))
        labels = as_labels(cell, several="labels" in facts) or None
        row = Row(id_, path, key, labels=labels, status=OK, factors=factors)
        yield row, zlib.crc32(content)


def _as_text(cell: Any) -> str:
    """Return a cell as text, '' for an empty one."""
    if cell is None:
        return ""
    return str(cell)


def _file_hash(folder: Path, path: str) -> str | None:
    """Return the SHA-256 of a file whose path may be relative to a folder; None if it is absent."""
    for file in (folder / path, Path(path)):
        with contextlib.suppress(OSError, ValueError):
            if file.is_file():
                return file_sha256(file)
    return None


def _is_present(vectors: Array) -> Array:
    """Return which rows have a vector: not only NaN, which means that there is none."""
    return np.asarray(~np.isnan(vectors.reshape(len(vectors), -1)).all(axis=1))


def _check_rounding(
    blocks: Iterable[Block], checked: _CheckedFile, source: Path
) -> None:
    """Refuse images whose vectors differ by more than rounding."""
    first_vectors: dict[tuple[str, str], Array] = {}
    for row, vectors in _pairs(blocks, checked.rows):
        content = str(row.sha256)
        if content not in checked.differing:
            continue
        for name in checked.factors:
            vector = np.asarray(vectors[name], dtype=np.float64)
            first = first_vectors.setdefault((content, name), vector)
            if not _is_same(first, vector):
                raise DatasetError(
                    f"one image must have one vector, up to rounding, got two: {row.id} in {source}"
                )


def _pairs(
    blocks: Iterable[Block], rows: Sequence[Row]
) -> Iterator[tuple[Row, dict[str, Array]]]:
    """Yield each row with its vectors by column."""
    start = 0
    for block in blocks:
        for i in range(block.size):
            yield rows[start + i], {n: block.vectors[n][i] for n in block.vectors}
        start += block.size


def _is_same(a: Array, b: Array) -> bool:
    if np.isnan(a).all() or np.isnan(b).all():  # one of them is absent
        return True
    size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return bool(np.linalg.norm(a - b) <= ROUNDING * size)


def _precision(store: Path, samples: Mapping[str, Array]) -> str:
    """Return the precision for vectors: that of the store, or the one that suits them."""
    if not (store / MANIFEST).exists():
        return suited_precision(samples)[0]
    opened = Store.open(store)
    factors = opened.factors()
    new = {name: values for name, values in samples.items() if name not in factors}
    opened.check_precision(new)
    return opened.precision


def _make_room(
    store: Store,
    checked: _CheckedFile,
    before: Mapping[str, Row],
    overwrite: bool,
    source: Path,
) -> None:
    """Drop the features of images that are imported again; refuse them without `overwrite`."""
    stored: set[str] = set()
    for name in store.factors():
        stored |= store.shards(name).keys()
        shape = store.shape(name)
        if shape and shape != checked.shapes.get(name, shape):
            raise StoreError(
                f"{name} of {store.folder} is {shape}, got {checked.shapes[name]} in {source}"
            )
    again = stored & checked.checksums.keys()
    ids = [row.id for row in checked.rows if row.id in before or row.sha256 in again]
    if ids and not overwrite:
        raise StoreError(
            f"{len(ids)} images of {source} are in {store.folder} already, such as {ids[0]}; "
            "add --overwrite to replace them"
        )
    if again:
        store.compact(stored - again)


def _write_vectors(
    store: Store, blocks: Iterable[Block], checked: _CheckedFile
) -> None:
    """Write all vectors; of an image that is listed twice the first one counts."""
    written: set[tuple[str, str]] = set()
    start = 0
    for block in blocks:
        contents = [str(row.sha256) for row in checked.rows[start : start + block.size]]
        for name, factor in checked.factors.items():
            is_new = _is_present(block.vectors[name])
            for i, content in enumerate(contents):
                if (name, content) in written:
                    is_new[i] = False
                elif is_new[i]:
                    written.add((name, content))
            keys = [contents[i] for i in np.flatnonzero(is_new)]
            store.append(keys, {factor: block.vectors[name][is_new]})
        start += block.size


def _write_index(store: Store, rows: Sequence[Row], before: Mapping[str, Row]) -> None:
    """Write the index with the new rows; drop features that no row needs any more."""
    factors = {row.sha256: row.factors for row in rows}
    index = {}
    for id_, row in before.items():
        index[id_] = replace(row, factors=factors.get(row.sha256, row.factors))
    for row in rows:
        index[row.id] = row
    store.write_rows(index.values())
    store.compact({row.sha256 for row in index.values() if row.sha256})


def _settings_in(source: Path) -> dict[str, Any] | None:
    """Return the settings of an export in Parquet, checked and without its precision."""
    if source.suffix.lower() != ".parquet":
        return None
    text = (pq.read_schema(source).metadata or {}).get(SETTINGS)
    if text is None:
        return None
    return Settings.from_dict(json.loads(text)).as_dict()


def settings_of(factors: Iterable[str], network: str) -> dict[str, Any]:
    """Return the settings of vectors of which only the names of the factors are known."""
    parsed = [parse_factor(name) for name in factors]
    numbers = {factor.layer for factor in parsed if isinstance(factor.layer, int)}
    layers = {k: f"layer {k}" for k in sorted({TOP, *numbers})}
    head = "softmax"
    if not any(map(_needs_classifier, parsed)):
        layers[TOP] = NO_CLASSIFIER
        head = EMBEDDING
    reference = NetworkRef(
        name=network,
        weights_sha256="",
        layers=layers,
        preprocess=Preprocess(224, 224, mean=(0.0,) * 3, std=(1.0,) * 3),
        head=head,
    )
    return Settings(network=reference).as_dict()


def _needs_classifier(factor: Factor) -> bool:
    """Whether only a network with a classifier has a factor."""
    of_scores = factor.layer == TOP and factor.kind == "output"
    return factor.needs_backward or of_scores or factor.kind == "probabilities"
