"""A path that is mistyped, empty, of the wrong kind or not ours to read: one line each."""

import os

import pytest

from deepfishing.errors import DatasetError
from deepfishing.images.sources import find_images

LONG = "x" * 300  # longer than a file system takes


@pytest.fixture
def place(tmp_path):
    for name in ("photos/cat", "photos/dog", "empty"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("photos/cat/1.jpg", "photos/dog/2.jpg", "note.txt"):
        (tmp_path / name).write_text("no/such/image.jpg")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["extract", "phots", "s"],
            "phots, which does not exist; did you mean photos?",
        ),
        (["extract", "empty", "s"], "got none in empty; it has no files"),
        (["extract", LONG, "s"], "which does not exist"),
        (["extract", "photos", LONG], "File name too long"),
        (["train", LONG, "m"], "File name too long"),
        (["train", "photos/cat", "m"], "pass --labels with a table"),
        (["predict", "empty", "photos"], "make one with `deepfish train`"),
        (["predict", "note.txt", "photos"], "note.txt/model.json (Not a directory)"),
        (["search", "phots", "1.jpg"], "phots, which does not exist; make one with"),
        (
            ["search", "photos", "1.jpg"],
            "got none in photos; make one with `deepfish extract",
        ),
        (["serve", "note.txt"], "note.txt, which is a file"),
        (["store", "info", LONG], LONG),
        (["report", "note.txt"], "must be a folder, got note.txt"),
        (["reproduce", "folder", "--data", "nowhere"], "nowhere cannot be read"),
        (["reproduce", "voc"], "did you mean voc2007 or voc2012?"),
    ],
)
def test_a_wrong_path_is_one_line(deepfish, place, arguments, words):
    ran = deepfish(*arguments)
    assert ran.code == 1
    assert words in ran.err
    assert ran.err.startswith("deepfish: ")
    assert ran.err.count("\n") == 1


def test_a_folder_that_is_not_ours_to_read_is_one_line(deepfish, place, monkeypatch):
    """As root, who may read everything, the system is asked in vain."""
    stat, scandir = os.stat, os.scandir

    def refuse(call):
        def refused(path=".", *rest, **more):
            if "photos/dog" in os.fspath(path):
                raise PermissionError(13, "Permission denied", path)
            return call(path, *rest, **more)

        return refused

    monkeypatch.setattr(os, "stat", refuse(stat))
    monkeypatch.setattr(os, "scandir", refuse(scandir))
    for arguments, words in (
        (
            ("extract", "photos", "s"),
            "folder photos/dog cannot be read: Permission denied",
        ),
        (
            ("extract", "photos/cat", "photos/dog/s"),
            "photos/dog/s/store.json cannot be used",
        ),
        (("train", "photos/dog/s", "m"), "photos/dog/s/store.json cannot be used"),
    ):
        ran = deepfish(*arguments)
        assert (ran.code, ran.out) == (1, "")
        assert words in ran.err
        assert ran.err.count("\n") == 1
    with pytest.raises(
        DatasetError, match=r"1\.jpg, which cannot be read \(Permission denied\)"
    ):
        find_images("photos/dog/1.jpg")


def test_a_pattern_that_the_shell_has_filled_in_is_told_in_one_line(deepfish):
    names = [f"photos/{number:04d}.jpg" for number in range(300)]
    ran = deepfish("extract", *names, "store")
    assert ran.code == 2
    assert len(ran.err) < 200
    assert "photos/0002.jpg" in ran.err
    assert (
        "quote a pattern, such as 'photos/*.jpg' (see `deepfish extract --help`)"
        in ran.err
    )
