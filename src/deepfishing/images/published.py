"""Readers of well-known data sets in the layouts in which they are published.

They return a `Dataset` in which every image has one class; the differences between data sets of
lists are in records.toml. One data set is embedded, fruit in grocery stores: 50 photographs of each
of 14 varieties of 5 kinds of fruit, half to train and half to test, from the GroceryStoreDataset
(groceries.LICENSE has licence and citation), in groceries.zip, made by scripts/groceries.py.
"""

from __future__ import annotations

import io
import itertools
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from deepfishing.core.rank_one import Array
from deepfishing.errors import DatasetError, OptionError, check_choice, reraise_as
from deepfishing.images.dataset import Dataset, Split, is_plain_name
from deepfishing.images.folder import (
    Classes,
    divide,
    find_root,
    is_folder,
    one_class_each,
    read_bytes,
    read_classes,
    read_lines,
    require_images,
    write_once,
)
from deepfishing.images.frames import bmp_bytes

# images of each kind to train, and at most to test
CALTECH_TRAIN, CALTECH_TEST = 30, 50
BACKGROUND = "BACKGROUND_Google"  # of Caltech-101: photographs of none of its kinds
EUROSAT_TESTED = 0.2  # of each kind, as its authors do
LARGEST_MAT = 1 << 20  # bytes of a MATLAB file: the published ones have 15,000
CIFAR_SIDE = 32

ARCHIVE = Path(__file__).with_name("groceries.zip")

# variety -> kind; varieties are named as in the GroceryStoreDataset
KINDS = {
    **dict.fromkeys(
        (
            "Golden-Delicious",
            "Granny-Smith",
            "Pink-Lady",
            "Red-Delicious",
            "Royal-Gala",
        ),
        "Apple",
    ),
    **dict.fromkeys(
        ("Cantaloupe", "Galia-Melon", "Honeydew-Melon", "Watermelon"), "Melon"
    ),
    "Orange": "Orange",
    **dict.fromkeys(("Anjou", "Conference", "Kaiser"), "Pear"),
    "Satsumas": "Satsumas",
}
EACH = 25  # photographs per variety and split
MOST = EACH * len(KINDS)

LABELS = ("variety", "kind", "both")


def load_groceries(
    folder: str | Path,
    n_train: int = MOST,
    n_test: int = MOST,
    *,
    labels: str = "variety",
) -> Dataset:
    """Read the photographs from `<folder>/groceries`; put those there that are absent.

    Parameters
    ----------
    folder : path
        Made if absent. A file of the same name with another content is a `DatasetError`.
    n_train, n_test : int
        How many photographs, up to 350 each, spread evenly over the varieties: 28 are two of
        each, and fewer are the first of the more.
    labels : "variety", "kind" or "both"
        The classes: 14 varieties ("Granny-Smith"), 5 kinds ("Apple"), or 17 of which a photograph
        may have two.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = load_groceries(folder, n_train=28, n_test=14, labels="kind")
    ...     data.train.paths[0].relative_to(folder).as_posix()
    'groceries/train/Anjou/Anjou_01.jpg'
    >>> data.classes, len(data.train), len(data.test)
    (('Apple', 'Melon', 'Orange', 'Pear', 'Satsumas'), 28, 14)
    """
    for name, value in (("n_train", n_train), ("n_test", n_test)):
        if not 1 <= value <= MOST:
            raise OptionError(f"{name} must be from 1 to {MOST}, got {value}")
    check_choice("labels", labels, LABELS)
    classes_of = {variety: _classes_of(variety, labels) for variety in KINDS}
    classes = tuple(sorted(set().union(*classes_of.values())))
    root = Path(folder) / "groceries"
    splits = []
    with zipfile.ZipFile(ARCHIVE) as archive:
        for split, n, first in (("train", n_train, 1), ("test", n_test, 1 + EACH)):
            # one of each variety, then the next of each
            numbers = range(first, first + EACH)
            photographs = itertools.product(numbers, KINDS)
            chosen = [(variety, number) for number, variety in photographs][:n]
            ids = []
            paths = []
            presence = []
            for variety, number in sorted(chosen):
                id_ = f"{split}/{variety}/{variety}_{number:02d}.jpg"
                ids.append(id_)
                paths.append(write_once(root / id_, archive.read(id_)))
                presence.append([name in classes_of[variety] for name in classes])
            signs = np.where(presence, 1, -1).astype(np.int8)
            splits.append(Split(split, tuple(ids), tuple(paths), signs))
        write_once(root / "LICENSE", archive.read("LICENSE"))
    return Dataset("groceries", classes, splits[0], splits[1], official_ap="area")


