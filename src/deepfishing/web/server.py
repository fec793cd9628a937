"""Server process of the page.

The port is bound before anything is printed, so the address is right and a port in use is one line.
A connection must send its request in time: uvicorn itself waits without limit for the rest of a
head, so clients that send nothing, or one byte per minute, would occupy all connections in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from deepfishing.errors import OptionError
from deepfishing.web.app import make_page
from deepfishing.web.gallery import Gallery
from deepfishing.web.guard import Guard, is_loopback
from deepfishing.web.opening import END_SECONDS, Opening

PORT = 8765
SHORTEST = 16  # characters of a token that a user chooses
HEAPS = 2
# blocks that are given back to the system as soon as they are freed
LARGE_BYTES = 1 << 20
HEAD_SECONDS = 20.0


@dataclass(frozen=True)
class Address:
    """Address and access token of a server; `chosen` if the user gave the token."""

    listening: socket.socket
    host: str
    port: int
    token: str | None = field(repr=False)
    chosen: bool = False

    @property
    def shown(self) -> str:
        """The address to print; a token given by the user stays out of terminals and logs."""
        if self.chosen:
            return self.url.partition("=")[0] + "=$DEEPFISHING_TOKEN"
        return self.url

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        everywhere = self.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
        host = self.host
        if everywhere:
            host = socket.gethostname()
        if ":" in host:  # IPv6
            host = f"[{host}]"
        url = f"http://{host}:{self.port}/"
        if self.token:
            url += f"?token={quote(self.token)}"
        return url


def bind(host: str, port: int | None = None) -> Address:
    """Listen; without a port on `PORT`, or a free one if that is in use.

    Beyond this machine a token is needed: that of the variable DEEPFISHING_TOKEN, which is then
    asked for on this machine, too, or else a random one.
    """
    if port is None:
        with contextlib.suppress(OptionError):
            return bind(host, PORT)
        return bind(host, 0)
    chosen = os.environ.get("DEEPFISHING_TOKEN", "")
    if chosen and (
        len(chosen) < SHORTEST or not chosen.isascii() or not chosen.isprintable()
    ):
        raise OptionError(
            f"DEEPFISHING_TOKEN must have at least {SHORTEST} characters, printable ASCII, got "
            f"{len(chosen)}; make one with `openssl rand -hex 24`"
        )
    try:
        if not 0 <= port < 1 << 16:
            raise OSError("a port is a number up to 65535")
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listening = socket.create_server(
            addresses[0][4][:2], family=addresses[0][0], backlog=512
        )
    except OSError as error:
        # Python adds the address to the system's words; those of unknown hosts have no number
        number = error.errno or 0
        reason = error.strerror or str(error)
        if number > 0:
            reason = os.strerror(number)
        raise OptionError(
            f"--host and --port must be an address of this machine and a free port, got {host} and "
            f"{port} ({reason}); leave --port out to take a free one"
        ) from None
    token: str | None = chosen or None
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    return Address(
        listening, host, int(listening.getsockname()[1]), token, bool(chosen)
    )


class PromptProtocol(H11Protocol):
    """HTTP by h11 with heads of at most 64 KiB and a time limit for slow clients.

    Every `HEAD_SECONDS` a connection must have asked something new, or an answer must be on its
    way; else it is closed. A browser that has lost an idle connection makes another one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start watching."""
        # head and body of an answer are sent one after the other, and the body would wait for the
        # client's word on the head; asyncio sees to it only for sockets that were made in its way
        transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        super().connection_made(transport)
        self._seen: object = None
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        self._next_look.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._next_look = self.loop.call_later(HEAD_SECONDS, self._look)

    def _look(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if self.cycle is self._seen and not answering:
            self.transport.close()
            return
        self._seen = self.cycle
        self._watch()


class Server(uvicorn.Server):
    """A server that shuts down quietly after Ctrl-C."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; what takes longer than the patience of the settings is cut off."""
        # else a traceback for each
        logging.getLogger("uvicorn.error").addFilter(_nothing)
        await super().shutdown(sockets)


def _nothing(_record: logging.LogRecord) -> bool:
    return False


def share_heaps() -> None:
    """Make threads that start later share memory heaps, where glibc is used.

    It gives threads heaps of their own, up to eight for each core. What is freed in one is not
    there for the others, so a server whose requests wander between threads grows for many minutes.
    """
    most = -8  # M_ARENA_MAX
    # M_MMAP_THRESHOLD: else it rises to 32 MB, and heaps keep what is below
    threshold = -3
    with contextlib.suppress(OSError, AttributeError, TypeError):
        # of another C library
        ctypes.CDLL(None).mallopt(most, HEAPS)
        ctypes.CDLL(None).mallopt(threshold, LARGE_BYTES)


def make_server(page: Gallery | Opening, address: Address) -> Server:
    """Return a server that has not started."""
    # of another that has ended
    logging.getLogger("uvicorn.error").removeFilter(_nothing)
    app: ASGIApp
    if isinstance(page, Gallery):
        app = make_page(page)
    else:
        app = page
    config = uvicorn.Config(
        Guard(app, address.host, address.port, address.token),
        http=PromptProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # there is no proxy that could name the client
        ws="none",
        lifespan="off",
        limit_concurrency=600,
        timeout_graceful_shutdown=2,
    )
    return Server(config)


def serve(page: Gallery | Opening, address: Address, ready: Callable[[], None]) -> None:
    """Answer until Ctrl-C, which is the way to end it and no error."""
    server = make_server(page, address)
    warming = None
    if isinstance(page, Gallery):
        warming = page.uploads.warm_up()
    if isinstance(page, Opening):
        page.start()
    ready()
    with contextlib.suppress(KeyboardInterrupt), address.listening:
        server.run(sockets=[address.listening])
    if isinstance(page, Opening):
        page.close()
    if warming is not None:
        warming.join(END_SECONDS)  # Python cannot end well while torch loads a network
