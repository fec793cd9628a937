"""Photos that are sorted into folders: names of folders, thresholds, and copies."""

import io
from types import SimpleNamespace

import numpy as np
import pytest

from deepfishing.errors import OptionError, StoreError
from deepfishing.learn.sorting import (
    UNSURE,
    Sorted,
    check_target,
    classes_of,
    copy_photos,
    folder_names,
)


def model(limits, several=False):
    trained = np.ones(len(limits), bool)
    svm = SimpleNamespace(trained=trained)
    return SimpleNamespace(svm=svm, limits=np.array(limits), has_several=several)


def test_names_of_folders_stay_below_the_folder_and_differ():
    names = folder_names(
        ["../../etc", "CON", "a:b", "a?b", ".", UNSURE, "x" * 300, "x" * 400]
    )
    assert (
        len({name.casefold() for name in names.values()} | {UNSURE}) == len(names) + 1
    )
    for name in names.values():
        assert name not in (".", "..", "CON")
        assert not set(name) & set('/\\:?*"<>|')
        assert len(name) < 255


def test_a_photo_goes_to_its_most_probable_class_if_that_reaches_its_threshold():
    chances = np.array([0.8, 0.6, 0.1])
    assert classes_of(model([0.0, 0.0, 0.0]), chances) == [0]
    # not to a less probable class
    assert classes_of(model([0.9, 0.5, 0.0]), chances) == []
    assert classes_of(model([0.9, 0.9, 0.9]), chances) == []
    assert classes_of(model([0.5, 0.5, 0.5], several=True), chances) == [0, 1]


def photo(id_, content, folder="cat"):
    return Sorted(f"/photos/{id_}", id_, folder, folder, 0.9), lambda: io.BytesIO(
        content
    )


def test_copies_never_replace_a_file_and_running_again_copies_nothing(tmp_path):
    out = tmp_path / "out"
    (out / "cat").mkdir(parents=True)
    (out / "cat" / "a.jpg").write_bytes(b"somebody else's")
    photos = [
        photo("x/a.jpg", b"first"),
        photo("y/a.jpg", b"second"),
        photo("z/a.jpg", b"first"),
    ]
    done = copy_photos(out, photos)
    assert (done.copied, done.existing) == (2, 1)
    found = {path.name: path.read_bytes() for path in (out / "cat").iterdir()}
    expected = {
        "a.jpg": b"somebody else's",
        "a (2).jpg": b"first",
        "a (3).jpg": b"second",
    }
    assert found == expected
    again = copy_photos(out, photos)
    assert (again.copied, again.existing) == (0, 3)
    assert len(list((out / "cat").iterdir())) == 3


def test_a_target_among_the_photos_and_one_that_is_a_file_are_refused(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for target in (photos, photos / "sorted", photos / ".." / "photos" / "x"):
        with pytest.raises(OptionError, match="--copy-into must be outside"):
            check_target(target, photos)
    check_target(tmp_path / "sorted", photos)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="photos cannot be copied"):
        copy_photos(tmp_path / "file", [photo("a.jpg", b"1")])