def _classes_of(variety: str, labels: str) -> set[str]:
    """Return the classes of a variety, by the option `labels`."""
    if labels == "variety":
        return {variety}
    if labels == "kind":
        return {KINDS[variety]}
    return {variety, KINDS[variety]}


def read_lists(
    root: str | Path,
    *,
    name: str,
    inside: Sequence[str],
    train: Sequence[str],
    test: Sequence[str],
    line: str,
    example: str,
    pictures: Sequence[str],
) -> Dataset:
    """Splits are text files with a line per image: pets, food101, dtd, sun397.

    `line` has the groups `image` and `kind`, the class; the first of `pictures` whose folder exists
    makes a path of the former.
    """
    root = find_root(Path(root), train[0], inside)
    picture = pictures[0]
    for pattern in pictures:
        if is_folder((root / pattern).parent):
            picture = pattern
            break

    def read(files: Sequence[str]) -> Classes:
        """Return the images of a split by their classes."""
        classes: Classes = {}
        for file in files:
            lines = list(read_lines(root / file))
            lines = [(place, text) for place, text in lines if not text.startswith("#")]
            if not lines:
                raise DatasetError(
                    f"a list must name an image, got none in {root / file}"
                )
            for place, text in lines:
                match = re.fullmatch(line, text)
                if match is None:
                    raise DatasetError(f"a line must be like {example!r}, got {place}")
                kind = match["kind"].replace("/", "-")
                classes.setdefault(kind, []).append(picture.format(match["image"]))
        return classes

    return _complete(name, root, read(train), read(test))


def read_caltech101(root: str | Path, seed: int = 0) -> Dataset:
    """Caltech-101, `101_ObjectCategories/<kind>/image_0001.jpg`; its splits are drawn."""
    pictures = "101_ObjectCategories"
    root = find_root(Path(root), pictures, ["caltech-101", "caltech101"])
    kinds = read_classes(root, root / pictures)
    kinds.pop(BACKGROUND, None)
    for kind, ids in kinds.items():
        if len(ids) <= CALTECH_TRAIN:
            raise DatasetError(
                f"every kind must have more than {CALTECH_TRAIN} images, {CALTECH_TRAIN} to train "
                f"and some to test, got {len(ids)} in {root / pictures / kind}; the data set is "
                "not complete, get it again"
            )
    train: Classes = {}
    test: Classes = {}
    for kind, ids in kinds.items():
        train[kind], others = divide(ids, CALTECH_TRAIN, seed)
        test[kind] = others[:CALTECH_TEST]
    return one_class_each("caltech101", root, train, test)


def read_eurosat(root: str | Path, seed: int = 0) -> Dataset:
    """EuroSAT in RGB, `2750/<kind>/<kind>_1.jpg`; its splits are drawn."""
    places = ["2750", "EuroSAT", "eurosat/2750", "EuroSAT_RGB"]
    root = find_root(Path(root), "AnnualCrop", places)  # the first of its kinds
    train: Classes = {}
    test: Classes = {}
    for kind, ids in read_classes(root, root).items():
        if len(ids) < 2:
            raise DatasetError(
                f"every kind must have two images, got one in {root / kind}"
            )
        test[kind], train[kind] = divide(ids, EUROSAT_TESTED, seed)
    return one_class_each("eurosat", root, train, test)


def read_flowers102(root: str | Path) -> Dataset:
    """Oxford Flowers: trains on `trnid` and `valid` of setid.mat, tests on `tstid`.

    Classes are numbers in the files, and have names such as `flower 001` here.
    """
    root = find_root(
        Path(root), "setid.mat", ["flowers-102", "flowers102", "102flowers"]
    )
    (kinds,) = _read_mat(root / "imagelabels.mat", "labels")
    trained, valid, tested = _read_mat(root / "setid.mat", "trnid", "valid", "tstid")

    def by_class(images: Array) -> Classes:
        if images.min() < 1 or images.max() > len(kinds):
            raise DatasetError(
                f"images must be numbered from 1 to {len(kinds)}, for which imagelabels.mat has "
                f"labels, got {images.min()} to {images.max()} in {root / 'setid.mat'}"
            )
        classes: Classes = {}
        for image in images.tolist():
            kind = f"flower {kinds[image - 1]:03d}"
            classes.setdefault(kind, []).append(f"jpg/image_{image:05d}.jpg")
        return classes

    train = by_class(np.concatenate([trained, valid]))
    return _complete("flowers102", root, train, by_class(tested))


