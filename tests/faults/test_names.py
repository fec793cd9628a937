"""Odd names and odd files in a folder of images: each is used, or left out with its reason."""

import csv
import json
import os

import pytest
from starlette.testclient import TestClient

from deepfishing.store import Store
from deepfishing.store.check import verify
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery

TEXTS = (
    *(
        "with space.png",
        "  two spaces.png",
        "new\nline.png",
        "tab\t.png",
        "carriage\r.png",
    ),
    *(
        "quo'te.png",
        'quo"te.png',
        "semi;colon,comma.png",
        "back\\slash.png",
        "%41%2f.png",
    ),
    *("[red]markup[.png", "-dash.png", "<b>&amp;.png", "fish \U0001f41f.png", "é.png"),
    *(
        "e\u0301.png",
        "\u202egnp.png",
        "x" * 240 + ".png",
        "a.jpg.png",
        "$(ls) `ls`.png",
    ),
)
BYTES = (b"caf\xe9.png", b"\xff\xfe.png")


def as_id(name):
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name


@pytest.fixture
def odd(draw, tmp_path):
    """Two classes; every name in one of them."""
    folder = tmp_path / "odd"
    for i, name in enumerate((*TEXTS, *BYTES)):
        path = (
            folder
            / "ab"[i % 2]
            / (os.fsdecode(name) if isinstance(name, bytes) else name)
        )
        try:
            draw(path)
        except OSError:
            pytest.skip("this file system takes UTF-8 names only")
    return folder


@pytest.fixture
def ids():
    return sorted(
        f"{'ab'[i % 2]}/{as_id(name)}" for i, name in enumerate((*TEXTS, *BYTES))
    )


@pytest.fixture
def store(deepfish, flat, odd, tmp_path):
    ran = deepfish("extract", odd, "s", *flat)
    assert ran.code == 0, ran.err
    return Store.open(tmp_path / "s")


def test_any_name_is_extracted_and_kept_as_text(store, ids):
    rows = store.rows()
    assert sorted(rows) == ids
    assert {row.status for row in rows.values()} == {"ok"}
    assert verify(store) == []


def test_a_second_run_knows_all_names_again(deepfish, flat, odd, store):
    again = deepfish("extract", odd, "s", *flat, "--json")
    end = json.loads(again.out.splitlines()[-1])
    assert (end["computed"], end["failures"], end["removed"]) == (0, {}, [])


def test_any_name_is_found_by_a_search_and_shown(deepfish, store, ids):
    for id_ in ids:
        found = deepfish("search", "s", id_, "--features", "dW8", "-n", "50", "--json")
        assert found.code == 0, found.err
        hits = [hit["id"] for hit in json.loads(found.out)["hits"]]
        assert sorted([*hits, id_]) == ids
        assert deepfish("search", "s", id_, "--features", "dW8", "-n", "50").code == 0


def test_any_name_is_trained_on_listed_and_told(deepfish, store, ids, tmp_path):
    assert deepfish("train", "s", "model", "--features", "dW8").code == 0
    assert deepfish("store", "info", "s").code == 0
    assert json.loads(deepfish("store", "info", "s", "--json").out)["images"] == len(
        ids
    )


def test_any_name_is_in_the_page(store, ids):
    client = TestClient(make_app(Gallery(store.folder)), base_url="http://localhost")
    listed = client.get("/api/images", params={"limit": 100}).json()["images"]
    assert sorted(one["id"] for one in listed) == ids
    for id_ in ids:
        asked = {"by": "dW8", "like": [{"id": id_}], "k": 3}
        assert len(client.post("/api/search", json=asked).json()["hits"]) == 3
        picture = client.get("/api/thumbnail", params={"id": id_})
        is_text = "\\x" not in id_
        assert picture.status_code == (200 if is_text else 404), id_


