import io
import sys

import pytest

from deepfishing.errors import DatasetError
from deepfishing.images.folder import read_folder
from deepfishing.images.sources import find_images, passed_over_in


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def ids(source):
    items = find_images(source)
    for item in items:  # every item opens what it stands for
        with item.open() as file:
            assert file.read() == item.path.read_bytes()
    return [item.id for item in items]


def test_a_folder_gives_all_images_below_it_in_order(tmp_path):
    make(
        tmp_path,
        "b.jpg",
        "a/z.PNG",
        "a/.h.jpg",
        ".git/x.jpg",
        "notes.txt",
        "a/deep/c.webp",
    )
    assert ids(tmp_path) == ["a/deep/c.webp", "a/z.PNG", "b.jpg"]


def labels(source):
    return {item.id: item.labels for item in find_images(source)}


def test_class_folders_are_labels_whatever_way_the_folder_is_named(tmp_path):
    make(tmp_path, "p/cat/1.jpg", "p/dog/old/2.jpg", "p/3.jpg", "p/notes.txt")
    expected = {"cat/1.jpg": ("cat",), "dog/old/2.jpg": ("dog",), "3.jpg": None}
    assert labels(tmp_path / "p") == expected
    assert labels(tmp_path / "p/**/*.jpg") == expected
    assert labels(f"file://{tmp_path}/p") == expected


def test_albums_and_a_single_folder_are_no_labels(tmp_path):
    make(tmp_path, "p/2021/1.jpg", "p/2022/2.jpg", "p/3.jpg")
    for source in (tmp_path / "p", tmp_path / "p/**/*.jpg", f"file://{tmp_path}/p"):
        found = find_images(source, albums=True)
        assert [item.labels for item in found] == [None] * 3
    make(tmp_path, "q/received/1.jpg", "q/2.jpg")
    assert labels(tmp_path / "q") == {"received/1.jpg": None, "2.jpg": None}


def test_class_folders_inside_of_splits_are_labels(tmp_path):
    make(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg", "test/cat/1.jpg", "val/3.jpg")
    assert labels(tmp_path) == {
        "train/cat/1.jpg": ("cat",),
        "train/dog/2.jpg": ("dog",),
        "test/cat/1.jpg": ("cat",),
        "val/3.jpg": None,
    }
    assert labels(tmp_path / "train") == {"cat/1.jpg": ("cat",), "dog/2.jpg": ("dog",)}


def test_what_is_passed_over_is_counted_by_its_ending(tmp_path):
    make(tmp_path, "a.jpg", "b/c.TXT", "b/d.txt", "readme", ".hidden", ".git/x.txt")
    assert passed_over_in(tmp_path) == {".txt": 2, "": 1}
    assert passed_over_in(tmp_path / "*.jpg") == {}
    assert passed_over_in(f"file://{tmp_path}") == {}
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(
        DatasetError, match=r"passed over: 2 \.txt, 1 without an ending"
    ):
        find_images(tmp_path)


def test_a_pattern_gives_the_ids_of_its_folder(tmp_path):
    make(tmp_path, "p/b.jpg", "p/a/c.jpg", "p/a/d.png", "p/.h/e.jpg")
    assert ids(tmp_path / "p/**/*.jpg") == ["a/c.jpg", "b.jpg"]
    assert ids(f"{tmp_path}/p/*/d.*") == ["a/d.png"]
    assert set(ids(tmp_path / "p/**/*.jpg")) < set(ids(tmp_path / "p"))
    make(tmp_path, "odd/x[1].jpg")
    # a file's own name goes first
    assert ids(tmp_path / "odd/x[1].jpg") == ["x[1].jpg"]


def test_one_image_and_a_list_of_images_are_taken(tmp_path):
    make(tmp_path, "one.jpg", "sub/a.jpg", "b.jpg")
    assert ids(tmp_path / "one.jpg") == ["one.jpg"]
    (tmp_path / "list.txt").write_text("sub/a.jpg\n\n b.jpg \nsub/a.jpg\n")
    assert ids(tmp_path / "list.txt") == ["sub/a.jpg", "b.jpg"]
    odd = "one\u2028line\x85\x0c.jpg"
    make(tmp_path, odd)
    (tmp_path / "odd.txt").write_text(f"\ufeff{odd}\r\nb.jpg", encoding="utf-8")
    assert ids(tmp_path / "odd.txt") == [odd, "b.jpg"]


def test_standard_input_is_a_list_relative_to_the_current_folder(tmp_path, monkeypatch):
    make(tmp_path, "a.jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a.jpg\r\n")))
    assert ids("-") == ["a.jpg"]


