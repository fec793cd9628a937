"""Summary of a store for `deepfish store info`, and the checks of `deepfish store verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deepfishing.errors import StoreError, reraise_as
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
    files = [path for path in store.folder.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    labels: set[str] = set()
    for row in store.labelled_rows():
        labels.update(row.labels or ())
    return {
        "store": str(store.folder),
        **read_manifest(store.folder),
        "images": len(rows),
        "contents": len({row.sha256 for row in rows.values() if row.sha256}),
        **{name: status[name] for name in (OK, ERROR, PENDING)},
        "labels": len(labels),
        "factors": factors,
        "bytes": total,
        "bytes_per_image": round(total / max(len(rows), 1)),
        "failures": {row.id: row.error for row in rows.values() if row.status == ERROR},
    }


def verify(store: Store) -> list[str]:
    """Return the problems of a store, one line each.

    Checked are the checksum, schema and values of every shard, the index, keys that occur twice,
    shards that no image needs, features that the index lists, and temporary files of a crash.
    """
    temporary = [*leftovers(store.folder), *store.folder.glob(JOURNALS)]
    problems = []
    for path in temporary:
        problems.append(
            f"{path}: left over from a run that was killed; the next `deepfish extract` removes it"
        )
    try:
        rows = store.rows()
    except StoreError as error:
        return [*problems, str(error)]
    needed = {row.sha256 for row in rows.values() if row.sha256}
    for name in [*store.factors(), ERRORS]:
        problems += _verify_column(store, name, needed, temporary)
    if not problems:
        # else the rows of a damaged shard would be listed again
        problems += _missing_features(store, rows)
    return problems


def _verify_column(
    store: Store, name: str, needed: set[str], temporary: Collection[Path]
) -> Iterator[str]:
    """Yield the problems of the shards of a factor, or of the errors."""
    seen: dict[str, Path] = {}
    first: tuple[pa.Schema, Path] | None = None
    folder = store.shards_folder(name)
    check_no_link(folder)
    for path in sorted(set(folder.glob("*")).difference(temporary)):
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
        repeated = [key for key, n in Counter(keys).items() if n > 1 or key in seen]
        if repeated:
            other = seen.get(repeated[0], path)
            yield f"{path}: {len(repeated)} keys occur twice, first {repeated[0]}, also in {other}"
        seen.update(dict.fromkeys(keys, path))
        if needed.isdisjoint(keys):
            yield f"{path}: no image of the index needs it; the next `deepfish extract` drops it"


def _sound_table(store: Store, name: str, path: Path) -> pa.Table:
    """Return the rows of a shard after checking its bytes, columns and values."""
    with reraise_as(StoreError, f"{path}: cannot be read", of=OSError):
        check_regular(path)
        digits = checksum(path.read_bytes())
    if path.stem != f"shard-{digits}":
        raise StoreError(
            f"{path}: damaged, its checksum is {digits}; delete it and extract again"
        )
    table = read_table(path)
    with undamaged(path):
        table.validate(full=True)  # also that keys are UTF-8, which pyarrow assumes
    codec = store.codec
    expected = ["sha256", name, f"{name}_{codec.scale}"]
    if name == ERRORS:
        expected = ["sha256", "error"]
    if table.column_names != expected:
        raise StoreError(
            f"{path}: columns must be {expected}, got {table.column_names}"
        )
    if name != ERRORS:
        codes, scale, _ = stored(path, name, codec)
        if not np.array_equal(codes, decoded(path)) or not np.isfinite(scale).all():
            raise StoreError(f"{path}: values are not as they were written")
    return table


def _missing_features(store: Store, rows: dict[str, Row]) -> Iterator[str]:
    """Yield the features that the index lists and that do not exist."""
    lacking: dict[str, list[str]] = {}
    for row in rows.values():
        for name in row.factors:
            if row.sha256 and row.sha256 not in store.shards(name):
                lacking.setdefault(name, []).append(row.id)
    for name, ids in lacking.items():
        what = f"{store.shards_folder(name)}: {name} of {len(ids)} images"
        yield f"{what} is missing, first {ids[0]}; extract again"
