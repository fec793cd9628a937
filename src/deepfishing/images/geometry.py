"""Resizing and cropping to the square that a network sees, with each library's own arithmetic.

Libraries differ in how they round sizes and offsets, by a pixel, which changes every pixel of a
photo. `Fit` names how an image is brought into the square, and whose rounding is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import Image

FITS = ("short", "squash", "border")
ROUNDINGS = ("nearest", "torchvision", "transformers")
RESAMPLES = ("bilinear", "bicubic", "nearest", "lanczos", "box", "hamming")


@dataclass(frozen=True)
class Fit:
    """Method of resizing and cropping.

    Parameters
    ----------
    kind : "short", "squash" or "border"
        Resize the short side and keep the aspect ratio; resize both sides; or resize the long side
        and fill what is left with a colour.
    rounding : "nearest", "torchvision" or "transformers"
        Whose rounding of sizes and offsets; timm and open_clip use torchvision's.
    fill : tuple of 3 ints
        Colour of borders, RGB.

    Examples
    --------
    >>> Fit("short", "torchvision").resized_size(500, 333, 256)
    (384, 256)
    >>> Fit("border", "torchvision").resized_size(500, 333, 256)
    (256, 170)
    """

    kind: str = "short"
    rounding: str = "nearest"
    fill: tuple[int, int, int] = (0, 0, 0)

    def square(
        self,
        image: Image.Image,
        side: int,
        size: int,
        resample: str,
        x: float,
        y: float,
    ) -> Image.Image:
        """Resize to `side`, then cut out the square of `size` pixels at x, y from 0 to 1."""
        wide, high = self.resized_size(*image.size, side)
        resized = image
        if image.size != (wide, high):
            resized = image.resize((wide, high), Image.Resampling[resample.upper()])
        left, top = self.offset(wide, size, x), self.offset(high, size, y)
        if left >= 0 and top >= 0:
            return resized.crop((left, top, left + size, top + size))
        square = Image.new("RGB", (size, size), self.fill)
        square.paste(resized, (-left, -top))
        return square

    def resized_size(self, width: int, height: int, side: int) -> tuple[int, int]:
        """Return width and height after resizing."""
        if self.kind == "squash":
            return side, side
        if self.kind == "border":
            ratio = max(width, height) / side
            return round(width / ratio), round(height / ratio)
        long = int(side * max(width, height) / min(width, height))
        if width <= height:
            return side, long
        return long, side

    def offset(self, length: int, size: int, position: float) -> int:
        """Return where a square of `size` begins; negative where it is larger than the image."""
        spare = length - size
        if spare < 0:
            missing = -spare / 2
            if self.rounding == "transformers":
                return -math.ceil(missing)
            return -math.floor(missing)
        if position != 0.5:
            return int(spare * position)
        if self.rounding == "transformers":
            return spare // 2
        return round(spare / 2)
