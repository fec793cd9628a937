import json
import sys

import pytest


@pytest.fixture
def store(deepfish, shapes):
    """`shapes/test`, whose folders are its labels, by a random network."""
    ran = deepfish(
        "extract", shapes / "test", "store", "--weights", "random", "--features", "x7"
    )
    assert ran.code == 0, ran.err
    return shapes.parent / "store"


@pytest.fixture
def fixes(tmp_path):
    path = tmp_path / "fixes.csv"
    path.write_text(
        "path,label\ndark/0.jpg,light\nlight/1.jpg,grey\nnowhere.jpg,grey\n"
    )
    return path


def labels_in(deepfish, store, tmp_path):
    assert deepfish("label", store, "--out", tmp_path / "labels.csv").code == 0
    rows = (tmp_path / "labels.csv").read_text().splitlines()[1:]
    return {row.split(",")[1]: row.split(",")[2] for row in rows}


def test_corrections_are_written_listed_exported_and_undone(
    deepfish, store, fixes, tmp_path
):
    before = labels_in(deepfish, store, tmp_path)
    ran = deepfish("label", store, fixes)
    assert ran.code == 0, ran.err
    assert ran.out == f"{store}: labels of 2 images changed, 0 were the same\n"
    assert "matches no image: nowhere.jpg (no image of the store)" in ran.err
    assert labels_in(deepfish, store, tmp_path) == before | {
        "dark/0.jpg": "light",
        "light/1.jpg": "grey",
    }
    (line,) = deepfish("label", store, "--log").out.splitlines()
    assert "2 images labelled grey, light" in line
    assert deepfish("label", store, "--undo").out.startswith("undone: ")
    assert labels_in(deepfish, store, tmp_path) == before
    assert deepfish("label", store, "--undo").out == "nothing to undo\n"


def test_a_class_is_renamed_or_merged_also_where_it_is_a_folder(
    deepfish, store, tmp_path
):
    ran = deepfish("label", store, "--rename", "dark", "light")
    assert (ran.code, ran.out) == (0, "dark is light now\n")
    assert set(labels_in(deepfish, store, tmp_path).values()) == {"light"}


def test_a_class_that_is_not_there_is_not_renamed(deepfish, store, tmp_path):
    before = labels_in(deepfish, store, tmp_path)
    ran = deepfish("label", store, "--rename", "drak", "light")
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "got 'drak'; did you mean dark?" in ran.err
    assert labels_in(deepfish, store, tmp_path) == before
    assert deepfish("label", store, "--log").out == ""


def test_training_curating_and_searching_take_the_corrections(deepfish, store, fixes):
    rows = "".join(f"light/{n}.jpg,grey\n" for n in range(4))
    fixes.write_text(f"path,label\n{rows}")
    assert deepfish("label", store, fixes).code == 0
    ran = deepfish("train", store, "model", "--features", "x7", "--json")
    assert ran.code == 0, ran.err
    assert list(json.loads(ran.out)["classes"]) == ["dark", "grey", "light"]
    ran = deepfish(
        "search", store, "light/0.jpg", "--label", "grey", "-n", "9", "--json"
    )
    assert len(json.loads(ran.out)["hits"]) == 3  # without the query
    ran = deepfish("curate", "labels", store, "--features", "x7", "--json")
    assert ran.code == 0, ran.err


def test_without_anything_to_do_it_says_what_is_needed(deepfish, store):
    ran = deepfish("label", store)
    assert ran.code == 1
    assert "a table of labels, --out, --rename, --undo or --log is needed" in ran.err


def test_labelling_does_not_load_torch(deepfish, store, fixes, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert deepfish("label", store, fixes).code == 0
