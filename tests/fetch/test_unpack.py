import contextlib
import io
import json
import shutil
import tarfile
import zipfile

import pytest

from deepfishing.errors import FetchError
from deepfishing.fetch.unpack import difference, unpack

MADE_OF = {"a.tar": "sha256:00"}


def member(name, content=b"", **more):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in more.items():
        setattr(info, key, value)
    return info, content


@pytest.fixture
def tar(tmp_path):
    """Write an archive of (TarInfo, content) pairs."""

    def write(*members, name="a.tar", **how):
        path = tmp_path / name
        with tarfile.open(path, "w", **how) as archive:
            for info, content in members:
                archive.addfile(info, io.BytesIO(content))
        return path

    return write


@pytest.fixture
def into(tmp_path):
    """Unpack to tmp_path/data/voc; `outside` is what there is beside the folder and archives."""

    def into(*archives, made_of=MADE_OF, progress=lambda *_: None, **more):
        unpack(archives, into.folder, made_of, progress, **more)

    into.folder = tmp_path / "data" / "voc"
    into.tree = lambda: {
        str(path.relative_to(into.folder)): path.read_bytes()
        for path in into.folder.rglob("*")
        if path.is_file() and path.name != "fetched.json"
    }
    into.outside = lambda: sorted(
        path.name
        for path in tmp_path.iterdir()
        if path.suffix != ".tar" and path.name != "data"
    )
    return into


FOLDER = member("VOCdevkit", type=tarfile.DIRTYPE)
GOOD = member("VOCdevkit/1.jpg", b"one")


def test_two_archives_become_one_folder_and_a_record(tar, into):
    steps = []
    first = tar(FOLDER, GOOD)
    second = tar(member("VOCdevkit/b/2.jpg", b"two!"), name="b.tar")
    into(first, second, progress=lambda *step: steps.append(step))
    assert into.tree() == {"VOCdevkit/1.jpg": b"one", "VOCdevkit/b/2.jpg": b"two!"}
    record = json.loads((into.folder / "fetched.json").read_text())
    assert record == {"archives": MADE_OF, "files": 2, "bytes": 7}
    assert difference(into.folder, MADE_OF) == ""
    total = first.stat().st_size + second.stat().st_size
    assert all(what == "unpacking" and of == total for what, _, of in steps)
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert [path.name for path in into.folder.parent.iterdir()] == ["voc"]


def test_owner_mode_and_date_of_an_archive_are_not_taken_over(tar, into):
    odd = member("x", b"x", mode=0o7777, uid=12345, mtime=2**40)
    into(tar(odd, format=tarfile.GNU_FORMAT))
    assert (into.folder / "x").stat().st_mode & 0o7111 == 0


@pytest.mark.parametrize(
    "bad",
    [
        member("../x", b"x"),
        member("VOCdevkit/../../x", b"x"),
        member("/x", b"x"),
        member("//x", b"x"),
        member("..", type=tarfile.DIRTYPE),
        member("..\\x", b"x"),
        member("link", type=tarfile.SYMTYPE, linkname="../.."),
        member("link", type=tarfile.SYMTYPE, linkname="VOCdevkit"),
        member("link", type=tarfile.LNKTYPE, linkname="../../a.tar"),
        member("link", type=tarfile.LNKTYPE, linkname="VOCdevkit/1.jpg"),
        member("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("device", type=tarfile.BLKTYPE, devmajor=1, devminor=3),
        member("pipe", type=tarfile.FIFOTYPE),
        member("sparse", type=tarfile.GNUTYPE_SPARSE),
    ],
    ids=lambda bad: f"{bad[0].name}-{bad[0].type.decode()}",
)
def test_only_plain_files_and_folders_inside_are_unpacked(tar, into, bad):
    path = tar(FOLDER, GOOD, bad)
    with pytest.raises(FetchError, match=r"a\.tar cannot be unpacked: '.*' must be a "):
        into(path)
    assert not into.folder.exists()
    assert into.outside() == []


def test_a_file_does_not_go_through_a_link_out_of_the_folder(tar, into, tmp_path):
    out = member("out", type=tarfile.SYMTYPE, linkname=str(tmp_path))
    with pytest.raises(FetchError, match="'out' must be a plain file"):
        into(tar(out, member("out/x", b"x")))
    assert into.outside() == []


def test_more_members_than_a_data_set_has_are_refused(tar, into, monkeypatch):
    path = tar(*(member(f"{n}") for n in range(6)))
    monkeypatch.setattr("deepfishing.fetch.unpack._MOST_MEMBERS", 5)
    with pytest.raises(FetchError, match="'5' is one of more than 5 members"):
        into(path)
    monkeypatch.setattr("deepfishing.fetch.unpack._MOST_MEMBERS", 6)
    into(path)


def sparse_bomb(tmp_path, real_size):
    """An archive of a few kB with one old GNU sparse file that unpacks to `real_size`."""
    info = tarfile.TarInfo("bomb")
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:398] = header[398:410] = b"%011o\0" % 0  # one hole at the start
    header[483:495] = b"%011o\0" % real_size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "a.tar"
    path.write_bytes(header + bytes(1024))
    return path


