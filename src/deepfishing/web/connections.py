"""Stage 8, the page: connections, and how long one may take without asking anything.

Comes in: bytes from whoever connects. Goes out: requests with a head of bounded length. uvicorn
itself waits for ever for the rest of a head, so that clients which say nothing, or a byte a minute,
would take all places in the end.
"""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0


class PromptProtocol(H11Protocol):
    """HTTP by h11, which reads heads of at most 64 KiB, for clients that do not keep us waiting.

    Every `HEAD_SECONDS` a connection must have asked something new, or an answer must be on its
    way; else it is closed. A browser that has lost an idle connection makes another one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to watch."""
        # head and body of an answer are sent one after the other, and the body would wait for the
        # client's word on the head; asyncio sees to it only for sockets that were made in its way
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._seen: object = None
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to watch."""
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
