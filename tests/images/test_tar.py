import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from deepfishing.errors import DatasetError, ImageError
from deepfishing.images.inside import read_tar
from deepfishing.images.item import Item, Member
from deepfishing.images.preprocess import open_image


def write(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def png(rng):
    def make():
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(
            out, "png"
        )
        return out.getvalue()

    return make


def test_folders_in_a_tar_are_classes_if_nothing_else_says_them(tmp_path, png):
    names = ["./photos/cat/1.png", "./photos/dog/old/2.png", "./photos/dog/3.png"]
    items = read_tar(write(tmp_path / "p.tar", [(name, png()) for name in names]))
    assert [item.labels for item in items] == [("cat",), ("dog",), ("dog",)]
    flat = read_tar(write(tmp_path / "q.tar", [("1.png", png()), ("dog/2.png", png())]))
    assert [item.labels for item in flat] == [None, ("dog",)]


def test_images_and_labels_of_a_webdataset_are_read_without_unpacking(tmp_path, png):
    pictures = [png(), png(), png(), png()]
    path = write(
        tmp_path / "p.tar",
        [
            ("a/1.png", pictures[0]),
            ("a/1.cls", b"cat\n"),
            ("2.json", json.dumps({"labels": ["cat", 3], "other": {}}).encode()),
            ("2.png", pictures[1]),
            ("3.mask.png", pictures[2]),
            ("3.json", b'{"label": "dog"}'),
            ("4.png", pictures[3]),
            ("4.txt", b"a caption"),
            ("._4.png", b"a Mac's"),
        ],
    )
    items = read_tar(path)
    assert [(item.id, item.labels) for item in items] == [
        ("p.tar/a/1.png", ("cat",)),
        ("p.tar/2.png", ("cat", "3")),
        ("p.tar/3.mask.png", ("dog",)),
        ("p.tar/4.png", None),
    ]
    for item, picture in zip(items, pictures, strict=True):
        assert item.open().read() == picture
        expected = np.asarray(Image.open(io.BytesIO(picture)))
        np.testing.assert_array_equal(np.asarray(open_image(item)), expected)
    assert [p.name for p in tmp_path.iterdir()] == ["p.tar"]


def test_what_is_not_a_plain_file_in_a_tar_is_left_out(tmp_path, png):
    path = tmp_path / "p.tar"
    (tmp_path / "secret.png").write_bytes(png())
    with tarfile.open(path, "w") as tar:
        for name, kind in (("s.png", tarfile.SYMTYPE), ("h.png", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, str(tmp_path / "secret.png")
            tar.addfile(info)
        device = tarfile.TarInfo("d.png")
        device.type = tarfile.CHRTYPE
        tar.addfile(device)
        content = png()
        info = tarfile.TarInfo("../../etc/up.png")  # a name is only a name
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    (item,) = read_tar(path)
    assert item.open().read() == content


def test_a_later_member_of_the_same_name_replaces_the_first(tmp_path, png):
    old, new = png(), png()
    (item,) = read_tar(write(tmp_path / "p.tar", [("a.png", old), ("a.png", new)]))
    assert item.open().read() == new


@pytest.mark.parametrize("members", [[], [("a.txt", b"")]])
def test_a_tar_without_images_is_named(tmp_path, members):
    with pytest.raises(DatasetError, match=r"got none in .*p\.tar"):
        read_tar(write(tmp_path / "p.tar", members))


def test_labels_that_cannot_be_read_name_the_member(tmp_path, png):
    for bad in (b"{", b"\xff", b"[" * 100_000):
        path = write(tmp_path / "p.tar", [("a.png", png()), ("a.json", bad)])
        with pytest.raises(DatasetError, match=r"got 'a\.json'.*"):
            read_tar(path)


def test_damaged_tars_give_one_error_or_images_inside_the_file(tmp_path, png, rng):
    path = write(
        tmp_path / "p.tar", [("a.png", png()), ("b.png", png()), ("b.cls", b"cat")]
    )
    content = path.read_bytes()
    size = 4 * 512 + 3 * 512
    for trial in range(300):
        damaged = bytearray(content)
        for place in rng.integers(0, size, 4):
            damaged[place] = rng.integers(0, 256)
        if trial % 3 == 0:
            damaged = damaged[: rng.integers(0, size)]
        path.write_bytes(damaged)
        try:
            items = read_tar(path)
        except DatasetError as error:
            assert "p.tar" in str(error)  # noqa: PT017
            continue
        for item in items:
            assert len(item.open().read()) == item.member.size


@pytest.mark.parametrize(
    "kind",
    [tarfile.REGTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE],
)
@pytest.mark.parametrize("size", [-512, -1024, -(1 << 40), 1 << 50])
def test_a_size_that_cannot_be_is_an_error_and_not_a_loop(tmp_path, png, kind, size):
    path = write(tmp_path / "p.tar", [("a.png", png())])
    info = tarfile.TarInfo("b.png")
    info.size, info.type = size, kind
    content = path.read_bytes()
    path.write_bytes(content[:1024] + info.tobuf(tarfile.GNU_FORMAT) + content)
    with pytest.raises(DatasetError, match=r"p\.tar"):
        read_tar(path)


def test_a_member_larger_than_any_image_is_not_read(tmp_path):
    path = write(tmp_path / "p.tar", [("a.png", b"")])
    with pytest.raises(ImageError, match=r"p\.tar/a\.png .*more than"):
        open_image(Item("a", path, member=Member("a.png", 512, 1 << 40)))
