import errno
import hashlib
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from deepfishing.errors import FetchError
from deepfishing.fetch import download as module
from deepfishing.fetch.download import Patience
from deepfishing.util.files import Remote

CONTENT = bytes(range(256)) * 400


def remote_of(url, content=CONTENT, size=None):
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Remote(url, digest, size=len(content) if size is None else size, megabytes=1)


def test_a_file_comes_whole_and_nothing_else_is_left(get, page, site):
    assert get(remote_of(page("/f.bin", CONTENT))) is True
    assert get.target.read_bytes() == CONTENT
    assert get.files() == ["f.bin"]
    assert get.steps[-1] == ("f.bin", len(CONTENT), len(CONTENT))
    assert site.encoding == "identity"


def test_a_file_that_is_there_is_verified_and_not_asked_for(get, page, site):
    get.target.parent.mkdir()
    get.target.write_bytes(CONTENT)
    assert get(remote_of(page("/f.bin", b"other"))) is False
    assert site.asked == []


def test_the_first_digits_of_a_sha256_are_enough_and_must_be_right(get, page):
    remote = remote_of(page("/f.bin", CONTENT), size=0)
    assert get(replace(remote, digest=remote.digest[: len("sha256:") + 8]))
    with pytest.raises(FetchError, match="must have the sha256 00000000, got"):
        get(replace(remote, digest="sha256:00000000"))


def test_a_sha1_is_checked_where_that_is_what_is_published(get, page):
    digest = f"sha1:{hashlib.sha1(CONTENT).hexdigest()}"
    assert get(replace(remote_of(page("/f.bin", CONTENT)), digest=digest))


@pytest.mark.parametrize(
    ("placed", "what"),
    [(CONTENT[:-1] + b"?", "the sha256 [0-9a-f]*"), (CONTENT[:50], "102400 bytes")],
)
def test_a_file_put_there_by_hand_that_is_wrong_is_set_aside(
    get, page, site, placed, what
):
    get.target.parent.mkdir()
    get.target.write_bytes(placed)
    url = page("/f.bin", CONTENT)
    with pytest.raises(
        FetchError, match=rf"f\.bin must have {what}, got .*aside as f\.bin\.wrong"
    ):
        get(remote_of(url))
    assert get.files() == ["f.bin.wrong"]
    assert site.asked == []
    assert get(remote_of(url)) is True


def test_each_retry_goes_on_where_the_connection_was_cut(get, page, site, pauses):
    get(remote_of(page("/f.bin", CONTENT, cuts=[1000, 2000, 0])))
    assert get.target.read_bytes() == CONTENT
    assert site.ranges() == [None, "bytes=1000-", "bytes=3000-", "bytes=3000-"]
    assert pauses == [1, 2, 4]


def test_attempts_without_progress_are_counted_and_what_came_is_kept(get, page, site):
    url = page("/f.bin", CONTENT, cuts=[1000, 0, 0, 0, 0, 0])
    with pytest.raises(
        FetchError, match=r"broke off 4 times .*byte 1000 .*1000 of 102400.*kept"
    ):
        get(remote_of(url))
    assert len(site.asked) == 4
    assert get.part.read_bytes() == CONTENT[:1000]
    assert not get.target.exists()
    get(remote_of(url))
    assert get.target.read_bytes() == CONTENT
    assert site.ranges()[4:] == ["bytes=1000-"] * 3


def test_attempts_that_bring_enough_do_not_count(get, page, monkeypatch):
    monkeypatch.setattr(module, "_ENOUGH", 100)
    get(remote_of(page("/f.bin", CONTENT, cuts=[100] * 30)))
    assert get.target.read_bytes() == CONTENT


def test_a_server_that_always_begins_anew_and_breaks_off_comes_to_an_end(
    get, page, monkeypatch
):
    monkeypatch.setattr(module, "_ENOUGH", 100)
    with pytest.raises(FetchError, match="broke off 4 times"):
        get(remote_of(page("/f.bin", CONTENT, ranges=False, cuts=[5000] * 100)))


def test_an_interrupt_keeps_the_part_and_the_next_run_goes_on(get, page, site):
    content = CONTENT * 20

    def interrupt(_name, done, _total):
        if done > 500_000:
            raise KeyboardInterrupt

    remote = replace(remote_of(page("/f.bin", content), content), megabytes=3)
    with pytest.raises(KeyboardInterrupt):
        get(remote, progress=interrupt)
    kept = get.part.stat().st_size
    assert 500_000 < kept < len(content)
    assert get.part.read_bytes() == content[:kept]
    get(remote)
    assert get.target.read_bytes() == content
    assert site.ranges() == [None, f"bytes={kept}-"]
    assert get.files() == ["f.bin"]


def test_a_part_that_is_complete_is_only_verified(get, page, site):
    url = page("/f.bin", CONTENT, cuts=[1000])
    with pytest.raises(FetchError):
        get(remote_of(url), Patience(attempts=1))
    get.part.write_bytes(CONTENT)
    get(remote_of(url))
    assert len(site.asked) == 1
    assert get.files() == ["f.bin"]


