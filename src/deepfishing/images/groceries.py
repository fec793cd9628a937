"""Stage 1, images: the embedded photographs, fruit in grocery stores.

Comes in: a folder. Goes out: `<folder>/groceries/<split>/<variety>/*.jpg`, and their `Dataset`.
There are 50 photographs of each of 14 varieties of 5 kinds of fruit, half to train and half to
test, from the GroceryStoreDataset (groceries.LICENSE has licence and citation). They lie in
groceries.zip beside this file, which scripts/groceries.py makes; nothing is downloaded.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Set
from pathlib import Path

import numpy as np

from deepfishing.errors import DatasetError, OptionError, did_you_mean
from deepfishing.files import replacing
from deepfishing.images.dataset import Dataset, Split

ARCHIVE = Path(__file__).with_name("groceries.zip")

# variety -> kind; varieties are named as in the GroceryStoreDataset
KINDS = {
    **dict.fromkeys(
        ("Golden-Delicious", "Granny-Smith", "Pink-Lady", "Red-Delicious", "Royal-Gala"), "Apple"
    ),
    **dict.fromkeys(("Cantaloupe", "Galia-Melon", "Honeydew-Melon", "Watermelon"), "Melon"),
    "Orange": "Orange",
    **dict.fromkeys(("Anjou", "Conference", "Kaiser"), "Pear"),
    "Satsumas": "Satsumas",
}
EACH = 25  # photographs per variety and split
MOST = EACH * len(KINDS)

# what `labels` may be -> the classes of each variety
LABELS = {
    "variety": {variety: {variety} for variety in KINDS},
    "kind": {variety: {kind} for variety, kind in KINDS.items()},
    "both": {variety: {variety, kind} for variety, kind in KINDS.items()},
}


def load_groceries(
    folder: str | Path, n_train: int = MOST, n_test: int = MOST, *, labels: str = "variety"
) -> Dataset:
    """Read the photographs from `<folder>/groceries`; put those there that are absent.

    Parameters
    ----------
    folder : path
        Made if absent.
    n_train, n_test : int
        How many photographs, up to 350 each, spread evenly over the varieties: 28 are two of
        each, and fewer are the first of the more.
    labels : "variety", "kind" or "both"
        The classes: 14 varieties ("Granny-Smith"), 5 kinds ("Apple"), or 17 of which a photograph
        may have two.

    Raises
    ------
    DatasetError
        If a file of the same name has another content, or the folder cannot be written.

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
    if labels not in LABELS:
        raise OptionError(
            f"labels must be one of {', '.join(LABELS)}, got {labels!r}"
            f"{did_you_mean(labels, LABELS)}"
        )
    shown = LABELS[labels]
    classes = tuple(sorted(set().union(*shown.values())))
    root = Path(folder) / "groceries"
    with zipfile.ZipFile(ARCHIVE) as archive:
        train, test = (
            _split(archive, root, split, n, classes, shown)
            for split, n in (("train", n_train), ("test", n_test))
        )
        _unpack(archive, "LICENSE", root)
    return Dataset("groceries", classes, train, test, official_ap="area")


def _split(
    archive: zipfile.ZipFile,
    root: Path,
    name: str,
    n: int,
    classes: tuple[str, ...],
    shown: Mapping[str, Set[str]],
) -> Split:
    """The first n photographs of a split, unpacked: one of each variety, then the next of each."""
    first = 1 if name == "train" else EACH + 1
    rounds = [(variety, number) for number in range(first, first + EACH) for variety in KINDS]
    chosen = sorted(rounds[:n])
    ids = tuple(f"{name}/{variety}/{variety}_{number:02d}.jpg" for variety, number in chosen)
    positive = [[c in shown[variety] for c in classes] for variety, _ in chosen]
    labels = np.where(positive, 1, -1).astype(np.int8)
    return Split(name, ids, tuple(_unpack(archive, i, root) for i in ids), labels)


def _unpack(archive: zipfile.ZipFile, name: str, root: Path) -> Path:
    """Where a file of the archive is in the folder; written beside and renamed if it is absent."""
    path = root / name
    try:
        if path.exists():
            if zlib.crc32(path.read_bytes()) != archive.getinfo(name).CRC:
                raise DatasetError(
                    f"{path} must be the photograph of the package, got another content; "
                    "delete that file or choose another folder"
                )
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as partial:
                partial.write_bytes(archive.read(name))
    except OSError as error:
        raise DatasetError(f"data set groceries cannot be unpacked: {path} ({error})") from None
    return path
