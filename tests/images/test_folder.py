import os

import numpy as np
import pytest

from deepfishing.errors import DatasetError, OptionError
from deepfishing.images.folder import read_folder
from deepfishing.images.sources import find_images
from deepfishing.learn.labelled import read_labels


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def many(root, n=20):
    touch(root, *(f"{c}/{i:03d}.jpg" for c in ("ant", "bee", "cat") for i in range(n)))


def test_train_and_test_folders_are_the_splits(tmp_path):
    touch(
        tmp_path,
        "train/cat/1.jpg",
        "train/dog/1.jpg",
        "train/cat/2.jpg",
        "test/dog/1.jpg",
    )
    data = read_folder(tmp_path)
    assert (data.name, data.classes, data.official_ap) == (
        tmp_path.name,
        ("cat", "dog"),
        "area",
    )
    assert data.train.ids == ("train/cat/1.jpg", "train/cat/2.jpg", "train/dog/1.jpg")
    assert data.train.labels.tolist() == [[1, -1], [1, -1], [-1, 1]]
    assert data.test.paths == (tmp_path / "test/dog/1.jpg",)
    assert data.test.labels.tolist() == [[-1, 1]]


@pytest.mark.parametrize(
    ("train", "others", "test"),
    [
        ("Train", ["Valid", "Test"], "Test"),
        ("train", ["val"], "val"),
        ("training", ["validation", "testing"], "testing"),
    ],
)
def test_splits_may_have_other_names_and_capital_letters(tmp_path, train, others, test):
    splits = [train, *others]
    touch(tmp_path, *(f"{split}/{c}/1.jpg" for split in splits for c in ("cat", "dog")))
    data = read_folder(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.train.ids == (f"{train}/cat/1.jpg", f"{train}/dog/1.jpg")
    assert data.test.ids == (f"{test}/cat/1.jpg", f"{test}/dog/1.jpg")
    labelled = read_labels(find_images(tmp_path))
    assert labelled.classes == data.classes
    assert tuple(labelled.rows) == data.train.ids


def test_images_are_found_at_any_depth_by_extension_and_hidden_ones_skipped(tmp_path):
    extensions = ("jpg", "JPEG", "png", "bmp", "gif", "tif", "TIFF", "webp")
    images = [f"cat/{x}.{x}" for x in extensions]
    images.append("cat/deep/er/x.JPG")
    touch(
        tmp_path, *images, "cat/.x.jpg", "cat/.cache/x.jpg", "cat/notes.txt", "cat/jpg"
    )
    touch(tmp_path, "dog/1.jpg", ".git/1.jpg", "readme.png")
    data = read_folder(tmp_path)
    assert data.classes == ("cat", "dog")
    found = [i for s in (data.train, data.test) for i in s.ids if i.startswith("cat")]
    assert sorted(found) == sorted(images)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.85])
def test_split_is_stratified_and_complete(tmp_path, fraction):
    many(tmp_path)
    data = read_folder(tmp_path, test_fraction=fraction)
    assert (data.test.labels == 1).sum(axis=0).tolist() == [round(20 * fraction)] * 3
    assert len({*data.train.ids, *data.test.ids}) == 60
    for split in (data.train, data.test):
        assert split.ids == tuple(sorted(split.ids))
        for image_id, row in zip(split.ids, split.labels, strict=True):
            assert data.classes[int(np.argmax(row))] == image_id.split("/")[0]
            assert sorted(row) == [-1, -1, 1]


def test_split_depends_on_ids_and_seed_only(tmp_path, monkeypatch):
    many(tmp_path)
    first = read_folder(tmp_path)
    assert read_folder(tmp_path, seed=1).test.ids != first.test.ids
    walk = os.walk
    monkeypatch.setattr(
        os, "walk", lambda *a, **k: ((w, d[::-1], f[::-1]) for w, d, f in walk(*a, **k))
    )
    assert read_folder(tmp_path).test.ids == first.test.ids
    # the split is the same wherever the folder stands
    many(tmp_path / "elsewhere" / "copy")
    assert read_folder(tmp_path / "elsewhere" / "copy").test.ids == first.test.ids


def test_small_classes_are_in_both_splits_and_single_images_are_for_training(tmp_path):
    touch(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/1.jpg")
    for fraction in (0.01, 0.99):
        data = read_folder(tmp_path, test_fraction=fraction)
        assert (data.train.labels == 1).sum(axis=0).tolist() == [1, 1]
        assert (data.test.labels == 1).sum(axis=0).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "cannot be read .No such file"),
        (["a.jpg"], "no class folders in"),
        (["cat/1.jpg"], "got only 'cat'"),
        (["cat/1.jpg", "dog/notes.txt"], "got none in .*dog"),
        (["cat/1.jpg", "dog/1.jpg"], "two images to be tested"),
        (["train/cat/1.jpg", "train/dog/1.jpg"], "got train; rename"),
        (["Val/cat/1.jpg", "test/cat/1.jpg"], "got Val, test; rename"),
        (["train/cat/1.jpg", "val/cat/1.jpg"], "got only 'cat'"),
        (
            ["train/cat/1.jpg", "train/dog/1.jpg", "test/gnu/1.jpg"],
            "must be in train too, got 'gnu' in .*test/gnu/1.jpg",
        ),
        (
            ["train/cat/1.jpg", "train/dog/1.jpg", "test/1.jpg"],
            "no class folders in .*test",
        ),
        (["train/cat/1.jpg", "test/cat/1.jpg"], "got only 'cat'"),
    ],
)
def test_folder_that_is_no_data_set_is_one_error_with_its_path(
    tmp_path, names, message
):
    root = tmp_path / "images"
    touch(root, *names)
    with pytest.raises(DatasetError, match=message) as error:
        read_folder(root)
    assert str(root) in str(error.value)


def test_root_that_is_a_file_is_one_error(tmp_path):
    touch(tmp_path, "file")
    with pytest.raises(DatasetError, match=r"file cannot be read \(Not a directory"):
        read_folder(tmp_path / "file")


@pytest.mark.skipif(os.name == "nt", reason="file names are bytes on POSIX only")
def test_file_name_that_is_not_utf8_is_one_error(tmp_path):
    touch(tmp_path, "cat/1.jpg", "dog/1.jpg")
    try:
        (tmp_path / "cat" / os.fsdecode(b"caf\xe9.jpg")).touch()
    except OSError:
        pytest.skip("this file system only takes UTF-8 names")
    with pytest.raises(DatasetError, match=r"UTF-8, got .*caf\\udce9"):
        read_folder(tmp_path)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1, float("nan")])
def test_fraction_out_of_range_is_refused(tmp_path, fraction):
    with pytest.raises(OptionError, match="between 0 and 1"):
        read_folder(tmp_path, test_fraction=fraction)
