"""Folders of images, and the lists and labels of data sets in folders.

A folder per class, `root/train/<class>/*` with `root/test/<class>/*`, or `root/<class>/*` which is
split here, becomes a `Dataset` in which every image has one class. The files are untrusted; an
error is a `DatasetError` that names file, line and content.
"""

from __future__ import annotations

import codecs
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from deepfishing.core.metrics import DEFAULT
from deepfishing.errors import DatasetError, OptionError, reraise_as
from deepfishing.images.dataset import Dataset, Split
from deepfishing.images.item import as_text
from deepfishing.images.preprocess import EXTENSIONS, passed_over_text
from deepfishing.util.files import replacing

# Folders of these names alone, or one to train on and another, are splits, not classes. Capital
# letters do not matter; of several to test on the first is taken.
TRAIN_FOLDERS = ("train", "training", "trainval")
TEST_FOLDERS = ("test", "testing", "val", "valid", "validation")

Classes = dict[str, list[str]]  # class -> ids of its images


def read_folder(root: str | Path, test_fraction: float = 0.5, seed: int = 0) -> Dataset:
    """Read a folder of class folders, with images at any depth inside them.

    Parameters
    ----------
    root : path
        If it holds both `train` and `test`, these are the splits; `val` is tested on where there
        is no `test`. Otherwise its folders are the classes. An id is the path below it, with
        forward slashes.
    test_fraction : float
        Between 0 and 1: the share of each class that is tested, where the split is made here.
        A class of two or more images is in both splits, a single image is for training.
    seed : int
        Another seed, another split. Only ids and seed decide it, not the order of the files.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg"):
    ...         path = Path(root, name)
    ...         path.parent.mkdir(exist_ok=True)
    ...         path.touch()
    ...     data = read_folder(root)
    >>> data.classes, len(data.train), len(data.test)
    (('cat', 'dog'), 2, 2)
    """
    if not 0.0 < test_fraction < 1.0:
        raise OptionError(f"test_fraction must be between 0 and 1, got {test_fraction}")
    root = Path(root)
    try:
        inside = [path.name for path in root.iterdir() if is_folder(path)]
    except OSError:
        inside = []  # reported below
    train_name = _first(TRAIN_FOLDERS, inside)
    test_name = _first(TEST_FOLDERS, inside)
    is_drawn = train_name is None or test_name is None
    if train_name is not None and test_name is not None:
        train = read_classes(root, root / train_name)
        test = read_classes(root, root / test_name)
    else:
        train, test = {}, {}
        for name, ids in read_classes(root, root).items():
            test[name], train[name] = divide(ids, test_fraction, seed)
        if set(map(str.lower, train)) <= {*TRAIN_FOLDERS, *TEST_FOLDERS}:
            raise DatasetError(
                f"splits must be {root / 'train'} and {root / 'test'}, got {', '.join(train)}; "
                "rename them"
            )
    if len(train) < 2:
        raise DatasetError(
            "two class folders or more are needed to tell classes apart, got only "
            f"{next(iter(train))!r} in {root}; expected {root / '<class>'} or "
            f"{root / 'train' / '<class>'} and {root / 'test' / '<class>'}"
        )
    if not any(test.values()):
        raise DatasetError(
            f"a class must have two images to be tested, got one each in {root}"
        )
    dataset = one_class_each(as_text(root.resolve().name), root, train, test)
    return replace(dataset, is_drawn=is_drawn)


def _first(names: Sequence[str], folders: Iterable[str]) -> str | None:
    """Return the folder with the first of these names, in capital letters or not."""
    by_name = {folder.lower(): folder for folder in sorted(folders, reverse=True)}
    for name in names:
        if name in by_name:
            return by_name[name]
    return None


def divide(ids: list[str], part: float, seed: int) -> tuple[list[str], list[str]]:
    """Divide the ids of one class in two; `part` is the share or the number of the first.

    The order is by hash, so it depends on ids and seed alone.
    """
    n = int(part)
    if part < 1:
        n = min(max(round(part * len(ids)), 1), len(ids) - 1)
    order = sorted(ids, key=lambda i: hashlib.sha256(f"{seed}:{i}".encode()).digest())
    return order[:n], order[n:]


