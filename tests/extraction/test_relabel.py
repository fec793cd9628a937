"""Labels of a store: from tables, into tables, and after files were moved or saved again."""

import csv
import shutil

import numpy as np
import pytest
from PIL import Image

from deepfishing import Store, extract_to
from deepfishing.extraction.relabel import export_labels, label_images
from deepfishing.search import Searcher
from deepfishing.store.label_log import LabelLog


@pytest.fixture
def photos(tmp_path, rng):
    """Three photos in two class folders."""
    for name in ("cats/1.png", "cats/2.png", "dogs/3.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def store(tmp_path, photos, toy_network):
    extract_to(tmp_path / "store", photos, network=toy_network, features="x7")
    return Store.open(tmp_path / "store")


def write_table(path, *rows, head=("path", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def labels_of(store):
    return {row.id: row.labels for row in store.labelled_rows()}


def test_corrections_come_before_folder_names_in_every_reader(store, tmp_path, photos):
    done = label_images(
        store, write_table(tmp_path / "fixes.csv", ("photos/cats/2.png", "dogs"))
    )
    assert (done.changed, done.same, done.unmatched) == (1, 0, {})
    expected = {
        "cats/1.png": ("cats",),
        "cats/2.png": ("dogs",),
        "dogs/3.png": ("dogs",),
    }
    assert labels_of(store) == expected
    assert store.rows()["cats/2.png"].labels == ("cats",)  # the index is as it was
    collection = Searcher(store, "x7").collection
    assert {collection[n].id: collection[n].labels for n in range(3)} == expected
    assert collection.passing(["dogs"]).sum() == 2
    table = store.to_arrow("x7").to_pylist()
    assert {row["id"]: tuple(row["labels"]) for row in table} == expected


@pytest.mark.parametrize(
    "name", ["cats/2.png", "2.png", "photos/cats/2.png", "cats\\2.png"]
)
def test_a_row_names_an_image_by_id_file_or_the_end_of_its_path(store, tmp_path, name):
    done = label_images(store, write_table(tmp_path / "fixes.csv", (name, "new")))
    assert done.unmatched == {}
    assert labels_of(store)["cats/2.png"] == ("new",)


def test_rows_that_match_no_image_are_listed_and_the_others_count(store, tmp_path):
    table = write_table(
        tmp_path / "fixes.csv", ("none.png", "x"), ("1.png", "y"), ("2.png", "")
    )
    done = label_images(store, table)
    assert done.unmatched == {"none.png": "no image of the store"}
    assert labels_of(store)["cats/1.png"] == ("y",)
    assert labels_of(store)["cats/2.png"] == ("cats",)  # an empty cell says nothing


def test_a_name_of_two_images_is_listed(store, tmp_path, photos, toy_network, rng):
    Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(
        photos / "dogs/1.png"
    )
    extract_to(store.folder, photos, network=toy_network, features="x7")
    done = label_images(store, write_table(tmp_path / "fixes.csv", ("1.png", "x")))
    assert done.unmatched == {
        "1.png": "2 images of the store, such as cats/1.png, dogs/1.png"
    }
    assert done.changed == 0


def test_extracting_a_table_of_known_files_adds_no_entry(store, tmp_path, toy_network):
    """Its rows have other ids than the folder that was extracted first."""
    table = write_table(
        tmp_path / "relabel.csv",
        ("photos/cats/2.png", "dogs"),
        ("./photos/dogs/3.png", "dogs"),
    )
    extract_to(store.folder, table, network=toy_network, features="x7")
    rows = store.rows()
    assert sorted(rows) == ["cats/1.png", "cats/2.png", "dogs/3.png"]
    assert rows["cats/2.png"].labels == ("dogs",)


def test_a_link_to_a_known_file_adds_no_entry_later(
    store, tmp_path, photos, toy_network
):
    (tmp_path / "linked").symlink_to(photos)
    table = write_table(tmp_path / "relabel.csv", ("linked/cats/2.png", "dogs"))
    extract_to(store.folder, table, network=toy_network, features="x7")
    assert sorted(store.rows()) == ["cats/1.png", "cats/2.png", "dogs/3.png"]


def test_labels_stay_when_a_file_is_moved_or_saved_again(
    store, tmp_path, photos, toy_network
):
    label_images(
        store, write_table(tmp_path / "fixes.csv", ("1.png", "a"), ("2.png", "b"))
    )
    shutil.move(photos / "cats/1.png", photos / "moved.png")
    picture = Image.open(photos / "cats/2.png")
    picture.load()
    # other bytes, the same pixels
    picture.save(photos / "cats/2.png", compress_level=1)
    before = store.rows()["cats/2.png"].sha256
    extract_to(store.folder, photos, network=toy_network, features="x7", prune=True)
    assert store.rows()["cats/2.png"].sha256 != before
    found = labels_of(store)
    assert found["moved.png"] == ("a",)
    assert found["cats/2.png"] == ("b",)


def test_another_picture_in_place_of_a_labelled_one_has_not_its_label(
    store, tmp_path, photos, toy_network, rng
):
    label_images(store, write_table(tmp_path / "fixes.csv", ("2.png", "b")))
    Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(
        photos / "cats/2.png"
    )
    extract_to(store.folder, photos, network=toy_network, features="x7")
    assert labels_of(store)["cats/2.png"] == ("cats",)


def test_exported_labels_are_read_again_as_they_were(store, tmp_path, photos):
    log = LabelLog.open(store.folder)
    table = write_table(
        tmp_path / "fixes.csv",
        ("1.png", "a;=b"),
        ("3.png", ";"),
        head=("path", "labels"),
    )
    label_images(store, table)
    expected = labels_of(store)
    assert expected["cats/1.png"] == ("a", "=b")
    assert expected["dogs/3.png"] == ()
    assert export_labels(store, tmp_path / "labels.csv") == 3
    log.undo(origin="test")
    assert labels_of(store) != expected
    label_images(store, tmp_path / "labels.csv")
    assert labels_of(store) == expected


def test_labels_can_be_written_while_an_extraction_runs(store, tmp_path):
    with store.writing():
        done = label_images(store, write_table(tmp_path / "fixes.csv", ("1.png", "a")))
    assert done.changed == 1


def test_a_table_that_is_extracted_comes_before_folder_names(
    store, photos, toy_network, tmp_path
):
    table = write_table(tmp_path / "relabel.csv", ("photos/cats/2.png", "dogs"))
    how = {"network": toy_network, "features": "x7"}
    extract_to(store.folder, table, **how)
    assert labels_of(store)["cats/2.png"] == ("dogs",)
    extract_to(store.folder, photos, **how)
    assert labels_of(store)["cats/2.png"] == ("dogs",)
    # what a person wrote later comes before the same table
    label_images(store, write_table(tmp_path / "fix.csv", ("cats/2.png", "birds")))
    extract_to(store.folder, table, **how)
    assert labels_of(store)["cats/2.png"] == ("birds",)
    LabelLog.open(store.folder).undo(origin="test")
    assert labels_of(store)["cats/2.png"] == ("dogs",)


def test_a_list_of_files_takes_no_labels_away(store, photos, toy_network):
    before = labels_of(store)
    files = sorted(photos.rglob("*.png"))
    extract_to(store.folder, files, network=toy_network, features="x7")
    extract_to(store.folder, files[0], network=toy_network, features="x7")
    assert labels_of(store) == before
    files[0].write_bytes(files[1].read_bytes())  # another picture at this place
    extract_to(store.folder, files, network=toy_network, features="x7")
    assert labels_of(store)["cats/1.png"] is None
