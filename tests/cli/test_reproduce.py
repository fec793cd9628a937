import json
import math
import shutil

import pytest

from deepfishing.core.recipes import parse_recipe
from deepfishing.images.voc import CLASSES


def one_line(ran):
    assert ran.code == 1, ran
    assert ran.err.startswith("deepfish: ")
    assert ran.err.count("\n") == 1, ran.err
    assert "Traceback" not in ran.err
    return ran.err


@pytest.mark.filterwarnings("error")
def test_a_folder_of_classes_gives_a_table_results_and_a_report(
    deepfish, shapes, tmp_path
):
    ran = deepfish(
        "reproduce", "folder", "--data", shapes, "--features", "x7,dW8", "--out", "o"
    )
    assert ran.code == 0, ran.err
    assert "dW8" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    rows = [
        json.loads(line)
        for line in (tmp_path / "o/results.jsonl").read_text().splitlines()
    ]
    assert [row["feature"] for row in rows] == ["x7", "dW8"]
    assert rows[0]["command"].startswith("deepfish reproduce folder --data")
    assert "<html" in (tmp_path / "o/report.html").read_text()
    again = deepfish(
        "reproduce",
        "folder",
        "--data",
        shapes,
        "--features",
        "x7,dW8",
        "--out",
        "o",
        "--json",
    )
    assert [json.loads(line) for line in again.out.splitlines()] == rows
    report = deepfish("report", "o")
    assert report.out.strip() == "o/report.html"


def test_a_folder_is_measured_with_best_and_auto_without_being_asked(
    deepfish, shapes, tmp_path
):
    ran = deepfish(
        "reproduce", "folder", "--data", shapes, "--weights", "random", "--out", "o"
    )
    assert ran.code == 0, ran.err
    rows = [
        json.loads(line)
        for line in (tmp_path / "o/results.jsonl").read_text().splitlines()
    ]
    features = [row["feature"] for row in rows]
    assert {"x7", "x6;x7", "dW7", "dW8", "auto-forward", "auto"} <= set(features)
    assert parse_recipe("best", {7: "7", 8: "8"}).name in features


@pytest.mark.filterwarnings("error")
def test_curves_are_a_table_points_and_a_report_and_are_used_again(
    deepfish, shapes, tmp_path
):
    arguments = [
        "reproduce",
        "folder",
        "--data",
        shapes,
        "--out",
        "o",
        "--protocol",
        "low-shot",
    ]
    arguments += ["--features", "x7,dW8"]
    ran = deepfish(*arguments)
    assert ran.code == 0, ran.err
    assert "Few examples" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    points = [
        json.loads(line)
        for line in (tmp_path / "o/curves.jsonl").read_text().splitlines()
    ]
    figures = {
        "positive images per class": ["mAP, %"],
        "labelled photos per class": ["mAP, %", "accuracy, %", "balanced accuracy, %"],
    }
    assert [(p["series"], p["x_axis"], p["x"], p["y_axis"]) for p in points] == [
        (feature, form, x, figure)
        for feature in ("x7", "dW8")
        for form, shown in figures.items()
        for x in (1, 2, 4)
        for figure in shown
    ]
    assert points[0]["command"].startswith("deepfish reproduce folder --data")
    assert "Few examples" in (tmp_path / "o/report.html").read_text()
    again = deepfish(*arguments, "--json")
    assert [json.loads(line) for line in again.out.splitlines()] == points
    assert not (tmp_path / "o/results.jsonl").exists()


def test_search_by_examples_is_measured_and_said_in_words(deepfish, shapes, tmp_path):
    arguments = [
        "reproduce",
        "folder",
        "--data",
        shapes,
        "--out",
        "o",
        "--protocol",
        "search",
    ]
    ran = deepfish(*arguments, "--features", "x7,dW8")
    assert ran.code == 0, ran.err
    assert "Search by examples: right in the first ten, %" in ran.out
    assert "In search by 1 to 3 examples, dW8 is on average" in " ".join(
        ran.out.split()
    )
    assert max(map(len, ran.out.splitlines())) <= 80
    points = [
        json.loads(line)
        for line in (tmp_path / "o/curves.jsonl").read_text().splitlines()
    ]
    assert [(p["series"], p["x"], p["y_axis"][:4]) for p in points] == [
        (f, x, axis)
        for f in ("x7", "dW8")
        for x, axis in ((1, "righ"), (2, "righ"), (3, "righ"), (2, "with"))
    ]
    assert all(len(point["draws"]) == 1200 for point in points)
    assert "Search by examples" in (tmp_path / "o/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["voc2070"], "did you mean voc2007"),
        (["voc2007", "--data", "nowhere"], "nowhere"),
        (["voc2012"], "--data"),
        (["folder", "--data", "nowhere"], "nowhere"),
        (["scenes"], "run `deepfish reproduce groceries`"),
        (
            ["groceries", "--network", "efficientnet-lite9"],
            "did you mean efficientnet-lite",
        ),
        (["groceries", "--features", "dw8"], "did you mean dW8"),
        (["groceries", "--features", "x5"], "feature must be one of x6"),
        (["groceries", "--features", ","], "at least one feature"),
        (["groceries", "--tau", "0"], "tau must be a positive number"),
        (["groceries", "--tau", "nan"], "tau must be a positive number"),
        (["groceries", "--label", "unifrom"], "label must be"),
        (["groceries", "--device", "gpu"], "device must be"),
        (["groceries", "--weights", "none.pth"], "none.pth"),
        (["groceries", "--network", "vgg16"], "weights"),
        (
            ["groceries", "--train", "val"],
            "groceries has no choice of --train, got val",
        ),
        (["groceries", "--protocol", "lowshot"], "did you mean low-shot"),
        (["groceries", "--protocol", "knn", "--features", "dw8"], "did you mean dW8"),
    ],
)
def test_bad_input_is_one_line_and_says_what_to_do(deepfish, arguments, words):
    assert words in one_line(deepfish("reproduce", *arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--features", "dW:_fcc"], "did you mean _fc"),
        (["--features", "dW8", "--label", "1000"], "class from 0 to 999"),
        (["--features", "dW:_bn1"], "must be Linear or Conv2d"),
    ],
)
def test_what_only_the_network_can_tell_is_one_line_too(
    deepfish, shapes, arguments, words
):
    assert words in one_line(
        deepfish("reproduce", "folder", "--data", shapes, *arguments)
    )


