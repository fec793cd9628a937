"""From vectors that were made elsewhere to a store, in one call: what `deepfish import` does.

A .parquet, .csv, .npz, .npy or .h5 file has a vector per image and, if it has them, `id`, `path`
(or `filename` and the like), `sha256` and `label` or `labels`. The store is searched, curated and
classified like others. A Parquet file of `deepfish export` brings its settings, so that the store
can encode new photos, too; of other vectors nobody knows the network. The file is read twice, a
block at a time: first all of it is checked, then written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from deepfishing.core.features import NO_CLASSIFIER, TOP, Factor, parse_factor
from deepfishing.core.rank_one import Array
from deepfishing.errors import (
    DatasetError,
    FeatureError,
    OptionError,
    StoreError,
    explained,
    need,
)
from deepfishing.extraction.settings import Settings
from deepfishing.images.item import Item, as_labels
from deepfishing.images.preprocess import Preprocess
from deepfishing.images.sources import find_images
from deepfishing.images.tables import column_names
from deepfishing.networks.reference import EMBEDDING, NetworkRef
from deepfishing.store import Row, Store
from deepfishing.store.export import SETTINGS, filled
from deepfishing.store.manifest import MANIFEST, OK
from deepfishing.store.precision import MAX_VECTORS, suited_precision
from deepfishing.util.files import SEPARATOR, unguarded

FACTS = ("id", "path", "sha256", "label", "labels")
NAME = "x7"  # of vectors that are called otherwise: what a classifier would take
BLOCK_ROWS = 4096
MAX_SAMPLE = 256  # vectors that the precision of a new store is chosen by
# Vectors of one image that differ by no more than this part of their length are the same: networks
# round differently in batches of other sizes, and files keep fewer digits.
ROUNDING = 1e-3
DAMAGED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    pa.ArrowException,
)

# rows, facts and vectors of them
Block = tuple[int, dict[str, list[Any]], dict[str, Array]]


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
    """Put vectors that were made elsewhere into a store.

    The source is .parquet (lists), .csv (columns `name_0`, `name_1`...), .npz or .h5 (arrays), or
    .npy (one array). Rows without an `id` have their `path` or their number as one; `paths` is a
    list or a table with the image of each row, for files that do not name them. An image is known
    by `sha256`, else by the file at `path`, if it exists, else by its id and vector. Of images that
    are listed twice the first vector is taken, and the others may differ from it by rounding.
    Vectors that are called as factors are, such as `x7` and `delta8`, keep their names and are all
    taken; of others `column` says which, and they become `x7`. `network` is what made them, for
    people to read. Images that the store has are refused without `overwrite`.
    """
    source, folder = Path(source), Path(store)
    listed = None if paths is None else find_images(paths)
    read = partial(_blocks, source, listed)
    rows: list[Row] = []
    names: dict[str, str] = {}
    checks: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    differing: set[str] = set()
    samples: dict[str, Array] = {}
    for n, facts, vectors in read():
        names = names or _names(list(vectors), column, source)
        for name in names:
            if (
                shapes.setdefault(names[name], vectors[name].shape[1:])
                != vectors[name].shape[1:]
            ):
                raise DatasetError(
                    f"vectors of {name} must have one length, got two in {source}"
                )
            _keep_some(samples, names[name], vectors[name])
        made = _rows(n, facts, {names[c]: vectors[c] for c in names}, len(rows), source)
        for row, check in made:
            if checks.setdefault(str(row.sha256), check) != check:
                differing.add(str(row.sha256))
        rows += [row for row, _ in made]
    if listed is not None and len(listed) != len(rows):
        raise DatasetError(
            f"{paths} must list an image for each of {len(rows):,} rows of {source}, got "
            f"{len(listed):,}"
        )
    _check_rounding(read(), rows, differing, names, source)
    if not rows or len({row.id for row in rows}) < len(rows):
        what = (
            "ids must be unique, got one twice"
            if rows
            else "a file must have rows, got none"
        )
        raise DatasetError(f"{what} in {source}")
    settings = _settings_in(source) or settings_of(
        names.values(), network or source.stem
    )
    opened = Store(folder, settings, precision or _precision(folder, samples))
    with opened.writing():
        before = opened.rows()
        stored: set[str] = set()
        for name in opened.factors():
            stored |= opened.shards(name).keys()
            shape = opened.shape(name)
            if shape and shape != shapes.get(name, shape):
                raise StoreError(
                    f"{name} of {folder} is {shape}, got {shapes[name]} in {source}"
                )
        there = stored & checks.keys()
        known = [row.id for row in rows if row.id in before or row.sha256 in there]
        if known and not overwrite:
            raise StoreError(
                f"{len(known)} images of {source} are in {folder} already, such as {known[0]}; "
                "add --overwrite to replace them"
            )
        if there:
            opened.compact(stored - there)
        start = 0
        written: set[tuple[str, str]] = set()
        for n, _, vectors in read():
            for name in names:
                has = _has(vectors[name])
                for number, row in enumerate(rows[start : start + n]):
                    if (
                        name,
                        str(row.sha256),
                    ) in written:
                        # the first vector of an image counts
                        has[number] = False
                    elif has[number]:
                        written.add((name, str(row.sha256)))
                keys = [
                    str(rows[start + number].sha256) for number in np.flatnonzero(has)
                ]
                opened.append(keys, {names[name]: vectors[name][has]})
            start += n
        now = {row.sha256: row.factors for row in rows}
        kept = {
            i: replace(r, factors=now.get(r.sha256, r.factors))
            for i, r in before.items()
        }
        kept |= {row.id: row for row in rows}
        opened.write_rows(kept.values())
        opened.compact({row.sha256 for row in kept.values() if row.sha256})
    return opened


def _keep_some(samples: dict[str, Array], name: str, vectors: Array) -> None:
    """Add some vectors of a block to those of a factor."""
    before = samples.get(name, vectors[:0])
    if len(before) < MAX_SAMPLE:
        there = vectors[_has(vectors)]
        step = max(1, len(there) // MAX_VECTORS)
        samples[name] = np.concatenate([before, there[::step]])


def _precision(store: Path, samples: Mapping[str, Array]) -> str:
    """Return the precision for vectors: that of the store, or the one that suits them."""
    if not (store / MANIFEST).exists():
        return suited_precision(samples)[0]
    opened = Store.open(store)
    there = opened.factors()
    new = {name: x for name, x in samples.items() if name not in there}
    opened.check_precision(new)
    return opened.precision


def _check_rounding(
    blocks: Iterator[Block],
    rows: list[Row],
    differing: set[str],
    names: Mapping[str, str],
    source: Path,
) -> None:
    """Refuse images whose vectors differ by more than rounding."""
    first: dict[tuple[str, str], Array] = {}
    start = 0
    for n, _, vectors in blocks if differing else ():
        for number, row in enumerate(rows[start : start + n]):
            key = str(row.sha256)
            for name in names if key in differing else ():
                vector = np.asarray(vectors[name][number], dtype=np.float64)
                before = first.setdefault((key, name), vector)
                if not _is_same(before, vector):
                    raise DatasetError(
                        f"one image must have one vector, up to rounding, got two: {row.id} in "
                        f"{source}"
                    )
        start += n


def _is_same(a: Array, b: Array) -> bool:
    if np.isnan(a).all() or np.isnan(b).all():  # one of them is not there
        return True
    size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return bool(np.linalg.norm(a - b) <= ROUNDING * size)


def _names(found: list[str], column: str | None, source: Path) -> dict[str, str]:
    """The columns that are taken, and the factors that they become."""
    if column is not None and column not in found:
        raise OptionError(
            f"column must be one of {', '.join(found)} of {source}, got {column!r}"
        )
    factors = {}
    for name in found if column is None else [column]:
        with contextlib.suppress(FeatureError):
            factors[name] = parse_factor(name).name
    if factors:
        return factors
    if len(found) != 1 and column is None:
        many, do = ", ".join(found), "say --column NAME"
        if not found:
            many, do = (
                "none",
                "name them by a list per image, or in a .csv v_0, v_1 and so on",
            )
        raise OptionError(f"one column must hold vectors, got {many} in {source}; {do}")
    return {column or found[0]: NAME}


def _rows(
    n: int,
    facts: Mapping[str, list[Any]],
    vectors: Mapping[str, Array],
    start: int,
    source: Path,
) -> list[tuple[Row, int]]:
    """The rows of a block, each with a checksum of its vectors."""
    here = {name: _has(values) for name, values in vectors.items()}
    made = []
    for i in range(n):
        told = {name: values[i] for name, values in facts.items()}
        id_, path = (
            str(told[n]) if told.get(n) not in (None, "") else ""
            for n in ("id", "path")
        )
        id_ = id_ or path or f"{start + i:07d}"
        path = path or id_
        has = tuple(sorted(name for name in vectors if here[name][i]))
        if not has or not all(np.isfinite(vectors[name][i]).all() for name in has):
            raise DatasetError(
                f"numbers of an image must be finite, got others: {id_} in {source}"
            )
        content = b"".join(vectors[name][i].tobytes() for name in has)
        key = told.get("sha256") or _file_hash(source.parent, path)
        key = str(key or hashlib.sha256(id_.encode() + content).hexdigest())
        if not re.fullmatch("[0-9a-f]{64}", key):
            raise DatasetError(
                f"sha256 must be 64 hex digits, got {key[:80]!r} in {source}"
            )
        labels = as_labels(
            told.get("labels", told.get("label")), several="labels" in told
        )
        row = Row(id_, path, key, labels=labels or None, status=OK, factors=has)
        made.append((row, zlib.crc32(content)))
    return made


def _file_hash(folder: Path, path: str) -> str | None:
    for place in (folder / path, Path(path)):
        with contextlib.suppress(OSError, ValueError):
            if place.is_file():
                return hashlib.sha256(place.read_bytes()).hexdigest()
    return None


def _has(vectors: Array) -> Array:
    """Which rows have a vector: not only NaN, which stands for none."""
    return np.asarray(~np.isnan(vectors.reshape(len(vectors), -1)).all(axis=1))


def _settings_in(source: Path) -> dict[str, Any] | None:
    """The settings that an export in Parquet has, checked; without its precision."""
    if source.suffix.lower() != ".parquet":
        return None
    text = (pq.read_schema(source).metadata or {}).get(SETTINGS)
    return None if text is None else Settings.from_dict(json.loads(text)).as_dict()


def settings_of(factors: Any, network: str) -> dict[str, Any]:
    """Those of vectors of which only the names are known."""
    found = [parse_factor(name) for name in factors]
    numbers = {factor.layer for factor in found if isinstance(factor.layer, int)}
    layers = {k: f"layer {k}" for k in sorted({TOP, *numbers})}
    if not any(map(_needs_classifier, found)):
        layers[TOP] = NO_CLASSIFIER
    pixels = Preprocess(size=224, short_side=224, mean=(0.0,) * 3, std=(1.0,) * 3)
    ref = NetworkRef(
        name=network,
        weights_sha256="",
        layers=layers,
        preprocess=pixels,
        head="softmax" if layers[TOP] != NO_CLASSIFIER else EMBEDDING,
    )
    return Settings(network=ref).as_dict()


def _needs_classifier(factor: Factor) -> bool:
    """Whether only a network with a classifier has a factor."""
    of_scores = factor.layer == TOP and factor.kind == "output"
    return factor.needs_backward or of_scores or factor.kind == "probabilities"


def _blocks(path: Path, listed: list[Item] | None = None) -> Iterator[Block]:
    kind = path.suffix.lower()
    if kind not in READERS:
        raise OptionError(
            f"a file of vectors must end in {', '.join(READERS)}, got {path}"
        )
    if not path.is_file():
        raise DatasetError(f"a file of vectors must exist, got {path}, which does not")
    start = 0
    with explained(DatasetError, f"vectors cannot be read: {path}", of=DAMAGED):
        for n, facts, vectors in READERS[kind](path):
            if listed is not None:
                facts = {**facts, **_facts_of(listed[start : start + n], n)}
            yield n, facts, vectors
            start += n


def _facts_of(items: list[Item], n: int) -> dict[str, list[Any]]:
    """The facts of n rows by the images that are listed, of which there may be too few."""
    none = [None] * (n - len(items))
    ids = [item.id for item in items]
    places = [str(Path(str(item)).absolute()) for item in items]
    labels = [SEPARATOR.join(item.labels) if item.labels else None for item in items]
    return {"id": [*ids, *none], "path": [*places, *none], "labels": [*labels, *none]}


def _fact_columns(names: Sequence[str]) -> dict[str, str]:
    """The columns that are no vectors by what they say: `filename` is the path."""
    found = dict(zip(column_names(names), names, strict=True))
    return {fact: found[fact] for fact in FACTS if fact in found}


def _parquet(path: Path) -> Iterator[Block]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BLOCK_ROWS):
            kinds = {name: batch.schema.field(name).type for name in batch.schema.names}
            lists = [n for n, k in kinds.items() if hasattr(k, "value_type")]
            known = _fact_columns([n for n in kinds if n not in lists or n in FACTS])
            facts = {fact: batch[name].to_pylist() for fact, name in known.items()}
            found = [name for name in lists if name not in known.values()]
            yield len(batch), facts, {name: _vectors(batch[name]) for name in found}


def _vectors(column: pa.Array) -> Array:
    """Lists of numbers as an array of float32, NaN where there is no list."""
    if not pa.types.is_fixed_size_list(column.type):
        sizes = pc.list_value_length(column).drop_null().unique().to_pylist()
        if len(sizes) != 1:
            raise ValueError(f"vectors must have one length, got {sorted(sizes)[:5]}")
        column = column.cast(pa.list_(column.type.value_type, sizes[0]))
    return filled(column).astype(np.float32, copy=False)


def _csv(path: Path) -> Iterator[Block]:
    with path.open("rb") as file:
        head = file.readline(1 << 24).decode("utf-8", "replace")
    parse = pa_csv.ParseOptions(delimiter=max(",;\t", key=head.count))
    names = pa_csv.open_csv(path, parse_options=parse).schema.names
    known = _fact_columns(names)
    vectors = _vector_columns([name for name in names if name not in known.values()])
    # told, not guessed by the first rows, in which a column may have only whole numbers
    kinds = dict.fromkeys(
        (one for columns in vectors.values() for one in columns), pa.float64()
    )
    convert = pa_csv.ConvertOptions(
        column_types=kinds | dict.fromkeys(known.values(), pa.string())
    )
    for batch in pa_csv.open_csv(path, parse_options=parse, convert_options=convert):
        facts = {
            fact: [one and unguarded(one) for one in batch[name].to_pylist()]
            for fact, name in known.items()
        }
        arrays = {}
        for name, columns in vectors.items():
            rows = [
                batch[one].cast(pa.float32()).to_numpy(zero_copy_only=False)
                for one in columns
            ]
            arrays[name] = np.stack(rows, axis=1)
        yield len(batch), facts, arrays


def _vector_columns(names: list[str]) -> dict[str, list[str]]:
    """The columns of each vector: v_0, v_1... of v, and v0 or 0 as data frames have them."""
    parts: dict[str, list[str]] = {}
    for name in names:
        if match := re.fullmatch(r"(.*?_?)(\d+)", name):
            parts.setdefault(match[1], []).append(name)
    vectors = {}
    for name, columns in parts.items():
        if columns == [f"{name}{i}" for i in range(len(columns))]:
            vectors[name.removesuffix("_") or "vector"] = columns
        elif name.endswith("_"):  # else some other fact, such as a year
            raise ValueError(
                f"columns of {name[:-1]} must be {name}0, {name}1 and so on"
            )
    return vectors


def _npz(path: Path) -> Iterator[Block]:
    with np.load(path, allow_pickle=False) as file:
        yield from _arrays({name: file[name] for name in file.files})


def _npy(path: Path) -> Iterator[Block]:
    vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    if vectors.ndim < 2 or vectors.dtype.kind not in "iuf":
        raise ValueError(
            f"an array must be (images, numbers), got {vectors.dtype} of shape {vectors.shape}"
        )
    yield from _arrays({NAME: vectors})


def _h5(path: Path) -> Iterator[Block]:
    with need("h5py", "hdf5").File(path, "r") as file:
        known = _fact_columns([name for name in file if file[name].ndim == 1])
        texts = {name: file[name].asstr() for name in known.values()}
        yield from _arrays({**file, **texts})


def _arrays(arrays: Mapping[str, Any]) -> Iterator[Block]:
    sizes = {len(values) for values in arrays.values()}
    if len(sizes) != 1:
        raise ValueError(f"arrays must be of the same images, got {sorted(sizes)} rows")
    known = _fact_columns([name for name, values in arrays.items() if values.ndim == 1])
    for start in range(0, n := sizes.pop(), BLOCK_ROWS):
        some = {
            name: np.asarray(v[start : start + BLOCK_ROWS])
            for name, v in arrays.items()
        }
        facts = {fact: some[name].tolist() for fact, name in known.items()}
        vectors = {name: v.astype(np.float32) for name, v in some.items() if v.ndim > 1}
        yield min(BLOCK_ROWS, n - start), facts, vectors


READERS: Mapping[str, Callable[[Path], Iterator[Block]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".npz": _npz,
    ".npy": _npy,
    ".h5": _h5,
}
