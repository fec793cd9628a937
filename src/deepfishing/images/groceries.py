"""Stage 1, images: the embedded photographs, fruit in grocery stores.

Comes in: a folder. Goes out: `<folder>/groceries/<split>/<variety>/*.jpg`, and their `Dataset`.
There are 50 photographs of each of 14 varieties of 5 kinds of fruit, half to train and half to
test, from the GroceryStoreDataset (groceries.LICENSE has licence and citation). They lie in
groceries.zip beside this file, which scripts/groceries.py makes; nothing is downloaded.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from deepfishing.errors import OptionError, check_choice
from deepfishing.images.dataset import Dataset, Split
from deepfishing.images.tree import write_once

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
    shown = LABELS[labels]
    classes = tuple(sorted(set().union(*shown.values())))
    root = Path(folder) / "groceries"
    splits = []
    with zipfile.ZipFile(ARCHIVE) as archive:
        for split, n, first in (("train", n_train, 1), ("test", n_test, 1 + EACH)):
            # one of each variety, then the next of each
            rounds = [(variety, first + number) for number in range(EACH) for variety in KINDS]
            chosen = sorted(rounds[:n])
            ids = tuple(f"{split}/{name}/{name}_{number:02d}.jpg" for name, number in chosen)
            paths = tuple(write_once(root / id_, archive.read(id_)) for id_ in ids)
            positive = [[c in shown[variety] for c in classes] for variety, _ in chosen]
            splits.append(Split(split, ids, paths, np.where(positive, 1, -1).astype(np.int8)))
        write_once(root / "LICENSE", archive.read("LICENSE"))
    return Dataset("groceries", classes, splits[0], splits[1], official_ap="area")
