from pathlib import Path

import pytest

from deepfishing.errors import DatasetError
from deepfishing.images.item import Item
from deepfishing.learn.labelled import read_labels


@pytest.fixture
def images(tmp_path):
    return [
        Item(f"{name}/{n}.jpg", tmp_path / f"photos/{name}/{n}.jpg")
        for name in "ab"
        for n in "12"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "{id}",  # below the folder of the images
        "photos/{id}",  # below the folder of the table
        "./photos/../photos/{id}",
        "{folder}/photos/{id}",
        "photos\\{id}",
    ],
)
def test_a_row_names_an_image_by_its_id_or_its_file(tmp_path, images, name):
    rows = [f"{name.format(id=i.id, folder=tmp_path)},{i.id[0]}" for i in images]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
    labelled = read_labels(images, tmp_path / "labels.csv")
    assert {i: labelled.classes[row.argmax()] for i, row in labelled.rows.items()} == {
        image.id: image.id[0] for image in images
    }


def test_files_are_found_from_the_current_folder_too(tmp_path, images, monkeypatch):
    monkeypatch.chdir(tmp_path)  # as a store has paths that were given so
    relative = [Item(image.id, Path("photos", image.id)) for image in images]
    rows = [f"{image.path},{image.id[0]}" for image in images]
    Path("labels.csv").write_text("\n".join(["path,label", *rows]))
    assert read_labels(relative, Path("labels.csv")).rows.keys() == {
        i.id for i in images
    }


def test_rows_that_name_no_image_are_refused(tmp_path, images):
    (tmp_path / "labels.csv").write_text(
        "path,label\na/1.jpg,a\nb/1.jpg,b\nc/9.jpg,c\n"
    )
    words = r"got 1 of 3 that do not, first 'c/9.jpg'; .* such as 'a/1.jpg'. Delete such rows"
    with pytest.raises(DatasetError, match=words):
        read_labels(images, tmp_path / "labels.csv")
