import platform
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from deepfishing.store import Row, Store
from deepfishing.web import server

SETTINGS = {
    "network": "toy",
    "layers": {"7": "fc7", "8": "fc8"},
    "tau": 2.0,
    "views": "centre",
}
SETTINGS |= {"label": "uniform", "head": "softmax", "scores": "", "source": {}}
NO_WEIGHTS = (
    "weights_sha256 must be text, got 'None'; make the store or the model again"
)
HEAP = 64 << 20  # bytes that glibc keeps for a thread's heap, at a multiple of it
SECONDS = 300  # by then a machine under load has answered
get = partial(httpx.get, timeout=SECONDS)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Made-up features of four images that are nowhere."""
    rng = np.random.default_rng(0)
    store = Store(tmp_path_factory.mktemp("serve") / "store", SETTINGS)
    keys = [f"{n:064x}" for n in range(4)]
    store.append(keys, {name: rng.normal(size=(4, 5)) for name in ("x7", "delta8")})
    store.write_rows(Row(f"{n}.jpg", f"{n}.jpg", k) for n, k in enumerate(keys))
    return store.folder


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen
    first: str
    url: str


@pytest.fixture(scope="module")
def served(store):
    """`deepfish serve` as its user runs it: the process and what it printed."""
    start = "from deepfishing.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", start, "serve", store, "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield Served(process, process.stdout.readline(), process.stdout.readline().strip())
    process.kill()
    process.communicate()


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="heaps of threads are glibc's"
)
def test_its_threads_share_a_heap(served):
    asked = [
        f"{served.url}api/{what}?id=0.jpg" for what in ("image", "thumbnail", "store")
    ] * 8
    with ThreadPoolExecutor(8) as clients:
        codes = {answer.status_code for answer in clients.map(get, asked)}
    assert codes == {200, 404}
    lines = Path(f"/proc/{served.process.pid}/maps").read_text().splitlines()
    maps = [line.split()[:2] for line in lines]
    spans = [[int(end, 16) for end in span.split("-")] for span, _ in maps]
    heaps = [
        begin
        for (begin, used), (rest, end), (_, rights) in zip(
            spans, spans[1:], maps[1:], strict=False
        )
        if used == rest
        and rights == "---p"
        and begin % HEAP == 0
        and end == begin + HEAP
    ]
    # a heap that is full goes on in another, which begins with the same address: its owner's
    with Path(f"/proc/{served.process.pid}/mem").open("rb", buffering=0) as memory:
        owners = {memory.seek(begin) and memory.read(8) for begin in heaps}
    assert len(owners) <= 1


def test_it_answers_at_the_printed_address_until_ctrl_c(served, store):
    """The last test of this process."""
    assert served.first == f"4 images of {store}; Ctrl-C ends\n"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", served.url)
    assert get(f"{served.url}api/store").json()["images"] == 4
    assert get(f"{served.url}api/thumbnail?id=0.jpg").status_code == 404
    served.process.send_signal(signal.SIGINT)
    out, err = served.process.communicate(timeout=SECONDS)
    assert (served.process.returncode, out) == (0, "")
    # the network of these made-up features is none; how soon that is known depends on the machine
    assert err in ("", f"deepfish: photos cannot be searched with: {NO_WEIGHTS}\n")


@pytest.fixture
def no_server(monkeypatch):
    """Everything but the server itself, which would not end."""
    ran = []
    monkeypatch.setattr(
        server.uvicorn.Server, "run", lambda self, sockets: ran.append(sockets)
    )
    monkeypatch.setattr(
        "deepfishing.web.photos.Uploads.warm_up", lambda self: ran.append(self)
    )
    return ran


def test_the_address_is_printed_and_no_browser_opened(
    deepfish, store, no_server, monkeypatch
):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    ran = deepfish("serve", store, "--port", "0", "--host", "0.0.0.0")
    assert ran.code == 0, ran.err
    assert "/?token=" in ran.out.splitlines()[1]
    assert opened == []
    assert len(no_server) == 2  # it loads its network before it answers


def test_the_recipes_to_start_with_may_be_any(deepfish, store, no_server):
    options = ("--features", "pow(x7,0.3),dW8*x7", "--port", "0")
    assert deepfish("serve", store, *options).code == 0
    ran = deepfish("serve", store, "--features", "dW7")
    assert ran.code == 1
    assert "lacks x6, delta7" in ran.err


def test_what_cannot_be_served_is_one_line(deepfish, store, tmp_path):
    ran = deepfish("serve", tmp_path / "nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert "must hold store.json, got none in" in ran.err
    empty = Store(tmp_path / "empty", SETTINGS).folder
    ran = deepfish("serve", empty)
    assert ran.code == 1
    assert "must have images to search in, got none" in ran.err
    assert str(empty) in ran.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = deepfish("serve", store, "--port", port)
    assert ran.code == 1
    assert f"127.0.0.1 and {port} (Address already in use); leave --port out" in ran.err
    ran = deepfish("serve", store, "--model", tmp_path / "no-model")
    assert ran.code == 1
    assert "no-model" in ran.err
    assert len(ran.err.splitlines()) == 1
