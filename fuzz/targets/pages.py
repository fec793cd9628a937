"""Target: requests to the page, as a server hands them to the application.

An answer is a find if it is an exception, a status of 500, or an error that is not one line.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from PIL import Image

from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery
from fuzz.made import IMAGES, make_store
from fuzz.target import Run, Target
from fuzz.targets.models import tiny_network, train

_HOST = (b"host", b"127.0.0.1:8765")
# what h11, the server's reader of requests, does not let through
_NO_HEAD = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_NO_NAME = re.compile(rb"[^-!#$%&'*+.^_`|~0-9a-zA-Z]")
_NO_TARGET = re.compile(rb"[^\x21-\x7e]")
_JSON = b"content-type: application/json\n\n"


def picture(n: int) -> bytes:
    """A photo of its own colour."""
    out = io.BytesIO()
    Image.new("RGB", (4, 3), (n, 0, 255 - n)).save(out, "PNG")
    return out.getvalue()


def open_gallery(folder: Path) -> Gallery:
    """Six photos with a model, and a network of two layers for uploads."""
    photos = folder / "photos"
    photos.mkdir()
    contents = [picture(n) for n in range(IMAGES)]
    for n, content in enumerate(contents):
        (photos / f"{n}.png").write_bytes(content)
    keys = [hashlib.sha256(content).hexdigest() for content in contents]
    make_store(folder / "store", keys, photos)
    train(folder / "model")
    gallery = Gallery(folder / "store", model=folder / "model")
    # of which nothing is kept
    gallery.uploads.network = gallery.uploads._loaded_network = tiny_network()
    return gallery


Ask = Callable[[str, bytes, bytes, list[tuple[bytes, bytes]], bytes], None]


def opened(folder: Path) -> Ask:
    """Asks the page: method, path, query, headers, body; with a token if there is a cookie."""
    gallery = open_gallery(folder)
    apps: list[Any] = [make_app(gallery), make_app(gallery, "0.0.0.0", 8765, "secret")]
    loop = asyncio.new_event_loop()

    def ask(
        method: str,
        path: bytes,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
    ) -> None:
        scope = {
            **{
                "type": "http",
                "http_version": "1.1",
                "method": method,
                "scheme": "http",
            },
            **{
                "path": unquote(path.decode("latin-1")),
                "raw_path": path,
                "query_string": query,
            },
            **{
                "headers": headers,
                "server": ("127.0.0.1", 8765),
                "client": ("127.0.0.1", 1),
            },
            "root_path": "",
        }
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asked_for_token = (
            any(name == b"cookie" for name, _ in headers) or b"token" in query
        )
        loop.run_until_complete(apps[asked_for_token](scope, receive, send))
        _check(sent, method)

    weakref.finalize(ask, loop.close)
    return ask


def _check(sent: list[dict[str, Any]], method: str) -> None:
    status = sent[0]["status"]
    content = b"".join(message.get("body", b"") for message in sent[1:])
    if status == 500:
        raise ValueError(f"an answer must not be 500, got {content[:200]!r}")
    if status >= 400 and method != "HEAD":
        line = json.loads(content)["error"]
        if line.splitlines() != [line]:
            raise ValueError(f"an error must be one line, got {line[:200]!r}")


def _web(folder: Path) -> Run:
    ask = opened(folder)

    def run(data: bytes) -> None:
        head, _, body = data.partition(b"\n\n")
        first, *lines = _NO_HEAD.sub(b"", head).split(b"\n")
        method, _, target = first.partition(b" ")
        path, _, query = _NO_TARGET.sub(b"", target).partition(b"?")
        pairs = (line.partition(b":") for line in lines)
        headers = [
            (_NO_NAME.sub(b"", name).lower(), value.strip()) for name, _, value in pairs
        ]
        ask(method.decode("latin-1").upper(), path, query, [_HOST, *headers], body)

    return run


def _requests() -> list[bytes]:
    asked = {
        "by": "dW8",
        "like": [{"id": "0.png"}],
        "unlike": [{"id": "1.png"}],
        "k": 3,
    }
    asked |= {"labels": ["cat"], "text": "p"}
    search = json.dumps(asked).encode()
    upload = hashlib.sha256(picture(9)).hexdigest()
    by_photo = json.dumps({"by": "x7", "like": [{"upload": upload}]}).encode()
    gets = (
        *(
            b"",
            b"static/page.js",
            b"api/store",
            b"api/images?label=cat&text=p&offset=1&limit=2",
        ),
        *(
            b"api/image?id=0.png",
            b"api/thumbnail?id=0.png&size=large",
            b"api/none",
            b"static/../x",
        ),
    )
    return [
        *(b"GET /" + path for path in gets),
        b"POST /api/uploads\n\n" + picture(9),
        b"POST /api/search\n" + _JSON + search,
        b"POST /api/search\n" + _JSON + by_photo,
        b"POST /api/scatter\n" + _JSON + search,
        b"POST /api/predict\n" + _JSON + b'{"id": "0.png"}',
        b"GET /api/store\norigin: http://evil.example\nsec-fetch-site: cross-site",
        b"GET /?token=secret",
        b"GET /api/store\ncookie: deepfish_8765=secret; a=b",
    ]


TARGETS = {
    "web": Target(
        "requests to the page",
        _web,
        _requests,
        tokens=(
            *(
                b"GET ",
                b"POST ",
                b"HEAD ",
                b"/api/search",
                b"/api/uploads",
                b"?id=",
                b"%00",
                b"%ff",
            ),
            *(
                b"content-type: application/json",
                b"content-length: 9",
                b"host: ",
                b"origin: null",
            ),
            *(
                b"if-none-match: ",
                b'"like"',
                b'"upload"',
                b'"\\ud800"',
                b"[::1",
                b"&label=",
            ),
        ),
    )
}
