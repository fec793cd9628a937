"""Decisions about copies: the default, what is refused, and a list that is safe to act on."""

import csv
import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from deepfishing.curate.copies_review import (
    Decisions,
    Listed,
    Review,
    as_text,
    find_copies,
)
from deepfishing.errors import OptionError, StoreError
from deepfishing.store import Store


@pytest.fixture
def photos(picture, store_of, tmp_path):
    """An original and copies of it of several kinds; two of them are cropped alike."""
    folder = tmp_path / "photos"
    folder.mkdir()
    one = picture(1, (400, 300))
    one.save(folder / "original.png")
    one.resize((320, 240)).save(folder / "quality.jpg", quality=50)
    one.crop((10, 20, 370, 290)).save(folder / "crop.png")
    ImageOps.mirror(one).resize((300, 225)).save(folder / "mirrored.png")
    shutil.copy(folder / "original.png", folder / "zcopy.png")
    picture(3, (400, 300)).save(folder / "other.png")
    os.utime(folder / "original.png", (1e9, 1e9))
    paths = sorted(folder.iterdir())
    store = store_of(paths, [2 if path.name == "other.png" else 1 for path in paths])
    assert find_copies(Store.open(store)) == 1
    return folder, store


def listed(store):
    return {Path(one.path).name: one for one in Review(store).listed()[0]}


def test_by_default_copies_with_the_same_picture_are_listed_and_no_others(photos):
    folder, store = photos
    before = {path: path.read_bytes() for path in folder.iterdir()}
    found = listed(store)
    assert set(found) == {"quality.jpg", "zcopy.png"}
    assert {one.keep for one in found.values()} == {
        os.path.realpath(folder / "original.png")
    }
    assert found["zcopy.png"].kind == "identical file"
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_decisions_are_kept_and_change_the_list(photos):
    _, store = photos
    review = Review(store)
    review.decide("quality.jpg", False)
    review.decide("crop.png", True)
    assert set(listed(store)) == {"crop.png", "zcopy.png"}
    review.decide("crop.png", None)
    assert set(listed(store)) == {"zcopy.png"}
    other = Review(store)  # another process
    other.decide("quality.jpg", None)
    assert {Path(one.path).name for one in review.listed()[0]} == {
        "quality.jpg",
        "zcopy.png",
    }


def test_a_mirrored_photo_and_the_last_copy_cannot_be_set_aside(photos):
    _, store = photos
    review = Review(store)
    with pytest.raises(OptionError, match="must be kept"):
        review.decide("mirrored.png", True)
    with pytest.raises(OptionError, match="must be kept"):
        # only the crop and the mirrored one would be left
        review.decide("original.png", True)
    review.decide("zcopy.png", False)
    review.decide("original.png", True)
    with pytest.raises(OptionError, match="must be kept"):
        review.decide("crop.png", True)  # nobody has seen it beside zcopy.png
    with pytest.raises(OptionError, match="must be kept"):
        review.decide("zcopy.png", True)  # the last one, but for the mirrored
    assert set(listed(store)) == {"original.png", "quality.jpg"}
    assert {Path(one.keep).name for one in listed(store).values()} == {"zcopy.png"}


def test_a_photo_is_not_listed_once_the_copy_that_is_kept_is_gone_or_other(photos):
    folder, store = photos
    (folder / "original.png").write_bytes(b"changed")
    found, refused = Review(store).listed()
    assert found == []
    assert sorted(refused) == ["quality.jpg", "zcopy.png"]
    (folder / "original.png").unlink()
    shutil.copy(folder / "zcopy.png", folder / "original.png")
    assert set(listed(store)) == {"quality.jpg", "zcopy.png"}
    (folder / "original.png").unlink()
    (folder / "original.png").symlink_to(folder / "zcopy.png")
    assert "zcopy.png" not in listed(store)  # the one that is kept is the same file


def test_half_a_line_of_a_killed_writer_is_cut_off_and_a_damaged_line_is_an_error(
    photos,
):
    _, store = photos
    log = Decisions(store)
    log.append("a", "1", True)
    with log.path.open("ab") as file:
        file.write(b'{"id": "b"')
    again = Decisions(store)
    again.append("c", "2", False)
    assert [Decisions(store).of(*key) for key in (("a", "1"), ("c", "2"))] == [
        True,
        False,
    ]
    log.path.write_bytes(log.path.read_bytes().replace(b"true", b"null"))
    with pytest.raises(StoreError, match="log of decisions is damaged"):
        Decisions(store).of("a", "1")


def test_the_picture_of_differences_is_dark_for_copies_and_not_for_changes(photos):
    _, store = photos
    review = Review(store)
    for other, least, most in (
        ("zcopy.png", 0, 0.5),
        ("crop.png", 0, 40),
        ("mirrored.png", 0, 40),
    ):
        with Image.open(io.BytesIO(review.difference("original.png", other))) as made:
            assert made.size == (400, 300)
            assert least <= np.asarray(made).mean() <= most, other


def test_the_list_is_written_in_three_forms_and_odd_names_do_not_break_it():
    odd = [
        Listed("/a\tb.jpg", "identical file", "/k.jpg", "=1"),
        Listed("/c.jpg", "x", "/k", "c"),
    ]
    assert as_text(odd, "nul") == (b"/a\tb.jpg\0/c.jpg\0", 0)
    assert as_text(odd, "tab") == (b"/c.jpg\tx\t/k\n", 1)
    text, lacking = as_text(odd, "csv")
    rows = list(csv.reader(io.StringIO(text.decode())))
    assert (rows[1], lacking) == (["/a\tb.jpg", "identical file", "/k.jpg", "'=1"], 0)
