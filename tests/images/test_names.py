"""What a name means: a file, a place in a tar, a URL, a class, a split, a kind of file."""

from pathlib import Path

import numpy as np
import pytest

from deepfishing.errors import DatasetError, OptionError
from deepfishing.images.dataset import find_record, is_plain_name
from deepfishing.images.folder import folder_classes, split_folders
from deepfishing.images.item import Item, Member, as_text, is_url, located
from deepfishing.images.preprocess import (
    VIEWS,
    Preprocess,
    View,
    find_views,
    passed_over_text,
)


def test_an_item_is_called_by_its_file_and_its_place_in_it():
    member = Member("a.jpg", 512, 9)
    assert (
        str(Item("photos.tar/a.jpg", Path("photos.tar"), member=member))
        == "photos.tar/a.jpg"
    )


def test_a_name_of_a_list_is_below_its_folder_unless_it_is_a_url():
    assert (is_url("s3://bucket/photos"), is_url("photos/a.jpg")) == (True, False)
    assert str(located(Path("lists"), "a.jpg")) == "lists/a.jpg"
    assert str(located(Path("lists"), "s3://bucket/a.jpg")) == "s3://bucket/a.jpg"


def test_a_name_that_is_not_utf8_is_escaped():
    assert (as_text("café.jpg"), as_text("caf\udce9.jpg")) == (
        "café.jpg",
        "caf\\xe9.jpg",
    )


def test_a_plain_name_stays_in_its_folder():
    assert (is_plain_name("2008_000002"), is_plain_name("../../etc/passwd")) == (
        True,
        False,
    )


def test_an_unknown_data_set_or_view_lists_those_that_exist():
    with pytest.raises(
        DatasetError, match=r"one of groceries, folder, voc2007.*did you mean pets"
    ):
        find_record("pet")
    with pytest.raises(
        OptionError, match="centre, flip, scales, crops, got 'scale'; did you mean"
    ):
        find_views("scale")


def test_classes_are_folders_and_splits_are_not():
    assert folder_classes(["cat/1.jpg", "dog/pug/2.jpg", "3.jpg"]) == [
        "cat",
        "dog",
        None,
    ]
    divided = ["train/cat/1.jpg", "test/cat/2.jpg", "test/3.jpg", "more/4.jpg"]
    assert folder_classes(divided) == ["cat", "cat", None, None]
    assert split_folders(divided[:2]) == {"test", "train"}
    assert split_folders(["train/1.jpg", "bus/2.jpg"]) == set()  # things that move


def test_files_that_were_passed_over_are_counted_by_their_ending():
    told = passed_over_text({".txt": 1, "": 2, ".csv": 12})
    assert told == "12 .csv, 2 without an ending, 1 .txt"
    many = passed_over_text({f".{letter}": 1 for letter in "abcdefgh"})
    assert many == "1 .a, 1 .b, 1 .c, 1 .d, 1 .e and 3 others"


def test_views_are_squares_of_one_image():
    assert [len(find_views(name)) for name in VIEWS] == [1, 2, 6, 10]
    plain = Preprocess(size=1, short_side=1, mean=(0.0,) * 3, std=(1.0,) * 3)
    half_white = np.uint8([[[0] * 3, [255] * 3]])
    assert plain.see(half_white, [View(x=0), View(x=1)])[:, 0].ravel().tolist() == [
        0,
        255,
    ]
