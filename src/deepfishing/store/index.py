"""Features on disk: which images there are, one row per id, in `index.parquet`.

Comes in and goes out: rows. A row says where an image was seen, what its content is (the key of
its features), its labels, and whether its features exist. Two ids may share a content.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from deepfishing.errors import StoreError, one_line
from deepfishing.files import replacing

INDEX = "index.parquet"
OK, ERROR, PENDING = "ok", "error", "pending"

_STRINGS = pa.list_(pa.string())
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("path", pa.string()),
        ("sha256", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),  # the stamp; stores of the first version call it so
        ("labels", _STRINGS),
        ("status", pa.string()),
        ("error", pa.string()),
        ("factors", _STRINGS),
    ]
)


@dataclass(frozen=True)
class Row:
    """One image of a store: its path where it was seen last, and what its file and features are.

    `sha256` is None, and `size` and `stamp` (see `Item.signature`) are -1, of a file that could not
    be read; `labels` are None where nothing is known, () where there are none. Pending rows are
    only found in a store whose extraction did not end.
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


def write_index(folder: Path, rows: Iterable[Row]) -> None:
    """Replace the index by these rows, sorted by id."""
    rows = sorted(rows, key=lambda row: row.id)
    columns = [[getattr(row, field.name) for row in rows] for field in fields(Row)]
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    path = folder / INDEX
    try:
        with replacing(path) as partial:
            pq.write_table(pa.table(arrays, schema=SCHEMA), partial, write_page_checksum=True)
    except OSError as error:
        raise StoreError(
            f"index cannot be written: {path} ({error}); the features that are in the store stay, "
            "run the command again to go on"
        ) from None


def read_index(folder: Path) -> dict[str, Row]:
    """All rows by id; none if there is no index yet."""
    path = folder / INDEX
    if not path.exists():
        return {}
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        table.validate(full=True)  # that text is UTF-8, which Parquet only claims
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise _damaged(path, one_line(error)) from None
    if table.schema.remove_metadata() != SCHEMA:
        raise _damaged(path, f"columns must be {SCHEMA.names}, got {table.column_names}")
    for name in ("id", "path", "status", "factors"):
        if table.column(name).null_count:
            raise _damaged(path, f"every row must have {name}, got one without")
    columns = [column.to_pylist() for column in table.columns]
    for number, field in enumerate(SCHEMA):
        if field.type == _STRINGS:
            columns[number] = [None if v is None else tuple(v) for v in columns[number]]
    return {values[0]: Row(*values) for values in zip(*columns, strict=True)}


def count_rows(folder: Path) -> int:
    """How many images the index names, without reading them; 0 if that cannot be found out."""
    try:
        return int(pq.read_metadata(folder / INDEX).num_rows)
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return 0  # whoever reads it says what is wrong


def _damaged(path: Path, reason: str) -> StoreError:
    return StoreError(
        f"index is damaged: {path} ({reason}); delete it and run `deepfish extract` for the same "
        "images again, their features are still there"
    )
