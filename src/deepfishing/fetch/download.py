"""Before stage 1, fetching: one file, whole and verified or not there at all.

Comes in: a `Remote` and where it goes. Goes out: the file. What has come is kept beside it in
`<file>.part`, with `<file>.part.json` saying which version of the file it is the beginning of;
a later attempt, in this run or the next, goes on from there if the server still has that version.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepfishing.errors import FetchError
from deepfishing.fetch.answer import DroppedError, StartOverError, UnreachableError, ask
from deepfishing.files import Remote, replacing
from deepfishing.progress import Progress

# what is worked on, how many bytes are done and how many there are (0 if nobody knows)

_ENOUGH = 1 << 20  # bytes that make an attempt count as progress, however it ended


@dataclass(frozen=True)
class Patience:
    """How long to go on with a bad connection."""

    timeout: float = 30.0  # seconds of silence after which an attempt is given up
    attempts: int = 5  # without progress in a row
    pause: float = 1.0  # seconds before the second attempt; then twice as long, at most 30


def download(remote: Remote, target: Path, progress: Progress, patience: Patience) -> bool:
    """Get a file, unless it exists; either way it is checked. True if it was downloaded now."""
    with disk_errors(target):
        if target.exists():
            if wrong := _difference(target, remote):
                aside = target.with_name(f"{target.name}.wrong")
                target.replace(aside)
                raise FetchError(
                    f"{target} {wrong}; it was set aside as {aside.name}, run it again to download"
                )
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        part = _Part(target)
        _receive(remote, part, progress, patience)
        if wrong := _difference(part.path, remote):
            part.clear()
            raise UnreachableError(f"what {remote.url} gave {wrong}; it was removed")
        part.path.replace(target)
        part.clear()
        return True


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into one line."""
    try:
        yield
    except FetchError:
        raise
    except OSError as error:
        place = error.filename or path
        raise FetchError(
            f"{place} cannot be read or written: {error.strerror or error}; what has come so far "
            "is kept, put this right and run it again"
        ) from None


class _Part:
    """The bytes that have come so far, and of which version of the file they are."""

    def __init__(self, target: Path):
        self.path = target.with_name(f"{target.name}.part")
        self.note = target.with_name(f"{target.name}.part.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def version(self) -> dict[str, Any]:
        """As `begin` wrote it; {} if there is none to go on from."""
        try:
            found = json.loads(self.note.read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def begin(self, version: dict[str, Any]) -> None:
        self.clear()
        with replacing(self.note) as partial:
            partial.write_text(json.dumps(version))

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def _receive(remote: Remote, part: _Part, progress: Progress, patience: Patience) -> None:
    """Bring the part to its full length, over as many attempts as it takes."""
    at_first = most = part.size
    failures = 0
    while True:
        try:
            _attempt(remote, part, progress, patience.timeout)
            return
        except DroppedError as error:
            if isinstance(error, StartOverError):
                part.clear()
            # a failure to connect passes by itself only where a connection stood before
            if not error.connected and part.size <= at_first:
                raise UnreachableError(f"{remote.url} cannot be reached ({error})") from None
            # progress is more than there ever was, so that a server that always begins anew
            # and always breaks off comes to an end
            failures = 1 if part.size >= most + _ENOUGH else failures + 1
            most = max(most, part.size)
            if failures >= patience.attempts:
                raise UnreachableError(
                    f"{remote.url} broke off {failures} times in a row, last at byte {part.size} "
                    f"({error}); {part.path} is kept, and a later run goes on from there"
                ) from None
            time.sleep(min(patience.pause * 2 ** (failures - 1), 30.0))


def _attempt(remote: Remote, part: _Part, progress: Progress, timeout: float) -> None:
    known = part.version()
    # without a mark of its version nobody can say that the rest belongs to the same file
    resumable = known.get("url") == remote.url and (known.get("etag") or known.get("modified"))
    offset = part.size if resumable else 0
    if offset and offset == known.get("total"):
        return
    with ask(remote.url, offset, timeout) as answer:
        total, done = answer.total, answer.start
        if total is not None and (total > remote.most or remote.size not in (0, total)):
            expected = remote.size or f"about {remote.megabytes} million"
            raise UnreachableError(
                f"{remote.url} must give {expected} bytes, the server announces {total}"
            )
        if answer.start == 0:
            part.begin(answer.version)
        elif answer.version != known:
            raise StartOverError("the file on the server has changed")
        most = remote.most if total is None else total
        with part.path.open("ab") as file:
            while chunk := answer.read():
                done += len(chunk)
                if done > most:
                    part.clear()
                    raise UnreachableError(f"{remote.url} must give at most {most} bytes, got more")
                file.write(chunk)
                progress(remote.file, done, total or remote.size)
    if total is not None and done < total:
        raise DroppedError(f"the connection ended after {done} of {total} bytes")


def _difference(path: Path, remote: Remote) -> str:
    """What tells a file from the published one; empty if nothing does."""
    size = path.stat().st_size if path.is_file() else 0
    if remote.size and size != remote.size:
        return f"must have {remote.size} bytes, got {size}"
    algorithm, _, digits = remote.digest.partition(":")
    with path.open("rb") as file:
        # an integrity check as published, not a protection from forgery
        got = hashlib.file_digest(
            file, lambda: hashlib.new(algorithm, usedforsecurity=False)
        ).hexdigest()
    return "" if got.startswith(digits) else f"must have the {algorithm} {digits}, got {got}"
