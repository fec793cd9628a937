"""Stage 8, the page: how much work is taken on at a time.

Comes in: requests, as many as anybody likes to send. Goes out: a bounded number of computations,
bodies of bounded size, and for the rest an answer that says why not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

Result = TypeVar("Result")

BODY_SECONDS = 30.0


class RefusedError(Exception):
    """A request that is not answered: the status and one line why."""

    def __init__(self, status: int, line: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(line)
        self.status = status
        self.line = line
        self.headers = headers or {}


class Gate:
    """Lets `running` pieces of work run at a time and `waiting` more wait; others get a 503.

    They run in threads of the gate's own. In threads that change, each would in time hold as much
    memory as the largest piece of work needs.

    >>> import asyncio
    >>> asyncio.run(Gate(running=1, waiting=0).run(lambda: 6 * 7))
    42
    """

    def __init__(self, running: int, waiting: int) -> None:
        self.most = running + waiting
        self._inside = 0
        self._places = asyncio.Semaphore(running)
        self._threads = ThreadPoolExecutor(running)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place inside, as soon as one is free."""
        if self._inside >= self.most:
            raise RefusedError(
                503, "the server is busy; try again in a second", {"Retry-After": "1"}
            )
        self._inside += 1
        try:
            async with self._places:
                yield
        finally:
            self._inside -= 1

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do the work in a thread, so that the server goes on answering."""
        async with self.place():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)


# after a body that was not read to its end, or the server would go on reading it
CLOSE = {"Connection": "close"}


async def read_body(request: Request, limit: int, seconds: float = BODY_SECONDS) -> bytes:
    """The body, in memory; refused as soon as it is larger than the limit or takes too long."""
    too_large = RefusedError(
        413, f"a request must have at most {limit:,} bytes, got more; send a smaller one", CLOSE
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise RefusedError(
            408, f"a request must arrive within {seconds:g} seconds", CLOSE
        ) from None
    except ClientDisconnect:
        raise RefusedError(400, "the request ended too early") from None
    return bytes(body)
