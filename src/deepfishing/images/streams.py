"""Images from Python: Hugging Face datasets, torch Datasets, any iterable.

Samples are images, (image, label) or dicts: of a `datasets.Dataset` or `IterableDataset`, a torch
`Dataset` or `DataLoader`, WebDataset, or a generator. They are read one by one or in blocks of
bounded size, never all at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from deepfishing.errors import DatasetError, ImageError, OptionError
from deepfishing.images.frames import bmp_bytes
from deepfishing.images.item import ImageBytes, Item
from deepfishing.images.preprocess import EXTENSIONS, ImageLike, as_bytes, open_image

BLOCK_BYTES, BLOCK_IMAGES = 1 << 28, 4096  # what is held at a time
IMAGE_KEYS = ("image", "img", "pixel_values", *sorted(end[1:] for end in EXTENSIONS))
LABEL_KEYS = ("label", "labels", "cls", "target")

Labels = tuple[str, ...] | None


def samples(source: Iterable[Any]) -> Iterator[tuple[ImageLike, Labels]]:
    """Yield each image of a source with its labels, None where the source has none."""
    if _is_image(source):
        source = [source]
    elif 1 < getattr(source, "ndim", 4) < 4:
        raise OptionError(
            f"images must be a list of images, got one {type(source).__name__}; of a table give "
            "the column of paths"
        )
    if isinstance(source, Mapping):
        several = ", ".join(map(str, source))
        raise DatasetError(f"images must be one split, got several: {several}; take one of them")
    if hasattr(source, "cast_column"):
        yield from _hugging_face(source)
        return
    inner = getattr(source, "dataset", source)  # of a DataLoader
    names = tuple(getattr(inner, "classes", ()))
    batched = inner is not source and getattr(source, "batch_size", None) is not None
    indexed = hasattr(source, "__getitem__") and not hasattr(source, "__iter__")
    # a Dataset need not say where it ends when it is only indexed
    every = (source[i] for i in range(len(source))) if indexed else source  # type: ignore[arg-type, index]
    for sample in every:
        image, label = _parts(sample)
        images = image if batched else [image]
        labels = (label if batched else [label]) if label is not None else [None] * len(images)
        for one, its in zip(images, labels, strict=True):
            yield _picture(one), _labels(its, names)


def _is_image(source: Any) -> bool:
    """Whether it is one image and not several."""
    if isinstance(source, Image.Image | bytes):
        return True
    is_array = isinstance(source, np.ndarray) or hasattr(source, "detach")  # a tensor
    return is_array and source.ndim in (2, 3) and getattr(source.dtype, "kind", "f") in "uif"


def blocks(source: Iterable[Any], name: str = "") -> Iterator[list[Item]]:
    """Items of a source, some at a time; ids are numbers in its order, behind `name`."""
    prefix = name or str(getattr(source, "split", None) or "image")
    some: list[Item] = []
    size = 0
    for number, (image, labels) in enumerate(samples(source)):
        id_ = f"{prefix}/{number:07d}"
        if isinstance(image, str | Path):
            some.append(Item(id_, Path(image), labels))
        else:
            own = image.content if isinstance(image, ImageBytes) else None
            file = ImageBytes(id_, bmp_bytes(open_image(image)) if own is None else own)
            some.append(Item(id_, file, labels))
            size += len(file.content)
        if size >= BLOCK_BYTES or len(some) == BLOCK_IMAGES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _hugging_face(source: Any) -> Iterator[tuple[ImageLike, Labels]]:
    kinds = source.features or {}
    images = [name for name, kind in kinds.items() if type(kind).__name__ == "Image"]
    if len(images) != 1:
        found = ", ".join(images or kinds) or "no known columns"
        raise DatasetError(
            f"a data set must have one column of the type Image, got {found}; choose it with "
            "select_columns, or make it one with cast_column"
        )
    classes = [name for name, kind in kinds.items() if type(kind).__name__ == "ClassLabel"]
    label = next((name for name in (*LABEL_KEYS, *classes) if name in kinds), None)
    inside = kinds[label] if label else None
    names = tuple(getattr(getattr(inside, "feature", inside), "names", None) or ())
    # bytes as they are in the files: decoded by us, and identified by their content
    raw = source.with_format(None).cast_column(images[0], type(kinds[images[0]])(decode=False))
    for row in raw:
        cell = row[images[0]]
        file = Path(cell["path"]) if cell["bytes"] is None else ImageBytes("image", cell["bytes"])
        yield file, _labels(row[label] if label else None, names, several=True)


def _parts(sample: Any) -> tuple[Any, Any]:
    """Return image and label of a sample; None if it has no label."""
    if isinstance(sample, Mapping):
        image = next((key for key in IMAGE_KEYS if key in sample), None)
        label = next((key for key in LABEL_KEYS if key in sample), None)
        if image is None:
            raise DatasetError(f"a sample must have an image, got {', '.join(map(str, sample))}")
        return sample[image], sample[label] if label else None
    if not isinstance(sample, tuple | list):
        return sample, None
    if len(sample) not in (1, 2):
        raise DatasetError(f"a sample must be (image, label), got {len(sample)} values")
    return sample[0], sample[1] if len(sample) == 2 else None


def _picture(image: Any) -> ImageLike:
    if isinstance(image, bytes):
        return ImageBytes("image", image)
    if not hasattr(image, "detach"):
        return image  # type: ignore[no-any-return]  # whoever opens it says what is wrong
    image = image.float() if image.is_floating_point() else image  # numpy has no bfloat16
    pixels = as_bytes(image.detach().cpu().numpy())  # a tensor (C, H, W)
    if pixels is None or pixels.ndim not in (2, 3):
        raise ImageError(
            "a tensor must be an image (C, H, W) of uint8, of floats from 0 to 1, or of floats "
            f"from 0 to 255, got {image.dtype} of shape {tuple(image.shape)}; leave out Normalize "
            "and batches, the network has its own preprocessing"
        )
    return np.ascontiguousarray(pixels.transpose(1, 2, 0)) if pixels.ndim == 3 else pixels


def _labels(value: Any, names: Sequence[str], several: bool = False) -> Labels:
    value = value.tolist() if hasattr(value, "tolist") else value
    if value is None:
        return None
    listed = list(value) if several and isinstance(value, list | tuple) else [value]
    for one in listed:
        if isinstance(one, bool) or not isinstance(one, str | int):
            raise DatasetError(f"a label must be a class or its number, got {str(one)[:60]}")
        if names and isinstance(one, int) and not -1 <= one < len(names):
            raise DatasetError(f"a label must be one of {len(names)} classes, got number {one}")
    known = [one for one in listed if not names or one != -1]  # which stands for no label
    found = tuple(names[one] if names and isinstance(one, int) else str(one) for one in known)
    return found or (None if listed else ())
