"""Features on disk: whether a shard is still what was written.

Comes in: shards that are about to be used. Goes out: nothing, or the error that names the damaged
one. The name of a shard carries the first digits of its SHA-256, so a flipped bit anywhere in it is
found before a number of it is used. A process looks at a file once, as long as it stays the same.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from deepfishing.store.shards import DIGITS, damaged

# a shard of another writer has a name of its own, which says nothing of its content
_NAMED = re.compile(rf"shard-[0-9a-f]{{{DIGITS}}}")


def check_shards(files: Iterable[Path]) -> None:
    """Raise the error for a shard whose content is not the one that its name says.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shard = Path(folder, "shard-0123456789abcdef.parquet")
    ...     _ = shard.write_bytes(b"rows")
    ...     check_shards([shard])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    deepfishing.errors.StoreError: shard is damaged: ...
    """
    named = [path for path in dict.fromkeys(files) if _NAMED.fullmatch(path.stem)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # hashing lets other threads run
        list(pool.map(_check, named))


def _check(path: Path) -> None:
    try:
        stat = path.stat()
        found = _digits(path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    except OSError as error:
        raise damaged(path, error) from None
    if path.stem.removeprefix("shard-") != found:
        raise damaged(path, ValueError(f"its checksum is {found}"))


@lru_cache(maxsize=1 << 16)
def _digits(path: Path, *same: int) -> str:
    """Checksum of a file's content, once for each state that the file is in."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