def test_a_bomb_is_refused_before_it_grows(into, tmp_path):
    path = sparse_bomb(tmp_path, 2**30)
    with tarfile.open(path) as archive:
        assert archive.getmember("bomb").size == 2**30
    with pytest.raises(FetchError, match="'bomb' "):
        into(path)
    assert not any(path.is_file() for path in into.folder.parent.rglob("*"))


def test_content_longer_than_the_archive_is_refused(into, tmp_path):
    info, _ = member("x")
    info.size = 10**9
    path = tmp_path / "a.tar"
    path.write_bytes(info.tobuf() + bytes(10240))
    with pytest.raises(FetchError, match="1000000000 bytes in an archive of 10752"):
        into(path)


def test_a_negative_size_does_not_make_the_reader_run_in_circles(into, tmp_path):
    info, _ = member("x")
    info.size = -512
    path = tmp_path / "a.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    with pytest.raises(FetchError, match="'x' must have a size"):
        into(path)


def test_an_archive_cut_off_in_the_map_of_a_sparse_file_is_damaged(into, tmp_path):
    """Found by `make fuzz`, unpack: an IndexError."""
    sparse = member("x", type=tarfile.GNUTYPE_SPARSE)[0]
    header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1  # the map goes on in the next block, and there is none
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(header)
    with pytest.raises(FetchError, match=r"a\.tar is damaged or not a tar archive"):
        into(tmp_path / "a.tar")


