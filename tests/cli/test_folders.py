"""`deepfish reproduce folder` on folders as people have them: a report each time."""

import html
import json

import numpy as np
import pytest
import torch
from PIL import Image

import deepfishing.networks.load as load
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.network import Network

SCRIPTS = (
    *("собака", "कुत्ता", "猫と犬", "고양이", "ไก่", "café", "cafe\u0301", "e" * 120),
    *("🐟", "👩‍👩‍👧 family", "قطة", "כלב", "RTL قطة and LTR", "\u202egnp", "<b>bold"),
    *("a&b", 'it\'s "so"', "50% {x} $y$ ~^_#", "[red]markup[", "two  blanks"),
)


@pytest.fixture
def small(monkeypatch):
    """Every network is two layers on 4 x 4 pixels."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(48, 20),
        torch.nn.ReLU(),
        torch.nn.Linear(20, 6),
    )
    preprocess = Preprocess(4, 4, mean=(127.0,) * 3, std=(128.0,) * 3)
    network = Network("small", module, {7: "1", 8: "3"}, preprocess, "none")
    monkeypatch.setattr(load, "load_network", lambda *_, **__: network)


@pytest.fixture
def tree(tmp_path):
    """Write a folder of class folders: name -> how many images, each of the class's colour."""

    def write(classes, noise=60):
        rng = np.random.default_rng(0)
        for name, count in classes.items():
            folder = tmp_path / "photos" / name
            folder.mkdir(parents=True)
            colour = rng.integers(0, 256, 3)
            for i in range(count):
                pixels = colour + rng.integers(-noise, noise + 1, (4, 4, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
                    folder / f"{i}.png"
                )
        return tmp_path / "photos"

    return write


@pytest.fixture
def reported(deepfish, small, tmp_path):
    """Rows and page of `deepfish reproduce folder`."""

    def run(photos, features="x7,dW7,best", protocol="table,low-shot,knn"):
        ran = deepfish(
            *(
                "reproduce",
                "folder",
                "--data",
                photos,
                "--features",
                features,
                "--out",
                "o",
            ),
            *("--protocol", protocol),
        )
        assert ran.code == 0, ran.err
        assert max(map(len, ran.out.splitlines())) <= 80
        rows = [
            json.loads(line)
            for line in (tmp_path / "o/results.jsonl").read_text().splitlines()
        ]
        page = (tmp_path / "o/report.html").read_text()
        for name in rows[0]["classes"]:
            assert (
                html.escape(name).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
                in page
            )
        for kind in ("markdown", "latex"):
            assert deepfish("report", "o", "--format", kind).code == 0
        return rows, page

    return run


@pytest.mark.filterwarnings("error")
def test_a_perfect_class_has_its_100_and_the_run_its_report(tree, reported):
    rows, page = reported(tree({"dark": 40, "light": 42, "other": 8}, noise=2))
    assert all(row["ap"]["area"]["dark"] == 100.0 for row in rows)
    assert all(row["ap_interval"]["area"]["dark"] == [100.0, 100.0] for row in rows)
    assert "100.0" in page


def test_two_classes_are_enough(tree, reported):
    rows, _ = reported(tree({"dark": 5, "light": 4}))
    assert {tuple(row["classes"]) for row in rows} == {("dark", "light")}


def test_a_class_of_one_image_is_trained_and_left_out_of_the_test(tree, reported):
    rows, page = reported(tree({"dark": 6, "light": 6, "lonely": 1}))
    assert all(
        row["left_out"] == {"lonely": "no positive test example"} for row in rows
    )
    assert all(row["ap"]["area"]["lonely"] is None for row in rows)
    assert "no positive test example" in page
    assert "NaN" not in page


def test_many_classes_without_a_test_image_are_told_in_a_few_words(
    tree, reported, deepfish
):
    photos = tree({"dark": 4, "light": 4, **{f"lonely {i}": 1 for i in range(40)}})
    _, page = reported(photos, "x7", "table")
    ran = deepfish(
        "reproduce", "folder", "--data", photos, "--features", "x7", "--out", "o"
    )
    for text in (page, ran.out):
        assert "and 30 more (no positive test example)" in " ".join(text.split())
    assert len(ran.out.splitlines()) < 40


def test_a_folder_in_which_no_class_can_be_measured_says_so(tree, reported):
    names = [
        f"{split}/{name}" for split in ("train", "test") for name in ("dark", "light")
    ]
    photos = tree(dict.fromkeys(names, 1))
    for name in ("train/dark", "test/light"):
        (photos / name / "0.png").write_bytes(b"")
    rows, page = reported(photos, protocol="table,knn")
    assert {row["map"]["area"] for row in rows} == {None}
    assert {row["accuracy"] for row in rows} == {None}
    assert "No class could be measured" in page


def test_all_classes_of_one_image_but_one_is_a_report_too(tree, reported):
    rows, _ = reported(tree({"dark": 2, "light": 1, "other": 1}))
    assert {row["n_test"] for row in rows} == {1}


def test_a_hundred_classes(tree, reported):
    rows, page = reported(
        tree({f"class {i}": 2 for i in range(100)}), "x7,dW7", "table"
    )
    assert len(rows[0]["ap"]["area"]) == 100
    assert 'class="heat"' in page


def test_unreadable_files_are_listed_and_left_out(tree, reported, deepfish):
    photos = tree({"dark": 6, "light": 6, "gone": 4})
    (photos / "dark/0.png").write_bytes(b"no image")
    (photos / "light/1.png").write_bytes((photos / "light/1.png").read_bytes()[:60])
    for path in (photos / "gone").iterdir():
        path.write_bytes(b"")
    rows, page = reported(photos)
    assert all(len(row["unreadable"]) == 6 for row in rows)
    assert all("gone" in row["left_out"] for row in rows)
    assert "6 left out" in page
    again = deepfish(
        "reproduce", "folder", "--data", photos, "--features", "x7", "--out", "o"
    )
    assert again.err.count("left out: ") == 6
    assert "None" not in again.out


def test_names_in_any_script(tree, reported):
    rows, page = reported(tree(dict.fromkeys(SCRIPTS, 4)), "x7,dW7", "table")
    assert sorted(rows[0]["classes"]) == sorted(SCRIPTS)
    assert "<b>bold" not in page
