from pathlib import Path

import numpy as np
import pytest

from deepfishing.errors import DatasetError, OptionError
from deepfishing.images.voc import CLASSES, read_voc, read_voc_layout

SPLITS = {
    "train": ("000001", "000002"),
    "val": ("000003",),
    "trainval": ("000001", "000002", "000003"),
    "test": ("000004", "000005"),
}


def label(image_id, name):
    """An arbitrary rule, so that every class and image has its own expected value."""
    return (1, -1, 0, -1)[(int(image_id) * 7 + len(name)) % 4]


def expected(ids, classes=CLASSES):
    return np.array([[label(i, c) for c in classes] for i in ids], dtype=np.int8)


def make(folder, lists=tuple(SPLITS), classes=CLASSES, splits=SPLITS):
    """A fake data set in VOC layout; class lists only for the splits in `lists`."""
    main, images = folder / "ImageSets" / "Main", folder / "JPEGImages"
    main.mkdir(parents=True)
    images.mkdir()
    for split, ids in splits.items():
        (main / f"{split}.txt").write_text("".join(f"{i}\n" for i in ids))
        for i in ids:
            (images / f"{i}.jpg").touch()
        for c in classes if split in lists else ():
            # the spaces of the real files: two before 1 and 0, one before -1
            (main / f"{c}_{split}.txt").write_text(
                "".join(f"{i} {label(i, c):2d}\n" for i in ids)
            )
    return folder


def annotate(folder, image_id, objects):
    (folder / "Annotations").mkdir(exist_ok=True)
    body = "".join(
        f"<object><name>{name}</name>{difficult}<part><name>head</name></part></object>"
        for name, difficult in objects
    )
    path = folder / "Annotations" / f"{image_id}.xml"
    path.write_text(f"<annotation><folder>VOC</folder>{body}</annotation>")


@pytest.fixture
def voc(tmp_path):
    return make(tmp_path / "VOCdevkit" / "VOC2007")


@pytest.mark.parametrize("root", [".", "VOCdevkit", "VOCdevkit/VOC2007"])
def test_all_three_folders_that_users_give_lead_to_the_data_set(voc, tmp_path, root):
    data = read_voc(tmp_path / root, 2007)
    assert (data.name, data.classes, data.official_ap) == (
        "voc2007",
        CLASSES,
        "11point",
    )
    assert data.train.ids == SPLITS["trainval"]
    assert data.test.paths == tuple(
        voc / "JPEGImages" / f"{i}.jpg" for i in SPLITS["test"]
    )
    np.testing.assert_array_equal(data.train.labels, expected(SPLITS["trainval"]))
    np.testing.assert_array_equal(data.test.labels, expected(SPLITS["test"]))


def test_year_folder_under_another_name_is_read(voc):
    voc.rename(voc.with_name("mine"))
    assert read_voc(voc.with_name("mine"), 2012).official_ap == "area"


def test_folder_of_another_year_is_not_taken_for_it(voc, monkeypatch):
    with pytest.raises(
        DatasetError, match=r"VOC2012 not found from .*VOC2007: looked for"
    ):
        read_voc(voc, 2012)
    monkeypatch.chdir(voc)
    with pytest.raises(DatasetError, match="VOC2012 not found"):
        read_voc(".", 2012)


def test_missing_folder_says_what_was_looked_for(tmp_path):
    with pytest.raises(
        DatasetError, match=r"looked for .*VOCdevkit/VOC2007/ImageSets/Main"
    ):
        read_voc(tmp_path / "nowhere", 2007)
    with pytest.raises(DatasetError, match="not found"):
        read_voc("x" * 5000, 2007)
    with pytest.raises(OptionError, match="2007 to 2012, got 1999"):
        read_voc(tmp_path, 1999)


def test_class_called_train_is_not_confused_with_the_split(voc):
    data = read_voc(voc, 2007, train="train", test="val")
    column = CLASSES.index("train")
    assert data.train.ids == SPLITS["train"]
    assert data.train.labels[:, column].tolist() == [
        label(i, "train") for i in SPLITS["train"]
    ]
    with pytest.raises(
        DatasetError, match=r"one of \['test', 'train', 'trainval', 'val'\]"
    ):
        read_voc(voc, 2007, train="train_train")


