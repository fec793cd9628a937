"""Answers that are not the file: lengths, redirects, statuses, silence, and what is no HTTP."""

import hashlib
import socket
from dataclasses import replace

import pytest

from deepfishing.errors import FetchError
from deepfishing.fetch import download as answer_module
from deepfishing.fetch.download import Patience
from deepfishing.util.files import Remote

CONTENT = bytes(range(256)) * 400


def remote_of(url, content=CONTENT, size=None):
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Remote(url, digest, size=len(content) if size is None else size, megabytes=1)


def test_a_body_shorter_than_announced_is_never_taken_for_whole(get, page):
    lie = {"Content-Length": str(len(CONTENT) + 50)}
    with pytest.raises(FetchError, match=r"ended after 102400 of 102450 bytes"):
        get(remote_of(page("/f.bin", CONTENT, headers=lie, ranges=False), size=0))
    assert not get.target.exists()


def test_a_body_longer_than_announced_is_a_wrong_file(get, page):
    lie = {"Content-Length": str(len(CONTENT) - 50)}
    with pytest.raises(
        FetchError, match=r"must have the sha256 .* got .*; it was removed"
    ):
        get(remote_of(page("/f.bin", CONTENT, headers=lie), size=0))
    assert get.files() == []


@pytest.mark.parametrize("size", [102399, 102401])
def test_another_length_than_the_published_one_is_refused_at_once(
    get, page, site, size
):
    with pytest.raises(
        FetchError, match=f"must give {size} bytes, the server announces 102400"
    ):
        get(remote_of(page("/f.bin", CONTENT), size=size))
    assert get.files() == []
    assert len(site.asked) == 1


def test_a_length_far_above_the_published_megabytes_is_refused_at_once(get, page):
    huge = {"Content-Length": "1200000"}
    with pytest.raises(
        FetchError, match="about 1 million bytes, the server announces 1200000"
    ):
        get(remote_of(page("/f.bin", CONTENT, headers=huge), size=0))


@pytest.mark.parametrize("size", [0, len(CONTENT)])
def test_a_body_without_an_announced_length_is_checked_all_the_same(get, page, size):
    no_length = {"Content-Length": None}
    assert get(remote_of(page("/f.bin", CONTENT, headers=no_length), size=size))
    get.target.unlink()
    with pytest.raises(FetchError, match="must have"):
        get(remote_of(page("/g.bin", CONTENT[:-1], headers=no_length), size=size))
    assert get.files() == []


def test_a_body_without_end_is_stopped(get, page):
    endless = {"headers": {"Content-Length": None}, "trailing": bytes(2_000_000)}
    with pytest.raises(FetchError, match="at most 1100000 bytes, got more"):
        get(remote_of(page("/f.bin", CONTENT, **endless), size=0))
    assert get.files() == []


def test_more_than_the_range_that_was_announced_is_refused(get, page):
    url = page("/f.bin", CONTENT, cuts=[1000])
    with pytest.raises(FetchError):
        get(remote_of(url), Patience(attempts=1))
    page(
        "/f.bin", CONTENT, headers={"Content-Length": "150000"}, trailing=bytes(50_000)
    )
    with pytest.raises(FetchError, match="at most 102400 bytes, got more"):
        get(remote_of(url))
    assert get.files() == []


def test_a_wrong_file_is_removed_and_both_checksums_are_told(get, page):
    wrong = CONTENT[::-1]
    expected, got = (hashlib.sha256(data).hexdigest() for data in (CONTENT, wrong))
    with pytest.raises(FetchError, match=f"{expected}, got {got}; it was removed"):
        get(remote_of(page("/f.bin", wrong)))
    assert get.files() == []


def test_a_redirect_is_followed_and_keeps_the_range(get, page, site):
    url = page("/a", statuses=[302, 301], headers={"Location": "/b c"})
    page("/b%20c", CONTENT, cuts=[1000])
    get(remote_of(url))
    assert get.target.read_bytes() == CONTENT
    assert site.asked[-1] == ("/b%20c", "bytes=1000-")


def test_a_redirect_loop_is_an_error(get, page, site):
    url = page("/a", statuses=[302] * 20, headers={"Location": "/b"})
    page("/b", statuses=[302] * 20, headers={"Location": "/a"})
    with pytest.raises(FetchError, match="redirects in a loop"):
        get(remote_of(url))
    assert len(site.asked) == 11


