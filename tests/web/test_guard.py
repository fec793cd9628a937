"""Who may ask: this machine's own page, and beyond this machine who has the token."""

import re
import socket

import httpx
import pytest
from starlette.testclient import TestClient

from deepfishing.errors import OptionError
from deepfishing.web.app import make_app
from deepfishing.web.guard import is_ours
from deepfishing.web.server import PORT, bind

TOKEN = "let-me-in"


@pytest.fixture
def guarded(gallery):
    """A server for others, as a visitor from elsewhere sees it."""
    app = make_app(gallery, host="0.0.0.0", port=80, token=TOKEN)
    return TestClient(app, base_url="http://192.168.1.7", follow_redirects=False)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8765",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
        ),
        *("192.168.1.7", "", "[::1", "127.0.0.1@evil.example", "a b", "2130706433"),
    ],
)
def test_a_name_that_is_not_this_machines_is_refused(client, host):
    for path in ("/", "/api/store", "/static/shell.js"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 403
        assert list(answer.json()) == ["error"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765", "localhost", "LOCALHOST:1", "[::1]:8765"]
)
def test_the_names_of_this_machine_are_answered(client, host):
    assert client.get("/api/store", headers={"Host": host}).status_code == 200


def test_beyond_this_machine_numbers_and_its_own_name_are_answered():
    assert is_ours("10.0.0.3:8765", "0.0.0.0")
    assert is_ours(f"{socket.gethostname()}:8765", "0.0.0.0")
    assert not is_ours("evil.example", "0.0.0.0")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://["},
        {"Origin": "file://127.0.0.1:8765"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_requests_of_other_sites_are_refused(client, ids, headers):
    asked = {"by": "x7", "like": [{"id": ids[0]}]}
    assert client.post("/api/search", json=asked, headers=headers).status_code == 403
    assert client.get("/api/store", headers=headers).status_code == 403
    thumbnail = client.get("/api/thumbnail", params={"id": ids[0]}, headers=headers)
    assert thumbnail.status_code == 403


def test_the_page_itself_may_ask_and_a_link_from_elsewhere_may_open_it(client, ids):
    own = {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin"}
    asked = {"by": "x7", "like": [{"id": ids[0]}]}
    assert client.post("/api/search", json=asked, headers=own).status_code == 200
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200


def test_every_answer_keeps_browsers_from_other_places(client, ids):
    paths = [
        "/",
        "/static/shell.js",
        "/api/store",
        f"/api/thumbnail?id={ids[0]}",
        "/nothing",
    ]
    for headers in ({}, {"Host": "evil.example"}):
        for path in paths:
            answer = client.get(path, headers=headers)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert not [
                name for name in answer.headers if name.startswith("access-control")
            ]


def test_the_page_names_nothing_elsewhere(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    links = set(re.findall(r'(?:src|href)="(/[^"]+)"', page.text))
    files = {link for link in links if link.startswith("/static/")}
    assert all(link.startswith("/api/") for link in links - files)  # downloads
    assert {"/static/shell.js", "/static/page.css"} <= files
    for file in files:
        answer = client.get(file)
        assert answer.status_code == 200
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(", text), file
    assert not re.search(r"https?://", page.text)
    for name in re.findall(r'from "\./(\w+\.js)"', client.get("/static/shell.js").text):
        answer = client.get(f"/static/{name}")
        assert answer.headers["content-type"].startswith("text/javascript")


def test_without_the_token_nothing_is_told(guarded):
    wrong = {"Cookie": "deepfish_80=wrong"}
    other = {"Cookie": f"deepfish_81={TOKEN}"}
    for headers in ({}, wrong, other, {"Cookie": "=;;=\x7f"}):
        for path in (
            "/",
            "/api/store",
            "/static/shell.js",
            "/?token=wrong",
            "/?token=",
            "/?token",
        ):
            answer = guarded.get(path, headers=headers)
            assert answer.status_code == 401
            assert TOKEN not in answer.text
    assert (
        guarded.get(f"/api/store?token={TOKEN}").status_code == 401
    )  # only the page takes it


def test_the_token_in_the_address_becomes_a_cookie(guarded):
    answer = guarded.get(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert guarded.get("/api/store").status_code == 200  # the client keeps the cookie


def test_a_program_brings_the_token_in_a_header(guarded):
    def ask(value):
        headers = {"Authorization": value}
        return guarded.get("/api/store", headers=headers).status_code

    assert ask(f"Bearer {TOKEN}") == 200
    assert ask(f"bearer  {TOKEN} ") == 200
    for wrong in (
        TOKEN,
        f"Basic {TOKEN}",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
    ):
        assert ask(wrong) == 401, wrong


@pytest.mark.parametrize(
    "token", ["0123456789abcdef", 'spaces; "quotes" & more = %41+/']
)
def test_several_readers_share_the_token_of_the_environment(
    gallery, monkeypatch, token
):
    monkeypatch.setenv("DEEPFISHING_TOKEN", token)
    for host in (
        "127.0.0.1",
        "0.0.0.0",
    ):
        # the first may be behind a proxy
        address = bind(host, 0)
        address.listening.close()
        assert address.token == token
        assert address.shown.endswith("/?token=$DEEPFISHING_TOKEN")
        assert token not in address.shown + repr(address)
    app = make_app(gallery, host="0.0.0.0", port=80, token=address.token)
    link = "/?" + address.url.partition("?")[2]
    for _ in range(2):
        reader = TestClient(app, base_url="http://192.168.1.7", follow_redirects=False)
        assert reader.get("/api/store").status_code == 401
        assert reader.get(link).status_code == 303
        assert reader.get("/api/store").status_code == 200


@pytest.mark.parametrize(
    "token", ["short", "x" * 15, "sixteen and\na line", "\u00e4" * 16]
)
def test_a_token_that_is_easily_guessed_or_not_sent_is_refused(monkeypatch, token):
    monkeypatch.setenv("DEEPFISHING_TOKEN", token)
    with pytest.raises(OptionError, match="at least 16 characters") as refused:
        bind("127.0.0.1", 0)
    assert token not in str(refused.value)


def test_only_addresses_of_this_machine_come_without_a_token(monkeypatch):
    monkeypatch.delenv("DEEPFISHING_TOKEN", raising=False)
    for host in ("127.0.0.1", "localhost"):
        address = bind(host, 0)
        assert address.token is None
        address.listening.close()
    address, again = bind("0.0.0.0", 0), bind("0.0.0.0", 0)
    assert len(address.token) >= 32
    assert address.token != again.token
    assert address.url.endswith(f":{address.port}/?token={address.token}")
    assert address.token not in repr(address)
    address.listening.close()
    again.listening.close()


def test_a_port_in_use_is_an_error_and_the_usual_one_gives_way():
    first = bind("127.0.0.1")
    second = bind("127.0.0.1")
    assert second.port not in (first.port, PORT)
    with pytest.raises(OptionError, match=f"{second.port} .*in use.*leave --port out"):
        bind("127.0.0.1", second.port)
    first.listening.close()
    second.listening.close()
    for host, port in (
        ("127.0.0.1", 70_000),
        ("127.0.0.1", -1),
        ("no.such.host.invalid", 0),
    ):
        with pytest.raises(OptionError, match="--host and --port must be"):
            bind(host, port)


def test_a_real_server_asks_for_its_token(gallery, serve):
    with serve(gallery, "0.0.0.0") as address:
        base = f"http://127.0.0.1:{address.port}"
        assert httpx.get(f"{base}/api/store", timeout=300).status_code == 401
        with httpx.Client(follow_redirects=True, timeout=300) as visitor:
            page = visitor.get(f"{base}/?token={address.token}")
            assert page.status_code == 200
            assert page.url.query == b""
            assert visitor.get(f"{base}/api/store").status_code == 200
