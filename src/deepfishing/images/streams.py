"""Images from Python: Hugging Face datasets, torch Datasets, any iterable.

Samples are images, (image, label) or dicts: of a `datasets.Dataset` or `IterableDataset`, a torch
`Dataset` or `DataLoader`, WebDataset, or a generator. They are read one by one or in blocks of
bounded size, never all at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

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
    if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
        raise OptionError(
            f"images must be a path, an image, or an iterable of them, got {type(source).__name__}"
        )
    if isinstance(source, Mapping):
        several = ", ".join(map(str, source))
        raise DatasetError(
            f"images must be one split, got several: {several}; take one of them"
        )
    if hasattr(source, "cast_column"):
        yield from _hugging_face(source)
        return
    inner = getattr(source, "dataset", source)  # of a DataLoader
    names = tuple(getattr(inner, "classes", ()))
    batched = inner is not source and getattr(source, "batch_size", None) is not None
    indexed = hasattr(source, "__getitem__") and not hasattr(source, "__iter__")
    all_samples = source
    if indexed:  # such a Dataset need not raise IndexError at its end
        all_samples = (source[i] for i in range(len(source)))  # type: ignore[arg-type, index]
    for sample in all_samples:
        images, labels = _parts(sample)
        if not batched:
            images, labels = [images], [labels]
        elif labels is None:
            labels = [None] * len(images)
        for image, label in zip(images, labels, strict=True):
            yield _picture(image), _labels(label, names)


def _is_image(source: Any) -> bool:
    """Whether it is one image and not several."""
    if isinstance(source, Image.Image | bytes):
        return True
    is_array = isinstance(source, np.ndarray) or hasattr(source, "detach")  # a tensor
    if not is_array or source.ndim not in (2, 3):
        return False
    return getattr(source.dtype, "kind", "f") in "uif"


def blocks(source: Iterable[Any], name: str = "") -> Iterator[list[Item]]:
    """Yield items in blocks of bounded size; ids are numbers in their order, behind `name`."""
    prefix = name or str(getattr(source, "split", None) or "image")
    block: list[Item] = []
    size = 0
    for number, (image, labels) in enumerate(samples(source)):
        id_ = f"{prefix}/{number:07d}"
        if isinstance(image, str | Path):
            block.append(Item(id_, Path(image), labels))
        else:
            if isinstance(image, ImageBytes):
                content = image.content
            else:
                content = bmp_bytes(open_image(image))
            block.append(Item(id_, ImageBytes(id_, content), labels))
            size += len(content)
        if size >= BLOCK_BYTES or len(block) == BLOCK_IMAGES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _hugging_face(source: Any) -> Iterator[tuple[ImageLike, Labels]]:
    kinds = source.features or {}
    images = [name for name, kind in kinds.items() if type(kind).__name__ == "Image"]
    if len(images) != 1:
        listed = ", ".join(images or kinds) or "no known columns"
        raise DatasetError(
            f"a data set must have one column of the type Image, got {listed}; choose it with "
            "select_columns, or make it one with cast_column"
        )
    (image_column,) = images
    label_column = _label_column(kinds)
    names: tuple[str, ...] = ()
    if label_column is not None:
        kind = kinds[label_column]
        element = getattr(kind, "feature", kind)  # of a list
        names = tuple(getattr(element, "names", None) or ())
    # bytes as they are in the files: decoded by us, and identified by their content
    undecoded = type(kinds[image_column])(decode=False)
    for row in source.with_format(None).cast_column(image_column, undecoded):
        cell = row[image_column]
        labels = None
        if label_column is not None:
            labels = _labels(row[label_column], names, several=True)
        if cell["bytes"] is None:
            yield Path(cell["path"]), labels
        else:
            yield ImageBytes("image", cell["bytes"]), labels


def _label_column(kinds: Mapping[str, Any]) -> str | None:
    """Return the column of labels among those of a data set, by its name or else by its type."""
    for name in LABEL_KEYS:
        if name in kinds:
            return name
    for name, kind in kinds.items():
        if type(kind).__name__ == "ClassLabel":
            return name
    return None


def _parts(sample: Any) -> tuple[Any, Any]:
    """Return image and label of a sample; None if it has no label."""
    if isinstance(sample, Mapping):
        image = next((key for key in IMAGE_KEYS if key in sample), None)
        label = next((key for key in LABEL_KEYS if key in sample), None)
        if image is None:
            raise DatasetError(
                f"a sample must have an image, got {', '.join(map(str, sample))}"
            )
        if label is None:
            return sample[image], None
        return sample[image], sample[label]
    if not isinstance(sample, tuple | list):
        return sample, None
    if len(sample) == 1:
        return sample[0], None
    if len(sample) != 2:
        raise DatasetError(f"a sample must be (image, label), got {len(sample)} values")
    return sample[0], sample[1]


def _picture(image: Any) -> ImageLike:
    """Return an image of a sample as we read it; refuse anything else."""
    if isinstance(image, bytes):
        return ImageBytes("image", image)
    if not hasattr(image, "detach"):
        is_usual = isinstance(image, str | Path | Image.Image | np.ndarray)
        if is_usual or hasattr(image, "open"):
            return cast("ImageLike", image)
        raise ImageError(
            "an image must be a path, a PIL image, an array, a tensor or bytes, got "
            f"{type(image).__name__}"
        )
    if image.is_floating_point():
        image = image.float()  # numpy has no bfloat16
    pixels = as_bytes(image.detach().cpu().numpy())  # a tensor (C, H, W)
    if pixels is None or pixels.ndim not in (2, 3):
        raise ImageError(
            "a tensor must be an image (C, H, W) of uint8, of floats from 0 to 1, or of floats "
            f"from 0 to 255, got {image.dtype} of shape {tuple(image.shape)}; leave out Normalize "
            "and batches, the network has its own preprocessing"
        )
    if pixels.ndim == 2:
        return pixels
    return np.ascontiguousarray(pixels.transpose(1, 2, 0))


def _labels(value: Any, names: Sequence[str], several: bool = False) -> Labels:
    """Return the names of the classes in a label; None if it has none."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None:
        return None
    values = [value]
    if several and isinstance(value, list | tuple):
        values = list(value)
    labels = []
    for label in values:
        if isinstance(label, bool) or not isinstance(label, str | int):
            raise DatasetError(
                f"a label must be a class or its number, got {str(label)[:60]}"
            )
        if names and isinstance(label, int):
            if not -1 <= label < len(names):
                raise DatasetError(
                    f"a label must be one of {len(names)} classes, got number {label}"
                )
            if label >= 0:  # -1 means no label
                labels.append(names[label])
        else:
            labels.append(str(label))
    if values and not labels:
        return None
    return tuple(labels)
