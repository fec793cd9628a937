"""Stage 1, images: data sets whose splits are text files that name an image and its class per line.

Comes in: the folder of pets, food101, dtd or sun397 as it is published, or the one above it. Goes
out: a `Dataset` in which every image has exactly one class. The files are untrusted: what is wrong
in them is a `DatasetError` that names the file, the line and what stands there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from deepfishing.errors import DatasetError
from deepfishing.images.dataset import Dataset
from deepfishing.images.folder import class_split
from deepfishing.metrics import DEFAULT

Classes = dict[str, list[str]]  # class -> ids of its images


def read_pets(root: str | Path) -> Dataset:
    """Oxford-IIIT Pet: `annotations/trainval.txt` and `test.txt`, `images/<breed>_<number>.jpg`."""
    root = find_root(Path(root), "annotations/trainval.txt", "oxford-iiit-pet", "pets")
    line = re.compile(r"(?P<image>(?P<kind>[\w-]+)_\d+)(\s+\d+){3}")
    lists = [["annotations/trainval.txt"], ["annotations/test.txt"]]
    return _read(root, "pets", lists, line, "images/{}.jpg", "Abyssinian_100 1 1 1")


def read_food101(root: str | Path) -> Dataset:
    """Food-101: `meta/train.txt` and `test.txt`, `images/<dish>/<number>.jpg`."""
    root = find_root(Path(root), "meta/train.txt", "food-101", "food101/food-101")
    line = re.compile(r"(?P<image>(?P<kind>[\w-]+)/\d+)")
    lists = [["meta/train.txt"], ["meta/test.txt"]]
    return _read(root, "food101", lists, line, "images/{}.jpg", "apple_pie/1005649")


def read_dtd(root: str | Path) -> Dataset:
    """Describable Textures: `labels/train1.txt`, `val1.txt`, `test1.txt`, `images/<word>/*.jpg`."""
    root = find_root(Path(root), "labels/train1.txt", "dtd", "dtd/dtd")
    line = re.compile(r"(?P<image>(?P<kind>[\w-]+)/\w[\w.-]*)")
    lists = [["labels/train1.txt", "labels/val1.txt"], ["labels/test1.txt"]]
    return _read(root, "dtd", lists, line, "images/{}", "banded/banded_0002.jpg")


def read_sun397(root: str | Path) -> Dataset:
    """SUN397: `Training_01.txt`, `Testing_01.txt` and `SUN397/<letter>/<scene>/sun_*.jpg`.

    A scene of two words of the tree, `church/indoor`, is the class `church-indoor`. The lists may
    also stand among the letters.
    """
    root = find_root(Path(root), "Training_01.txt", "SUN397", "sun397")
    line = re.compile(r"/(?P<image>\w/(?P<kind>\w[\w/-]*)/sun_\w+\.jpg)")
    pictures = "SUN397/{}" if (root / "SUN397").is_dir() else "{}"
    lists = [["Training_01.txt"], ["Testing_01.txt"]]
    return _read(root, "sun397", lists, line, pictures, "/a/abbey/sun_aaalbzqrimafwbiv.jpg")


def find_root(root: Path, marker: str, *inside: str) -> Path:
    """The folder that has a file of the data set: the one given, or one of those inside it."""
    places = [root, *(root / name for name in inside)]
    for place in places:
        if (place / marker).exists():
            return place
    looked = ", ".join(str(place / marker) for place in places)
    raise DatasetError(
        f"the data set was not found in {root}: none of {looked} exists; give the folder that its "
        "archives were unpacked into"
    )


def labelled(root: Path, name: str, train: Classes, test: Classes) -> Dataset:
    """The data set of these images, all of which must exist; classes are those of `train`."""
    extra = sorted(set(test) - set(train))
    if extra:
        raise DatasetError(
            f"classes in test must be in train too, got {extra[0]!r} in {root}, {len(extra)} in all"
        )
    classes = tuple(sorted(train))
    for ids in (*train.values(), *test.values()):
        require_images(root, ids)
    return Dataset(
        name,
        classes,
        class_split("train", root, classes, train),
        class_split("test", root, classes, test),
        official_ap=DEFAULT,
    )


def require_images(root: Path, ids: Sequence[str]) -> None:
    """Refuse a data set that lacks images; one listing per folder instead of a look per file."""
    there: dict[str, set[str]] = {}
    missing = []
    for image in ids:
        folder, _, file = image.rpartition("/")
        if folder not in there:
            try:
                there[folder] = {path.name for path in (root / folder).iterdir()}
            except OSError:
                there[folder] = set()
        if file not in there[folder]:
            missing.append(image)
    if missing:
        raise DatasetError(
            f"every image of a list must exist, got {len(missing)} of {len(ids)} without a file, "
            f"first {root / missing[0]}; the data set is not complete, get it again"
        )


def _read(
    root: Path,
    name: str,
    lists: Sequence[Sequence[str]],
    line: re.Pattern[str],
    picture: str,
    example: str,
) -> Dataset:
    """The data set of two groups of lists; `picture` makes an id of what a line calls the image."""
    splits: list[Classes] = [{}, {}]
    for files, classes in zip(lists, splits, strict=True):
        for file in files:
            for kind, image in _read_list(root / file, line, example):
                classes.setdefault(kind.replace("/", "-"), []).append(picture.format(image))
    return labelled(root, name, *splits)


def _read_list(path: Path, line: re.Pattern[str], example: str) -> list[tuple[str, str]]:
    """Class and image of each line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise DatasetError(f"list {path} cannot be read: {reason}; get it again") from None
    found = []
    for number, content in enumerate(text.splitlines(), start=1):
        if content.strip() and not content.startswith("#"):
            match = line.fullmatch(content.strip())
            if match is None:
                raise DatasetError(
                    f"a line must be like {example!r}, got {content[:60]!r} in {path}, line "
                    f"{number}"
                )
            found.append((match["kind"], match["image"]))
    if not found:
        raise DatasetError(f"a list must name an image, got none in {path}")
    return found
