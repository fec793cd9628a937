"""Readers of the data sets that people compare on, on small trees of the published layout."""

import importlib
import inspect
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deepfishing.errors import DatasetError
from deepfishing.evaluation.record import PROTOCOLS
from deepfishing.images.dataset import DATASETS, MEASURES, find_record

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"
# name -> images to train and test, classes
MADE = {
    "pets": (4, 4, ("Abyssinian", "american_bulldog")),
    "flowers102": (4, 3, ("flower 001", "flower 002")),
    "food101": (4, 2, ("apple_pie", "baby_back_ribs")),
    "dtd": (4, 2, ("banded", "polka-dotted")),
    "sun397": (2, 2, ("abbey", "church-indoor")),
    "caltech101": (90, 1 + 10 + 50, ("Faces_easy", "accordion", "airplanes")),
    "eurosat": (24, 6, ("AnnualCrop", "Forest", "SeaLake")),
    "cifar10": (15, 3, ("airplane", "bird")),
    "cifar100": (3, 3, ("apple", "aquarium_fish", "baby")),
}


@pytest.fixture
def read(tmp_path, trees):
    """Make a tree and read it, as commands do."""

    def read(name, change=lambda root: None, folder=None, **options):
        root = tmp_path / name
        if not root.exists():
            root.mkdir()
            read.made = getattr(trees, name)(root)
        change(root)
        record = find_record(name)
        if "into" in record.options:
            options["into"] = tmp_path / "out"
        return record.read(root if folder is None else root / folder, **options)

    return read


def classes_of(split, classes):
    return {
        i: classes[column]
        for i, column in zip(split.ids, split.labels.argmax(1), strict=True)
    }


@pytest.mark.parametrize("name", MADE)
def test_the_published_layout_is_read(read, name):
    n_train, n_test, classes = MADE[name]
    data = read(name)
    assert (data.name, data.classes) == (name, classes)
    assert (len(data.train), len(data.test)) == (n_train, n_test)
    for split in (data.train, data.test):
        assert all(path.is_file() for path in split.paths)
        assert ((split.labels == 1).sum(axis=1) == 1).all()
        assert split.labels.any(axis=0).all()
    assert set(data.train.ids).isdisjoint(data.test.ids)


def test_every_image_has_the_class_that_its_list_or_folder_says(read):
    data = read("pets")
    assert classes_of(data.test, data.classes)["images/american_bulldog_4.jpg"] == (
        "american_bulldog"
    )
    data = read("flowers102")
    assert classes_of(data.train, data.classes) == {
        "jpg/image_00001.jpg": "flower 001",
        "jpg/image_00002.jpg": "flower 001",
        "jpg/image_00003.jpg": "flower 002",
        "jpg/image_00004.jpg": "flower 002",
    }
    data = read("sun397")
    assert classes_of(data.train, data.classes)[
        "SUN397/c/church/indoor/sun_0cx.jpg"
    ] == ("church-indoor")
    for name in ("food101", "dtd", "caltech101", "eurosat", "cifar100"):
        data = read(name)
        for split in (data.train, data.test):
            assert all(
                f"/{kind}/" in f"/{i}"
                for i, kind in classes_of(split, data.classes).items()
            )


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("food101", "food-101"),
        ("dtd", "dtd"),
        ("caltech101", "caltech-101"),
        ("eurosat", "2750"),
    ],
)
def test_the_folder_inside_may_be_given_too(read, name, folder):
    outer, inner = read(name), read(name, folder=folder)
    assert outer.train.paths == inner.train.paths


def test_lists_of_sun397_may_stand_among_its_letters(read):
    def move(root):
        for path in root.glob("*.txt"):
            path.rename(root / "SUN397" / path.name)

    assert len(read("sun397", move).train) == 2


@pytest.mark.parametrize("name", ["caltech101", "eurosat"])
def test_a_drawn_split_depends_on_the_seed_alone(read, name):
    first, again, other = read(name), read(name, seed=0), read(name, seed=1)
    assert first.test.ids == again.test.ids != other.test.ids
    assert not set(first.test.ids) & set(first.train.ids)


def test_the_background_of_caltech101_is_no_class(read):
    data = read("caltech101")
    assert not any("BACKGROUND" in i for i in (*data.train.ids, *data.test.ids))
    per_class = np.stack([(s.labels == 1).sum(axis=0) for s in (data.train, data.test)])
    assert per_class.tolist() == [[30, 30, 30], [10, 1, 50]]


def test_pictures_of_cifar_have_the_pixels_of_the_files(read):
    data = read("cifar100")
    for split, file in ((data.train, "train.bin"), (data.test, "test.bin")):
        for path in split.paths:
            number = int(path.stem) - 1
            with Image.open(path) as picture:
                np.testing.assert_array_equal(
                    np.asarray(picture), read.made[file][number]
                )
    again = read("cifar100")
    assert again.train.paths == data.train.paths
    shutil.copy(data.test.paths[0], data.train.paths[0])
    with pytest.raises(DatasetError, match=r"got another content; delete that file"):
        read("cifar100")