def one_class_each(name: str, root: Path, train: Classes, test: Classes) -> Dataset:
    """Return the data set of images that have one class each; an id is the path below `root`."""
    extra = sorted(set(test) - set(train))
    if extra:
        raise DatasetError(
            f"classes in test must be in train too, got {extra[0]!r} in "
            f"{root / test[extra[0]][0]}, {len(extra)} in all"
        )
    classes = tuple(sorted(train))
    splits = []
    for split, images in (("train", train), ("test", test)):
        pairs = []
        for column, name_of_class in enumerate(classes):
            pairs += [(id_, column) for id_ in images.get(name_of_class, ())]
        pairs.sort()
        ids = tuple(id_ for id_, _ in pairs)
        columns = [column for _, column in pairs]
        labels = np.full((len(pairs), len(classes)), -1, dtype=np.int8)
        labels[np.arange(len(pairs)), columns] = 1
        splits.append(Split(split, ids, tuple(root / id_ for id_ in ids), labels))
    return Dataset(name, classes, splits[0], splits[1], official_ap=DEFAULT)


def read_classes(root: Path, folder: Path) -> Classes:
    """Return the ids of the images of each class folder in `folder`, relative to `root`."""
    do = f"; expected {root / '<class>'} with images"
    with reraise_as(DatasetError, f"image folder {folder} cannot be read", do, OSError):
        entries = sorted(folder.iterdir())
    classes = {}
    for entry in entries:
        is_hidden = entry.name.startswith(".")
        if not is_hidden and is_folder(entry) and not leads_back(entry):
            classes[entry.name] = image_ids(root, entry)
    if not classes:
        raise DatasetError(
            f"no class folders in {folder}; expected {folder / '<class>'} with images"
        )
    for ids in classes.values():
        require_utf8(ids, folder)
    return classes


def require_utf8(names: Iterable[str], source: object) -> None:
    """Refuse ids that results, stores and pages cannot have."""
    try:
        "\n".join(names).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(error.start - 30, 0) : error.end]
        raise DatasetError(
            f"file names must be UTF-8, got ...{near!r} in {source}"
        ) from None


def image_ids(root: Path, folder: Path) -> list[str]:
    """Return the paths, relative to `root`, of all images in `folder` that are not hidden."""
    ids: list[str] = []
    for where, names in _walk(folder):
        parent = where.relative_to(root)
        prefix = ""
        if parent != Path():
            prefix = f"{parent.as_posix()}/"
        # there may be millions, and a Path for each would take most of the time
        ids += [prefix + name for name in names if _ending(name) in EXTENSIONS]
    if not ids:
        reason = "it has no files"
        other_files = passed_over(folder)
        if other_files:
            reason = f"passed over: {passed_over_text(other_files)}"
        raise DatasetError(
            f"a folder of images must contain at least one, got none in {folder}; {reason}"
        )
    return sorted(ids)


