"""Access control and load limits of the page.

Requests must name this server (a foreign page could point its own name here: DNS rebinding), come
from the page itself and not from another site, and, beyond this machine, have the token. Headers
keep a browser from loading anything from elsewhere. A bounded number of requests runs at a time,
bodies have a bounded size, and refused requests get an answer with the reason.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Result = TypeVar("Result")

BODY_SECONDS = 30.0
SILENT_SECONDS = 10.0  # without any byte of a body
BUSY = "the server is busy; try again in a second"
# after a body that was not read to its end, or the server would go on reading it
CLOSE = {"Connection": "close"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """Stands before an application that is bound to `host` and `port`.

    With a `token`, a browser must send it in the address once and then as a cookie, a program as
    `Authorization: Bearer TOKEN`.
    """

    def __init__(
        self, app: ASGIApp, host: str, port: int, token: str | None = None
    ) -> None:
        self.app = app
        self.host = host
        self.cookie = f"deepfish_{port}"  # since cookies are shared by all ports
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application do it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket, which the page does not use
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self.check(scope)
        await (answer or self.app)(scope, receive, send_with_headers)

    def check(self, scope: Scope) -> Response | None:
        """Return a refusal, or None if the request may pass."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not is_ours(host, self.host):
            return _refuse(403, "this server does not answer under the name in Host")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        visit = scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
        foreign = site not in ("none", "same-origin") and not visit
        if foreign or (origin is not None and host_of(origin) != host.lower()):
            return _refuse(403, "requests of other sites are refused")
        return self.check_token(scope, headers) if self.token is not None else None

    def check_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Accept a cookie or a header with the token; a token in the address becomes a cookie."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(bearer.strip()):
            return None
        visit = HTTPConnection(scope)
        if self.is_token(unquote(visit.cookies.get(self.cookie, ""))):
            return None
        token = visit.query_params.get("token", "")
        if scope["path"] == "/" and self.is_token(token):
            # out of the address, and the history
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(
                self.cookie, quote(token, safe=""), httponly=True, samesite="lax"
            )
            return answer
        return _refuse(
            401, "open the address with ?token= that `deepfish serve` printed, once"
        )

    def is_token(self, text: str) -> bool:
        """Return whether this is the token, in constant time."""
        return secrets.compare_digest(text.encode(), (self.token or "").encode())


def is_ours(host: str, bound: str) -> bool:
    """Return whether a Host header names this server, bound to an address.

    A server bound to this computer alone has only its own names. Otherwise any IP address is valid,
    since it cannot be made to point elsewhere, and the name of the computer.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or is_loopback(name):
        return True
    if is_loopback(bound):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in (bound.lower(), socket.gethostname().lower())
    return True


def is_loopback(name: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def host_of(origin: str) -> str | None:
    """Host and port of an origin; None if it is not one of the web."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None


def _refuse(status: int, line: str) -> JSONResponse:
    return JSONResponse({"error": line}, status)


class RefusedError(Exception):
    """A refused request: the status and the reason in one line."""

    def __init__(
        self, status: int, line: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(line)
        self.status = status
        self.line = line
        self.headers = headers or {}


class Gate:
    """Limit on load: `running` tasks at a time, `waiting` more in a queue, others get a 503.

    They run in threads of the gate's own. In threads that change, each would in time hold as much
    memory as the largest piece of work needs.
    """

    def __init__(self, running: int, waiting: int) -> None:
        self.most = running + waiting
        self._inside = 0
        self._places = asyncio.Semaphore(running)
        self._threads = ThreadPoolExecutor(running)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a free slot and hold it."""
        if self._inside >= self.most:
            raise RefusedError(503, BUSY, {"Retry-After": "1"})
        self._inside += 1
        try:
            async with self._places:
                yield
        finally:
            self._inside -= 1

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run a function in a thread, so that the server stays responsive."""
        async with self.place():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class Receiver:
    """Receives the bodies of requests, at most `max_bytes` of all of them in memory at a time.

    A slow client takes memory for the bytes that it has sent, and no place of others. Where memory
    runs out, the body that has been arriving for longest is refused, so that those who stop sending
    make room for those who send.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._arriving: list[_Arrival] = []  # oldest first
        self._received = 0  # bytes of whole bodies that are still in use

    @asynccontextmanager
    async def body(
        self, request: Request, limit: int, seconds: float = BODY_SECONDS
    ) -> AsyncIterator[bytes]:
        """Yield the whole body; it counts as in memory until the block ends."""
        arrival = _Arrival()
        self._arriving.append(arrival)
        try:
            content = await read_body(request, limit, seconds, arrival, self._make_room)
        finally:
            self._arriving.remove(arrival)
        self._received += len(content)
        try:
            yield content
        finally:
            self._received -= len(content)

    def _make_room(self) -> None:
        """Refuse the oldest bodies until the others fit."""
        oldest_first = [arrival for arrival in self._arriving if not arrival.is_refused]
        in_use = self._received + sum(len(arrival.body) for arrival in oldest_first)
        for arrival in oldest_first:
            if in_use <= self.max_bytes:
                return
            in_use -= len(arrival.body)
            arrival.refuse()


class _Arrival:
    """The body of a request while it is received."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.deadline: asyncio.Timeout | None = None
        self.is_refused = False

    def refuse(self) -> None:
        """Free the memory, and end the wait for more bytes."""
        self.is_refused = True
        self.body.clear()
        if self.deadline is not None:
            self.deadline.reschedule(asyncio.get_running_loop().time())


async def read_body(
    request: Request,
    limit: int,
    seconds: float = BODY_SECONDS,
    arrival: _Arrival | None = None,
    make_room: Callable[[], None] = lambda: None,
) -> bytes:
    """Read the body into memory; refuse it once it is too large or too slow."""
    too_large = RefusedError(
        413,
        f"a request must have at most {limit:,} bytes, got more; send a smaller one",
        CLOSE,
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_large
    arrival = arrival or _Arrival()
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    try:
        async with asyncio.timeout_at(
            min(end, clock() + SILENT_SECONDS)
        ) as arrival.deadline:
            async for chunk in request.stream():
                arrival.body += chunk
                if len(arrival.body) > limit:
                    raise too_large
                make_room()
                if arrival.is_refused:
                    break
                arrival.deadline.reschedule(min(end, clock() + SILENT_SECONDS))
    except TimeoutError:
        if not arrival.is_refused:
            raise RefusedError(
                408,
                f"a request must arrive within {seconds:g} seconds, without a pause of "
                f"{SILENT_SECONDS:g}",
                CLOSE,
            ) from None
    except ClientDisconnect:
        raise RefusedError(400, "the request ended too early") from None
    if arrival.is_refused:
        raise RefusedError(503, BUSY, {**CLOSE, "Retry-After": "1"})
    return bytes(arrival.body)