def test_a_table_and_patterns_give_the_same_names(deepfish, flat, odd, ids, tmp_path):
    texts = [id_ for id_ in ids if "\\x" not in id_]
    with (odd / "list.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["path"], *([id_] for id_ in texts)])
    assert deepfish("extract", odd / "list.csv", "t", *flat).code == 0
    assert sorted(Store.open(tmp_path / "t").rows()) == texts
    assert deepfish("extract", odd / "*/*.png", "p", *flat).code == 0
    assert sorted(Store.open(tmp_path / "p").rows()) == ids


def test_a_broken_file_of_any_name_is_left_out_with_its_reason(
    deepfish, flat, odd, ids, tmp_path
):
    for path in sorted((odd / "a").iterdir()):
        path.write_bytes(b"broken " + os.fsencode(path.name))
    ran = deepfish("extract", odd, "s", *flat, "--json")
    assert ran.code == 0, ran.err
    failures = json.loads(ran.out.splitlines()[-1])["failures"]
    assert sorted(failures) == [id_ for id_ in ids if id_.startswith("a/")]
    assert sorted(Store.open(tmp_path / "s").rows()) == ids


def test_links_that_lead_nowhere_or_in_a_circle_are_left_out(
    deepfish, flat, pictures, tmp_path
):
    (pictures / "a/link.png").symlink_to("0.png")
    (pictures / "a/gone.png").symlink_to("nowhere.png")
    (pictures / "a/itself.png").symlink_to("itself.png")
    (pictures / "a/one.png").symlink_to("two.png")
    (pictures / "a/two.png").symlink_to("one.png")
    (pictures / "a/up").symlink_to("..")
    (pictures / "b/here").symlink_to(".")
    (pictures / "c").symlink_to("c")
    ran = deepfish("extract", pictures, "s", *flat, "--json")
    assert ran.code == 0, ran.err
    end = json.loads(ran.out.splitlines()[-1])
    left_out = [f"a/{name}.png" for name in ("gone", "itself", "one", "two")]
    assert sorted(end["failures"]) == left_out
    assert end["computed"] == 10
    rows = Store.open(tmp_path / "s").rows()
    assert len(rows) == 15
    assert rows["a/link.png"].sha256 == rows["a/0.png"].sha256
    assert deepfish("extract", f"{pictures}/**/*.png", "p", *flat).code == 0


def test_a_class_that_links_to_its_own_folder_is_no_class(deepfish, flat, pictures):
    (pictures / "z").symlink_to(".")
    (pictures / "y").symlink_to("..")
    arguments = (
        "reproduce",
        "folder",
        "--data",
        pictures,
        "--features",
        "x7",
        *flat[:2],
    )
    ran = deepfish(*arguments, "--out", "out", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out.splitlines()[0])["classes"] == ["a", "b"]


def test_a_pipe_and_a_device_are_not_waited_for(deepfish, flat, pictures):
    os.mkfifo(pictures / "a/pipe.png")
    (pictures / "a/endless.png").symlink_to("/dev/zero")
    ran = deepfish("extract", pictures, "s", *flat, "--json")
    assert ran.code == 0, ran.err
    failures = json.loads(ran.out.splitlines()[-1])["failures"]
    assert sorted(failures) == ["a/endless.png", "a/pipe.png"]
    assert all("not a file" in reason for reason in failures.values())
    assert deepfish("train", "s", "m", "--features", "x7").code == 0
    ran = deepfish("predict", "m", pictures)
    assert ran.code == 0, ran.err
    assert ran.err.count("(not a file)") == 2


def test_a_store_whose_own_name_is_not_utf8_is_one_line(
    deepfish, flat, pictures, tmp_path
):
    name = os.fsdecode(b"caf\xe9")
    ran = deepfish("extract", pictures, name, *flat)
    assert ran.code == 1
    assert ran.err.startswith(
        "deepfish: the folder of a store must have a name in UTF-8, got caf"
    )
    assert r"caf\xe9; " in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / name).exists()
    assert deepfish("extract", pictures, "s", *flat).code == 0
    (tmp_path / "s").rename(tmp_path / name)
    for command in (
        ["store", "info", name],
        ["store", "verify", name],
        ["search", name, "0.png"],
    ):
        ran = deepfish(*command)
        assert (ran.code, ran.err.count("\n")) == (1, 1), ran.err