@pytest.fixture
def voc(tmp_path):
    root = tmp_path / "devkit/VOC2007"
    make(
        root,
        "JPEGImages/1.jpg",
        "JPEGImages/2.jpg",
        "JPEGImages/3.jpg",
        "JPEGImages/4.jpg",
    )
    make(root, "SegmentationClass/1.png")
    lists = {"trainval": "1\n2\n", "train": "1\n", "test": "3\n"}
    lists |= {"cat_trainval": "1 1\n2 0\n", "dog_trainval": "1 1\n2 -1\n"}
    for name, text in lists.items():
        path = root / f"ImageSets/Main/{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_voc_tree_gives_its_ids_and_labels(voc):
    found = {item.id: item.labels for item in find_images(voc.parent)}
    # 2 is a difficult cat, 3 is of a split without labels, 4 of none
    assert found == {"1": ("cat", "dog"), "2": (), "3": None, "4": None}
    assert ids(voc) == ["1", "2", "3", "4"]


def test_several_voc_trees_are_an_error_that_lists_them(voc):
    other = voc.parent / "VOC2012"
    make(other, "JPEGImages/1.jpg", "ImageSets/Main/trainval.txt")
    with pytest.raises(DatasetError, match=r"one data set, got 2 .*VOC2007, .*VOC2012"):
        find_images(voc.parent)


def test_two_images_of_one_id_are_an_error(tmp_path):
    (tmp_path / "t.csv").write_text("id,path\n1,a.jpg\n1,b.jpg\n")
    with pytest.raises(
        DatasetError, match=r"unique, got '1' for .*a\.jpg and .*b\.jpg"
    ):
        find_images(tmp_path / "t.csv")


def test_what_holds_no_image_is_named(tmp_path):
    with pytest.raises(DatasetError, match="got none in"):
        find_images(tmp_path)
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(DatasetError, match=r"got none in .*list\.txt"):
        find_images(tmp_path / "list.txt")
    (tmp_path / "list.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DatasetError, match=r"cannot be read: .*list\.txt"):
        find_images(tmp_path / "list.txt")
    for nowhere in ("nowhere", "no\0where", "x" * 5000):
        with pytest.raises(DatasetError, match="does not exist"):
            find_images(tmp_path / nowhere)
    for pattern in ("*.jpg", "a**b/*.jpg"):
        with pytest.raises(DatasetError, match="pattern"):
            find_images(tmp_path / pattern)


def test_links_to_folders_are_followed_but_for_those_that_lead_back(tmp_path):
    make(
        tmp_path,
        "elsewhere/cats/1.jpg",
        "elsewhere/dogs/pugs/2.jpg",
        "photos/boat/3.jpg",
    )
    elsewhere, photos = tmp_path / "elsewhere", tmp_path / "photos"
    make(photos, "boat/4.jpg")
    (photos / "cat").symlink_to(elsewhere / "cats")
    (photos / "dog").symlink_to(elsewhere / "dogs")
    (photos / "boat/up").symlink_to("..")
    (photos / "boat/above").symlink_to(tmp_path)
    (elsewhere / "dogs/pugs/round").symlink_to(elsewhere / "dogs")
    found = find_images(photos)
    assert [(item.id, item.labels) for item in found] == [
        ("boat/3.jpg", ("boat",)),
        ("boat/4.jpg", ("boat",)),
        ("cat/1.jpg", ("cat",)),
        ("dog/pugs/2.jpg", ("dog",)),
    ]
    data = read_folder(photos)
    assert data.classes == ("boat", "cat", "dog")
    assert sorted(data.train.ids + data.test.ids) == [item.id for item in found]


@pytest.mark.parametrize("name", ["photos.zip", "photos.7Z"])
def test_an_archive_that_is_not_read_says_what_to_do(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(
        DatasetError, match=f"only a .tar is read, got .*{name}; unpack it"
    ):
        find_images(tmp_path / name)


def test_lists_may_have_paths_of_windows_or_zero_bytes_between_names(
    tmp_path, monkeypatch
):
    make(tmp_path, "cats/1.jpg", "two\nlines.jpg", "back\\slash.jpg")
    (tmp_path / "list.txt").write_bytes(b"cats\\1.jpg\r\nback\\slash.jpg\r\n")
    assert ids(tmp_path / "list.txt") == ["cats/1.jpg", "back\\slash.jpg"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"cats/1.jpg\0two\nlines.jpg\0"))
    )
    assert ids("-") == ["cats/1.jpg", "two\nlines.jpg"]