def test_missing_split_lists_those_that_exist_and_guesses(voc):
    with pytest.raises(
        DatasetError, match=r"\['test', .*'trainvla'.*did you mean trainval"
    ):
        read_voc(voc, 2007, train="trainvla")
    (voc / "ImageSets/Main/test.txt").unlink()
    with pytest.raises(
        DatasetError, match=r"one of \['train', 'trainval', 'val'\], got 'test'"
    ):
        read_voc(voc, 2007)


def test_classes_of_another_data_set_are_found_from_the_file_names(tmp_path):
    classes = ("hot_dog", "train", "zebra")
    data = read_voc_layout(
        make(tmp_path / "mine", classes=classes), "mine", train="train"
    )
    assert data.classes == classes
    np.testing.assert_array_equal(data.test.labels, expected(SPLITS["test"], classes))


def test_order_spaces_line_ends_and_byte_order_marks_do_not_matter(voc):
    path = voc / "ImageSets/Main/cat_train.txt"
    lines = [f"\t{i}    {label(i, 'cat')}  " for i in reversed(SPLITS["train"])]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    data = read_voc(voc, 2007, train="train")
    np.testing.assert_array_equal(data.train.labels, expected(SPLITS["train"]))


def test_annotations_are_read_where_the_class_lists_are_missing(tmp_path):
    voc = make(tmp_path / "VOC2012", lists=("test",))
    hard, easy = "<difficult>1</difficult>", "<difficult> 0 </difficult>"
    annotate(
        voc, "000001", [("cat", hard), ("cat", easy), ("cat", hard), ("dog", hard)]
    )
    annotate(voc, "000002", [("train", "")])
    annotate(voc, "000003", [])
    data = read_voc(voc, 2012)
    wanted = np.full((3, 20), -1)
    wanted[0, CLASSES.index("cat")] = 1
    wanted[0, CLASSES.index("dog")] = 0
    wanted[1, CLASSES.index("train")] = 1
    np.testing.assert_array_equal(data.train.labels, wanted)
    assert read_voc_layout(voc, "mine", ("cat", "dog", "train")).train.labels.shape == (
        3,
        3,
    )


def test_classes_are_found_in_annotations_without_any_list(tmp_path):
    folder = make(tmp_path / "mine", lists=())
    for i in SPLITS["trainval"]:
        annotate(folder, i, [("zebra", ""), ("gnu", "")])
    data = read_voc_layout(folder, "mine")
    assert data.classes == ("gnu", "zebra")
    assert data.test.labels is None


@pytest.mark.parametrize("annotated", [(), ("000004",)])
def test_test_split_without_labels_has_none(tmp_path, annotated):
    voc = make(tmp_path / "VOC2012", lists=("trainval",))
    for i in annotated:
        annotate(voc, i, [("person", "")])
    data = read_voc(voc, 2012)
    assert data.test.labels is None
    assert data.train.labels is not None


def test_train_split_without_labels_says_which_file_was_expected(tmp_path):
    voc = make(tmp_path / "VOC2012", lists=())
    with pytest.raises(
        DatasetError, match=r"aeroplane_trainval\.txt, or .*Annotations"
    ):
        read_voc(voc, 2012)
    with pytest.raises(
        DatasetError, match=r"<class>_trainval\.txt, or objects in .*Annotations"
    ):
        read_voc_layout(voc, "mine")


def test_one_missing_class_list_is_named(voc):
    (voc / "ImageSets/Main/cat_test.txt").unlink()
    with pytest.raises(DatasetError, match=r"1 of 20 without, first .*cat_test\.txt"):
        read_voc(voc, 2007)


