"""Writing files so that a reader, or a crash, never sees half of one; and telling a changed one.

Also tables of records for a spreadsheet or a program, and what is known of a file at a public
address (`Remote`), which records of networks and of data sets have and `deepfishing.fetch` gets.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepfishing.errors import OptionError

SEAL = "seal"
# seconds between attempts to rename a file that is in use
WAITS = (0.01, 0.03, 0.1, 0.3, 1.0)
IN_USE = (5, 32, 33)  # Windows: access denied, sharing violation, lock violation
KINDS = (".csv", ".json")  # of files that records are written to
SEPARATOR = ";"  # of the labels of an image, where a cell is text
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path` that replaces it when the block ends without error.

    The name is random, so that no link can be there already.
    """
    partial = path.with_name(f".{path.name}.{secrets.randbits(63)}")
    try:
        yield partial
        rename_file(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def rename_file(old: Path, new: Path) -> None:
    """Rename a file, replacing `new`; on Windows wait a moment for programs that have it open."""
    for seconds in WAITS:
        try:
            old.replace(new)
            return
        except PermissionError as error:
            if not _is_in_use(error):
                raise
            time.sleep(seconds)
    old.replace(new)


def remove_file(path: Path) -> bool:
    """Delete a file if it exists; on Windows one that is open stays, and the answer is False."""
    try:
        path.unlink(missing_ok=True)
    except PermissionError as error:
        if not _is_in_use(error):
            raise
        return False
    return True


def _is_in_use(error: PermissionError) -> bool:
    """Whether Windows refuses because a program has the file open or mapped."""
    return getattr(error, "winerror", None) in IN_USE


def check_regular(path: Path, *, links: bool = False) -> os.stat_result:
    """Return the status of a regular file; a pipe, a device or a folder is an OSError.

    Check a file before opening it, since opening a pipe waits for a writer and a device may never
    end. A link is an OSError, too, unless `links` is true: stores and models come from anywhere,
    and a link in one of them could lead to any file of its user.
    """
    status = path.stat() if links else path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.EINVAL, "it is a link, not a regular file", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return status


def read_regular(path: Path, max_bytes: int, *, links: bool = False) -> bytes:
    """Return the bytes of a regular file of at most `max_bytes`; see `check_regular`."""
    status = check_regular(path, links=links)
    if status.st_size > max_bytes:
        reason = f"it has {status.st_size:,} bytes, more than {max_bytes:,}"
        raise OSError(errno.EFBIG, reason, str(path))
    with path.open("rb") as file:
        return file.read(status.st_size)


def guarded(text: str) -> str:
    """Return text for a .csv cell, with an apostrophe where a spreadsheet would see a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def unguarded(text: str) -> str:
    """Return the text that was given to `guarded`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def check_out(path: Path | None, kinds: Sequence[str] = KINDS) -> None:
    """Refuse a file of another kind, or one that cannot be made, before any work."""
    if path is not None and path.suffix.lower() not in kinds:
        raise OptionError(f"--out must end in {' or '.join(kinds)}, got {path}")
    if path is not None and not path.parent.is_dir():
        raise OptionError(
            f"--out must be in a folder that exists, got {path}; make it first"
        )
    if path is not None and not os.access(path.parent, os.W_OK):
        raise OptionError(
            f"--out must be in a folder that can be written to, got {path}; choose another"
        )


def write_records(
    path: Path | None, records: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> None:
    """Write records with these columns, if a path is given; an older file is replaced at once."""
    if path is None:
        return
    check_out(path)
    if path.suffix.lower() == ".json":
        text = json.dumps(
            [{name: one[name] for name in columns} for one in records], indent=1
        )
    else:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(one[name]) for name in columns] for one in records)
        text = lines.getvalue()
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple):
        value = SEPARATOR.join(map(str, value))
    return guarded(value) if isinstance(value, str) else "" if value is None else value


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Add a hash of the facts themselves, by which a changed JSON file is detected."""
    return {**facts, SEAL: _hash(facts)}


def is_intact(facts: Mapping[str, Any]) -> bool:
    """Whether facts are unchanged since they were sealed; those without a seal count as unchanged.

    A single flipped bit cannot take the seal away and change something else too.
    """
    return SEAL not in facts or facts[SEAL] == _hash(facts)


def _hash(facts: Mapping[str, Any]) -> str:
    """Of the values alone: the seal, spaces and the order of names do not matter."""
    as_read = json.loads(json.dumps({k: v for k, v in facts.items() if k != SEAL}))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Remote:
    """One file at a public address.

    `digest` is "algorithm:hex digits", of a sha256 the first few are enough. `size` is in bytes, 0
    where it is not known for sure; `megabytes` is known of every file, rounded, at least 1. `inner`
    are archives that an archive holds, to be unpacked where they are.
    """

    url: str
    digest: str
    size: int = 0
    megabytes: int = 0
    inner: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Name on disk."""
        return self.url.rpartition("/")[2]

    @property
    def most(self) -> int:
        """Bytes above which a download cannot be the file: its size, or a tenth more than MB."""
        return self.size or self.megabytes * 1_100_000
