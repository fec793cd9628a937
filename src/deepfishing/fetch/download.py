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
    start: int  # the requested byte, or 0
    total: int | None  # length of the whole file, if the server sends it
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
            problem = _difference(target, remote)
            if problem:
                aside = target.with_name(f"{target.name}.wrong")
                target.replace(aside)
                raise FetchError(
                    f"{target} {problem}; it was set aside as {aside.name}, run it again to "
                    "download"
                )
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        part = _Part(target)
        _receive(remote, part, progress, patience)
        problem = _difference(part.path, remote)
        if problem:
            part.clear()
            raise UnreachableError(
                f"the file of {remote.url} {problem}; it was removed"
            )
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
        if not self.path.is_file():
            return 0
        return self.path.stat().st_size

    def version(self) -> dict[str, Any]:
        """The version as the first answer had it; {} if it is unknown."""
        try:
            version = json.loads(self.note.read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        if not isinstance(version, dict):
            return {}
        return version

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def _receive(
    remote: Remote, part: _Part, progress: Progress, patience: Patience
) -> None:
    """Download the rest of a file, with several attempts."""
    first_size = largest = part.size
    failures = 0
    while True:
        try:
            _attempt(remote, part, progress, patience.timeout)
            return
        except DroppedError as error:
            if isinstance(error, StartOverError):
                part.clear()
            # a failure to connect is worth another attempt only after a connection
            if not error.connected and part.size <= first_size:
                raise UnreachableError(
                    f"{remote.url} cannot be reached ({error})"
                ) from None
            # only a new maximum is progress, so that a server that always starts again and
            # always breaks off is given up
            failures += 1
            if part.size >= largest + _ENOUGH:
                failures = 1
            largest = max(largest, part.size)
            if failures >= patience.attempts:
                raise UnreachableError(
                    f"{remote.url} broke off {failures} times in a row, last at byte {part.size} "
                    f"({error}); {part.path} is kept, and a later run continues it"
                ) from None
            time.sleep(min(patience.pause * 2 ** (failures - 1), 30.0))


def _attempt(remote: Remote, part: _Part, progress: Progress, timeout: float) -> None:
    version = part.version()
    # without a mark of its version the rest may belong to another file
    has_mark = version.get("etag") or version.get("modified")
    offset = 0
    if version.get("url") == remote.url and has_mark:
        offset = part.size
    if offset and offset == version.get("total"):
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
        elif answer.version != version:
            raise StartOverError("the file on the server has changed")
        limit = remote.most
        if total is not None:
            limit = total
        with part.path.open("ab") as file:
            while chunk := answer.read():
                done += len(chunk)
                if done > limit:
                    part.clear()
                    raise UnreachableError(
                        f"{remote.url} must give at most {limit} bytes, got more"
                    )
                file.write(chunk)
                progress(remote.file, done, total or remote.size)
    if total is not None and done < total:
        raise DroppedError(f"the connection ended after {done} of {total} bytes")


def _difference(path: Path, remote: Remote) -> str:
    """Return the difference between a file and the published one, or ""."""
    size = 0
    if path.is_file():
        size = path.stat().st_size
    if remote.size and size != remote.size:
        return f"must have {remote.size} bytes, got {size}"
    algorithm, _, digits = remote.digest.partition(":")
    with path.open("rb") as file:  # an integrity check, not a protection from forgery
        kind = partial(hashlib.new, algorithm, usedforsecurity=False)
        actual = hashlib.file_digest(file, kind).hexdigest()
    if actual.startswith(digits):
        return ""
    return f"must have the {algorithm} {digits}, got {actual}"


@contextmanager
def ask(url: str, offset: int, timeout: float) -> Iterator[Answer]:
    """Request a file from byte `offset` on; give up after `timeout` seconds of silence."""
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
            length = last = 0
            if span:
                start, last, length = map(int, span.groups())
            total = length
            if start != offset or last != length - 1:
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
    address = url
    for _ in range(_REDIRECTS + 1):
        response = _open_once(address, offset, timeout)
        if not isinstance(response, str):
            return response
        # redirects are followed here, since urllib would read their whole body
        location = quote(response, safe="%/:=&?~#+!$,;'@()*[]")
        try:
            target = urljoin(address, location)
            schemes = urlsplit(address).scheme, urlsplit(target).scheme
        except ValueError:
            raise UnreachableError(
                f"{url} redirects to {location}, which is no address"
            ) from None
        if schemes[1] not in ("http", "https") or schemes == ("https", "http"):
            raise UnreachableError(
                f"{url} must redirect to http or stay with https, got {target}"
            )
        address = target
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
        reason: Exception = error
        if isinstance(error.reason, Exception):
            reason = error.reason
        raise DroppedError(_reason(reason), connected=False) from None
    except OSError as error:  # after the connection was made: silence, or a reset
        raise DroppedError(_reason(error)) from None
    except (http.client.InvalidURL, ValueError):
        # the error's own text would repeat the proxy's address with its password
        raise UnreachableError(
            f"{url} cannot be asked: it, or the proxy in http_proxy or https_proxy, is no address"
        ) from None
    except http.client.HTTPException as error:
        raise UnreachableError(
            f"{url} is not answered in proper HTTP ({_reason(error)})"
        ) from None


def _status(code: int) -> str:
    # the standard phrase, since the server's could be anything
    if code not in set(HTTPStatus):
        return f"status {code}"
    return f"{code} {HTTPStatus(code).phrase}"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the server fell silent"
    if isinstance(error, socket.gaierror):
        return "the host's name cannot be resolved"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(repr(str(error)).split())[:100].strip("'\"") or type(error).__name__
