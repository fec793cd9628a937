"""Stage 2, networks: the numbers of a Caffe blob as an array.

Comes in: a `BlobProto` message. Goes out: a read-only array that still lies in the mapped file,
with the shape that the file declares, which is believed only if exactly that many numbers follow.
Also reads a mean image, of which the mean pixel is kept.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.errors import OptionError, WeightsError
from deepfishing.networks.caffe.schema import Message
from deepfishing.networks.caffe.wire import read_binary

MOST_NUMBERS = 2**31 - 1

Array = np.ndarray[Any, Any]


def blob_array(blob: Message) -> Array:
    """View a blob as an array of float32, or of float64 where the file has that.

    Examples
    --------
    >>> numbers = np.arange(6, dtype="<f4").tobytes()
    >>> shape = Message("a.caffemodel, byte 0", {"dim": [2, 3]})
    >>> blob = Message("a.caffemodel, byte 0", {"data": [numbers], "shape": [shape]})
    >>> blob_array(blob)
    array([[0., 1., 2.],
           [3., 4., 5.]], dtype=float32)
    """
    name, dtype = ("double_data", "<f8") if blob.many("double_data") else ("data", "<f4")
    chunks = blob.many(name)
    # one chunk is what Caffe writes; unpacked numbers come one per chunk
    values = np.frombuffer(chunks[0] if len(chunks) == 1 else b"".join(chunks), dtype)
    shape = _shape(blob, values.size)
    if math.prod(max(size, 1) for size in shape) > MOST_NUMBERS:  # an empty one may claim any
        raise WeightsError(
            f"{blob.where}: a blob must have at most {MOST_NUMBERS:,} numbers, as in Caffe, got "
            f"shape {shape}; get the file again"
        )
    if any(size < 0 for size in shape) or math.prod(shape) != values.size:
        raise WeightsError(
            f"{blob.where}: a blob of shape {shape} must hold {math.prod(shape):,} numbers, "
            f"got {values.size:,}; get the file again"
        )
    return values.reshape(shape)


def _shape(blob: Message, count: int) -> tuple[int, ...]:
    if blob.many("shape"):
        shape = tuple(blob.child("shape").many("dim"))
        if len(shape) > 32:  # Caffe's limit
            raise WeightsError(f"{blob.where}: a blob must have at most 32 axes, got {len(shape)}")
        return shape
    old = ("num", "channels", "height", "width")  # the first generation's four axes
    return tuple(blob.one(name, 0) for name in old) if any(map(blob.many, old)) else (count,)


def given_mean(mean: str | Path) -> tuple[float, float, float]:
    """The mean pixel that a user gives: three numbers, blue, green, red, or the file of an image.

    Examples
    --------
    >>> given_mean("104, 117,123")
    (104.0, 117.0, 123.0)
    """
    if not is_mean_pixel(mean):
        return mean_pixel(Path(mean))
    pixel = [float(number) for number in str(mean).split(",")]
    if len(pixel) != 3 or not all(map(math.isfinite, pixel)):
        raise OptionError(
            "a mean must be three finite numbers, blue,green,red, or a .binaryproto file, got "
            f"{str(mean)!r}"
        )
    return pixel[0], pixel[1], pixel[2]


def is_mean_pixel(mean: str | Path) -> bool:
    """Whether a user gave numbers, not the name of a file."""
    try:
        return bool([float(number) for number in str(mean).split(",")])
    except ValueError:
        return False


def mean_pixel(path: Path) -> tuple[float, float, float]:
    """Read a mean image (`.binaryproto`) and average it over its pixels: blue, green, red.

    Caffe's own tools subtract the image; the pixel is what its users subtract when the crop is
    not the training one, and differs by a few grey levels at the borders.
    """
    mean = blob_array(read_binary(path, "BlobProto"))
    image = mean[0] if mean.ndim == 4 and len(mean) == 1 else mean
    if image.ndim not in (1, 3) or len(image) != 3 or image.size == 0:
        raise WeightsError(
            f"{path} must hold a mean image of 3 channels, got a blob of shape {mean.shape}"
        )
    with np.errstate(all="ignore"):
        blue, green, red = image.reshape(3, -1).mean(axis=1, dtype=np.float64).tolist()
    if not all(map(math.isfinite, (blue, green, red))):
        raise WeightsError(f"{path} must hold finite numbers, got NaN or infinity")
    return blue, green, red
