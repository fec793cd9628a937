"""Targets: lists of images, as tables and as text, and the addresses in them."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

from deepfishing.images.item import Item, RemoteFile, is_url, list_files
from deepfishing.images.sources import find_images
from deepfishing.images.tables import read_table
from deepfishing.learn.labelled import read_labels
from deepfishing.search.hits import read_class_names
from fuzz.formats import describe, parquet_of
from fuzz.mutate import other_value
from fuzz.rule import obey
from fuzz.target import Run, Target, one_of, put

_IMAGES = [Item(f"{name}.jpg", Path(f"{name}.jpg")) for name in "abcd"]
# would read this machine's own files, whatever they are
_LOCAL = ("file://", "local://")


def _csv(folder: Path) -> Run:
    paths = [folder / "t.csv", folder / "t.tsv"]

    def run(data: bytes) -> None:
        path = put(paths[b"\t" in data], data)
        obey(lambda: find_images(path))
        obey(lambda: read_labels(_IMAGES, path))

    return run


def _parquet(folder: Path) -> Run:
    path = folder / "t.parquet"

    def run(data: bytes) -> None:
        put(path, parquet_of(data))
        obey(lambda: read_table(path))
        obey(lambda: read_labels(_IMAGES, path))

    return run


def mutate_description(data: bytes, rng: random.Random) -> bytes:
    """Another value in the description of a Parquet file."""
    try:
        return json.dumps(other_value(json.loads(data), rng)).encode()
    except (ValueError, RecursionError):
        return data


def _tables() -> list[bytes]:
    names = ["a.jpg", "b.jpg"]
    columns = [["path", "string", names, {}], ["label", "string", ["cat", "dog"], {}]]
    several = [
        ["path", "string", names, {}],
        ["labels", "strings", [["cat"], None], {}],
    ]
    others = [["path", "string", names, {}], ["id", "int64", [1, 2], {}]]
    others += [["label", "far", [1, 2], {}]]
    words = [["path", "words", names, {}], ["labels", "struct", [{"a": "b"}, None], {}]]
    described = [describe(list(c)) for c in (columns, several, others, words)]
    return [*described, *map(parquet_of, described[:2])]


def _text_list(folder: Path) -> Run:
    path = folder / "list.txt"

    def run(data: bytes) -> None:
        put(path, data)
        obey(lambda: find_images(path))
        obey(lambda: read_class_names(path))

    return run


def _url(folder: Path) -> Run:
    def run(data: bytes) -> None:
        url = data.decode("utf-8", "surrogateescape")
        if url.startswith(_LOCAL) or not is_url(url):
            url = f"memory://{url}"
        file = RemoteFile(url)
        for read in (file.signature, file.open, lambda: list_files(url)):
            # what the readers of images take for "cannot be read"
            with contextlib.suppress(OSError, ValueError):
                obey(read)
        if one_of(data, 4) == 0:
            obey(lambda: find_images(url))

    return run


_CSV = b"path,label\na.jpg,cat\nb.jpg,dog\n"
_MANY = b'\xef\xbb\xbfid,path,labels\na.jpg,"s,1.jpg",cat;dog\nb.jpg,s3://b/2.jpg,\n'
_URLS = (
    b"memory://a/b*.jpg",
    b"s3://bucket/a.jpg",
    b"http://a.org/b?c=[1]",
    b"data://,x",
)

TARGETS = {
    "csv": Target(
        "tables of images and labels, .csv and .tsv",
        _csv,
        lambda: [_CSV, _MANY, _CSV.replace(b",", b"\t")],
        tokens=(
            b"path",
            b"label",
            b"labels",
            b"id",
            b",",
            b'"',
            b"\n",
            b"\r",
            b"\0",
            b";",
            b"\t",
        ),
    ),
    "parquet": Target(
        "tables of images and labels, .parquet",
        _parquet,
        _tables,
        mutate=mutate_description,
        tokens=(
            b'"string"',
            b'"int64"',
            b'"time"',
            b'"far"',
            b'"words"',
            b'"\\ud800"',
            b"PAR1",
        ),
    ),
    "text-list": Target(
        "lists of images and of classes, .txt",
        _text_list,
        lambda: [
            b"a.jpg\nb.jpg\n\ns/c.jpg\n",
            b"\xef\xbb\xbfs3://b/a.jpg\r\nx\0y.jpg\n",
        ],
        tokens=(b"\n", b"://", b"..", b"\xff", b"\0", b"\r", b"file:///"),
    ),
    "url": Target(
        "addresses of images, without a network",
        _url,
        lambda: list(_URLS),
        tokens=(
            b"://",
            b"[",
            b"]",
            b"*",
            b"?",
            b"@",
            b":",
            b"::",
            b"%",
            b"s3",
            b"http",
            b"ftp",
        ),
    ),
}
