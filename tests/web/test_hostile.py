"""Hostile requests get one line; the server stays up and tells nothing of the machine."""

import io
import json
import os
import re
import socket
import struct
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery
from deepfishing.web.photos import MAX_BYTES
from deepfishing.web.studio import MAX_JSON

SECONDS = 300  # by then a machine under load has answered
STRANGE = [
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "..",
        ".",
        "",
        "\0",
        "a\0b",
        "%2e%2e%2fetc%2fpasswd",
    ),
    *(
        "..%c0%af..",
        "file:///etc/passwd",
        "http://127.0.0.1/",
        "~",
        "-",
        "0",
        "💣",
        "a" * 4000,
    ),
    "store.json",
]


def is_refusal(answer, status=range(400, 500)):
    """One line of JSON, without a path of this machine or a traceback."""
    assert answer.status_code in status, answer.text
    assert list(answer.json()) == ["error"]
    assert_tells_nothing(answer)
    return True


def assert_tells_nothing(answer):
    assert "\n" not in answer.json()["error"]
    assert not re.search(
        r"/tmp|/home|/root|/etc/|/usr|site-packages|Traceback", answer.text
    )
    for path in (str(Path.cwd()), str(Path(__file__).parent), str(Path.home())):
        assert path not in answer.text


def png(width, height):
    """The head of a PNG that says to be this large, and nothing in it."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", pixels)
        + chunk(b"IEND", b"")
    )


@pytest.fixture(scope="module")
def jpeg():
    pixels = np.random.default_rng(1).integers(0, 255, (80, 90, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize("strange", STRANGE)
def test_only_ids_of_the_store_are_images(client, ids, strange, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_refusal(client.get("/api/thumbnail", params={"id": strange}))
    assert is_refusal(client.get("/api/image", params={"id": strange}))
    for asked in (
        {"id": strange},
        {"upload": strange},
        {"id": ids[0], "upload": strange or "a"},
    ):
        assert is_refusal(client.post("/api/predict", json=asked))
        for like, unlike in (([asked], []), ([{"id": ids[0]}], [asked])):
            body = {"by": "x7", "like": like, "unlike": unlike}
            assert is_refusal(client.post("/api/search", json=body))
            assert is_refusal(client.post("/api/scatter", json=body))


def test_a_file_is_never_a_query(client, gallery):
    """A searcher takes what is not an id for a path; the page must not."""
    path = gallery.collection[0].path
    body = {"by": "x7", "like": [{"id": path}]}
    if gallery.collection.row_of(path) is None:
        assert is_refusal(client.post("/api/search", json=body))
        assert is_refusal(client.get("/api/thumbnail", params={"id": path}))


@pytest.mark.parametrize(
    "path",
    [
        *("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../app.py"),
        *(
            "/static/%2e%2e%2fapp.py",
            "/static/..%5capp.py",
            "/static//etc/passwd",
            "/static/",
        ),
        *(
            "/static/%00",
            "/etc/passwd",
            "/docs",
            "/openapi.json",
            "/redoc",
            "/api",
            "//evil",
        ),
    ],
)
def test_no_path_leads_anywhere(live, path):
    """Over a socket, since clients tidy paths up before they send them."""
    with socket.create_connection(("127.0.0.1", live.port), timeout=SECONDS) as talk:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{live.port}\r\nConnection: close\r\n\r\n"
        talk.sendall(head.encode())
        answer = b"".join(iter(lambda: talk.recv(65536), b""))
    assert answer.split(None, 2)[1] in (b"404", b"400")
    assert b"root:" not in answer
    assert b"import" not in answer


def test_an_image_that_became_something_else_is_not_shown(copied, tmp_path, ids, jpeg):
    client = TestClient(make_app(Gallery(copied.folder)), base_url="http://127.0.0.1")
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    images = [Path(row.path) for row in copied.rows().values()]
    for image in images[:5]:
        image.unlink()
    images[0].symlink_to(secret)
    images[1].write_bytes(jpeg)  # another image
    images[2].mkdir()
    os.mkfifo(images[3])  # whoever reads it waits for ever
    for id_ in ids[:5]:
        answer = client.get("/api/thumbnail", params={"id": id_})
        assert is_refusal(answer, [404])
        assert "gone or has changed" in answer.json()["error"]
    assert client.get("/api/thumbnail", params={"id": ids[5]}).status_code == 200


def test_what_is_no_photo_is_refused(client, jpeg):
    text = b"not a picture"
    for content in (
        b"",
        text,
        jpeg[: len(jpeg) // 2],
        jpeg[:20],
        b"%!PS-Adobe-3.0 EPSF\n",
        b"\0" * 99,
    ):
        answer = client.post(
            "/api/uploads", content=content, headers={"Content-Type": "image/jpeg"}
        )
        assert is_refusal(answer, [400])
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    assert is_refusal(client.post("/api/uploads", content=svg), [400])


def test_the_type_that_is_claimed_does_not_matter(client, jpeg):
    for kind in ("text/html", "application/json", "multipart/form-data", "image/png"):
        answer = client.post(
            "/api/uploads", content=jpeg, headers={"Content-Type": kind}
        )
        assert answer.status_code == 200


@pytest.mark.parametrize(
    "size", [(50_000, 50_000), (8000, 7000), (2**31 - 1, 1), (10_000, 10_000)]
)
def test_a_bomb_is_refused_before_it_is_decoded(client, size, monkeypatch):
    decoded = []
    monkeypatch.setattr(Image.Image, "load", lambda self: decoded.append(self))
    answer = client.post("/api/uploads", content=png(*size))
    assert is_refusal(answer, [400])
    assert "at most 50,000,000 pixels" in answer.json()["error"]
    assert not decoded


def test_bodies_are_limited_while_they_arrive(live):
    """One that says how long it is, and one that does not say it and never ends."""
    url = f"http://127.0.0.1:{live.port}"
    sent = 0

    def endless():
        nonlocal sent
        while sent < 50 * MAX_BYTES:
            sent += 1 << 20
            yield b"a" * (1 << 20)

    for path, limit in (("/api/uploads", MAX_BYTES), ("/api/search", MAX_JSON)):
        with socket.create_connection(
            ("127.0.0.1", live.port), timeout=SECONDS
        ) as talk:
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{live.port}\r\n"
            head += (
                f"Content-Type: application/json\r\nContent-Length: {limit + 1}\r\n\r\n"
            )
            talk.sendall(head.encode())
            assert talk.recv(4096).split()[1] == b"413"  # before a byte of it is there
        sent = 0
        try:
            headers = {"Content-Type": "application/json"}
            answer = httpx.post(
                f"{url}{path}", content=endless(), headers=headers, timeout=SECONDS
            )
            assert is_refusal(answer, [413])
        except httpx.WriteError:
            pass  # closed while it was sending, which is as good
        assert sent < 3 * MAX_BYTES
    assert httpx.get(f"{url}/api/store", timeout=SECONDS).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"null",
            b"1",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"by": "x7"}',
        ),
        *(b'{"by": "x7", "like": []}', b'{"by": "x7", "like": ["a"]}'),
        *(b'{"by": "x7", "like": [{"id": "\\ud800"}]}', b'{"by": "x7", "like": [{}]}'),
        json.dumps({"by": "x7", "like": [{"id": "a"}] * 51}).encode(),
        json.dumps({"by": "x7", "like": [{"id": "a"}], "k": 10**9}).encode(),
        json.dumps({"by": "x7", "like": [{"id": "a"}], "k": -1}).encode(),
        json.dumps({"by": "x7", "like": [{"id": "a"}], "k": "5"}).encode(),
        json.dumps({"by": "x7", "like": [{"id": "a"}], "path": "/etc"}).encode(),
        json.dumps({"by": "x7", "like": [{"id": "a", "path": "/etc/passwd"}]}).encode(),
        json.dumps({"by": "whiten(dW8)", "like": [{"id": "a"}]}).encode(),
        json.dumps({"by": "x7", "like": [{"id": "a"}], "labels": ["no such"]}).encode(),
        b'{"by": "x7", "like": [{"id": "a"}], "k": NaN}',
    ],
)
def test_a_question_of_another_shape_is_refused(client, body):
    headers = {"Content-Type": "application/json"}
    for path in ("/api/search", "/api/scatter", "/api/predict"):
        assert is_refusal(client.post(path, content=body, headers=headers))


def test_a_question_must_say_that_it_is_json(client, ids):
    """A form of another site can send text/plain without asking first, but no JSON."""
    body = json.dumps({"by": "x7", "like": [{"id": ids[0]}]})
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "",
        "application/jsonx",
    ):
        answer = client.post(
            "/api/search", content=body, headers={"Content-Type": kind}
        )
        assert is_refusal(answer, [415])


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1",
        "limit=0",
        "limit=501",
        "offset=a",
        "label=no+such",
        f"text={'a' * 5000}",
    ],
)
def test_a_page_that_cannot_be_is_refused(client, query):
    assert is_refusal(client.get(f"/api/images?{query}"))


def test_other_methods_are_refused(client):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        for path in ("/", "/api/store", "/api/search", "/api/uploads"):
            assert is_refusal(client.request(method, path), [405])


def test_a_store_that_breaks_while_it_is_served_is_told_without_its_path(copied, ids):
    client = TestClient(make_app(Gallery(copied.folder)), base_url="http://127.0.0.1")
    for file in (copied.folder / "x7").iterdir():
        file.unlink()
    answer = client.post("/api/search", json={"by": "x7", "like": [{"id": ids[0]}]})
    assert is_refusal(answer, [503])
    assert client.get("/api/store").status_code == 200


@pytest.mark.slow
def test_200_requests_at_once_leave_the_server_up(live, ids, jpeg):
    url = f"http://127.0.0.1:{live.port}"
    asked = {"by": "dW8", "like": [{"id": ids[0]}], "k": 5}
    kinds = [
        lambda c: c.post("/api/search", json=asked),
        lambda c: c.post("/api/uploads", content=jpeg + os.urandom(9)),
        lambda c: c.get("/api/thumbnail", params={"id": ids[1], "size": "large"}),
        lambda c: c.post("/api/scatter", json=asked),
        lambda c: c.post("/api/uploads", content=png(50_000, 50_000)),
        lambda c: c.get("/api/thumbnail", params={"id": "../../etc/passwd"}),
        lambda c: c.post(
            "/api/search", content=b"{", headers={"Content-Type": "application/json"}
        ),
        lambda c: c.get("/api/images", params={"text": "0"}),
    ]

    many = httpx.Limits(max_connections=200)
    with (
        httpx.Client(base_url=url, timeout=SECONDS, limits=many) as visitor,
        ThreadPoolExecutor(200) as pool,
    ):
        answers = list(
            pool.map(lambda number: kinds[number % len(kinds)](visitor), range(200))
        )
    counts = Counter(answer.status_code for answer in answers)
    assert set(counts) <= {200, 400, 404, 503}
    assert counts[200] > 50
    for answer in answers:
        if answer.status_code != 200:
            assert_tells_nothing(answer)
        if answer.status_code == 503:
            assert answer.headers["retry-after"] == "1"
    hits = httpx.post(f"{url}/api/search", json=asked, timeout=SECONDS).json()["hits"]
    assert len(hits) == 5


def test_clients_that_say_nothing_or_go_away_do_no_harm(live):
    held = []
    for text in (
        b"",
        b"GET / HTTP/1.1\r\n",
        b"POST /api/uploads HTTP/1.1\r\nHost: localhost\r\n",
    ):
        for _ in range(20):
            talk = socket.create_connection(("127.0.0.1", live.port), timeout=SECONDS)
            talk.sendall(text)
            held.append(talk)
    assert (
        httpx.get(
            f"http://127.0.0.1:{live.port}/api/store", timeout=SECONDS
        ).status_code
        == 200
    )
    for talk in held:
        talk.close()
    assert (
        httpx.get(
            f"http://127.0.0.1:{live.port}/api/store", timeout=SECONDS
        ).status_code
        == 200
    )