def passed_over(folder: Path) -> Counter[str]:
    """Count the files in a folder and below that are not images, by extension; no hidden ones."""
    counts: Counter[str] = Counter()
    for _, names in _walk(folder):
        counts.update(map(_ending, names))
    for extension in EXTENSIONS:
        counts.pop(extension, None)
    return counts


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and those below it, each with the names of its files, without hidden ones.

    Links to folders are followed, except for a link to a folder that contains it.
    """

    def stop(error: OSError) -> None:
        raise DatasetError(
            f"folder {error.filename} cannot be read: {error.strerror}; make it readable, or move "
            "it elsewhere"
        )

    for where, folders, files in os.walk(folder, onerror=stop, followlinks=True):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not leads_back(Path(where, name))
        ]
        yield Path(where), [name for name in files if not name.startswith(".")]


def leads_back(folder: Path) -> bool:
    """Whether a folder is a link to a folder that contains it."""
    if not os.path.islink(folder):  # noqa: PTH114  # which never raises
        return False
    target = folder.resolve()
    parents = [parent.resolve() for parent in folder.absolute().parents]
    return any(parent.is_relative_to(target) for parent in parents)


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122  # much quicker than a Path


def folder_classes(ids: Sequence[str]) -> list[str | None]:
    """Return the class of each image by its folder; None for one outside of class folders."""
    splits = split_folders(ids)
    classes: list[str | None] = []
    for id_ in ids:
        *folders, _ = id_.split("/")
        name = None
        if not splits and folders:
            name = folders[0]
        elif len(folders) > 1 and folders[0] in splits:
            name = folders[1]
        classes.append(name)
    return classes


def split_folders(ids: Sequence[str]) -> set[str]:
    """Return the outermost folders that are splits, not classes; none in most collections."""
    outermost = {id_.partition("/")[0] for id_ in ids if "/" in id_}
    train = {name for name in outermost if name.lower() in TRAIN_FOLDERS}
    test = {name for name in outermost if name.lower() in TEST_FOLDERS}
    splits = train | test
    if splits == outermost or (train and test):
        return splits
    return set()


def training_folder(ids: Sequence[str]) -> str | None:
    """Return the outermost folder to train on, if there is another split beside it.

    >>> training_folder(["Train/cat/1.jpg", "Valid/cat/2.jpg"])
    'Train'
    """
    splits = split_folders(ids)
    if len(splits) < 2:
        return None
    return _first(TRAIN_FOLDERS, splits)


def is_folder(path: Path) -> bool:
    """Whether a folder exists; also False where that cannot be found out."""
    return os.path.isdir(path)  # noqa: PTH112  # which never raises, whatever the name


def find_root(
    root: Path,
    marker: str,
    inside: Sequence[str],
    hint: str = "give the folder that its archives were unpacked into",
) -> Path:
    """Return the folder with a file of the data set: the given one, or one inside it."""
    places = [root, *(root / name for name in inside)]
    for place in places:
        if os.path.exists(place / marker):  # noqa: PTH110  # which never raises
            return place
    looked = ", ".join(str(place / marker) for place in places)
    raise DatasetError(
        f"the data set was not found in {root}: none of {looked} exists; {hint}"
    )


def names_in(folder: Path) -> list[str]:
    """Return all names in a folder: one listing instead of one system call per file."""
    do = "; the data set is not complete, get it again"
    with reraise_as(
        DatasetError, f"folder {folder} of the data set cannot be read", do, OSError
    ):
        return [path.name for path in folder.iterdir()]


def require_images(root: Path, ids: Sequence[str]) -> None:
    """Refuse a data set that lacks images; an id is a path below `root`."""
    folders = {id_.rpartition("/")[0] for id_ in ids}
    existing: set[str] = set()
    for folder in folders:
        existing.update(f"{folder}/{name}" for name in names_in(root / folder))
    missing = [id_ for id_ in ids if id_ not in existing]
    if missing:
        raise DatasetError(
            f"every image of a list must have a file, got {len(missing)} of {len(ids)} without, "
            f"first {root / missing[0]}; the data set is not complete, get it again"
        )


def read_bytes(path: Path, limit: int = -1) -> bytes:
    """Return the content of a file, or its first `limit` bytes."""
    cannot = reraise_as(
        DatasetError, f"{path} cannot be read", "; get it again", OSError
    )
    with cannot, path.open("rb") as file:
        return file.read(limit)


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line that is not blank, after a description of its place for errors."""
    raw = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    for number, line in enumerate(raw.splitlines(), start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            raise DatasetError(
                f"a list must be UTF-8, got {line[:60]!r} in {path}, line {number}"
            ) from None
        if text.strip():
            yield f"{text[:60]!r} in {path}, line {number}", text.strip()


def write_once(path: Path, content: bytes) -> Path:
    """Write a picture of a data set, unless it exists; one of another content is refused."""
    with reraise_as(DatasetError, f"{path} cannot be written", of=OSError):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as partial:
                partial.write_bytes(content)
        elif path.read_bytes() != content:
            raise DatasetError(
                f"{path} must be the picture of the data set, got another content; delete that "
                "file or choose another folder"
            )
    return path
