import io
import json
import sys

import numpy as np
import pytest
from PIL import Image

from deepfishing.search import Searcher
from deepfishing.store import Row, Store


@pytest.fixture
def store(deepfish, shapes):
    """`shapes/test` with its labels, by a random network."""
    table = "path,label\n" + "".join(
        f"{path},{path.parent.name}\n"
        for path in sorted((shapes / "test").rglob("*.jpg"))
    )
    (shapes / "list.csv").write_text(table)
    ran = deepfish(
        "extract",
        shapes / "list.csv",
        "store",
        "--weights",
        "random",
        "--features",
        "x7,dW8",
    )
    assert ran.code == 0, ran.err
    return shapes.parent / "store"


@pytest.fixture
def query(shapes):
    return shapes / "test" / "light" / "2.jpg"


def test_the_document_is_what_the_library_finds(deepfish, store, query):
    ran = deepfish("search", store, query, "-n", "3", "--features", "dW8", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert list(document) == [
        "store",
        "by",
        "method",
        "images",
        "like",
        "unlike",
        "hits",
    ]
    assert (document["by"], document["method"], document["images"]) == (
        "dW8",
        "exact",
        12,
    )
    hits = Searcher(store, "dW8").search(str(query), k=3)
    assert [hit["id"] for hit in document["hits"]] == [hit.id for hit in hits]
    assert list(document["hits"][0]) == [
        *("id", "path", "labels", "score", "forward", "backward", "classes")
    ]
    assert document["hits"][0]["labels"] == ["light"]
    assert set(document["hits"][0]["classes"][0]) == {"index", "name", "term"}


def on_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")  # no colours


def test_the_table_fits_80_columns_and_names_what_it_shows(
    deepfish, store, query, monkeypatch
):
    on_a_terminal(monkeypatch)
    ran = deepfish("search", store, query, "-n", "4")
    assert ran.code == 0, ran.err
    first, head, *rows = ran.out.splitlines()
    assert first == "4 of 12 images by dW8+x7, exactly"
    assert head.split() == [
        "score",
        "forward",
        "backward",
        "image",
        "labels",
        "classes",
    ]
    assert len(rows) == 4
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    assert all("light" in row for row in rows)


def test_on_a_pipe_rows_are_complete_with_tabs_between_columns(deepfish, store, query):
    ran = deepfish("search", store, query, "-n", "4")
    assert ran.code == 0, ran.err
    assert ran.err.startswith("4 of 12 images by dW8+x7, exactly\n")
    head, *rows = [line.split("\t") for line in ran.out.splitlines()]
    assert head == [
        "score",
        "forward",
        "backward",
        "image",
        "path",
        "labels",
        "classes",
    ]
    found = [dict(zip(head, row, strict=True)) for row in rows]
    hits = Searcher(store).search(str(query), k=4)
    assert [one["image"] for one in found] == [hit.id for hit in hits]
    assert [one["path"] for one in found] == [hit.path for hit in hits]
    assert [float(one["score"]) for one in found] == pytest.approx(
        [hit.score for hit in hits], abs=1e-6
    )
    assert all(one["labels"] == "light" for one in found)


def test_a_tab_in_a_name_does_not_break_a_row(deepfish, tmp_path):
    made = Store(tmp_path / "s", {"network": "toy", "layers": {"8": "fc"}})
    made.append(["k1", "k2"], {"x7": np.eye(2)})
    names = {"k1": "a" * 60, "k2": "b\tc\nd"}
    made.write_rows(
        Row(name, name, key, status="ok", factors=("x7",))
        for key, name in names.items()
    )
    _, row = deepfish("search", "s", "a" * 60).out.splitlines()
    assert row.split("\t")[3] == "b\\tc\\nd"


def test_columns_without_a_word_are_left_out(deepfish, tmp_path, monkeypatch):
    on_a_terminal(monkeypatch)
    made = Store(tmp_path / "s", {"network": "toy", "layers": {"8": "fc"}})
    made.append(["k1", "k2"], {"x7": np.eye(2)})
    made.write_rows(
        Row(key, key, key, status="ok", factors=("x7",)) for key in ("k1", "k2")
    )
    ran = deepfish("search", "s", "k1")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[1].split() == ["score", "forward", "image"]


def test_bytes_on_standard_input_are_a_query(
    deepfish, store, query, monkeypatch, tmp_path
):
    class Input:
        buffer = io.BytesIO(query.read_bytes())

    # under another name, since a query by id does not find itself
    query = query.rename(tmp_path / "moved.jpg")
    monkeypatch.setattr(sys, "stdin", Input)
    piped = deepfish("search", store, "-", "--json", "--features", "x7", "-n", "2")
    file = deepfish("search", store, query, "--json", "--features", "x7", "-n", "2")
    assert json.loads(piped.out)["hits"] == json.loads(file.out)["hits"]
    empty = deepfish("search", store, "-")
    assert empty.code == 1
    assert "bytes of an image on standard input, got none" in empty.err


def test_examples_filters_and_the_index_reach_the_library(deepfish, store, shapes):
    light = [str(shapes / "test" / "light" / f"{i}.jpg") for i in (0, 1)]
    dark = str(shapes / "test" / "dark" / "0.jpg")
    ran = deepfish(
        *("search", store, "--like", light[0], "--like", light[1], "--unlike", dark),
        *(
            "--label",
            "dark",
            "--path",
            "*/[1-3].jpg",
            "--index",
            "--json",
            "--features",
            "dW8",
        ),
    )
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert (document["method"], document["like"], document["unlike"]) == (
        "index",
        light,
        [dark],
    )
    expected = Searcher(store, "dW8").search(
        light, unlike=[dark], labels=["dark"], path="*/[1-3].jpg"
    )
    assert [hit["id"] for hit in document["hits"]] == [hit.id for hit in expected]
    assert len(expected) == 3


def test_the_sheet_shows_the_query_first_and_a_grey_tile_for_a_lost_file(
    deepfish, store, query, shapes, tmp_path
):
    before = deepfish(
        "search", store, query, "-n", "3", "--json", "--sheet", tmp_path / "a.png"
    )
    assert before.code == 0, before.err
    with Image.open(tmp_path / "a.png") as sheet:
        tiles = np.asarray(sheet)
        assert sheet.size == (4 * 208 + 8, 260)
    # the query is 80 x 60 and not enlarged: in the middle of its tile
    middle = tiles[8 + 70 : 8 + 130, 8 + 60 : 8 + 140]
    assert np.abs(middle.astype(int) - np.asarray(Image.open(query))).mean() < 1
    second = json.loads(before.out)["hits"][1]["path"]
    (shapes.parent / second).write_bytes(b"no longer an image")
    after = deepfish(
        "search", store, query, "-n", "3", "--json", "--sheet", tmp_path / "b.png"
    )
    assert after.code == 0, after.err
    with Image.open(tmp_path / "b.png") as sheet:
        grey = np.asarray(sheet)[8:208, 8 + 2 * 208 : 208 + 2 * 208]
    assert (grey == grey[0, 0]).all()
    assert not (tiles[8:208, 8 + 2 * 208 : 208 + 2 * 208] == grey[0, 0]).all()


def test_the_sheet_finds_its_photos_from_any_folder(deepfish, shapes, tmp_path):
    ran = deepfish(
        "extract", "shapes/test", "store", "--weights", "random", "--features", "x7,dW8"
    )
    assert ran.code == 0, ran.err  # with paths that start here
    (tmp_path / "elsewhere").mkdir()
    for name in ("shapes", "store"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    ran = deepfish(
        "search", "elsewhere/store", "light/2.jpg", "-n", "2", "--sheet", "a.png"
    )
    assert ran.code == 0, ran.err
    with Image.open(tmp_path / "a.png") as sheet:
        tiles = np.asarray(sheet)
    for n in range(3):
        tile = tiles[8 + 70 : 8 + 130, 8 + 60 + n * 208 : 8 + 140 + n * 208]
        assert tile.std() > 20  # a picture, not a grey tile


MISTAKES = [
    (["gone.jpg"], "an id of"),
    (["list.csv"], "not an image that Pillow can read"),
    ([], "needs a QUERY or --like"),
    (["{q}", "-n", "0"], "-n must be at least 1, got 0"),
    (["{q}", "--features", "dW9"], "feature must be one of"),
    (["{q}", "--features", "dW7"], "lacks x6, delta7; add them with `deepfish extract"),
    (["{q}", "--label", "ligth"], "did you mean light?"),
    (["{q}", "--path", "nowhere/*"], "widen it"),
    (["{q}", "--sheet", "no/such/folder.png"], "no/such/folder.png"),
    (["{q}", "--sheet", "hits.nothing"], "hits.nothing"),
    (["{new}", "--weights", "gone.pth"], "gone.pth"),
]


def test_mistakes_are_one_line_and_exit_code_1(deepfish, store, query, shapes):
    new = shapes / "train" / "dark" / "0.jpg"
    (shapes.parent / "list.csv").write_text("no image")
    for arguments, message in MISTAKES:
        ran = deepfish(
            "search", store, *(a.format(q=query, new=new) for a in arguments)
        )
        assert ran.code == 1, arguments
        assert message in ran.err
        assert ran.err.count("\n") == 1
        assert ran.err.startswith("deepfish: ")


def test_a_network_with_other_weights_is_refused(deepfish, store, shapes, monkeypatch):
    manifest = store / "store.json"
    facts = json.loads(manifest.read_text())
    facts["settings"]["weights_sha256"] = "random-7"
    del facts["seal"]
    manifest.write_text(json.dumps(facts))
    ran = deepfish(
        "search", store, shapes / "train" / "dark" / "0.jpg", "--features", "x7"
    )
    assert ran.code == 1
    assert (
        "weights_sha256 = random-7, got efficientnet-lite0 with random-0; pass --weights"
        in ran.err
    )


def test_a_folder_without_a_store_is_told(deepfish, tmp_path):
    ran = deepfish("search", tmp_path, "a.jpg")
    assert ran.code == 1
    assert "must hold store.json" in ran.err