def test_a_file_that_changes_between_attempts_is_not_glued_together(get, page, site):
    new = CONTENT[::-1]
    url = page("/f.bin", CONTENT, cuts=[1000])
    with pytest.raises(FetchError):
        get(remote_of(url), Patience(attempts=1))
    page("/f.bin", new, etag='"2"')
    get(remote_of(url, new))
    assert get.target.read_bytes() == new
    assert site.ranges() == [None, "bytes=1000-", None]


def test_last_modified_does_where_there_is_no_etag(get, page, site):
    dates = {"Last-Modified": "Tue, 06 Nov 2007 00:00:00 GMT"}
    get(remote_of(page("/f.bin", CONTENT, etag=None, headers=dates, cuts=[1000])))
    assert site.ranges() == [None, "bytes=1000-"]


def test_without_a_mark_of_its_version_a_file_is_begun_anew(get, page, site):
    get(remote_of(page("/f.bin", CONTENT, etag=None, cuts=[1000])))
    assert get.target.read_bytes() == CONTENT
    assert site.ranges() == [None, None]


def test_a_server_that_ignores_ranges_makes_the_file_begin_anew(get, page, site):
    get(remote_of(page("/f.bin", CONTENT, ranges=False, cuts=[1000])))
    assert get.target.read_bytes() == CONTENT
    assert site.ranges() == [None, "bytes=1000-"]


def test_another_part_than_was_asked_for_is_not_taken(get, page, site):
    get(remote_of(page("/f.bin", CONTENT, shift=1, cuts=[1000])))
    assert get.target.read_bytes() == CONTENT
    assert site.ranges() == [None, "bytes=1000-", None]


def test_a_part_longer_than_the_file_is_begun_anew(get, page, site):
    url = page("/f.bin", CONTENT, cuts=[1000])
    with pytest.raises(FetchError):
        get(remote_of(url), Patience(attempts=1))
    get.part.write_bytes(CONTENT + b"more")  # the server answers 416
    get(remote_of(url))
    assert get.target.read_bytes() == CONTENT


@pytest.mark.parametrize("note", ["{", "[]", "", '{"url": 1}', "\udcff"])
def test_a_damaged_note_of_the_version_makes_the_file_begin_anew(get, page, site, note):
    get.target.parent.mkdir()
    get.part.write_bytes(b"rubbish")
    get.part.with_name("f.bin.part.json").write_bytes(
        note.encode(errors="surrogateescape")
    )
    get(remote_of(page("/f.bin", CONTENT)))
    assert get.target.read_bytes() == CONTENT
    assert site.ranges() == [None]


def test_the_part_of_another_address_is_not_gone_on_with(get, page, site):
    with pytest.raises(FetchError):
        get(
            remote_of(page("/old.bin", CONTENT[::-1], cuts=[1000])),
            Patience(attempts=1),
        )
    get(remote_of(page("/f.bin", CONTENT)))
    assert get.target.read_bytes() == CONTENT
    assert site.ranges() == [None, None]


def test_a_refused_connection_is_told_at_once(get, pauses):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/f.bin"
    with pytest.raises(FetchError, match=r"cannot be reached \(connection refused\)"):
        get(remote_of(url))
    assert pauses == []


def test_without_a_network_the_error_comes_at_once(get, monkeypatch, pauses):
    def no_network(*_args, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    with pytest.raises(FetchError, match="host's name cannot be resolved"):
        get(remote_of("http://weights.example/f.bin"))
    assert pauses == []


def test_a_network_that_goes_away_during_a_download_is_tried_again(
    get, page, monkeypatch
):
    url = page("/f.bin", CONTENT, cuts=[1000])
    connect, calls = socket.create_connection, []

    def flaky(*args, **more):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        return connect(*args, **more)

    monkeypatch.setattr(socket, "create_connection", flaky)
    get(remote_of(url))
    assert get.target.read_bytes() == CONTENT
    assert len(calls) == 3


def test_a_full_disk_is_one_error_and_what_came_is_kept(get, page, site, monkeypatch):
    url = page("/f.bin", CONTENT, cuts=[1000])
    really_open = Path.open

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, data):
            self.file.write(data[:600])
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(path, mode="r", **more):
        file = really_open(path, mode, **more)
        return Full(file) if mode == "ab" else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(
            FetchError, match=r"f\.bin cannot be .*: No space left on device.*kept"
        ):
            get(remote_of(url))
    assert get.part.read_bytes() == CONTENT[:600]
    get(remote_of(url))
    assert get.target.read_bytes() == CONTENT
    assert site.ranges()[1] == "bytes=600-"


def test_a_folder_that_cannot_be_made_is_one_error(get, page):
    get.target.parent.write_text("a file")
    with pytest.raises(FetchError, match="cannot be read or written: "):
        get(remote_of(page("/f.bin", CONTENT)))


def test_the_note_says_which_version_the_part_is_of(get, page):
    url = page("/f.bin", CONTENT, cuts=[1000])
    with pytest.raises(FetchError):
        get(remote_of(url), Patience(attempts=1))
    note = json.loads(get.part.with_name("f.bin.part.json").read_text())
    assert note == {"url": url, "etag": '"1"', "modified": "", "total": len(CONTENT)}
