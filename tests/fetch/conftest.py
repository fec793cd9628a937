"""A web server that misbehaves as told."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from deepfishing.fetch import download as download_module
from deepfishing.fetch.download import Patience, download


@dataclass
class Page:
    """One address, and what is wrong with it.

    cuts and statuses are used up, one by each answer: after how many bytes of the body to hang
    up, and what status to answer instead. `headers` goes over the proper ones; None leaves one
    out. `trailing` is sent after the body.
    """

    content: bytes = b""
    etag: str | None = '"1"'
    ranges: bool = True
    shift: int = 0
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    headers: dict[str, str | None] = field(default_factory=dict)
    trailing: bytes = b""
    hang_after: int | None = None
    raw: bytes | None = None


class Site:
    """The server's pages by path, and what was asked: (path, Range)."""

    def __init__(self):
        self.pages: dict[str, Page] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.encoding: str | None = None
        self.closing = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                site.answer(self)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_):
                pass  # a client that hung up

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def url(self, path):
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def ranges(self):
        return [asked for _, asked in self.asked]

    def answer(self, handler):
        asked = handler.headers.get("Range")
        self.asked.append((handler.path, asked))
        self.encoding = handler.headers.get("Accept-Encoding")
        page = self.pages.get(handler.path)
        if page is None:
            return handler.send_error(404)
        if page.raw is not None:
            return handler.wfile.write(page.raw)
        first = 0
        status, body = 200, page.content
        if asked and page.ranges:
            first = int(asked.removeprefix("bytes=").removesuffix("-"))
            status, body = 206, page.content[first:]
            if first >= len(page.content):
                status, body = 416, b""
        if page.statuses:
            status = page.statuses.pop(0) or status
        headers = {"Content-Length": str(len(body)), "ETag": page.etag}
        if status == 206:
            start = first + page.shift
            headers["Content-Range"] = (
                f"bytes {start}-{len(page.content) - 1}/{len(page.content)}"
            )
        handler.send_response(status)
        for name, value in {**headers, **page.headers}.items():
            if value is not None:
                handler.send_header(name, value)
        handler.end_headers()
        if page.hang_after is not None:
            # the next answer does not hang
            body, page.hang_after = body[: page.hang_after], None
            handler.wfile.write(body)
            self.closing.wait(60)
            return None
        if page.cuts:
            return handler.wfile.write(body[: page.cuts.pop(0)])
        handler.wfile.write(body + page.trailing)
        return None


@pytest.fixture
def site(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    site = Site()
    site.thread.start()
    yield site
    site.closing.set()
    site.server.shutdown()
    site.server.server_close()
    site.thread.join()


@pytest.fixture
def page(site):
    """Put a page up; gives its address."""

    def put(path, content=b"", **how):
        site.pages[path] = Page(content, **how)
        return site.url(path)

    return put


@pytest.fixture
def pauses(monkeypatch):
    """Seconds that were waited between attempts, without waiting."""
    slept = []
    monkeypatch.setattr(download_module, "time", SimpleNamespace(sleep=slept.append))
    return slept


@pytest.fixture
def quick(pauses):
    return Patience(timeout=60.0, attempts=4, pause=1.0)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def get(tmp_path, quick):
    """Download to tmp_path/w/f.bin; `steps` collects what progress was told."""
    steps = []

    def get(remote, patience=quick, progress=lambda *step: steps.append(step)):
        return download(remote, tmp_path / "w" / "f.bin", progress, patience)

    get.steps = steps
    get.target = tmp_path / "w" / "f.bin"
    get.part = tmp_path / "w" / "f.bin.part"
    get.files = lambda: sorted(path.name for path in (tmp_path / "w").iterdir())
    return get
