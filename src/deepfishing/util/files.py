"""Reading, writing and checking files.

Files are replaced as a whole, so that a crash leaves no half of one; JSON files can be sealed, so
that a change is detected. Also tables of records as .csv or .json, and the record of a file at a
public address (`Remote`), which `deepfishing.fetch` downloads.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepfishing.errors import OptionError

SEAL = "seal"
# seconds between attempts to rename a file that is in use
RETRY_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0)
# Windows: access denied, sharing violation, lock violation
IN_USE_ERRORS = (5, 32, 33)
TABLE_FORMATS = (".csv", ".json")  # of `write_records`
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
    for seconds in RETRY_SECONDS:
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
    """Return whether Windows refuses since a program has the file open or mapped."""
    return getattr(error, "winerror", None) in IN_USE_ERRORS


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


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def guarded(text: str) -> str:
    """Return text for a .csv cell, with an apostrophe where a spreadsheet would see a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def unguarded(text: str) -> str:
    """Return the text that was given to `guarded`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def check_out(
    path: Path | None, kinds: Sequence[str] = TABLE_FORMATS, what: str = "--out"
) -> None:
    """Refuse a file of another kind, or one that cannot be made, before any work."""
    if path is not None and path.suffix.lower() not in kinds:
        raise OptionError(f"{what} must end in {' or '.join(kinds)}, got {path}")
    if path is not None and not path.parent.is_dir():
        raise OptionError(
            f"{what} must be in a folder that exists, got {path}; make it first"
        )
    if path is not None and not os.access(path.parent, os.W_OK):
        raise OptionError(
            f"{what} must be in a folder that can be written to, got {path}; choose another"
        )


def check_folder(path: Path | None, what: str) -> None:
    """Refuse a folder that cannot be made or written to, before any work."""
    if path is None:
        return
    nearest = path.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise OptionError(
            f"{what} must be a folder that can be written to, got {path}; choose another"
        )


def write_records(
    path: Path | None, records: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> None:
    """Write records with these columns, if a path is given; an older file is replaced at once."""
    if path is None:
        return
    check_out(path)
    if path.suffix.lower() == ".json":
        documents = []
        for record in records:
            documents.append({name: record[name] for name in columns})
        text = json.dumps(documents, indent=1)
    else:
        text = csv_text(records, columns)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def csv_text(records: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return records as the text of a .csv file, with a line of column names."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([_cell(record[name]) for name in columns])
    return lines.getvalue()


def _cell(value: Any) -> Any:
    """Return a value for a cell: labels with `;` between them, and text that is no formula."""
    if isinstance(value, list | tuple):
        value = SEPARATOR.join(map(str, value))
    if isinstance(value, str):
        return guarded(value)
    return "" if value is None else value


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Add a hash of the facts themselves, by which a changed JSON file is detected."""
    return {**facts, SEAL: _hash(facts)}


def is_intact(facts: Mapping[str, Any]) -> bool:
    """Return whether facts are unchanged since they were sealed; without a seal, True.

    A single flipped bit cannot take the seal away and change something else too.
    """
    return SEAL not in facts or facts[SEAL] == _hash(facts)


def _hash(facts: Mapping[str, Any]) -> str:
    """Return a hash of the values; the seal, spaces and the order of names do not matter."""
    unsealed = {name: value for name, value in facts.items() if name != SEAL}
    as_read = json.loads(json.dumps(unsealed))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Remote:
    """One file at a public address.

    `digest` is "algorithm:hex digits"; the first digits of a sha256 are enough. `size` is in bytes,
    0 if it is not known exactly; `megabytes` is known for every file, rounded, at least 1. `inner`
    are archives inside an archive, to be unpacked in place.
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
