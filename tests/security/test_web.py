"""The page against a hostile store and hostile clients; tests/web has what a request can say."""

import contextlib
import hashlib
import http.client
import re
import socket
import time
from pathlib import Path

import pytest

from deepfishing.web import guard, server
from deepfishing.web.photos import Thumbnails

SECONDS = 300  # by then a machine under load has answered
EVIL = "<script>window.evil=1</script>\"'><img src=x onerror=evil()>"


def talk_to(port):
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)


def closes(talk):
    """Whether the other side hangs up, after whatever it says."""
    try:
        while talk.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def head(port, *lines):
    return "\r\n".join([*lines, f"Host: 127.0.0.1:{port}", "", ""]).encode()


def test_clients_that_say_nothing_or_too_slowly_lose_their_place(served, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    starts = [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nA: "]
    # a request, and half of another
    after = head(served, "GET /api/store HTTP/1.1") + b"GET"
    silent = []
    for start in (*starts, after):
        talk = talk_to(served)
        talk.sendall(start)
        silent.append(talk)
    with talk_to(served) as drip:
        try:
            for _ in range(400):
                drip.sendall(b"G")
                time.sleep(0.01)
        except OSError:
            pass
        else:
            assert closes(drip)
    for talk in silent:
        assert closes(talk)
        talk.close()


def test_a_slow_upload_and_a_busy_connection_keep_their_place(
    served, monkeypatch, jpeg
):
    def keep(seconds):
        """Whether both do for three times as long as one that says nothing may stay."""
        monkeypatch.setattr(server, "HEAD_SECONDS", seconds)
        busy = http.client.HTTPConnection("127.0.0.1", served, timeout=SECONDS)
        with contextlib.closing(busy), talk_to(served) as slow:
            length = f"Content-Length: {len(jpeg)}"
            slow.sendall(head(served, "POST /api/uploads HTTP/1.1", length))
            busy.connect()
            first = busy.sock
            for _ in range(30):
                busy.request("GET", "/api/image?id=a.jpg")
                assert busy.getresponse().read() == b'{"id":"a.jpg","labels":[]}'
                time.sleep(seconds / 10)
            slow.sendall(b"?" * len(jpeg))
            answer = slow.recv(65536)
            # it is no photo
            return busy.sock is first and answer.startswith(b"HTTP/1.1 400")

    def kept(seconds):
        try:
            return keep(seconds)
        except OSError:  # a place that was lost
            return False

    # on a busy machine this process itself may come too late
    assert any(map(kept, (0.5, 2, 10)))


def test_slow_uploads_do_not_keep_others_waiting(served, monkeypatch):
    """Two of them used to block all uploads for half a minute, which a body may take."""
    monkeypatch.setattr(guard, "SILENT_SECONDS", SECONDS)
    with contextlib.ExitStack() as slow:
        for _ in range(20):
            talk = slow.enter_context(talk_to(served))
            talk.sendall(
                head(served, "POST /api/uploads HTTP/1.1", "Content-Length: 1000000")
            )
            talk.sendall(b"x")
        started = time.monotonic()
        with talk_to(served) as quick:
            quick.sendall(
                head(served, "POST /api/uploads HTTP/1.1", "Content-Length: 5")
            )
            quick.sendall(b"photo")
            # received; it is no photo
            assert quick.recv(65536).startswith(b"HTTP/1.1 400")
        assert time.monotonic() - started < guard.BODY_SECONDS / 2


@pytest.mark.parametrize(
    "endless", [b"GET /", b"GET / HTTP/1.1\r\nA: ", b"GET / HTTP/1.1\r\n"]
)
def test_a_head_without_end_is_cut_off(served, endless):
    more = b"A: b\r\n" * 1000 if endless.endswith(b"\n") else b"a" * 10_000
    sent = 0
    with talk_to(served) as talk:
        try:
            talk.sendall(endless)
            while sent < 50_000_000:
                talk.sendall(more)
                sent += len(more)
        except OSError:
            pass
    assert sent < 50_000_000
    with talk_to(served) as talk:
        talk.sendall(head(served, "GET /api/store HTTP/1.1", "Connection: close"))
        assert talk.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "lines",
    [
        ["GET /api/store HTTP/1.1", "Host: evil.example"],
        ["GET /api/store HTTP/1.1", "A: b\0c"],
        ["GET /api/store HTTP/1.1", "A : b"],
        ["POST /api/uploads HTTP/1.1", "Content-Length: 1", "Content-Length: 2"],
        ["POST /api/uploads HTTP/1.1", "Content-Length: -1"],
        ["POST /api/uploads HTTP/1.1", "Transfer-Encoding: gzip"],
        ["GET http://evil.example/api/store HTTP/1.1"],
        ["CONNECT evil.example:443 HTTP/1.1"],
        ["TRACE / HTTP/1.1"],
    ],
)
def test_requests_with_two_meanings_are_refused(served, lines):
    with talk_to(served) as talk:
        talk.sendall(head(served, *lines, "Connection: close"))
        assert re.match(rb"HTTP/1\.1 (4\d\d|501)", talk.recv(65536))


@pytest.mark.parametrize(
    "host", ["0.0.0.0:8765", "localhost.", "a.localhost", "127.1", "0", "[::]"]
)
def test_other_spellings_of_this_machine_are_refused(make_store, client_of, host):
    client = client_of(make_store(("a.jpg", "a.jpg", "ab" * 32, None)))
    assert client.get("/api/store", headers={"Host": host}).status_code == 403


def test_no_name_in_a_store_gets_into_a_header(make_store, client_of, place, jpeg):
    path, sha256 = place("a.jpg", jpeg)
    line = "\r\nSet-Cookie: evil=1\r\n\r\n<b>"
    store = make_store(
        (f"a{line}", path, sha256, (line,)), ("b", path, f"{line}{sha256}", None)
    )
    client = client_of(store)
    for id_, status in ((f"a{line}", 200), ("b", 404)):
        answer = client.get("/api/thumbnail", params={"id": id_})
        assert answer.status_code == status
        assert "evil" not in str(answer.headers)
    assert client.get("/api/images").json()["images"][0]["labels"] == [line]


def test_names_are_data_and_never_a_page(make_store, client_of, place, jpeg):
    client = client_of(make_store((EVIL, *place("a.jpg", jpeg), (EVIL,))))
    search = {"by": "x7", "like": [{"id": EVIL}], "labels": [EVIL]}
    answers = [
        client.get("/api/store"),
        client.get("/api/images"),
        client.get("/api/image", params={"id": EVIL}),
        client.post("/api/search", json=search),
        client.get("/api/images", params={"label": f"{EVIL}?"}),  # the error repeats it
    ]
    for answer in answers:
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert EVIL in answers[-1].json()["error"]


def test_the_pages_scripts_make_no_html_of_text():
    """Elements are made one by one and filled with text; what is not used cannot be misused."""
    static = Path(server.__file__).parent / "static"
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment"
    forbidden += r"|DOMParser|srcdoc|\beval\(|new Function|javascript:"
    for file in static.glob("*.js"):
        assert not re.search(forbidden, file.read_text()), file.name
    for page in static.glob("*.html"):
        inline = r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|javascript:"
        assert not re.search(inline, page.read_text()), page.name


def test_a_multipart_body_is_only_bytes_that_are_no_photo(make_store, client_of, jpeg):
    """No part of it is looked at, so neither their number nor their names matter."""
    client = client_of(make_store(("a.jpg", "a.jpg", "ab" * 32, None)))
    part = (
        b'--x\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n\r\n%s\r\n'
    )
    many = part % (b"a", b"../../a.jpg", b"") * 20_000
    long = part % (b"a", b"a" * (1 << 20), jpeg)
    for body in (many, long):
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = client.post("/api/uploads", content=body + b"--x--", headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("a photo must be a JPEG")


def test_a_store_that_names_other_files_shows_nothing_but_pictures(
    make_store, client_of, place
):
    """Whoever made the store knows the hash of a file, and still does not get to see it."""
    path, sha256 = place("secret.txt", b"the secret")
    empty = hashlib.sha256(b"").hexdigest()
    store = make_store(
        ("text", path, sha256, None),
        ("url", path.as_uri(), sha256, None),
        ("up", f"{path.parent}/store/../secret.txt", sha256, None),
        ("folder", path.parent, sha256, None),
        ("zero", f"{path}\0", sha256, None),
        ("long", "a/" * 3000, sha256, None),
        ("device", "/dev/zero", sha256, None),
        ("environment", "/proc/self/environ", empty, None),
    )
    client = client_of(store)
    for id_ in client.get("/api/images").json()["images"]:
        answer = client.get("/api/thumbnail", params={"id": id_["id"]})
        assert answer.status_code == 404
        assert "secret" not in answer.text


def test_a_file_that_says_to_be_empty_is_not_read(make_store, monkeypatch):
    """In /proc, files say so, and some do not end."""
    opened = []
    thumbnails = Thumbnails(make_store(("a", "a", "ab" * 32, None)).folder)
    monkeypatch.setattr(Path, "open", lambda self, *_: opened.append(self))
    with pytest.raises(OSError, match="gone or has changed"):
        thumbnails.jpeg("/proc/self/environ", "ab" * 32, "small")
    assert opened == []
