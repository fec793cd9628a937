"""What `--precision` of `deepfish extract` does, and every command on what it wrote."""

import json

import pytest

from deepfishing.store import Store
from deepfishing.store.precision import CODECS

QUICK = ("--engine", "torch", "--features", "x7")


def precision(folder):
    return json.loads((folder / "store.json").read_text())["settings"]["dtype"]


def test_a_new_store_is_in_int8_and_one_that_is_there_keeps_its_own(
    deepfish, shapes, tmp_path
):
    few = shapes / "train/dark"
    assert deepfish("extract", few, "new", *QUICK).code == 0
    assert precision(tmp_path / "new") == "int8"
    half = ["extract", few, "half", *QUICK]
    assert deepfish(*half, "--precision", "float16").code == 0
    (few / "0.jpg").write_bytes((shapes / "test/light/0.jpg").read_bytes())
    ran = deepfish(*half)
    assert "6 images, 1 computed now" in ran.out, ran.err
    assert precision(tmp_path / "half") == "float16"
    ran = deepfish(*half, "--precision", "int8")
    assert ran.code == 1
    assert "made with dtype = 'float16', now it is 'int8'" in ran.err
    assert deepfish("store", "verify", "half").code == 0


@pytest.mark.parametrize("command", ["extract", "store compress"])
def test_the_help_names_every_precision(deepfish, command):
    text = deepfish(*command.split(), "--help").out
    assert all(name in text for name in CODECS)


def test_an_unknown_precision_makes_no_store(deepfish, shapes, tmp_path):
    ran = deepfish("extract", shapes, "s", *QUICK, "--precision", "pq4")
    assert ran.code == 1
    assert "precision of a store must be one of int8, int4" in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_every_command_works_on_a_store_in_int8(deepfish, shapes, tmp_path):
    query = shapes / "test/dark/0.jpg"
    assert deepfish("extract", shapes, "s", *QUICK[:-1], "x7,dW8").code == 0
    labels = [f"{p.relative_to(shapes)},{p.parent.name}" for p in shapes.rglob("*.jpg")]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *labels]) + "\n")
    ran = deepfish("train", "s", "m", "--labels", "labels.csv", "--features", "dW8")
    assert ran.code == 0, ran.err
    found = deepfish("predict", "m", query, "--json")
    assert found.code == 0, found.err
    assert "dark" in found.out
    hits = json.loads(
        deepfish("search", "s", query, "-n", "5", "--features", "dW8", "--json").out
    )
    assert all("dark" in hit["id"] for hit in hits["hits"])
    assert deepfish("store", "verify", "s").code == 0


def test_extract_adds_images_to_a_compressed_store(deepfish, shapes, tmp_path):
    assert deepfish("extract", shapes / "train/dark", "s", *QUICK).code == 0
    assert deepfish("store", "compress", "s", "small", "--precision", "int4").code == 0
    ran = deepfish("extract", shapes / "train", "small", *QUICK)
    assert "12 images, 6 computed now" in ran.out, ran.err
    store = Store.open(tmp_path / "small")
    assert store.precision == "int4"
    keys = [row.sha256 for row in store.rows().values()]
    assert store.read(keys, "x7").shape == (len(keys), 1280)
    assert deepfish("store", "verify", "small").code == 0
