"""Manifest and index of a store.

`store.json` contains the settings of the features; it never changes, except for the paths of the
network's files. `index.parquet` has one row per image: its path, the hash of its content (the key
of its features), its labels, and whether its features exist. Two ids may share a content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from deepfishing import __version__
from deepfishing.errors import StoreError, reraise_as
from deepfishing.util.files import (
    check_regular,
    is_intact,
    read_regular,
    replacing,
    sealed,
)
from deepfishing.util.locks import hold_lock

MANIFEST = "store.json"
MAX_MANIFEST_BYTES = 64 * 2**20
FORMAT = 2
LOCK = ".lock"
SOURCE = "source"  # the setting that changes no number: the network's files

INDEX = "index.parquet"
OK, ERROR, PENDING = "ok", "error", "pending"

_STRINGS = pa.list_(pa.string())
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("path", pa.string()),
        ("sha256", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),  # `Row.stamp`; the name is that of the first version
        ("labels", _STRINGS),
        ("status", pa.string()),
        ("error", pa.string()),
        ("factors", _STRINGS),
    ]
)


@dataclass(frozen=True)
class Row:
    """One image of a store: its last known path, and the state of its file and features.

    If the file could not be read, `sha256` is None, and `size` and `stamp` (see `Item.signature`)
    are -1. `labels` are None for an image without labels, () for one that shows none of the
    classes. Rows are pending only in a store whose extraction was interrupted.
    """

    id: str
    path: str
    sha256: str | None = None
    size: int = -1
    stamp: int = -1
    labels: tuple[str, ...] | None = None
    status: str = PENDING
    error: str | None = None
    factors: tuple[str, ...] = ()


def find_store(folder: Path) -> Path:
    """Return the folder itself, or the one store that `deepfish reproduce` left in it."""
    if (folder / MANIFEST).exists():
        return folder
    inside = sorted(path.parent for path in folder.glob(f"features/*/{MANIFEST}"))
    if len(inside) > 1:
        raise StoreError(
            f"results must hold one store, got {len(inside)} in {folder}; choose one: "
            f"{', '.join(map(str, inside))}"
        )
    return inside[0] if inside else folder


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read `store.json`: format, version, created, settings."""
    path = folder / MANIFEST
    try:
        facts = json.loads(read_regular(path, MAX_MANIFEST_BYTES))
        if not isinstance(facts["settings"], dict) or "format" not in facts:
            raise TypeError
    except (FileNotFoundError, NotADirectoryError):
        kind = ", which is a file" if folder.is_file() else ""
        there = kind if folder.exists() else ", which does not exist"
        raise StoreError(
            f"a store must hold {MANIFEST}, got none in {folder}{there}; make one with "
            "`deepfish extract PHOTOS STORE`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise StoreError(
            f"store manifest cannot be read: {path}; choose another folder"
        ) from None
    if not is_intact(facts):
        raise StoreError(
            f"store manifest is damaged: {path} (it is not as it was written); put a copy of it "
            "back, or choose another folder"
        )
    return dict(facts)


def new_manifest(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write a manifest, unless another process that makes the same store has written one."""
    with hold_lock(folder / LOCK):
        if not (folder / MANIFEST).exists():
            created = datetime.now(UTC).isoformat(timespec="seconds")
            facts = {"format": FORMAT, "version": __version__, "created": created}
            _write(folder, {**facts, "settings": settings})


def keep_source(folder: Path, source: Any) -> None:
    """Write the current paths of the network's files."""
    facts = read_manifest(folder)
    if source is not None and source != facts["settings"].get(SOURCE):
        _write(folder, {**facts, "settings": {**facts["settings"], SOURCE: source}})


def _write(folder: Path, facts: Mapping[str, Any]) -> None:
    with replacing(folder / MANIFEST) as partial:
        text = json.dumps(sealed(facts), indent=1, sort_keys=True) + "\n"
        partial.write_text(text, encoding="utf-8")


def agree_on_settings(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the manifest; refuse others, in what determines a number."""
    facts = read_manifest(folder)
    stored = {"format": facts["format"], **facts["settings"]}
    for name, value in {"format": FORMAT, **settings}.items():
        if name != SOURCE and json.loads(json.dumps(value)) != stored.get(name):
            raise StoreError(
                f"store {folder} was made with {name} = {stored.get(name)!r}, now it is "
                f"{value!r}; choose another folder or the same {name}"
            )
    return stored


def write_index(folder: Path, rows: Iterable[Row]) -> None:
    """Replace the index by these rows, sorted by id."""
    rows = sorted(rows, key=lambda row: row.id)
    columns = [[getattr(row, field.name) for row in rows] for field in fields(Row)]
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    path = folder / INDEX
    do = "; the features that are in the store stay, run the command again to go on"
    cannot = reraise_as(StoreError, f"index cannot be written: {path}", do, OSError)
    with cannot, replacing(path) as partial:
        pq.write_table(
            pa.table(arrays, schema=SCHEMA), partial, write_page_checksum=True
        )


def read_index(folder: Path) -> dict[str, Row]:
    """Return all rows by id; none if there is no index yet."""
    path = folder / INDEX
    if not path.exists() and not path.is_symlink():
        return {}
    do = (
        "; delete it and run `deepfish extract` for the same images again, their features are "
        "still there"
    )
    of = (OSError, pa.ArrowException, ValueError)
    with reraise_as(StoreError, f"index is damaged: {path}", do, of):
        check_regular(path)
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        table.validate(full=True)  # also that text is UTF-8, which pyarrow assumes
        if table.schema.remove_metadata() != SCHEMA:
            raise ValueError(
                f"columns must be {SCHEMA.names}, got {table.column_names}"
            )
        for name in ("id", "path", "status", "factors"):
            if table.column(name).null_count:
                raise ValueError(f"every row must have {name}, got one without")
    columns = []
    for field in SCHEMA:
        cells = table.column(field.name).to_pylist()
        if field.type == _STRINGS:
            cells = [None if cell is None else tuple(cell) for cell in cells]
        columns.append(cells)
    return {cells[0]: Row(*cells) for cells in zip(*columns, strict=True)}


def count_rows(folder: Path) -> int:
    """Return the number of images without reading the index; 0 if it cannot be read."""
    try:
        check_regular(folder / INDEX)
        return int(pq.read_metadata(folder / INDEX).num_rows)
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return 0  # reading it reports what is wrong
