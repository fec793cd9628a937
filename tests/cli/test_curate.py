import csv
import dataclasses
import hashlib
import json

import numpy as np
import pytest
from PIL import Image

from deepfishing.core.rank_one import l2_normalize
from deepfishing.curate import choose_photos, label_scores, selection
from deepfishing.curate.selection import choosing, open_photos
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
    ran = deepfish(
        "curate", "choose", store, "-n", "4", "--sheet", "s.png", "--out", "first.csv"
    )
    assert ran.code == 0, ran.err
    picks = list(choose_photos(open_photos(store), 4))
    assert ran.out.splitlines() == [pick.path for pick in picks]
    assert "4 of 12 images by pow(dW8,0.5)+x7" in ran.err
    with (tmp_path / "first.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == ran.out.splitlines()
    assert [row["labels"] for row in rows] == [""] * 4
    with Image.open(tmp_path / "s.png") as drawn:
        assert drawn.width > 800
        assert drawn.getpixel((100, 100)) != (200, 200, 200)  # a photo, not a grey tile


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_labels_that_were_filled_in_are_never_replaced(
    deepfish, store, tmp_path, delimiter
):
    again = ("curate", "choose", store, "-n", "2", "--out", "first.csv")
    assert deepfish(*again).code == 0
    assert deepfish(*again).code == 0  # nothing is lost
    table = tmp_path / "first.csv"
    filled = table.read_text().replace(",,", ",dog,", 1).replace(",", delimiter)
    table.write_text(filled)
    for more in ((), ("--labels", "first.csv")):
        ran = deepfish(*again, *more)
        assert ran.code == 1
        assert (
            "first.csv has 1 label filled in, which would be lost; give --out"
            in ran.err
        )
    assert table.read_text() == filled
    assert deepfish("curate", "odd", store, "--out", "first.csv").code == 1


def test_what_is_labelled_is_not_chosen_again(deepfish, store, tmp_path):
    first = deepfish(
        "curate", "choose", store, "-n", "3", "--features", "x7"
    ).out.splitlines()
    (tmp_path / "done.txt").write_text("\n".join(first))
    rest = deepfish(
        *(
            "curate",
            "choose",
            store,
            "-n",
            "99",
            "--features",
            "x7",
            "--labels",
            "done.txt",
        ),
        "--json",
    )
    assert rest.code == 0, rest.err
    document = json.loads(rest.out)
    assert (document["by"], document["labelled"], len(document["photos"])) == (
        "x7",
        3,
        9,
    )
    assert not {photo["path"] for photo in document["photos"]} & set(first)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["-n", "0"], "n must be at least 1 image, got 0"),
        (["--out", "x.txt"], "--out must end in .csv or .json, got x.txt"),
        (["--labels", "gone.txt"], "gone.txt (No such file or directory)"),
        (["--features", "y8"], "must hold y8 for y8"),
    ],
)
def test_what_cannot_be_chosen_is_one_line(deepfish, store, arguments, line):
    ran = deepfish("curate", "choose", store, *arguments)
    assert ran.code == 1
    assert ran.out == ""
    assert line in ran.err
    assert ran.err.count("\n") == 1


