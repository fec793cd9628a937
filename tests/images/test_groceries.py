"""The photographs inside the package, and the script that makes their archive."""

import hashlib
import io
import runpy
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from deepfishing.errors import DatasetError, OptionError
from deepfishing.images.folder import read_folder
from deepfishing.images.published import ARCHIVE, KINDS, load_groceries

SCRIPT = Path(__file__).parents[2] / "scripts" / "groceries.py"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """All of them, for tests that only read."""
    folder = tmp_path_factory.mktemp("data")
    load_groceries(folder)
    return folder


def test_the_archive_has_50_different_photographs_of_each_variety_in_10_mb():
    assert ARCHIVE.stat().st_size < 10_000_000
    with zipfile.ZipFile(ARCHIVE) as archive:
        names = [name for name in archive.namelist() if name != "LICENSE"]
        contents = [archive.read(name) for name in names]
    assert sorted({tuple(name.split("/")[:2]) for name in names}) == sorted(
        (split, variety) for split in ("train", "test") for variety in KINDS
    )
    assert len(names) == len({Path(name).name for name in names}) == 50 * 14
    assert len({hashlib.sha256(content).digest() for content in contents}) == len(names)
    for content in contents:
        with Image.open(io.BytesIO(content)) as photo:
            assert (photo.format, photo.mode, min(photo.size)) == ("JPEG", "RGB", 224)


def test_licence_and_citation_are_beside_the_archive_and_beside_unpacked_photographs(
    root,
):
    licence = ARCHIVE.with_name("groceries.LICENSE").read_text(encoding="utf-8")
    for words in (
        "MIT License",
        "Copyright (c) 2019 Marcus Klasson",
        "Klasson, Cheng Zhang",
    ):
        assert words in licence
    assert (root / "groceries" / "LICENSE").read_text(encoding="utf-8") == licence


def test_the_folder_reads_as_any_folder_of_class_folders(root):
    data, folder = load_groceries(root), read_folder(root / "groceries")
    assert (data.name, data.classes, data.official_ap) == (
        "groceries",
        folder.classes,
        "area",
    )
    for ours, theirs in ((data.train, folder.train), (data.test, folder.test)):
        assert (ours.ids, ours.paths) == (theirs.ids, theirs.paths)
        np.testing.assert_array_equal(ours.labels, theirs.labels)


def test_kinds_and_varieties_are_labels(root):
    variety, kind, both = (
        load_groceries(root, labels=x) for x in ("variety", "kind", "both")
    )
    assert kind.classes == ("Apple", "Melon", "Orange", "Pear", "Satsumas")
    assert set(both.classes) == {*kind.classes, *variety.classes}
    assert (both.test.labels == 1).sum(axis=1).tolist() == [
        1 if path.parent.name in kind.classes else 2 for path in both.test.paths
    ]
    for one in (variety, kind):
        columns = [both.classes.index(name) for name in one.classes]
        np.testing.assert_array_equal(both.test.labels[:, columns], one.test.labels)
    apples = {v for v, k in KINDS.items() if k == "Apple"}
    shown = {
        p.parent.name
        for p, y in zip(kind.test.paths, kind.test.labels, strict=True)
        if y[0] > 0
    }
    assert shown == apples


def test_few_photographs_are_spread_over_the_varieties_and_are_the_first_of_the_more(
    tmp_path,
):
    few = load_groceries(tmp_path, n_train=28, n_test=3)
    assert (few.train.labels == 1).sum(axis=0).tolist() == [2] * 14
    assert len(list(tmp_path.rglob("*.jpg"))) == 31  # no more than were asked for
    more = load_groceries(tmp_path, n_train=30, n_test=3)
    assert set(few.train.ids) < set(more.train.ids)


def test_what_the_folder_has_already_is_kept_and_a_changed_photograph_is_refused(
    tmp_path,
):
    data = load_groceries(tmp_path, n_train=14, n_test=1)
    first = data.train.paths[0]
    before = first.stat().st_mtime_ns
    load_groceries(tmp_path, n_train=14, n_test=1)
    assert first.stat().st_mtime_ns == before
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    with pytest.raises(
        DatasetError, match=f"{first} must be the picture of the data set"
    ):
        load_groceries(tmp_path, n_train=14, n_test=1)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "groceries").write_text("a file")
    with pytest.raises(DatasetError, match="groceries"):
        load_groceries(tmp_path, n_train=1, n_test=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_train": 0}, "n_train must be from 1 to 350, got 0"),
        ({"n_test": 351}, "n_test must be from 1 to 350, got 351"),
        (
            {"labels": "kinds"},
            "labels must be one of variety, kind, both.*did you mean kind",
        ),
    ],
)
def test_options_out_of_range_are_refused_before_anything_is_written(
    options, message, tmp_path
):
    with pytest.raises(OptionError, match=message):
        load_groceries(tmp_path / "data", **options)
    assert not (tmp_path / "data").exists()


def parquet(rng):
    """Three photographs of each of two varieties and splits; those of the test split twice."""
    rows = []
    for split in ("train", "val", "test", "test"):
        for variety in ("Anjou", "Kaiser"):
            for i in range(3):
                seed = np.random.default_rng([len(variety), i, sum(map(ord, split))])
                picture = Image.fromarray(
                    seed.integers(0, 255, (300, 400, 3), dtype=np.uint8)
                )
                file = io.BytesIO()
                picture.save(file, "JPEG")
                rows.append((split, variety, file.getvalue()))
    rng.shuffle(rows)
    columns = dict(
        zip(
            ("dataset", "finegrained_cat", "image_data"),
            zip(*rows, strict=True),
            strict=True,
        )
    )
    file = io.BytesIO()
    pq.write_table(
        pa.table({name: list(column) for name, column in columns.items()}), file
    )
    return file.getvalue()


def test_the_script_takes_each_photograph_once_whatever_their_order():
    script = runpy.run_path(str(SCRIPT))
    first, again = (
        script["archive"](
            script["choose"](parquet(np.random.default_rng(seed)), each=3), b"MIT"
        )
        for seed in (0, 1)
    )
    assert first == again
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        names = archive.namelist()
        with Image.open(archive.open(names[1])) as photo:
            assert photo.size == (299, 224)
    assert names == ["LICENSE"] + [
        f"{split}/{variety}/{variety}_{number:02d}.jpg"
        for split, numbers in (("test", (4, 5, 6)), ("train", (1, 2, 3)))
        for variety in ("Anjou", "Kaiser")
        for number in numbers
    ]
