"""A disk that is full at any write: one line, nothing half done, and it goes on later."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from deepfishing.evaluation.results import Results
from deepfishing.learn.model import Model
from deepfishing.search import Searcher
from deepfishing.store import Store
from deepfishing.store.check import verify

WRITERS = [(Path, name) for name in ("write_bytes", "write_text", "mkdir", "replace")]
WRITERS += [(pq, "write_table"), (np, "savez")]


def no_space(number, monkeypatch):
    """Let the disk be full from the n-th write on; goes out how many writes were tried."""
    tried = [0]

    def failing(function, write_bytes=Path.write_bytes):
        def call(*arguments, **more):
            if more.get("exist_ok") and arguments[0].exists():
                return None  # a folder that is there takes no space
            tried[0] += 1
            if tried[0] < number:
                return function(*arguments, **more)
            if function is write_bytes:
                write_bytes(arguments[0], bytes(arguments[1])[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return call

    for owner, name in WRITERS:
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    import faiss

    write_index = faiss.write_index

    def write(index, path):
        tried[0] += 1
        if tried[0] < number:
            return write_index(index, path)
        Path(path).touch()
        raise RuntimeError(f"Error in write: {path}: 0 != 1 (No space left on device)")

    monkeypatch.setattr(faiss, "write_index", write)
    return tried


def each_write(run, step=1):
    """1, 2, 3 ... until there was room for all writes of a run."""
    for number in range(1, 500, step):
        with pytest.MonkeyPatch.context() as patch:
            tried = no_space(number, patch)
            ran = run()
        yield number, ran
        if tried[0] < number:
            return
    raise AssertionError("there is no end")


def told(ran):
    """Whether it failed, and if so with one line."""
    if ran.code:
        assert ran.err.count("deepfish: ") == 1, ran.err
        assert "No space left on device" in ran.err
        assert ran.err.rstrip().splitlines()[-1].startswith("deepfish: ")
    return ran.code


def everything(folder):
    store = Store.open(folder)
    rows = store.rows()
    values = {
        f: store.read([row.sha256 for row in rows.values()], f) for f in store.factors()
    }
    return rows, {factor: array.tobytes() for factor, array in values.items()}


@pytest.mark.slow
def test_extract_says_one_line_at_any_write_and_goes_on(
    deepfish, flat, pictures, tmp_path
):
    def extract(name="s"):
        return deepfish("extract", pictures, name, *flat)

    assert extract("reference").code == 0
    expected = everything(tmp_path / "reference")
    failures = 0
    for _, ran in each_write(extract):
        failures += told(ran)
        if (tmp_path / "s/store.json").exists():
            problems = verify(Store.open(tmp_path / "s"))
            assert not [p for p in problems if "/." not in p and "no image" not in p]
        assert extract().code == 0
        assert everything(tmp_path / "s") == expected
        assert verify(Store.open(tmp_path / "s")) == []
        shutil.rmtree(tmp_path / "s")
    assert failures > 10


@pytest.mark.slow
def test_a_search_goes_on_without_an_index_that_cannot_be_kept(deepfish, many):
    query = (
        "search",
        many.folder,
        "a/000.jpg",
        "--features",
        "dW8",
        "--index",
        "--json",
    )
    hits = json.loads(deepfish(*query).out)["hits"]
    shutil.rmtree(many.folder / ".index")
    notices = 0
    for _, ran in each_write(lambda: deepfish(*query)):
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["hits"] == hits
        notices += ran.err.count("index cannot be written")
        left = [path.name for path in many.folder.glob(".index/*/.*")]
        assert left == []
        told = []
        Searcher(many.folder, "dW8", "index", notice=told.append)
        assert told == []
        shutil.rmtree(many.folder / ".index")
    assert notices >= 4


@pytest.mark.slow
def test_train_leaves_the_old_model_or_the_new_one_at_any_write(
    deepfish, many, tmp_path
):
    def train(recipe="dW8"):
        return deepfish("train", many.folder, "model", "--features", recipe)

    failures = 0
    for _ in range(2):  # the second time a model is there
        for _, ran in each_write(train):
            failures += told(ran)
            if (tmp_path / "model/model.json").exists():
                assert (
                    Model.load(tmp_path / "model").recipe
                    in ("dW8", "x7")[: 1 + ran.code]
                )
            assert train("x7").code == 0
            names = {path.name for path in (tmp_path / "model").iterdir()}
            assert names - {".lock"} == {"model.json", "model.safetensors"}
    assert failures > 8


@pytest.mark.slow
def test_rows_of_results_are_whole_at_any_write_of_reproduce(
    deepfish, flat, pictures, tmp_path
):
    for split in ("train", "test"):
        shutil.copytree(pictures, tmp_path / "data" / split)
    for path in (tmp_path / "data/test").rglob("*.png"):
        content = path.read_bytes()
        # another content, the same picture
        path.write_bytes(content + path.name.encode())

    def reproduce():
        return deepfish(
            *(
                "reproduce",
                "folder",
                "--data",
                "data",
                "--out",
                "out",
                "--features",
                "x7",
            ),
            *("--weights", "random", "--json"),
        )

    (row,) = map(json.loads, reproduce().out.splitlines())
    shutil.rmtree(tmp_path / "out")
    failures = 0
    for _, ran in each_write(reproduce, step=7):
        failures += told(ran)
        if (tmp_path / "out").exists():
            results = Results(tmp_path / "out")
            assert all(one["map"] == row["map"] for one in results.rows)
            assert all(results.scores(one)[0].size for one in results.rows)
        (again,) = map(json.loads, reproduce().out.splitlines())
        assert again["map"] == row["map"]
        shutil.rmtree(tmp_path / "out")
    assert failures > 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to write to")
@pytest.mark.parametrize("arguments", [["models"], ["models", "--json"], ["--help"]])
def test_output_that_cannot_be_written_is_one_line(arguments):
    with Path("/dev/full").open("w") as full:
        command = [
            sys.executable,
            "-c",
            "from deepfishing.cli import main; main()",
            *arguments,
        ]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "deepfish: output cannot be written: no space left\n"
