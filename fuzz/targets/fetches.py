"""Targets: what comes from servers: their answers, archives, and the notes of earlier downloads."""

from __future__ import annotations

import io
import json
import shutil
import socket
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from deepfishing.fetch.download import Patience, download
from deepfishing.fetch.unpack import RECORD, difference, unpack
from deepfishing.util.files import Remote
from fuzz.formats import mutate_tar
from fuzz.parts import join, split
from fuzz.rule import obey
from fuzz.target import Run, Target, put
from fuzz.targets.datasets import tars

_MADE_OF = {"t.tar": "sha256:00"}


class _Wire:
    """A connection whose other side has said all that it will say."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self.answer))  # type: ignore[arg-type]

    def sendall(self, *_: Any) -> None: ...
    def setsockopt(self, *_: Any) -> None: ...
    def settimeout(self, *_: Any) -> None: ...
    def close(self) -> None: ...

    def getsockopt(self, *_: Any) -> int:
        """What TLS asks first, after a redirect to https."""
        raise OSError("the other side has no TLS")


def _answer(folder: Path) -> Run:
    remote = Remote("http://a.org/w.pth", "sha256:", megabytes=1)  # any digest will do
    target = folder / "w.pth"
    patience = Patience(timeout=1, attempts=2, pause=0)
    answers: Iterator[bytes] = iter(())

    def connect(*_: Any, **__: Any) -> _Wire:
        return _Wire(next(answers))

    socket.create_connection = connect  # type: ignore[assignment]

    def run(data: bytes) -> None:
        nonlocal answers
        first, second, part, note = split(data, 4)
        answers = cycle((first, second))
        target.unlink(missing_ok=True)
        put(folder / "w.pth.part", part)
        put(folder / "w.pth.part.json", note)
        obey(lambda: download(remote, target, lambda *_: None, patience))

    return run


def _answers() -> list[bytes]:
    head = b'HTTP/1.1 200 OK\r\nContent-Type: application/x\r\nETag: "a"\r\n'
    whole = head + b"Content-Length: 6\r\n\r\nabcdef"
    chunks = (
        head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
    )
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://b.org/w.pth\r\nContent-Length: 0\r\n\r\n"
    rest = (
        head.replace(b"200 OK", b"206 Partial")
        + b"Content-Range: bytes 3-5/6\r\n\r\ndef"
    )
    known = {"url": "http://a.org/w.pth", "etag": '"a"', "modified": "", "total": 6}
    note = json.dumps(known).encode()
    return [
        join([whole, b"", b"", b""]),
        join([moved, chunks, b"", b"{}"]),
        join([rest, whole, b"abc", note]),
        join([b"HTTP/1.1 503 Busy\r\n\r\n", whole, b"", note]),
    ]


def _unpack(folder: Path) -> Run:
    path = folder / "t.tar"
    above = folder / "a" / "b"
    above.mkdir(parents=True)
    there = {folder: {"a", "t.tar"}, folder / "a": {"b"}, above: {"data"}}

    def run(data: bytes) -> None:
        put(path, data)
        shutil.rmtree(above / "data", ignore_errors=True)
        (above / "data").mkdir()
        new = above / "data" / "voc"
        obey(lambda: unpack([path], new, _MADE_OF, lambda *_: None))
        for place, names in there.items():
            if extra := {entry.name for entry in place.iterdir()} - names:
                raise ValueError(
                    f"an archive must stay in its folder, got {extra} in {place}"
                )
        if new.exists():
            obey(lambda: difference(new, _MADE_OF))

    return run


def _notes(folder: Path) -> Run:
    def run(data: bytes) -> None:
        put(folder / RECORD, data)
        obey(lambda: difference(folder, _MADE_OF))

    return run


TARGETS = {
    "unpack": Target(
        "archives of data sets, unpacked", _unpack, tars, mutate=mutate_tar
    ),
    "answer": Target(
        "answers of servers, with what an earlier download left",
        _answer,
        _answers,
        parts=4,
        tokens=(
            *(
                b"HTTP/1.1 ",
                b"206 ",
                b"302 ",
                b"416 ",
                b"\r\n",
                b"\r\n\r\n",
                b": ",
                b"0\r\n",
            ),
            *(
                b"Location: ",
                b"//",
                b"https://",
                b"Content-Range: bytes 0-1/2",
                b"[::1",
                b"\xff",
            ),
            *(b"Content-Encoding: gzip", b"Content-Length: 9999999999", b"text/html"),
        ),
    ),
    "fetch-notes": Target(
        "fetched.json of a data set",
        _notes,
        lambda: [json.dumps({"archives": _MADE_OF, "files": 0, "bytes": 0}).encode()],
        tokens=(b'"archives"', b'"files"', b'"bytes"', b"[", b"{", b"1e9"),
    ),
}
