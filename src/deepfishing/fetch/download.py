"""Download of one file, verified before it gets its name.

Received bytes are kept in `<file>.part`, and `<file>.part.json` names the version they belong to. A
later attempt, in this run or the next, continues there if the server still has that version.
`ask` sends one request; a useless answer is one of three errors: `DroppedError` (try again),
`StartOverError` (the received bytes do not match the server's version) and `UnreachableError`
(trying again is useless).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from deepfishing.errors import FetchError
from deepfishing.util.files import Remote, replacing
from deepfishing.util.progress import Progress

_ENOUGH = 1 << 20  # bytes that make an attempt count as progress, however it ended
_REDIRECTS = 10
# statuses that may be gone on the next attempt
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Patience:
    """Limits for retrying on a bad connection."""

    timeout: float = 30.0  # seconds of silence after which an attempt is given up
    attempts: int = 5  # without progress in a row
    # seconds before the second attempt; then twice as long, at most 30
    pause: float = 1.0


class UnreachableError(FetchError):
    """The address does not have the file."""


class DroppedError(Exception):
    """An attempt that failed for a reason that may pass; `connected` if a server was reached."""

    def __init__(self, reason: str, connected: bool = True):
        super().__init__(reason)
        self.connected = connected


class StartOverError(DroppedError):
    """The bytes that were received are not the beginning of what the server now has."""


@dataclass(frozen=True)
class Answer:
    """A server's answer to a request for a file."""

    body: http.client.HTTPResponse  # the bytes from `start` on
    start: int  # what was asked for, or 0
    total: int | None  # length of the whole file, if the server says so
    # JSON values; a later answer about the same file has the same
    version: dict[str, Any]

    def read(self) -> bytes:
        """Return the next bytes, as soon as there are some; b"" at the end of the body."""
        try:
            return self.body.read1(_CHUNK)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DroppedError(_reason(error)) from None


def download(
    remote: Remote, target: Path, progress: Progress, patience: Patience
) -> bool:
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
    """The bytes that were received, and the version of the file that they are of."""

    def __init__(self, target: Path):
        self.path = target.with_name(f"{target.name}.part")
        self.note = target.with_name(f"{target.name}.part.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def version(self) -> dict[str, Any]:
        """As the first answer had it; {} if there is none to go on from."""
        try:
            found = json.loads(self.note.read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def _receive(
    remote: Remote, part: _Part, progress: Progress, patience: Patience
) -> None:
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
                raise UnreachableError(
                    f"{remote.url} cannot be reached ({error})"
                ) from None
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
    # without a mark of its version the rest may belong to another file
    resumable = known.get("url") == remote.url and (
        known.get("etag") or known.get("modified")
    )
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
            part.clear()
            with replacing(part.note) as note:
                note.write_text(json.dumps(answer.version), encoding="utf-8")
        elif answer.version != known:
            raise StartOverError("the file on the server has changed")
        most = remote.most if total is None else total
        with part.path.open("ab") as file:
            while chunk := answer.read():
                done += len(chunk)
                if done > most:
                    part.clear()
                    raise UnreachableError(
                        f"{remote.url} must give at most {most} bytes, got more"
                    )
                file.write(chunk)
                progress(remote.file, done, total or remote.size)
    if total is not None and done < total:
        raise DroppedError(f"the connection ended after {done} of {total} bytes")


def _difference(path: Path, remote: Remote) -> str:
    """Return the difference between a file and the published one, or ""."""
    size = path.stat().st_size if path.is_file() else 0
    if remote.size and size != remote.size:
        return f"must have {remote.size} bytes, got {size}"
    algorithm, _, digits = remote.digest.partition(":")
    with path.open("rb") as file:  # an integrity check, not a protection from forgery
        kind = partial(hashlib.new, algorithm, usedforsecurity=False)
        got = hashlib.file_digest(file, kind).hexdigest()
    return (
        ""
        if got.startswith(digits)
        else f"must have the {algorithm} {digits}, got {got}"
    )


@contextmanager
def ask(url: str, offset: int, timeout: float) -> Iterator[Answer]:
    """Ask for a file from byte `offset` on; after `timeout` seconds of silence it is dropped."""
    with _open(url, offset, timeout) as response:
        headers = response.headers
        kind = headers.get_content_type()
        if kind in ("text/html", "application/xhtml+xml"):
            raise UnreachableError(f"{url} must give a file, got a web page ({kind})")
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise UnreachableError(
                f"{url} must give the file as it is, got a compressed answer"
            )
        start, total = 0, response.length
        if response.status == 206 and offset:
            numbers = r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})"
            span = re.fullmatch(numbers, headers.get("Content-Range", ""))
            start, last, total = map(int, span.groups()) if span else (0, 0, 0)
            if start != offset or last != total - 1:
                raise StartOverError(
                    "the server sent another part of the file than was asked for"
                )
        elif response.status != 200:
            raise UnreachableError(
                f"{url} must answer 200 OK, got {_status(response.status)}"
            )
        marks = {
            "etag": headers.get("ETag", ""),
            "modified": headers.get("Last-Modified", ""),
        }
        yield Answer(response, start, total, {"url": url, **marks, "total": total})


