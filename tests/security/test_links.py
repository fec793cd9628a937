"""Links, pipes and devices in a store or a model that somebody else has made."""

import json
import os

import numpy as np
import pytest

from deepfishing.errors import StoreError, WeightsError
from deepfishing.extraction.imported import settings_of
from deepfishing.learn import model_files
from deepfishing.search import Searcher
from deepfishing.store import Row, Store
from deepfishing.store.check import verify
from deepfishing.store.label_log import LabelLog
from deepfishing.util.files import replacing


@pytest.mark.parametrize("todo", ["remove", "rename"])
def test_a_journal_does_not_go_through_a_link_out_of_the_store(tmp_path, todo):
    """Else `deepfish extract` into such a store would delete or replace any file of its user."""
    store = Store(tmp_path / "store", {"network": "toy"})
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "precious").write_text("keep")
    (store.folder / "new").write_text("other")
    (store.folder / "x7").symlink_to(tmp_path / "home")
    facts = {"rename": {}, "remove": ["x7/precious"]}
    if todo == "rename":
        facts = {"rename": {"new": "x7/precious"}, "remove": []}
    (store.folder / ".journal-1").write_text(json.dumps(facts))
    with pytest.raises(StoreError, match="journal is damaged"), store.writing():
        pass
    assert (tmp_path / "home" / "precious").read_text() == "keep"


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store", {"network": "toy"}, "float32")
    made.append(["k1"], {"x7": np.ones((1, 3))}, {"k0": "unusable"})
    made.write_rows([Row("a", "a.jpg", "k1", status="ok", factors=("x7",))])
    return made


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def make_store(folder):
    """A store that can be searched by x7."""
    settings = settings_of(["x7"], "toy")
    made = Store(folder, settings, "float32")
    made.append(["k1", "k2"], {"x7": np.eye(2, 3)})
    rows = [
        Row(key, f"{key}.jpg", key, status="ok", factors=("x7",))
        for key in ("k1", "k2")
    ]
    made.write_rows(rows)
    return made


def _link(path, target):
    """Move a file or folder to `target` and put a link in its place."""
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize("column", ["x7", "errors"])
def test_a_column_that_is_a_link_is_neither_written_nor_read(store, outside, column):
    _link(store.folder / column, outside / column)
    before = sorted(outside.rglob("*"))
    opened = Store.open(store.folder)
    with pytest.raises(StoreError, match="must not be a link"), opened.writing():
        opened.append(["k2"], {"x7": np.ones((1, 3))}, {"k3": "unusable, too"})
    with pytest.raises(StoreError, match="must not be a link"):
        opened.errors() if column == "errors" else opened.read(["k1"], "x7")
    with pytest.raises(StoreError, match="must not be a link"):
        opened.append(["k2"], {"x7": np.ones((1, 3))}, {"k3": "no"}, known={})
    assert sorted(outside.rglob("*")) == before


@pytest.mark.parametrize("name", ["x7/shard-*.parquet", "errors/shard-*.parquet"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_shard_must_be_a_regular_file(store, outside, name, kind):
    (shard,) = store.folder.glob(name)
    shard.rename(outside / shard.name)
    if kind == "pipe":
        os.mkfifo(shard)
    else:
        shard.symlink_to(outside / shard.name)
    opened = Store.open(store.folder)
    with pytest.raises(StoreError, match="not a regular file"):
        opened.errors() if name.startswith("errors") else opened.read(["k1"], "x7")
    assert any(
        str(shard) in problem and "regular" in problem for problem in verify(opened)
    )


@pytest.mark.parametrize(
    "name", ["store.json", "index.parquet", ".journal-1", "labels.jsonl"]
)
@pytest.mark.parametrize("kind", ["link", "device", "pipe"])
def test_files_of_a_store_must_be_regular_files(store, outside, name, kind):
    """A link to /dev/zero would be read for ever, and a pipe waits for a writer."""
    path = store.folder / name
    if path.exists():
        path.rename(outside / name)
    else:
        (outside / name).write_text("{}")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(outside / name if kind == "link" else "/dev/zero")

    def use():
        opened = Store.open(store.folder)
        LabelLog.open(store.folder)
        opened.rows()
        with opened.writing():
            pass

    with pytest.raises(StoreError):
        use()


def test_an_index_folder_that_is_a_link_is_not_written_through(tmp_path, outside):
    store = make_store(tmp_path / "searched")
    (store.folder / ".index").symlink_to(outside)
    with pytest.raises(StoreError, match="must not be a link"):
        Searcher(store.folder, "x7", "index")
    assert list(outside.iterdir()) == []


def test_temporary_names_cannot_be_foreseen(tmp_path, outside):
    """Else a link of that name, put there before, would be written through."""
    names = set()
    for _ in range(3):
        with replacing(tmp_path / "index.parquet") as partial:
            partial.write_text("")
            names.add(partial.name)
    assert len(names) == 3


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_link_out_of_a_model_is_not_followed(tmp_path, outside, name):
    (outside / "secret").write_text('{"format": "deepfishing-model-1", "sha256": {}}')
    (tmp_path / name).symlink_to(outside / "secret")
    read = model_files.read_document if name == "model.json" else read_numbers
    with pytest.raises(WeightsError, match="it is a link"):
        read(tmp_path / name)


def read_numbers(path):
    return model_files.read_tensors_of(path.parent, {"sha256": {path.name: "0" * 64}})
