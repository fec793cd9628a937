"""Before stage 1, fetching: one question to a server, and what its answer is worth.

Comes in: an address and how many bytes of the file are already there. Goes out: an `Answer`
whose body is the rest of the file (or all of it, where the server does not send parts), or one
of three errors that say what to do next: `DroppedError` (try again), `StartOverError` (what is
there does not go with what the server has), `UnreachableError` (no use in trying).
"""

from __future__ import annotations

import http.client
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from deepfishing.errors import FetchError

_REDIRECTS = 10
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # statuses that may be gone on the next attempt
_CHUNK = 1 << 18


class UnreachableError(FetchError):
    """The address does not give the file."""


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
    version: dict[str, Any]  # JSON values; a later answer about the same file has the same

    def read(self) -> bytes:
        """The next bytes, as soon as there are some; b"" at the end of the body."""
        try:
            return self.body.read1(_CHUNK)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DroppedError(_reason(error)) from None


@contextmanager
def ask(url: str, offset: int, timeout: float) -> Iterator[Answer]:
    """Ask for a file from byte `offset` on; after `timeout` seconds of silence it is dropped."""
    with _open(url, offset, timeout) as response:
        yield _judge(response, url, offset)


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
            raise UnreachableError(f"{url} redirects to {found}, which is no address") from None
        if schemes[1] not in ("http", "https") or schemes == ("https", "http"):
            raise UnreachableError(f"{url} must redirect to http or stay with https, got {there}")
        here = there
    raise UnreachableError(f"{url} redirects in a loop, or more than {_REDIRECTS} times")


def _open_once(url: str, offset: int, timeout: float) -> http.client.HTTPResponse | str:
    """The response, or where a redirect points to."""
    # identity: a compressed answer would have another length and other ranges than the file
    headers = {"User-Agent": "deepfishing", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    opener = urllib.request.OpenerDirector()  # nothing but http and https, through a proxy if set
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
        raise UnreachableError(f"{url} is not answered in proper HTTP ({_reason(error)})") from None


def _judge(response: http.client.HTTPResponse, url: str, offset: int) -> Answer:
    headers = response.headers
    kind = headers.get_content_type()
    if kind in ("text/html", "application/xhtml+xml"):
        raise UnreachableError(f"{url} must give a file, got a web page ({kind})")
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnreachableError(f"{url} must give the file as it is, got a compressed answer")
    version = {"url": url, "etag": headers.get("ETag", "")}
    version["modified"] = headers.get("Last-Modified", "")
    if response.status == 200:
        return Answer(response, 0, response.length, version | {"total": response.length})
    if response.status != 206 or not offset:
        raise UnreachableError(f"{url} must answer 200 OK, got {_status(response.status)}")
    span = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", headers.get("Content-Range", ""))
    first, last, total = map(int, span.groups()) if span else (0, 0, 0)
    if first != offset or last != total - 1:
        raise StartOverError("the server sent another part of the file than was asked for")
    return Answer(response, offset, total, version | {"total": total})


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