def test_a_compressed_archive_is_refused(into, tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(*(GOOD[0], io.BytesIO(GOOD[1])))
    with pytest.raises(FetchError, match=r"a\.tar is damaged or not a tar archive"):
        into(path)
    assert not list(into.folder.parent.rglob("1.jpg"))


def test_a_name_that_no_disk_takes_is_one_error(tar, into):
    with pytest.raises(FetchError, match="null byte"):
        into(tar(member("x", pax_headers={"path": "a\0b"})))


def test_an_archive_cut_anywhere_is_never_taken_for_whole(tar, into):
    path = tar(FOLDER, member("1", b"1" * 700), member("2", b"2" * 100))
    whole = path.read_bytes()
    end = 512 + 512 + 1024 + 512 + 512  # after it there are only zeros
    for length in (
        0,
        100,
        512,
        600,
        1024,
        1500,
        2048,
        2100,
        2560,
        2600,
        end,
        end + 100,
    ):
        path.write_bytes(whole[:length])
        with pytest.raises(FetchError, match=r"a\.tar is damaged|archive of"):
            into(path)
        assert not into.folder.exists()
    path.write_bytes(whole[: end + 512])
    into(path)


def test_a_damaged_header_is_not_taken_for_the_end(tar, into):
    path = tar(GOOD, member("2", b"two"))
    damaged = bytearray(path.read_bytes())
    damaged[1024 + 150] ^= 1  # in the checksum of the second header
    path.write_bytes(damaged)
    with pytest.raises(FetchError, match="no end of archive"):
        into(path)


def test_an_archive_damaged_at_random_is_one_error_or_harmless(tar, into, rng):
    long = member("VOCdevkit/" + "n" * 150, b"n")
    paths = [
        tar(FOLDER, GOOD, long, format=tarfile.GNU_FORMAT),
        tar(FOLDER, GOOD, long, name="b.tar", format=tarfile.PAX_FORMAT),
    ]
    wholes = [path.read_bytes()[:6000] for path in paths]
    for n in range(400):
        path, damaged = paths[n % 2], bytearray(wholes[n % 2])
        for place in rng.integers(len(damaged), size=rng.integers(1, 5)):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        into.folder = into.folder.with_name(f"voc{n}")
        with contextlib.suppress(FetchError):  # any other error fails the test
            into(path)
            assert difference(into.folder, MADE_OF) == ""
        assert into.outside() == []


def test_many_nested_headers_are_one_error(into, tmp_path):
    info, _ = member("x", type=tarfile.XGLTYPE)
    path = tmp_path / "a.tar"
    path.write_bytes(info.tobuf() * 5000 + bytes(1024))
    with pytest.raises(FetchError, match="damaged"):
        into(path)


def test_a_name_that_is_a_file_and_a_folder_is_one_error(tar, into):
    with pytest.raises(FetchError, match="cannot be read or written"):
        into(tar(member("a", b"x"), member("a/b", b"y")))


def test_what_an_interrupted_run_left_is_thrown_away(tar, into):
    path = tar(GOOD, member("VOCdevkit/2.jpg", b"two"))

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        into(path, progress=interrupt)
    assert not into.folder.exists()
    left = into.folder.with_name(".voc.unpacking")
    (left / "VOCdevkit" / "half.jpg").write_bytes(b"ha")
    into(path)
    assert set(into.tree()) == {"VOCdevkit/1.jpg", "VOCdevkit/2.jpg"}
    assert not left.exists()


def test_a_folder_with_something_missing_is_told(tar, into):
    into(tar(GOOD, member("VOCdevkit/2.jpg", b"two")))
    (into.folder / "VOCdevkit" / "mine.txt").write_text("notes")  # more is no harm
    assert difference(into.folder, MADE_OF) == ""
    (into.folder / "VOCdevkit" / "mine.txt").unlink()
    (into.folder / "VOCdevkit" / "2.jpg").write_bytes(b"t")
    assert difference(into.folder, MADE_OF) == "must hold 6 bytes, got 4"
    (into.folder / "VOCdevkit" / "2.jpg").unlink()
    assert difference(into.folder, MADE_OF) == "must hold 2 files, got 1"


def test_a_folder_of_other_archives_or_without_a_record_is_told(tar, into):
    into(tar(GOOD))
    assert "other archives" in difference(into.folder, {"a.tar": "sha256:11"})
    record = into.folder / "fetched.json"
    for text in ("{", "[]", '{"archives": {"a.tar": "sha256:00"}}'):
        record.write_text(text)
        assert difference(into.folder, MADE_OF)
    record.unlink()
    assert "not made by `deepfish fetch`" in difference(into.folder, MADE_OF)


def zip_of(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def gz_of(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            archive.addfile(*(member(name, content)[0], io.BytesIO(content)))
    return path


def test_compressed_archives_and_plain_files_become_one_folder(into, tmp_path):
    labels = tmp_path / "setid.mat"
    labels.write_bytes(b"numbers")
    pictures = gz_of(tmp_path / "a.tgz", {"jpg/1.jpg": b"one"})
    lists = zip_of(tmp_path / "b.zip", {"lists/train.txt": b"1", "lists/": b""})
    into(pictures, lists, labels)
    assert into.tree() == {
        "jpg/1.jpg": b"one",
        "lists/train.txt": b"1",
        "setid.mat": b"numbers",
    }


def test_an_archive_inside_another_is_unpacked_where_it_is(into, tmp_path):
    inner = gz_of(tmp_path / "i.tar.gz", {"101/cat/1.jpg": b"one"}).read_bytes()
    outer = zip_of(tmp_path / "a.zip", {"c/i.tar.gz": inner, "c/readme.txt": b"read"})
    into(outer, inner=["c/i.tar.gz"])
    assert into.tree() == {"c/101/cat/1.jpg": b"one", "c/readme.txt": b"read"}


@pytest.mark.parametrize("name", ["../1.jpg", "/1.jpg", "a/../../1.jpg"])
@pytest.mark.parametrize(("make", "file"), [(zip_of, "a.zip"), (gz_of, "a.tar.gz")])
def test_a_compressed_archive_stays_inside_too(into, tmp_path, make, file, name):
    with pytest.raises(FetchError, match="must be a path inside"):
        into(make(tmp_path / file, {name: b"one"}))
    assert not list(tmp_path.rglob("1.jpg"))


@pytest.mark.parametrize(("make", "file"), [(zip_of, "a.zip"), (gz_of, "a.tar.gz")])
def test_a_bomb_is_refused_before_it_is_unpacked(into, tmp_path, make, file):
    with pytest.raises(FetchError, match=r"brings the content to 1000000 bytes"):
        into(make(tmp_path / file, {"zeros": bytes(1_000_000)}))
    assert not list(tmp_path.rglob("zeros"))


@pytest.mark.parametrize(("make", "file"), [(zip_of, "a.zip"), (gz_of, "a.tar.gz")])
def test_a_damaged_byte_of_a_compressed_archive_is_one_error(
    into, tmp_path, make, file
):
    noise = bytes(range(256)) * 8
    whole = make(
        tmp_path / file, {"1.bin": noise[:700], "2.bin": noise[300:]}
    ).read_bytes()
    for at in range(0, len(whole), 7):
        (tmp_path / file).write_bytes(
            whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        )
        with contextlib.suppress(FetchError):
            into(tmp_path / file)  # unless the byte is no content: names, dates, modes
            assert sorted(into.tree().values()) == sorted([noise[:700], noise[300:]])
            shutil.rmtree(into.folder)