GOOD = b"000001 -1\n000002  1\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"000001 -1\n000002 x\n", r"id and 1, -1 or 0, got '000002 x' in .*, line 2"),
        (b"000001\n000002 1\n", r"got '000001' in .*, line 1"),
        (b"000001 7\n000002 1\n", r"got '000001 7' in .*, line 1"),
        (b"000001 1 1\n", r"got '000001 1 1' in .*, line 1"),
        (GOOD + b"\n000009 1\n", r"ids of its split, got '000009 1' in .*, line 4"),
        (GOOD + b"000001 1\n", r"got a second '000001 1' in .*, line 3"),
        (b"000001 -1\n", r"1 of 2 without, first '000002', in "),
        (b"", r"2 of 2 without"),
        (b"000001 -1\n\xff\xfe 1\n", r"UTF-8, got b'\\xff\\xfe 1' in .*, line 2"),
    ],
)
def test_broken_class_list_names_file_line_and_content(voc, content, message):
    (voc / "ImageSets/Main/dog_train.txt").write_bytes(content)
    with pytest.raises(DatasetError, match=message) as error:
        read_voc(voc, 2007, train="train")
    assert "dog_train.txt" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"000001\n../../etc/passwd\n",
            r"plain file name, got '../../etc/passwd' in .*, line 2",
        ),
        (b"..\n", "plain file name"),
        (b"a\\b\n", "plain file name"),
        (b"a\0b\n", "plain file name"),
        (b"000001\n000002\n000001\n", r"second '000001' in .*, line 3"),
        (b"000001 1\n", r"one image id, got '000001 1' in .*, line 1"),
        (b" \n\n", "at least one image"),
        (b"\xff\n", r"UTF-8, got b'\\xff' in .*, line 1"),
    ],
)
def test_broken_split_names_file_line_and_content(voc, content, message):
    (voc / "ImageSets/Main/train.txt").write_bytes(content)
    with pytest.raises(DatasetError, match=message) as error:
        read_voc(voc, 2007, train="train")
    assert str(Path("Main", "train.txt")) in str(error.value)


def test_missing_images_are_counted_and_the_first_is_named(voc):
    for i in SPLITS["test"]:
        (voc / "JPEGImages" / f"{i}.jpg").unlink()
    with pytest.raises(
        DatasetError, match=r"2 of 2 without, first .*JPEGImages/000004\.jpg"
    ):
        read_voc(voc, 2007)


def test_missing_image_folder_is_one_error(voc):
    (voc / "JPEGImages").rename(voc / "Images")
    with pytest.raises(
        DatasetError, match=r"JPEGImages of the data set cannot be read \(No such"
    ):
        read_voc(voc, 2007)


def test_list_that_is_a_folder_is_one_error(voc):
    path = voc / "ImageSets/Main/cat_test.txt"
    path.unlink()
    path.mkdir()
    with pytest.raises(DatasetError, match=r"cat_test\.txt cannot be read"):
        read_voc(voc, 2007)


BOMB = (
    '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;&b;">]>'
    "<annotation><object><name>&c;</name></object></annotation>"
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BOMB, "EntitiesForbidden"),
        ("<annotation>", "plain XML"),
        ("", "plain XML"),
        ('<?xml version="1.0" encoding="utf-7"?><annotation/>', "plain XML"),
        (
            "<a><object><name>cta</name></object></a>",
            r"000002\.xml must be .*got 'cta'; did you mean cat",
        ),
        ("<a><object></object></a>", "must have a name"),
        (
            "<a><object><name>cat</name><difficult>x</difficult></object></a>",
            "and 'x' in",
        ),
    ],
)
def test_broken_annotation_is_one_error_with_its_path(tmp_path, content, message):
    voc = make(tmp_path / "VOC2012", lists=("test",))
    for i in SPLITS["trainval"]:
        annotate(voc, i, [("cat", "")])
    (voc / "Annotations/000002.xml").write_text(content)
    with pytest.raises(DatasetError, match=message) as error:
        read_voc(voc, 2012)
    assert "000002.xml" in str(error.value)
    assert "\n" not in str(error.value)


def test_splits_that_share_images_are_refused(voc):
    with pytest.raises(DatasetError, match=r"trainval and val .* share images, got 1"):
        read_voc(voc, 2007, test="val")
