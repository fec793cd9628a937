import functools
import hashlib
import socket
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deepfishing.cli.app import main
from deepfishing.fetch import place
from deepfishing.fetch.place import CATALOGUE, Download
from deepfishing.util.files import Remote

CONTENT = b"weights" * 1000


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A plain web server with one good file, of which two names are in the catalogue."""
    monkeypatch.delenv("http_proxy", raising=False)
    (tmp_path / "net.pth").write_bytes(CONTENT)
    silent = type(
        "Silent", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None}
    )
    handler = functools.partial(silent, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        digest = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
        for name, file in {"net": "net.pth", "lost": "lost.pth"}.items():
            remote = Remote(f"{url}/{file}", digest, len(CONTENT), megabytes=1)
            monkeypatch.setitem(CATALOGUE, name, Download(name, "MIT", (remote,)))
        yield url
        server.shutdown()
        thread.join()


@pytest.fixture
def deepfish(monkeypatch, capsys):
    """Run the command; gives its exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["deepfish", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        streams = capsys.readouterr()
        return caught.value.code or 0, streams.out, streams.err

    return run


def test_a_name_is_fetched_once_and_then_only_checked(deepfish, server, home):
    place = home / "weights" / "net.pth"
    after = "next: deepfish extract photos store --network net\n"
    assert deepfish("fetch", "net") == (
        0,
        f"net fetched: {place} (licence: MIT)\n",
        after,
    )
    assert place.read_bytes() == CONTENT
    assert deepfish("fetch", "net") == (0, f"net here: {place} (licence: MIT)\n", after)


def test_a_failure_does_not_stop_the_others(deepfish, server, home):
    code, out, err = deepfish("fetch", "lost", "net")
    assert code == 1
    assert out == f"net fetched: {home / 'weights' / 'net.pth'} (licence: MIT)\n"
    assert "lost" in err
    assert "404" in err


def test_a_failure_is_one_line_on_stderr(deepfish, server, home):
    code, out, err = deepfish("fetch", "lost")
    assert (code, out) == (1, "")
    assert err.startswith(
        f"deepfish: lost: {server}/lost.pth answered 404 Not Found; to do it by"
    )
    assert err.count("\n") == 1


def test_a_mistyped_name_is_told_before_the_first_download(deepfish, server, home):
    code, out, err = deepfish("fetch", "net", "vgg-16")
    assert (code, out) == (1, "")
    assert "got 'vgg-16'; did you mean vgg16?" in err
    assert not home.exists()


def test_without_a_network_every_name_says_what_to_do_by_hand(
    deepfish, home, monkeypatch
):
    def no_network(*_args, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    code, out, err = deepfish("fetch", "alexnet-caffe", "voc2007")
    assert (code, out) == (1, "")
    weights, data = err.splitlines()
    assert (
        f"bvlc_alexnet.caffemodel as {home}/weights/bvlc_alexnet.caffemodel" in weights
    )
    assert f"VOCtest_06-Nov-2007.tar as {home}/data/VOCtest_06-Nov-2007.tar" in data


def test_an_interrupt_is_one_line_and_130(deepfish, server, home, monkeypatch):
    def interrupt(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, "download", interrupt)
    code, out, err = deepfish("fetch", "net")
    assert (code, out) == (130, "")
    assert "Traceback" not in err


def test_the_help_has_an_example_and_every_name(deepfish):
    code, out, _ = deepfish("fetch", "--help")
    assert code == 0
    assert "Example: deepfish fetch" in out
    assert all(name in out for name in CATALOGUE)
