"""Stage 1, images: CIFAR-10 and CIFAR-100, in their binary version.

Comes in: a folder with the binary files (the Python version is pickles, which are programs and are
not read), and a folder to write to. Goes out: one picture file per image and their `Dataset`; the
pictures keep their 32 x 32 pixels, which the network's preprocessing makes larger.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from deepfishing.errors import DatasetError
from deepfishing.files import replacing
from deepfishing.images.dataset import Dataset
from deepfishing.images.lists import Classes, labelled
from deepfishing.rank_one import Array

SIDE = 32
# name -> folder inside, file of the classes' names, files of both splits, labels before the pixels
VERSIONS = {
    "cifar10": (
        "cifar-10-batches-bin",
        "batches.meta.txt",
        {"train": [f"data_batch_{n}.bin" for n in range(1, 6)], "test": ["test_batch.bin"]},
        1,
    ),
    "cifar100": (
        "cifar-100-binary",
        "fine_label_names.txt",
        {"train": ["train.bin"], "test": ["test.bin"]},
        2,
    ),
}


def read_cifar(root: str | Path, into: str | Path, name: str = "cifar10") -> Dataset:
    """Read the binary version; pictures go to `<into>/<name>/<split>/<class>/00001.bmp`."""
    folder, meta, files, labels = VERSIONS[name]
    places = [Path(root), Path(root) / folder]
    found = next((place for place in places if (place / meta).is_file()), None)
    if found is None:
        raise DatasetError(
            f"{name} was not found: no {meta} in {places[0]} or {places[1]}; the binary version is "
            f"read, not the pickles of the Python version: run `deepfish fetch {name}`"
        )
    classes = [line.strip() for line in _bytes(found / meta).decode("latin-1").splitlines()]
    classes = [line for line in classes if line]
    home = Path(into) / name
    splits: dict[str, Classes] = {"train": {}, "test": {}}
    for split, ids in splits.items():
        number = 0
        for file in files[split]:
            for kind, pixels in zip(*_images(found / file, labels, len(classes)), strict=True):
                number += 1
                image = f"{split}/{classes[kind]}/{number:05d}.bmp"
                _write(home / image, pixels)
                ids.setdefault(classes[kind], []).append(image)
    return labelled(home, name, splits["train"], splits["test"])


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}; get it again") from None


def _images(path: Path, labels: int, classes: int) -> tuple[list[int], Array]:
    """Classes (n,) and pixels (n, 32, 32, 3) of a file: the last label of each image is its own."""
    raw = np.frombuffer(_bytes(path), dtype=np.uint8)
    length = labels + 3 * SIDE * SIDE
    if not len(raw) or len(raw) % length:
        raise DatasetError(
            f"{path} must have {length} bytes per image, got {len(raw)}; the file is not complete, "
            "get it again"
        )
    rows = raw.reshape(-1, length)
    kinds = rows[:, labels - 1]
    if kinds.max() >= classes:
        raise DatasetError(f"{path} must have labels below {classes}, got {kinds.max()}")
    return kinds.tolist(), rows[:, labels:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _write(path: Path, pixels: Array) -> None:
    picture = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(picture, "BMP")  # the same bytes every time
    try:
        if path.exists():
            if path.read_bytes() != picture.getvalue():
                raise DatasetError(
                    f"{path} must be the picture of the data set, got another content; delete that "
                    "file or choose another --out"
                )
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(picture.getvalue())
    except OSError as error:
        raise DatasetError(f"{path} cannot be written: {error.strerror}") from None
