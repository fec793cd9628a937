import csv
import hashlib
import json

import numpy as np
import pytest
from PIL import Image

from deepfishing.curate import choose_photos
from deepfishing.curate.choose import open_photos
from deepfishing.rank_one import l2_normalize
from deepfishing.store import Row, Store


@pytest.fixture
def store(shapes, rng):
    """`shapes/test`, twelve pictures of two classes without labels; features are made."""
    paths = sorted((shapes / "test").rglob("*.jpg"))
    keys = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    light = np.array([[path.parent.name == "light"] for path in paths])
    x, delta = (np.where(light, *rng.normal(size=(2, d))) for d in (8, 4))
    x, delta = (l2_normalize(f + 0.3 * rng.normal(size=f.shape)) for f in (x, delta))
    made = Store(shapes.parent / "store", {"network": "toy", "layers": {"8": "fc"}})
    made.append(keys, {"x7": x, "delta8": delta})
    made.write_rows(
        Row(path.relative_to(shapes).as_posix(), str(path), key)
        for path, key in zip(paths, keys, strict=True)
    )
    return made.folder


def test_choose_prints_the_paths_that_the_library_chooses(deepfish, store, tmp_path):
    ran = deepfish("curate", "choose", store, "-n", "4", "--sheet", "s.png", "--out", "first.csv")
    assert ran.code == 0, ran.err
    picks = list(choose_photos(open_photos(store), 4))
    assert ran.out.splitlines() == [pick.path for pick in picks]
    assert "4 of 12 images by pow(dW8,0.5)" in ran.err
    with (tmp_path / "first.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == ran.out.splitlines()
    assert [row["labels"] for row in rows] == [""] * 4
    with Image.open(tmp_path / "s.png") as drawn:
        assert drawn.width > 800
        assert drawn.getpixel((100, 100)) != (200, 200, 200)  # a photo, not a grey tile


def test_what_is_labelled_is_not_chosen_again(deepfish, store, tmp_path):
    first = deepfish("curate", "choose", store, "-n", "3", "--features", "x7").out.splitlines()
    (tmp_path / "done.txt").write_text("\n".join(first))
    rest = deepfish(
        *("curate", "choose", store, "-n", "99", "--features", "x7", "--labelled", "done.txt"),
        "--json",
    )
    assert rest.code == 0, rest.err
    document = json.loads(rest.out)
    assert (document["by"], document["labelled"], len(document["photos"])) == ("x7", 3, 9)
    assert not {photo["path"] for photo in document["photos"]} & set(first)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["-n", "0"], "n must be at least 1 image, got 0"),
        (["--out", "x.txt"], "--out must end in .csv or .json, got x.txt"),
        (["--labelled", "gone.txt"], "gone.txt (No such file or directory)"),
        (["--features", "y8"], "must hold y8 for y8"),
    ],
)
def test_what_cannot_be_chosen_is_one_line(deepfish, store, arguments, line):
    ran = deepfish("curate", "choose", store, *arguments)
    assert ran.code == 1
    assert ran.out == ""
    assert line in ran.err
    assert ran.err.count("\n") == 1


def labelled(store, wrong=(), several=False):
    """Labels of the pictures' folders as a table; of the wrong ones the other."""
    lines = ["path,labels"]
    for row in Store.open(store).rows().values():
        dark = "dark" in row.id
        names = "dark" if dark != (row.id in wrong) else "light"
        lines.append(f"{row.id},{names + ';picture' * several}")
    table = store.parent / "labels.csv"
    table.write_text("\n".join(lines))
    return table


def test_labels_finds_the_wrong_one_and_says_what_it_would_be(deepfish, store, tmp_path):
    table = labelled(store, wrong=["test/dark/3.jpg"])
    ran = deepfish("curate", "labels", store, "--labels", table, "--out", "doubtful.json")
    assert ran.code == 0, ran.err
    (line,) = ran.out.splitlines()
    assert line.endswith("dark/3.jpg")
    assert "light -> dark" in line
    assert "1 doubtful labels of 12 images by pow(dW8,0.5)" in ran.err
    (found,) = json.loads((tmp_path / "doubtful.json").read_text())
    assert (found["id"], found["given"], found["suggested"]) == (
        *("test/dark/3.jpg", ["light"], ["dark"]),
    )


def test_with_several_labels_the_one_too_much_and_the_missing_one_are_named(deepfish, store):
    table = labelled(store, wrong=["test/light/0.jpg"], several=True)
    ran = deepfish("curate", "labels", store, "--labels", table, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["labels"]
    assert {one["id"] for one in found} == {"test/light/0.jpg"}
    assert {tuple(one["suggested"]) for one in found} == {
        ("picture",),
        ("dark", "light", "picture"),
    }