def test_pickles_of_cifar_are_not_even_opened(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(
        DatasetError, match="not the pickles of the Python version: run `deepfish"
    ):
        find_record("cifar10").read(tmp_path, into=tmp_path)
    assert not (tmp_path / "ran").exists()


def cut(file, keep):
    return lambda root: (root / file).write_bytes((root / file).read_bytes()[:keep])


def put(file, text):
    return lambda root: (root / file).write_text(text)


def gone(file):
    return lambda root: (root / file).unlink()


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        (
            "pets",
            gone("annotations/trainval.txt"),
            "none of .*annotations/trainval.txt",
        ),
        ("pets", gone("annotations/test.txt"), "test.txt cannot be read .No such file"),
        (
            "pets",
            gone("images/Abyssinian_1.jpg"),
            "1 of 8 without, first .*Abyssinian_1.jpg",
        ),
        (
            "pets",
            put("annotations/test.txt", "\n"),
            "must name an image, got none in .*test.txt",
        ),
        ("pets", put("annotations/test.txt", "pug_1 3 1 1\n"), "got 'pug' in"),
        (
            "pets",
            put("annotations/test.txt", "../x_1 1 1 1\n"),
            r"like 'Abyssinian_100 1 1 1', got",
        ),
        ("pets", cut("annotations/trainval.txt", 10), "must be like .*, line 1"),
        (
            "food101",
            put("food-101/meta/test.txt", "/etc/1\n"),
            "must be like 'apple_pie/1005649'",
        ),
        (
            "dtd",
            put("dtd/labels/val1.txt", "banded/../../x\n"),
            "must be like 'banded/banded_0002",
        ),
        (
            "sun397",
            put("Testing_01.txt", "/a/../../sun_x.jpg\n"),
            "must be like '/a/abbey/sun_",
        ),
        (
            "flowers102",
            cut("setid.mat", 200),
            "setid.mat must be a MATLAB file with trnid",
        ),
        (
            "flowers102",
            put("imagelabels.mat", "labels"),
            "imagelabels.mat must be a MATLAB file",
        ),
        ("flowers102", gone("imagelabels.mat"), "imagelabels.mat cannot be read"),
        (
            "flowers102",
            gone("jpg/image_00007.jpg"),
            "1 of 7 without, first .*image_00007.jpg",
        ),
        (
            "eurosat",
            lambda root: shutil.rmtree(root / "2750" / "AnnualCrop"),
            "was not found in",
        ),
        (
            "cifar10",
            cut("cifar-10-batches-bin/test_batch.bin", 5000),
            "3073 bytes per image, got",
        ),
        (
            "cifar10",
            gone("cifar-10-batches-bin/data_batch_3.bin"),
            "data_batch_3.bin cannot be",
        ),
        (
            "cifar100",
            put("cifar-100-binary/fine_label_names.txt", "apple\n"),
            "labels below 1, got",
        ),
        (
            "cifar100",
            put("cifar-100-binary/fine_label_names.txt", "apple\n../../../up\nbaby\n"),
            r"plain name, got '../../../up' in .*fine_label_names.txt",
        ),
    ],
)
def test_a_wrong_or_incomplete_tree_is_one_line_that_names_the_place(
    read, name, change, says
):
    with pytest.raises(DatasetError, match=says) as told:
        read(name, change)
    assert "\n" not in str(told.value)


def test_a_kind_of_caltech101_without_images_to_test_is_told(tmp_path, trees):
    trees.caltech101(tmp_path, images=(31, 30, 40))
    with pytest.raises(
        DatasetError, match=r"more than 30 images.*got 30 in .*Faces_easy"
    ):
        find_record("caltech101").read(tmp_path)


def test_numbers_beyond_the_labels_are_told(read):
    from scipy.io import savemat

    def change(root):
        ids = {"trnid": [[1]], "valid": [[2]], "tstid": [[8]]}
        savemat(
            root / "setid.mat",
            {k: np.array(v, dtype=np.uint16) for k, v in ids.items()},
        )

    with pytest.raises(DatasetError, match=r"numbered from 1 to 7.*got 8 to 8"):
        read("flowers102", change)


@pytest.mark.parametrize("record", DATASETS.values(), ids=lambda record: record.name)
def test_a_record_is_whole_and_stands_on_its_page(record):
    assert DATASETS[record.name] is record
    module, _, function = record.reader.partition(":")
    reader = getattr(importlib.import_module(f"deepfishing.images.{module}"), function)
    known = {"train", "test", "seed", "into"} & set(
        inspect.signature(reader).parameters
    )
    assert set(record.options) <= known
    assert record.measure in MEASURES
    assert set(record.protocols) <= set(PROTOCOLS)
    (row,) = [
        ln
        for ln in PAGE.read_text().splitlines()
        if ln.startswith(f"| `{record.name}`")
    ]
    sizes = " / ".join(f"{n:,}" for n in record.sizes or ())
    for part in (
        record.about,
        record.split,
        MEASURES[record.measure],
        record.licence,
        sizes,
    ):
        assert part in row
    assert re.fullmatch(r"[a-z0-9]+", record.name)