@pytest.mark.parametrize(
    "there", ["file:///etc/passwd", "ftp://127.0.0.1/f", "data:,x"]
)
def test_a_redirect_to_anything_but_http_is_refused(get, page, there):
    with pytest.raises(FetchError, match="must redirect to http"):
        get(remote_of(page("/a", statuses=[302], headers={"Location": there})))


def test_a_redirect_from_https_to_http_is_refused(get, monkeypatch):
    monkeypatch.setattr(
        answer_module, "_open_once", lambda *_: "http://other.example/f.bin"
    )
    with pytest.raises(
        FetchError, match=r"stay with https, got http://other\.example/f\.bin"
    ):
        get(remote_of("https://weights.example/f.bin"))


@pytest.mark.parametrize(
    "there", ["http://[", "http://a:b/", "http://", "//", "http://\x7f/"]
)
def test_a_redirect_to_a_malformed_address_is_one_error(get, page, there):
    with pytest.raises(FetchError):
        get(remote_of(page("/a", statuses=[302] * 20, headers={"Location": there})))


@pytest.mark.parametrize(
    ("status", "words"),
    [(404, "404 Not Found"), (403, "403 Forbidden"), (302, "302 Found")],
)
def test_a_final_status_is_told_at_once(get, page, site, status, words):
    with pytest.raises(FetchError, match=rf"/f\.bin answered {words}"):
        get(remote_of(page("/f.bin", CONTENT, statuses=[status])))
    assert len(site.asked) == 1


@pytest.mark.parametrize("status", [204, 206, 299])
def test_a_strange_success_is_not_taken_for_the_file(get, page, status):
    with pytest.raises(FetchError, match=f"must answer 200 OK, got .*{status}"):
        get(remote_of(page("/f.bin", CONTENT, statuses=[status])))


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_passing_status_is_tried_again(get, page, site, status):
    get(remote_of(page("/f.bin", CONTENT, statuses=[status, status])))
    assert get.target.read_bytes() == CONTENT
    assert len(site.asked) == 3


def test_a_passing_status_that_stays_is_an_error(get, page, site):
    with pytest.raises(
        FetchError, match=r"4 times in a row.*500 Internal Server Error"
    ):
        get(remote_of(page("/f.bin", CONTENT, statuses=[500] * 9)))
    assert len(site.asked) == 4


@pytest.mark.parametrize("after", [0, 5000])
def test_a_server_that_hangs_is_asked_again_after_the_timeout(
    get, page, site, quick, after
):
    def asked(timeout):
        site.asked.clear()
        get.target.unlink(missing_ok=True)
        get(
            remote_of(page("/f.bin", CONTENT, hang_after=after)),
            replace(quick, timeout=timeout),
        )
        assert get.target.read_bytes() == CONTENT
        return site.ranges()

    # on a busy machine an answer may take longer than the shortest of these
    twice = [None, f"bytes={after}-" if after else None]
    assert twice in map(asked, (0.5, 5, 30))


def test_a_server_that_says_nothing_at_all_is_an_error(get, quick):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/f.bin"
        with pytest.raises(
            FetchError, match=r"4 times in a row.*the server fell silent"
        ):
            get(remote_of(url), replace(quick, timeout=0.05))


def test_a_web_page_is_not_taken_for_the_file(get, page):
    html = {"Content-Type": "text/html; charset=utf-8"}
    with pytest.raises(
        FetchError, match=r"must give a file, got a web page \(text/html\)"
    ):
        get(remote_of(page("/f.bin", b"<html>Log in", headers=html)))
    assert get.files() == []


def test_a_compressed_answer_is_not_taken_for_the_file(get, page):
    with pytest.raises(FetchError, match="compressed"):
        get(remote_of(page("/f.bin", CONTENT, headers={"Content-Encoding": "gzip"})))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200,
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 302 Found\r\n\r\n",
        b"",
    ],
)
def test_what_is_not_proper_http_is_one_error(get, page, raw):
    with pytest.raises(FetchError) as caught:
        get(remote_of(page("/f.bin", raw=raw)))
    assert "\n" not in str(caught.value)
    assert not get.target.exists()
