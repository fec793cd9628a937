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
