"""Targets: data sets in VOC layout, folders of images and tars."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from deepfishing.images.folder import read_folder
from deepfishing.images.inside import read_tar
from deepfishing.images.preprocess import open_image
from deepfishing.images.sources import find_images
from deepfishing.images.voc import read_voc_layout
from fuzz.formats import mutate_tar
from fuzz.parts import join, split
from fuzz.rule import obey
from fuzz.target import Run, Target, put

_LISTS = ("trainval", "test", "cat_trainval", "dog_trainval", "cat_test", "dog_test")
_XML = """<annotation><filename>{0}.jpg</filename><size><width>9</width></size>
<object><name>cat</name><difficult>{1}</difficult><bndbox><xmin>1</xmin></bndbox></object>
<object><name>dog</name></object></annotation>"""
_ENTITY = b'<!DOCTYPE a [<!ENTITY b "cat"><!ENTITY c "&b;&b;">]>'


def _voc_folder(root: Path) -> Path:
    """A data set of four empty images, two for training."""
    for name in ("JPEGImages", "ImageSets/Main", "Annotations"):
        (root / name).mkdir(parents=True)
    for name in "abcd":
        (root / "JPEGImages" / f"{name}.jpg").touch()
    (root / "ImageSets/Main/trainval.txt").write_text("a\nb\n")
    (root / "ImageSets/Main/test.txt").write_text("c\nd\n")
    return root


def _read_voc(root: Path) -> None:
    obey(lambda: read_voc_layout(root, "fuzz"))
    obey(lambda: find_images(root))


def _voc_lists(folder: Path) -> Run:
    root = _voc_folder(folder / "VOC2007")

    def run(data: bytes) -> None:
        for name, content in zip(_LISTS, split(data, len(_LISTS)), strict=True):
            put(root / "ImageSets" / "Main" / f"{name}.txt", content)
        _read_voc(root)

    return run


def _voc_xml(folder: Path) -> Run:
    root = _voc_folder(folder / "VOC2007")

    def run(data: bytes) -> None:
        for name, content in zip("abcd", split(data, 4), strict=True):
            put(root / "Annotations" / f"{name}.xml", content)
        _read_voc(root)

    return run


def _xml() -> list[bytes]:
    files = [_XML.format(name, n % 2).encode() for n, name in enumerate("abcd")]
    latin = b'<?xml version="1.0" encoding="latin-1"?>' + files[0]
    return [
        join(files),
        join([latin, files[1], files[2].decode().encode("utf-16"), files[3]]),
    ]


def _image_folder(folder: Path) -> Run:
    root = folder / "photos"

    def run(data: bytes) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for line in data.split(b"\n")[:12]:
            _make(root, line)
        obey(lambda: find_images(root))
        obey(lambda: read_folder(root))

    return run


def _make(root: Path, line: bytes) -> None:
    """A file of this name with all folders above it; a link to the folder above if it ends in @."""
    names = [name for name in line.split(b"/") if name not in (b"", b".", b"..")][:4]
    if not names:
        return
    path = root.joinpath(*map(os.fsdecode, names))
    with contextlib.suppress(OSError, ValueError):  # a name that no file can have
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name.endswith("@"):
            path.symlink_to("..")
        else:
            path.touch()


def _tar(folder: Path) -> Run:
    path = folder / "p.tar"

    def run(data: bytes) -> None:
        put(path, data)

        def read() -> None:
            for item in read_tar(path)[:4]:
                obey(lambda item=item: open_image(item))  # type: ignore[misc]

        obey(read)

    return run


def tars() -> list[bytes]:
    """Images with labels, in the formats that tars have."""
    picture = io.BytesIO()
    Image.new("RGB", (3, 2)).save(picture, "PNG")
    members = [
        ("a.png", picture.getvalue()),
        ("a.cls", b"cat"),
        ("s/b.png", picture.getvalue()),
        ("s/b.json", json.dumps({"labels": ["cat", 3]}).encode()),
    ]
    long = [("d" * 90 + "/" + "e" * 90 + "ü.png", picture.getvalue()), *members[:1]]
    formats = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    return [
        _written(members, formats[0]),
        *(_written(long, kind) for kind in formats[1:]),
    ]


def _written(members: Sequence[tuple[str, bytes]], kind: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()[: 14 * 512]


_NAMES = (
    b"cat/a.jpg\ncat/b.JPEG\ndog/c.png\ndog/s/d.webp\n.hidden/e.jpg\ncat/@\ndog/t.txt"
)
_SPLITS = b"train/cat/a.jpg\ntrain/dog/b.jpg\ntest/cat/c.jpg\ntest/dog/\xc3\xbc.jpg"

TARGETS = {
    "voc-lists": Target(
        "lists of a data set in VOC layout",
        _voc_lists,
        lambda: [
            join(
                [
                    b"a\nb\n",
                    b"c\nd\n",
                    b"a 1\nb -1\n",
                    b"a  0\nb 1\n",
                    b"c 0\nd -1\n",
                    b"c 1\nd 1\n",
                ]
            )
        ],
        parts=len(_LISTS),
        tokens=(
            b"a",
            b"d",
            b"\n",
            b" 1",
            b" -1",
            b"\r",
            b"\x85",
            "\u2028".encode(),
            b"../c",
        ),
    ),
    "voc-xml": Target(
        "annotations of a data set in VOC layout",
        _voc_xml,
        _xml,
        parts=4,
        tokens=(
            _ENTITY,
            b"&c;",
            b"&#0;",
            b"<object>",
            b"</object>",
            b"<name>",
            b"<![CDATA[",
        ),
    ),
    "image-folder": Target(
        "names of files and folders, with links in circles",
        _image_folder,
        lambda: [_NAMES, _SPLITS],
        tokens=(
            b".jpg",
            b"/",
            b"train",
            b"test",
            b"\n",
            b"\r",
            b"\xff",
            b"@",
            b"VOC2007",
            b"val",
        ),
    ),
    "tar": Target("images and labels in a tar", _tar, tars, mutate=mutate_tar),
}
