"""Targets: the files of a store, one at a time, the others being sound."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from deepfishing.search.collection import Collection
from deepfishing.search.compare import choose_recipe
from deepfishing.store import Store
from deepfishing.store.check import info, verify
from deepfishing.store.contents import Contents
from deepfishing.store.journal import finish
from deepfishing.store.manifest import INDEX, MANIFEST
from deepfishing.store.shards import checksum
from fuzz.formats import describe, parquet_of, resealed
from fuzz.made import KEYS, make_store
from fuzz.rule import obey
from fuzz.target import Run, Target, one_of, put
from fuzz.targets.lists import mutate_description


def _of_store(read: Callable[[Path], list[bytes]]) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        make_store(Path(folder))
        return read(Path(folder))


def _manifest(folder: Path) -> Run:
    place = make_store(folder / "store").folder

    def run(data: bytes) -> None:
        put(place / MANIFEST, resealed(data) if one_of(data, 4) else data)

        def read() -> None:
            store = Store.open(place)
            store.rows()
            obey(lambda: choose_recipe(store))
            obey(lambda: choose_recipe(store, "dW8"))

        obey(read)

    return run


def _index(folder: Path) -> Run:
    store = make_store(folder / "store")
    contents = Contents.of(store, ["x7"])

    def run(data: bytes) -> None:
        put(store.folder / INDEX, parquet_of(data))
        obey(store.rows)
        way = one_of(data, 4)
        if way == 0:
            obey(lambda: info(store))
        elif way == 1:
            obey(lambda: Collection.of(store, contents, ["x7"]).passing(["cat"], "*0*"))

    return run


def _shard(folder: Path) -> Run:
    place = make_store(folder / "store").folder
    factor = place / "x7"

    def run(data: bytes) -> None:
        content = parquet_of(data)
        for old in factor.iterdir():
            old.unlink()
        put(factor / f"shard-{checksum(content)}.parquet", content)
        way = one_of(data, 4)
        if way == 0:
            obey(lambda: [_one_line(problem) for problem in verify(Store.open(place))])
        elif way == 1:
            obey(lambda: _search(Store.open(place)))
        else:
            obey(lambda: _read(Store.open(place)))

    return run


def _one_line(problem: str) -> None:
    if problem.splitlines() != [problem]:
        raise ValueError(problem)


def _read(store: Store) -> None:
    store.read(list(store.shards("x7").keys()), "x7")


def _search(store: Store) -> None:
    contents = Contents.of(store, ["x7"])
    contents.read(np.arange(len(contents)), ["x7"])


def _journal(folder: Path) -> Run:
    root = folder / "store"

    def run(data: bytes) -> None:
        shutil.rmtree(root, ignore_errors=True)
        (root / "x7").mkdir(parents=True)
        for name in ("x7/.shard-0.parquet.5", "x7/shard-1.parquet", MANIFEST):
            put(root / name, b"")
        put(root / ".journal-5", data)
        obey(lambda: finish(root))

    return run


def _journals() -> list[bytes]:
    todo = {
        "rename": {"x7/.shard-0.parquet.5": "x7/shard-0.parquet"},
        "remove": ["x7/shard-1"],
    }
    return [
        json.dumps(todo).encode(),
        json.dumps({"rename": {}, "remove": []}).encode(),
    ]


def _indexes() -> list[bytes]:
    columns = [
        ["id", "string", ["a", "b"], {}],
        ["path", "string", ["a.jpg", "b.jpg"], {}],
        ["sha256", "string", KEYS[:2], {}],
        ["size", "int64", [1, 2], {}],
        ["mtime_ns", "int64", [1, 2], {}],
        ["labels", "strings", [["cat"], None], {}],
        ["status", "string", ["ok", "error"], {}],
        ["error", "string", [None, "cut"], {}],
        ["factors", "strings", [["x7"], []], {}],
    ]
    return [
        describe(columns),
        *_of_store(lambda folder: [(folder / INDEX).read_bytes()]),
    ]


def _shards() -> list[bytes]:
    shape = {"shape": "[2]"}
    columns = [
        ["sha256", "string", KEYS[:2], {}],
        ["x7", "halves", [[0.5, 1], [1, 0]], shape],
        ["x7_norm", "float64", [2.0, 3.0], {}],
    ]
    others = [columns[0], ["x7", "numbers", [[0.5, 1], [1, 0]], shape], columns[2]]
    one_page = {"pages": "one a column"}
    real = _of_store(lambda folder: [p.read_bytes() for p in (folder / "x7").iterdir()])
    return [describe(columns), describe(columns, one_page), describe(others), *real]


_TYPES = (
    b'"string"',
    b'"int64"',
    b'"halves"',
    b'"pair"',
    b'"strings"',
    b'"\\ud800"',
    b"null",
)

TARGETS = {
    "store-manifest": Target(
        "store.json",
        _manifest,
        lambda: _of_store(lambda folder: [(folder / MANIFEST).read_bytes()]),
        tokens=(
            b'"settings"',
            b'"layers"',
            b'"dtype"',
            b'"float32"',
            b'"8"',
            b"[",
            b"{",
        ),
    ),
    "store-index": Target(
        "index.parquet of a store",
        _index,
        _indexes,
        mutate=mutate_description,
        tokens=_TYPES,
    ),
    "store-shard": Target(
        "shards of a store, with the checksum that their name promises",
        _shard,
        _shards,
        mutate=mutate_description,
        tokens=_TYPES,
    ),
    "store-journal": Target(
        "journals that a killed writer left",
        _journal,
        _journals,
        tokens=(b'"rename"', b'"remove"', b"..", b"/", b"x7", b".", b"\\u0000", b'""'),
    ),
}
