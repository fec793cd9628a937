"""Summary of a store for `deepfish store info`, and the checks of `deepfish store verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deepfishing.errors import StoreError, explained
from deepfishing.store.journal import JOURNALS, check_no_link, leftovers
from deepfishing.store.manifest import ERROR, OK, PENDING, Row, read_manifest
from deepfishing.store.shards import (
    PATTERN,
    checksum,
    decoded,
    read_table,
    stored,
    undamaged,
)
from deepfishing.store.store import ERRORS, Store
from deepfishing.util.files import check_regular


def info(store: Store) -> dict[str, Any]:
    """Return settings, images, factors with their sizes, and failures."""
    rows = store.rows()
    status = Counter(row.status for row in rows.values())
    factors = {}
    for name in store.factors():
        shards = store.shards(name)
        if shards.files:
            size = sum(path.stat().st_size for path in shards.files)
            factors[name] = {
                "shape": list(store.shape(name)),
                "contents": len(shards),
                "bytes": size,
                "bytes_per_image": round(size / max(len(shards), 1)),
            }
    total = sum(
        path.stat().st_size for path in store.folder.rglob("*") if path.is_file()
    )
    return {
        "store": str(store.folder),
        **read_manifest(store.folder),
        "images": len(rows),
        "contents": len({row.sha256 for row in rows.values() if row.sha256}),
        **{name: status[name] for name in (OK, ERROR, PENDING)},
        "labels": len(
            {label for row in store.labelled_rows() for label in row.labels or ()}
        ),
        "factors": factors,
        "bytes": total,
        "bytes_per_image": round(total / max(len(rows), 1)),
        "failures": {row.id: row.error for row in rows.values() if row.status == ERROR},
    }


def verify(store: Store) -> list[str]:
    """Return the problems of a store, one line each.

    Looked at: the checksum, schema and values of every shard, the index, keys that occur
    twice, shards that no image needs, features that the index promises, leftovers of a crash.
    """
    left = [*leftovers(store.folder), *store.folder.glob(JOURNALS)]
    problems = [
        f"{path}: left over from a run that was killed; the next `deepfish extract` clears it up"
        for path in left
    ]
    try:
        rows, _ = store.rows(), store.codec
    except StoreError as error:
        return [*problems, str(error)]
    needed = {row.sha256 for row in rows.values() if row.sha256}
    for name in [*store.factors(), ERRORS]:
        problems += _verify_column(store, name, needed, left)
    return [*problems, *_promised(store, rows, problems)]


def _verify_column(
    store: Store, name: str, needed: set[str], left: Collection[Path]
) -> Iterator[str]:
    seen: dict[str, Path] = {}
    first: tuple[pa.Schema, Path] | None = None
    folder = store.shards_folder(name)
    check_no_link(folder)
    for path in sorted(set(folder.glob("*")).difference(left)):
        if not path.match(PATTERN):
            yield f"{path}: does not belong into a store; remove it"
            continue
        try:
            table = _sound_table(store, name, path)
        except StoreError as error:
            yield str(error)
            continue
        first = first or (table.schema, path)
        if not table.schema.equals(first[0], check_metadata=True):
            yield f"{path}: columns must be those of {first[1].name}, got {table.schema.names}"
        keys = table.column("sha256").to_pylist()
        twice = [key for key, n in Counter(keys).items() if n > 1 or key in seen]
        if twice:
            other = seen.get(twice[0], path)
            yield f"{path}: {len(twice)} keys occur twice, first {twice[0]}, also in {other}"
        seen.update(dict.fromkeys(keys, path))
        if needed.isdisjoint(keys):
            yield f"{path}: no image of the index needs it; the next `deepfish extract` drops it"


def _sound_table(store: Store, name: str, path: Path) -> pa.Table:
    """Return the rows of a shard after checking its bytes, columns and values."""
    with explained(StoreError, f"{path}: cannot be read", of=OSError):
        check_regular(path)
        found = checksum(path.read_bytes())
    if path.stem != f"shard-{found}":
        raise StoreError(
            f"{path}: damaged, its checksum is {found}; delete it and extract again"
        )
    table = read_table(path)
    with undamaged(path):
        table.validate(full=True)  # that keys are text, which Parquet only claims
    codec = store.codec
    expected = (
        ["sha256", "error"]
        if name == ERRORS
        else ["sha256", name, f"{name}_{codec.scale}"]
    )
    if table.column_names != expected:
        raise StoreError(
            f"{path}: columns must be {expected}, got {table.column_names}"
        )
    if name != ERRORS:
        codes, scale, _ = stored(path, name, codec)
        if not np.array_equal(codes, decoded(path)) or not np.isfinite(scale).all():
            raise StoreError(f"{path}: values are not as they were written")
    return table


def _promised(store: Store, rows: dict[str, Row], problems: list[str]) -> Iterator[str]:
    """Yield the features that the index names and that do not exist."""
    if problems:
        return  # a damaged shard is named already; its rows would be named again
    lacking: dict[str, list[str]] = {}
    for row in rows.values():
        for name in row.factors:
            if row.sha256 and row.sha256 not in store.shards(name):
                lacking.setdefault(name, []).append(row.id)
    for name, ids in lacking.items():
        what = f"{store.shards_folder(name)}: {name} of {len(ids)} images"
        yield f"{what} is missing, first {ids[0]}; extract again"