def _read_mat(path: Path, *names: str) -> list[Array]:
    """Arrays of a MATLAB file, each flat and of whole numbers."""
    from scipy.io import loadmat  # takes a while to load

    what = f"{path} must be a MATLAB file with {', '.join(names)}"
    with reraise_as(DatasetError, what, "; get it again"):
        # whatever the parser stumbles over
        raw = read_bytes(path, LARGEST_MAT + 1)
        if len(raw) > LARGEST_MAT:
            raise ValueError(f"it has more than {LARGEST_MAT:,} bytes")
        content = loadmat(io.BytesIO(raw), variable_names=names)
        arrays = [np.asarray(content[name]).ravel() for name in names]
        if any(array.dtype.kind not in "iu" or not len(array) for array in arrays):
            raise ValueError("it must have whole numbers")
    return [array.astype(np.int64) for array in arrays]


def read_cifar(
    root: str | Path,
    into: str | Path,
    *,
    name: str,
    inside: str,
    names: str,
    train: Sequence[str],
    test: Sequence[str],
    labels: int,
) -> Dataset:
    """The binary version of CIFAR; the Python version is pickles, which are programs.

    Pictures go to `<into>/<name>/<split>/<class>/00001.bmp` and keep their 32 x 32 pixels. The file
    `names` has the classes, and each image has `labels` bytes before its pixels.
    """
    hint = "the binary version is read, not the pickles of the Python version"
    root = find_root(
        Path(root), names, [inside], f"{hint}: run `deepfish fetch {name}`"
    )
    lines = read_bytes(root / names).decode("latin-1").splitlines()
    classes = [line.strip() for line in lines if line.strip()]
    strange = [kind for kind in classes if not is_plain_name(kind)]
    if strange:  # classes become folders
        raise DatasetError(
            f"a class must be a plain name, got {strange[0]!r} in {root / names}"
        )
    home = Path(into) / name
    splits: dict[str, Classes] = {"train": {}, "test": {}}
    for split, files in (("train", train), ("test", test)):
        batches = (_read_bin(root / file, labels, len(classes)) for file in files)
        images = itertools.chain.from_iterable(batches)
        for number, (kind, pixels) in enumerate(images, start=1):
            id_ = f"{split}/{classes[kind]}/{number:05d}.bmp"
            picture = Image.fromarray(np.ascontiguousarray(pixels))
            write_once(home / id_, bmp_bytes(picture))
            splits[split].setdefault(classes[kind], []).append(id_)
    return one_class_each(name, home, **splits)


def _read_bin(path: Path, labels: int, classes: int) -> zip[tuple[int, Array]]:
    """Return class, which is the last label, and pixels (32, 32, 3) of each image."""
    raw = np.frombuffer(read_bytes(path), dtype=np.uint8)
    length = labels + 3 * CIFAR_SIDE**2
    if not len(raw) or len(raw) % length:
        raise DatasetError(
            f"{path} must have {length} bytes per image, got {len(raw)}; the file is not complete, "
            "get it again"
        )
    rows = raw.reshape(-1, length)
    kinds = rows[:, labels - 1]
    if kinds.max() >= classes:
        raise DatasetError(
            f"{path} must have labels below {classes}, got {kinds.max()}"
        )
    channels_first = rows[:, labels:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE)
    pixels = channels_first.transpose(0, 2, 3, 1)
    return zip(kinds.tolist(), pixels, strict=True)


def _complete(name: str, root: Path, train: Classes, test: Classes) -> Dataset:
    """Return the data set; refuse one that lacks images."""
    dataset = one_class_each(name, root, train, test)
    require_images(root, [*dataset.train.ids, *dataset.test.ids])
    return dataset
