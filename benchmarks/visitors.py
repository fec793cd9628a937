"""Clients of the page for `load.py`: what they ask, and whether the answer is the expected one."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from PIL import Image

SECONDS = 300.0  # without a byte of an answer, and it is taken to be lost


@dataclass(frozen=True)
class Shown:
    """What the store has, and photos that it does not have."""

    ids: list[str]
    labels: list[str]
    recipes: list[str]  # the one with a gradient that the page starts with is first
    photos: list[bytes]


@dataclass
class Visitor:
    """One client: asks, and writes down how long it took and what was wrong."""

    url: str
    shown: Shown
    random: np.random.Generator
    client: httpx.Client
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    torn: int = 0

    def ask(
        self, kind: str, expected: int, method: str, path: str, **options: Any
    ) -> httpx.Response | None:
        """The answer, if it is the expected one."""
        start = time.perf_counter()
        try:
            answer = self.client.request(method, path, **options)
        except httpx.HTTPError as error:
            self.dropped.append(f"{kind}: {type(error).__name__} {error}")
            return None
        self.times[kind].append(time.perf_counter() - start)
        if answer.status_code != expected:
            self.failed.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
            return None
        return answer

    def one(self, several: Sequence[Any]) -> Any:
        """One of them."""
        return several[int(self.random.integers(len(several)))]

    def often(self, share: float) -> bool:
        """True this often."""
        return bool(self.random.random() < share)

    def examples(self, n: int) -> list[dict[str, str]]:
        """Images of the store, as the page asks for them."""
        return [{"id": self.one(self.shown.ids)} for _ in range(n)]


def by_id(visitor: Visitor) -> None:
    known = visitor.shown.recipes
    # others have to be opened first
    by = visitor.one(known[:2] if visitor.often(0.9) else known)
    asked: dict[str, Any] = {"by": by, "like": visitor.examples(1), "k": 12}
    if visitor.often(0.2):
        asked |= {
            "unlike": visitor.examples(2),
            "labels": [visitor.one(visitor.shown.labels)],
        }
    visitor.ask("search by id", 200, "POST", "/api/search", json=asked)


def by_photo(visitor: Visitor) -> None:
    # never seen before
    photo = visitor.one(visitor.shown.photos) + visitor.random.bytes(8)
    answer = visitor.ask(
        "upload of a new photo", 200, "POST", "/api/uploads", content=photo
    )
    if answer is not None:
        asked = {"by": visitor.one(visitor.shown.recipes[:2]), "like": [answer.json()]}
        visitor.ask("search by photo", 200, "POST", "/api/search", json=asked)


def thumbnail(visitor: Visitor) -> None:
    query = {
        "id": visitor.one(visitor.shown.ids),
        "size": visitor.one(["small", "large"]),
    }
    answer = visitor.ask("thumbnail", 200, "GET", "/api/thumbnail", params=query)
    if answer is not None and visitor.often(0.2):
        again = {"If-None-Match": answer.headers["etag"]}
        visitor.ask(
            "thumbnail again", 304, "GET", "/api/thumbnail", params=query, headers=again
        )


def filtered(visitor: Visitor) -> None:
    query = {
        "label": visitor.one(visitor.shown.labels),
        "text": str(visitor.random.integers(999)),
    }
    visitor.ask("images by label and text", 200, "GET", "/api/images", params=query)


def plotted(visitor: Visitor) -> None:
    asked = {"by": visitor.shown.recipes[0], "like": visitor.examples(2)}
    visitor.ask("plot", 200, "POST", "/api/scatter", json=asked)


def page(visitor: Visitor) -> None:
    visitor.ask(
        "page", 200, "GET", visitor.one(["/", "/static/shell.js", "/api/store"])
    )


# status, method, path, what goes with it. Bodies that are too large are cut off by the server, and
# whether their sender sees the answer is a race; the tests have them.
BROKEN: list[tuple[int, str, str, dict[str, Any]]] = [
    (404, "GET", "/api/thumbnail", {"params": {"id": "../../etc/passwd"}}),
    (404, "GET", "/static/..%2fapp.py", {}),
    (400, "GET", "/api/images", {"params": {"limit": -1}}),
    (405, "DELETE", "/api/search", {}),
    (415, "POST", "/api/search", {"content": b"{}"}),
    (
        400,
        "POST",
        "/api/search",
        {"json": {"by": "x7", "like": [{"path": "/etc/passwd"}]}},
    ),
    (
        404,
        "POST",
        "/api/search",
        {"json": {"by": "x7", "like": [{"upload": "0" * 64}]}},
    ),
    (400, "POST", "/api/uploads", {"content": b"no photo"}),
    (400, "POST", "/api/uploads", {"content": b"\xff\xd8\xff\xe0 half a photo"}),
    (403, "GET", "/api/store", {"headers": {"Host": "evil.example"}}),
    (403, "GET", "/api/store", {"headers": {"Origin": "https://evil.example"}}),
]


def broken(visitor: Visitor) -> None:
    expected, method, path, options = visitor.one(BROKEN)
    visitor.ask("broken request", expected, method, path, **options)


UPLOAD = (
    b"POST /api/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\nabc"
)


def torn(visitor: Visitor) -> None:
    """A part of a request, and nobody who waits for the answer."""
    with open_socket(visitor.url) as talk:
        talk.sendall(UPLOAD[: int(visitor.random.integers(len(UPLOAD) + 1))])
    visitor.torn += 1


# how often each of them, beside the others
KINDS: dict[Callable[[Visitor], None], int] = {
    **{thumbnail: 8, by_id: 5, filtered: 3, broken: 3},
    **{by_photo: 1, plotted: 1, page: 1, torn: 1},
}


def open_socket(url: str) -> socket.socket:
    where = httpx.URL(url)
    return socket.create_connection((where.host, where.port or 80), timeout=SECONDS)


def ask_everything(url: str, shown: Shown) -> None:
    """Each kind once and every thumbnail, with patience: the network is loaded for the first photo.

    A server has then all that it keeps.
    """
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        for kind in KINDS:
            kind(Visitor(url, shown, np.random.default_rng(0), client))
        for id_ in shown.ids:
            for size in ("small", "large"):
                client.get("/api/thumbnail", params={"id": id_, "size": size})
        for by in shown.recipes:
            client.post("/api/search", json={"by": by, "like": [{"id": shown.ids[0]}]})


@contextmanager
def visitors(url: str, n: int, shown: Shown, seed: int) -> Iterator[list[Visitor]]:
    """Clients at work until the block ends."""
    stop = threading.Event()
    clients = [httpx.Client(base_url=url, timeout=SECONDS) for _ in range(n)]
    made = [
        Visitor(url, shown, np.random.default_rng([seed, number]), client)
        for number, client in enumerate(clients)
    ]
    kinds, weights = list(KINDS), np.array(list(KINDS.values()), dtype=float)

    def work(visitor: Visitor) -> None:
        while not stop.is_set():
            kind = kinds[visitor.random.choice(len(kinds), p=weights / weights.sum())]
            known = len(visitor.dropped)
            try:
                kind(visitor)
            except OSError as error:
                visitor.dropped.append(f"{kind.__name__}: {error}")
            if len(visitor.dropped) > known:
                time.sleep(0.2)  # the server is gone; the cores are for its end

    threads = [threading.Thread(target=work, args=(visitor,)) for visitor in made]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()


def photos() -> list[bytes]:
    """Noise as JPEG and PNG: colour, transparent, 16-bit grey."""
    random = np.random.default_rng(0)
    colour = random.integers(0, 256, (60, 80, 4), dtype=np.uint8)
    pictures = [
        (Image.fromarray(colour[:, :, :3]).resize((640, 480)), "JPEG"),
        (Image.fromarray(colour[:, :, :3]).resize((1600, 1200)), "JPEG"),
        (Image.fromarray(colour).resize((320, 240)), "PNG"),
        (
            Image.fromarray(random.integers(0, 65536, (200, 300), dtype=np.uint16)),
            "PNG",
        ),
    ]
    contents = []
    for picture, kind in pictures:
        file = io.BytesIO()
        picture.save(file, kind)
        contents.append(file.getvalue())
    return contents