def _open(url: str, offset: int, timeout: float) -> http.client.HTTPResponse:
    here = url
    for _ in range(_REDIRECTS + 1):
        found = _open_once(here, offset, timeout)
        if not isinstance(found, str):
            return found
        # a redirect is followed here and not by urllib, which reads all that comes with it
        found = quote(found, safe="%/:=&?~#+!$,;'@()*[]")
        try:
            there = urljoin(here, found)
            schemes = urlsplit(here).scheme, urlsplit(there).scheme
        except ValueError:
            raise UnreachableError(
                f"{url} redirects to {found}, which is no address"
            ) from None
        if schemes[1] not in ("http", "https") or schemes == ("https", "http"):
            raise UnreachableError(
                f"{url} must redirect to http or stay with https, got {there}"
            )
        here = there
    raise UnreachableError(
        f"{url} redirects in a loop, or more than {_REDIRECTS} times"
    )


def _open_once(url: str, offset: int, timeout: float) -> http.client.HTTPResponse | str:
    """Return the response, or the address of a redirect."""
    # identity: a compressed answer would have another length and other ranges than the file
    headers = {"User-Agent": "deepfishing", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    # nothing but http and https, through a proxy if set
    opener = urllib.request.OpenerDirector()
    for kind in ("Proxy", "HTTP", "HTTPS", "HTTPDefaultError", "Unknown"):
        opener.add_handler(getattr(urllib.request, f"{kind}Handler")())
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310, see the handlers
        response: http.client.HTTPResponse = opener.open(request, timeout=timeout)
        return response
    except urllib.error.HTTPError as error:
        with error:
            location = error.headers.get("Location", "")
        if error.code in (301, 302, 303, 307, 308) and location:
            return location
        status = _status(error.code)
        if error.code == 416:
            raise StartOverError(f"the server answered {status}") from None
        if error.code in _PASSING:
            raise DroppedError(f"the server answered {status}") from None
        raise UnreachableError(f"{url} answered {status}") from None
    except urllib.error.URLError as error:
        reason = error.reason if isinstance(error.reason, Exception) else error
        raise DroppedError(_reason(reason), connected=False) from None
    except OSError as error:  # after the connection stood: silence, or a reset
        raise DroppedError(_reason(error)) from None
    except (http.client.InvalidURL, ValueError):
        # not in the error's own words, which repeat the proxy's address with its password
        raise UnreachableError(
            f"{url} cannot be asked: it, or the proxy in http_proxy or https_proxy, is no address"
        ) from None
    except http.client.HTTPException as error:
        raise UnreachableError(
            f"{url} is not answered in proper HTTP ({_reason(error)})"
        ) from None


def _status(code: int) -> str:
    # the words are ours and not the server's, which could be anything
    known = code in set(HTTPStatus)
    return f"{code} {HTTPStatus(code).phrase}" if known else f"status {code}"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the server fell silent"
    if isinstance(error, socket.gaierror):
        return "the host's name cannot be resolved"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(repr(str(error)).split())[:100].strip("'\"") or type(error).__name__
