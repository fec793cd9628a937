"""Features on disk: a folder of Parquet files whose rows are keyed by the content of an image.

Comes in: tables with a `sha256` column. Goes out: files `shard-<checksum>.parquet`, and where each
key's row is. A shard never changes, and its name carries the first digits of its own SHA-256, so
that a flipped bit anywhere in it is found before a number of it is used.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, KeysView
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deepfishing.errors import StoreError
from deepfishing.features import is_projected
from deepfishing.rank_one import Array
from deepfishing.store.journal import Journal
from deepfishing.two_sided import SCHEME

PATTERN = "shard-*.parquet"
DIGITS = 16  # of the checksum: 64 bits

# a shard of another writer has a name of its own, which says nothing of its content
_NAMED = re.compile(rf"shard-[0-9a-f]{{{DIGITS}}}")

# Every column of a shard is one uncompressed page, so its values lie side by side in the file
# and can be used where they are (`columns.stored`). A page cannot hold 2 GB.
MAX_ROWS, MAX_BYTES = 4096, 1 << 28
ONE_PAGE = {b"pages": b"one a column"}

# A shard of a projected factor says how the projection was drawn.
PROJECTED = {b"projection": str(SCHEME).encode()}


class Shards:
    """A folder of shards; absent is as good as empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []
        self._starts: list[int] = []  # number of each file's first row
        self._rows: dict[str, int] = {}
        self._count = 0
        for path in sorted(folder.glob(PATTERN)):
            self._index(path, read_keys(path).to_pylist())

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self) -> KeysView[str]:
        """The keys that have a row."""
        return self._rows.keys()

    def add(self, table: pa.Table, journal: Journal) -> None:
        """Have a table written as one shard; its keys must be new."""
        keys = table.column("sha256").to_pylist()
        self._index(write_shard(self.folder, table, journal), keys)

    def find(self, keys: Iterable[str]) -> tuple[Array, Array]:
        """Where the keys are: the number of each one's file, and its row there."""
        rows = np.fromiter((self._rows[key] for key in keys), dtype=np.int64)
        starts = np.array(self._starts, dtype=np.int64)
        shard = np.searchsorted(starts, rows, side="right") - 1
        return shard, rows - starts[shard]

    def compact(self, keep: Collection[str], journal: Journal) -> None:
        """Have the rows of all other keys dropped; open the folder again after that."""
        for path in self.files:
            keys = read_keys(path).to_pylist()
            rows = [row for row, key in enumerate(keys) if key in keep]
            if len(rows) < len(keys):
                check_shards([path])  # or a damaged row would get a new checksum
                if rows:
                    write_shard(self.folder, read_table(path).take(rows), journal)
                journal.remove(path)

    def _index(self, path: Path, keys: list[str]) -> None:
        self.files.append(path)
        self._starts.append(self._count)
        self._rows.update(zip(keys, range(self._count, self._count + len(keys)), strict=True))
        self._count += len(keys)


def write_shard(folder: Path, table: pa.Table, journal: Journal) -> Path:
    """Have a table written as one file, whatever else is in the folder."""
    sink = pa.BufferOutputStream()
    about = {**ONE_PAGE, **(PROJECTED if is_projected(folder.name) else {})}
    pq.write_table(
        table.replace_schema_metadata(about),
        sink,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        data_page_size=2 * MAX_BYTES,
    )
    content = sink.getvalue()
    path = folder / f"shard-{checksum(content)}.parquet"
    journal.write(path, content)
    return path


def checksum(content: Any) -> str:
    """The digits that a shard's name carries."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def check_shards(files: Iterable[Path]) -> None:
    """Raise the error for a shard whose content is not the one that its name says."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # hashing lets other threads run
        list(pool.map(check_shard, dict.fromkeys(files)))


def check_shard(path: Path) -> None:
    """The same for one shard; a process looks at a file once, as long as it stays the same."""
    if not _NAMED.fullmatch(path.stem):
        return
    try:
        stat = path.stat()
        found = _digits(path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    except OSError as error:
        raise damaged(path, error) from None
    if path.stem != f"shard-{found}":
        raise damaged(path, ValueError(f"its checksum is {found}"))


@lru_cache(maxsize=1 << 16)
def _digits(path: Path, *same: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """All rows of a shard."""
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            return file.read(columns=columns, use_threads=False)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> StoreError:
    """The error for a shard that cannot be read."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return StoreError(f"shard is damaged: {path} ({reason}); delete it to compute it again")


def read_keys(path: Path) -> pa.Array:
    """The keys of all rows of a shard, whose numbers may stand beside new ones."""
    table = read_table(path, ["sha256"])
    texts = [pa.string()], [pa.large_string()]  # the second of another writer
    if table.schema.names != ["sha256"] or table.schema.types not in texts:
        raise damaged(path, ValueError("it must have a column sha256 of text"))
    check_projection(path, table.schema)
    return table.column(0).combine_chunks().cast(pa.string())


def check_projection(path: Path, schema: pa.Schema) -> None:
    """Refuse a shard that was projected by matrices that are no longer drawn."""
    found = schema.metadata or {}
    if is_projected(path.parent.name) and not PROJECTED.items() <= found.items():
        raise StoreError(
            f"{path.parent} was projected by an earlier version, with matrices that cannot stand "
            "beside today's; delete this folder and run `deepfish extract` again"
        )