def test_a_choice_that_is_stopped_is_kept(deepfish, store, tmp_path, monkeypatch):
    whole = deepfish("curate", "choose", store, "-n", "5").out.splitlines()

    def stopped(*arguments, **options):
        steps = choosing(*arguments, **options)
        yield from (next(steps) for _ in range(2))
        raise KeyboardInterrupt

    monkeypatch.setattr("deepfishing.curate.selection.choosing", stopped)
    ran = deepfish("curate", "choose", store, "-n", "5", "--out", "first.csv")
    assert ran.code == 130
    assert ran.out.splitlines() == whole[:2]
    assert "interrupted" in ran.err
    assert len((tmp_path / "first.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize("command", ["choose", "labels"])
def test_a_damaged_store_is_one_line_and_stays_as_it_is(deepfish, store, command):
    for shard in (store / "x7").glob("*.parquet"):
        shard.write_bytes(shard.read_bytes()[:-40])
    ran = deepfish("curate", command, store)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "x7" in ran.err


def test_photos_that_are_the_same_are_one(deepfish, store):
    made = Store.open(store)
    rows = list(made.rows().values())
    same = {name: np.ones((12, d)) for name, d in (("x7", 8), ("delta8", 4))}
    copy = Store(store.parent / "same", made.settings)
    copy.append([row.sha256 for row in rows], same)
    copy.write_rows(rows)
    ran = deepfish("curate", "choose", copy.folder, "-n", "5")
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == 1
    assert "every other photo is labelled, or the same as one of them" in ran.err


def test_once_there_are_labels_photos_that_the_machine_is_unsure_of_come_first(
    deepfish, store
):
    rows = list(Store.open(store).rows().values())
    known = [
        row for row in rows if row.id not in ("test/dark/5.jpg", "test/light/5.jpg")
    ]
    photos = open_photos(store)
    labels = {row.id: ("dark" if "dark" in row.id else "light",) for row in known}
    sure = selection._uncertainty(
        photos,
        photos.collection.content[[rows.index(row) for row in known]],
        list(labels.values()),
    )
    scores = label_scores(
        photos.features.of(np.arange(12)), make_labels(photos), neighbours=False
    )
    assert sure.shape == (12,)
    assert ((sure > 0) & (sure <= 1)).all()
    # the surer, the less it counts
    assert np.corrcoef(sure, np.abs(scores[:, 0]))[0, 1] < 0
    few = dict(list(labels.items())[:6])  # of one class only: all count alike
    assert selection._uncertainty(photos, np.arange(6), list(few.values())) is None


def make_labels(photos):
    dark = np.array(["dark" in photos.collection[row].id for row in range(12)])
    order = np.argsort(photos.collection.content)
    return np.where(np.stack([dark, ~dark], axis=1)[order], 1, -1)


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


def test_labels_finds_the_wrong_one_and_says_what_it_would_be(
    deepfish, store, tmp_path
):
    table = labelled(store, wrong=["test/dark/3.jpg"])
    ran = deepfish(
        "curate", "labels", store, "--labels", table, "--out", "doubtful.json"
    )
    assert ran.code == 0, ran.err
    (line,) = ran.out.splitlines()
    assert line.endswith("dark/3.jpg")
    assert "light -> dark" in line
    assert "1 doubtful label of 12 images by pow(dW8,0.5)+x7" in ran.err
    assert "doubt often" not in ran.err
    (found,) = json.loads((tmp_path / "doubtful.json").read_text())
    assert (found["id"], found["given"], found["suggested"]) == (
        *("test/dark/3.jpg", ["light"], ["dark"]),
    )


def test_labels_that_the_features_contradict_everywhere_are_called_that(
    deepfish, store
):
    wrong = [row.id for row in Store.open(store).rows().values() if "3" in row.id]
    table = labelled(store, wrong=[*wrong, "test/dark/0.jpg"])
    ran = deepfish("curate", "labels", store, "--labels", table)
    assert ran.code == 0, ran.err
    assert "classifiers that are often wrong doubt often" in ran.err


def test_with_several_labels_the_one_too_much_and_the_missing_one_are_named(
    deepfish, store
):
    table = labelled(store, wrong=["test/light/0.jpg"], several=True)
    ran = deepfish("curate", "labels", store, "--labels", table, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["labels"]
    assert {one["id"] for one in found} == {"test/light/0.jpg"}
    assert {tuple(one["suggested"]) for one in found} == {
        ("picture",),
        ("dark", "light", "picture"),
    }


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (["test/dark/0.jpg,dark"], "two classes or more are needed"),
        (["test/dark/0.jpg,dark", "test/light/0.jpg,light"], "got 2 with labels"),
        (["gone.jpg,dark"], "every row of"),
        (["test/dark/0.jpg,"], "fill in that column"),
    ],
)
def test_labels_that_cannot_be_doubted_are_one_line(deepfish, store, rows, line):
    table = store.parent / "few.csv"
    table.write_text("\n".join(["path,label", *rows]))
    ran = deepfish("curate", "labels", store, "--labels", table)
    assert (ran.code, ran.out) == (1, "")
    assert line in ran.err
    assert ran.err.count("\n") == 1


def test_without_labels_folders_are_labels_and_their_absence_is_one_line(
    deepfish, store
):
    ran = deepfish("curate", "labels", store)
    assert ran.code == 0, ran.err
    made = Store.open(store)
    made.write_rows(
        dataclasses.replace(row, id=row.id.replace("/", "_"))
        for row in made.rows().values()
    )
    ran = deepfish("curate", "labels", store)
    assert (ran.code, ran.out) == (1, "")
    assert "sort them into folders, or pass --labels" in ran.err
