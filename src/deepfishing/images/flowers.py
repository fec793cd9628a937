"""Stage 1, images: Oxford Flowers, whose classes and splits are MATLAB files.

Comes in: a folder with `jpg/image_00001.jpg`, `imagelabels.mat` and `setid.mat`. Goes out: a
`Dataset`. Only arrays of whole numbers are taken from the files.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from deepfishing.errors import DatasetError, one_line
from deepfishing.images.dataset import Dataset
from deepfishing.images.lists import Classes, find_root, labelled
from deepfishing.rank_one import Array

LARGEST = 1 << 20  # bytes of such a file: the published ones have 15,000


def read_flowers102(root: str | Path) -> Dataset:
    """Oxford Flowers: trains on `trnid` and `valid` of setid.mat, tests on `tstid`.

    Classes are numbers in the files, and have names such as `flower 001` here.
    """
    root = find_root(Path(root), "setid.mat", "flowers-102", "flowers102", "102flowers")
    (kinds,) = _numbers(root / "imagelabels.mat", "labels")
    *train, test = _numbers(root / "setid.mat", "trnid", "valid", "tstid")
    return labelled(
        root,
        "flowers102",
        _by_class(root, np.concatenate(train), kinds),
        _by_class(root, test, kinds),
    )


def _by_class(root: Path, images: Array, kinds: Array) -> Classes:
    if images.min() < 1 or images.max() > len(kinds):
        raise DatasetError(
            f"images must be numbered from 1 to {len(kinds)}, for which imagelabels.mat has "
            f"labels, got {images.min()} to {images.max()} in {root / 'setid.mat'}"
        )
    found: Classes = {}
    for image in images.tolist():
        found.setdefault(f"flower {kinds[image - 1]:03d}", []).append(f"jpg/image_{image:05d}.jpg")
    return found


def _numbers(path: Path, *names: str) -> list[Array]:
    """Arrays of a MATLAB file, each flat and of whole numbers."""
    from scipy.io import loadmat  # takes a while to load

    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}; get it again") from None
    try:
        if len(raw) > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        content = loadmat(io.BytesIO(raw), variable_names=names)
        arrays = [np.asarray(content[name]).ravel() for name in names]
        if any(array.dtype.kind not in "iu" or not len(array) for array in arrays):
            raise ValueError("it must have whole numbers")
    except Exception as error:  # damaged bytes raise whatever the parser stumbles over
        raise DatasetError(
            f"{path} must be a MATLAB file with {', '.join(names)} ({one_line(error)}); get it "
            "again"
        ) from None
    return [array.astype(np.int64) for array in arrays]