def test_a_broken_class_list_is_named_with_its_line(deepfish, voc, tmp_path):
    path = voc / "ImageSets/Main/cat_test.txt"
    path.write_text("b1 1\nb2 maybe\n")
    error = one_line(deepfish("reproduce", "voc2007", "--data", tmp_path))
    assert "cat_test.txt, line 2" in error


@pytest.fixture
def voc(tmp_path):
    """The lists of VOC 2007 with four empty images."""
    return write_voc(
        tmp_path, 2007, {"trainval": ["a1", "a2"], "test": ["b1", "b2"]}, labelled=2
    )


def write_voc(tmp_path, year, splits, labelled):
    """The first `labelled` splits have class lists, in which every other image is positive."""
    root = tmp_path / f"VOCdevkit/VOC{year}"
    (root / "ImageSets/Main").mkdir(parents=True)
    (root / "JPEGImages").mkdir()
    for number, (split, ids) in enumerate(splits.items()):
        (root / f"ImageSets/Main/{split}.txt").write_text("\n".join(ids))
        for image_id in ids:
            (root / f"JPEGImages/{image_id}.jpg").write_bytes(b"")
        for name in CLASSES if number < labelled else ():
            lines = [
                f"{image_id} {1 if n % 2 else -1}\n" for n, image_id in enumerate(ids)
            ]
            (root / f"ImageSets/Main/{name}_{split}.txt").write_text("".join(lines))
    return root


def test_the_unlabelled_test_split_of_voc2012_becomes_a_submission(
    deepfish, shapes, tmp_path
):
    photos = sorted(shapes.rglob("*.jpg"))[:10]
    ids = [f"2008_{n:06d}" for n in range(10)]
    root = write_voc(tmp_path, 2012, {"trainval": ids[:6], "test": ids[6:]}, labelled=1)
    for image_id, photo in zip(ids, photos, strict=True):
        shutil.copy(photo, root / f"JPEGImages/{image_id}.jpg")
    ran = deepfish(
        *(
            "reproduce",
            "voc2012",
            "--data",
            tmp_path,
            "--train",
            "trainval",
            "--test",
            "test",
        ),
        *("--features", "dW8", "--out", "o"),
    )
    assert ran.code == 0, ran.err
    main = tmp_path / "o/submission/dW8/results/VOC2012/Main"
    assert len(list(main.iterdir())) == 20
    lines = (main / "comp1_cls_test_aeroplane.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ids[6:]
    assert all(math.isfinite(float(line.split()[1])) for line in lines)
    assert "submission" in ran.out


def test_a_data_set_without_its_lists_says_what_was_looked_for(deepfish, voc, tmp_path):
    (voc / "ImageSets/Main/trainval.txt").unlink()
    error = one_line(deepfish("reproduce", "voc2007", "--data", tmp_path / "VOCdevkit"))
    assert "trainval" in error


def test_a_truncated_image_is_listed_and_left_out_and_strict_stops_before_the_work(
    deepfish, shapes, tmp_path
):
    broken = shapes / "test/dark/0.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    arguments = (
        "reproduce",
        "folder",
        "--data",
        shapes,
        "--features",
        "x7",
        "--out",
        "o",
    )
    ran = deepfish(*arguments)
    assert ran.code == 0
    assert "left out: image cannot be decoded" in ran.err
    (row,) = map(json.loads, (tmp_path / "o/results.jsonl").read_text().splitlines())
    assert row["n_test"] == 11
    assert row["unreadable"] == [str(broken)]
    assert "1 left out" in (tmp_path / "o/report.html").read_text()


def test_the_version_is_told(deepfish):
    assert "deepfish 0." in deepfish("--version").out


def test_an_interrupt_is_one_line(deepfish, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("deepfishing.cli.reproduce.load_dataset", interrupt)
    ran = deepfish("reproduce", "groceries")
    assert ran.code == 130
    assert "finished work is kept" in ran.err
