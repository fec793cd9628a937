"""Preprocessing: from an image to the float32 array (3, size, size) that a network expects.

As in the paper, the short side is resized, then the central square is cropped. Each kind of unusual
image has one documented rule (`open_image`). Pillow has more formats than are read here; for
some, such as EPS, it would start other programs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError, features

from deepfishing.core.rank_one import Array
from deepfishing.errors import (
    ImageError,
    MissingDependencyError,
    check_choice,
    one_line,
)
from deepfishing.images.geometry import Fit
from deepfishing.images.item import Item
from deepfishing.util.files import check_regular
from deepfishing.util.progress import Progress, silent

HEIC = (".heic", ".heif", ".hif")  # the format of most telephones
HAS_AVIF = features.check("avif")

# Pillow's name of a format -> how its files end
_READ: Mapping[str, tuple[str, ...]] = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    **({"AVIF": (".avif",)} if HAS_AVIF else {}),
    "HEIF": HEIC,
}
FORMATS = tuple(_READ)
FORMAT_NAMES = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
EXTENSIONS = frozenset(ending for endings in _READ.values() for ending in endings)

MAX_ENDINGS = 5  # that `passed_over_text` lists


class Openable(Protocol):
    """An image file that is not a path, such as a member of a tar; `str` names it in errors."""

    def open(self, mode: str) -> IO[bytes]:
        """Return the bytes; called as `open("rb")` when the image is decoded."""


ImageLike = str | Path | Image.Image | Array | Openable

# Above this an image is refused instead of filling the memory: Pillow's own limit, as RGB 0.5 GB.
MAX_PIXELS = 178_956_970


@dataclass(frozen=True)
class View:
    """One square that the network sees."""

    # of the short side, which for the central square is 1; at least 1
    scale: float = 1.0
    x: float = 0.5  # position of the square: 0 at the left edge, 1 at the right
    y: float = 0.5  # 0 at the upper edge, 1 at the lower
    mirrored: bool = False  # left and right exchanged, after the square was cut out


def _with_mirror_images(*views: View) -> tuple[View, ...]:
    """Return each view, followed by its mirror image."""
    pairs = []
    for view in views:
        pairs += [view, replace(view, mirrored=True)]
    return tuple(pairs)


# The paper takes the central square; others are its mirror image, three scales, and four corners.
# Scales in steps of a quarter: at 1.5 the square still shows two thirds of the short side. Corners
# at 1.15, near the usual 256 pixels for squares of 224: each shows 87 % of the short side.
_CENTRE_AND_CORNERS = ((0.5, 0.5), (0, 0), (1, 0), (0, 1), (1, 1))
VIEWS: Mapping[str, tuple[View, ...]] = {
    "centre": (View(),),
    "flip": _with_mirror_images(View()),
    "scales": _with_mirror_images(View(1.0), View(1.25), View(1.5)),
    "crops": _with_mirror_images(*(View(1.15, x, y) for x, y in _CENTRE_AND_CORNERS)),
}


def find_views(name: str) -> tuple[View, ...]:
    """Return the views of a name, whose descriptors are averaged."""
    check_choice("views", name, VIEWS)
    return VIEWS[name]


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of a network: out = (value * scale - mean) / std, channels in `order`.

    Parameters
    ----------
    size, short_side : int
        Side of the square that the network sees; the short side of the image is resized to the
        latter before the central crop. The paper takes the same for both.
    mean, std : tuple of 3 floats
        In the order of `order`, after `scale`.
    scale, order
        1 keeps 0..255, 1/255 gives 0..1; "RGB", or "BGR", which Caffe's networks were trained on.
    resample : "bilinear", "bicubic", "nearest", "lanczos", "box" or "hamming"
        Pillow's filter (antialiased).
    oversampling : int
        A JPEG file is decoded at an eighth, a quarter or half its size where its short side then
        still is this many times `short_side`. 0: always in full, as a PIL image or an array is.
        With 4, the features of a photo of 12 megapixels differ by about 0.001 (1 - cosine) from
        those of a full decoding, which takes more than twice as long.
    fit, rounding, fill
        How the image is brought into the square, and whose rounding is used, see `Fit`; by default
        the paper's: the short side is resized, then the central square is cropped.

    Examples
    --------
    >>> grey = Image.new("RGB", (400, 300), (127, 127, 127))
    >>> out = Preprocess(size=224, short_side=224, mean=(127.0,) * 3, std=(128.0,) * 3)(grey)
    >>> out.shape, float(abs(out).max())
    ((3, 224, 224), 0.0)
    """

    size: int
    short_side: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    scale: float = 1.0
    order: str = "RGB"
    resample: str = "bilinear"
    oversampling: int = 4
    fit: str = "short"
    rounding: str = "nearest"
    fill: tuple[int, int, int] = (0, 0, 0)

    def __call__(self, image: ImageLike) -> Array:
        """Read, resize, crop to the central square and normalise one image."""
        centre: Array = self.see(image, [View()])[0]
        return centre

    def see(self, image: ImageLike, views: Sequence[View]) -> Array:
        """Return several views of one image (V, 3, size, size); it is decoded once."""
        short_sides = [round(view.scale * self.short_side) for view in views]
        rgb = open_image(image, draft=self.oversampling * max(short_sides))
        squares: dict[tuple[int, float, float], Array] = {}
        result: Array = np.empty((len(views), 3, self.size, self.size), np.float32)
        for out, view, short_side in zip(result, views, short_sides, strict=True):
            # a view and its mirror image are one square
            key = (short_side, view.x, view.y)
            if key not in squares:
                squares[key] = self.normalise(self.square(rgb, *key))
            pixels = squares[key]
            if view.mirrored:
                pixels = pixels[:, :, ::-1]
            out[:] = pixels
        return result

    def square(self, image: Image.Image, side: int, x: float, y: float) -> Image.Image:
        """Resize an image and cut out the square at x, y."""
        if (self.fit, self.rounding) == ("short", "nearest"):
            return resize_and_crop(image, side, self.size, self.resample, x, y)
        fit = Fit(self.fit, self.rounding, self.fill)
        return fit.square(image, side, self.size, self.resample, x, y)

    def normalise(self, square: Image.Image) -> Array:
        """Return pixels (3, size, size); each of the 256 values is computed once."""
        mean = np.asarray(self.mean, dtype=np.float32)
        std = np.asarray(self.std, dtype=np.float32)
        numbers = np.arange(256, dtype=np.float32)[:, None]
        values = (numbers * np.float32(self.scale) - mean) / std
        pixels = np.asarray(square)
        if self.order == "BGR":
            pixels = pixels[:, :, ::-1]
        out = np.empty((3, self.size, self.size), np.float32)
        for channel in range(3):
            values[:, channel].take(
                pixels[:, :, channel], out=out[channel], mode="clip"
            )
        return out


def resize_and_crop(
    image: Image.Image,
    short_side: int,
    size: int,
    resample: str,
    x: float = 0.5,
    y: float = 0.5,
) -> Image.Image:
    """Resize the short side to `short_side`, then crop the square of `size` pixels at x, y.

    Only what the crop shows is resampled (Pillow's `box`), so a panorama costs no more than a
    square; the pixels are those of resizing first and cropping at whole pixels then.
    """
    width, height = image.size
    scale = short_side / min(width, height)
    wide, high = max(size, round(width * scale)), max(size, round(height * scale))
    left, top = int((wide - size) * x), int((high - size) * y)
    step_x, step_y = width / wide, height / high
    box = (left * step_x, top * step_y, (left + size) * step_x, (top + size) * step_y)
    return image.resize((size, size), Image.Resampling[resample.upper()], box)


def open_picture(file: IO[bytes]) -> ImageFile.ImageFile:
    """Read a picture's header; its pixels are decoded by `load`."""
    register_heic()
    return Image.open(file, formats=FORMATS)


@cache
def register_heic() -> None:
    """Register the reader of HEIC with Pillow, once."""
    import pillow_heif  # takes a while to load

    pillow_heif.register_heif_opener()


def passed_over_text(counts: Mapping[str, int]) -> str:
    """Describe files that are no pictures by their endings, the most frequent first."""
    order = sorted(counts, key=lambda ending: (-counts[ending], ending))
    parts = []
    for ending in order[:MAX_ENDINGS]:
        parts.append(f"{counts[ending]:,} {ending or 'without an ending'}")
    text = ", ".join(parts)
    rest = sum(counts[ending] for ending in order[MAX_ENDINGS:])
    if rest:
        text += f" and {rest:,} others"
    return text


def open_image(image: ImageLike, draft: int = 0) -> Image.Image:
    """Open anything that shows a picture as 8-bit RGB.

    Rules: EXIF rotation is applied; grey, palette, CMYK and others are converted by Pillow;
    transparency is laid over white; 16-bit and float grey is scaled linearly from its full
    range (0..65535 for integers, minimum to maximum for floats); of an animation the first
    frame is taken. A truncated file is an error, never half a picture. A large JPEG may be decoded
    at a reduced size whose short side is still at least `draft`.
    """
    if isinstance(image, np.ndarray):
        return _to_rgb(_from_array(image), "array")
    if isinstance(image, Image.Image):
        # a copy: whoever shrinks the result in place must not shrink the caller's image
        return _to_rgb(image.copy(), getattr(image, "filename", "") or "PIL image")
    path = Path(image) if isinstance(image, str) else image
    name = str(path)
    try:
        if isinstance(path, Path):
            check_regular(path, links=True)
        with path.open("rb") as file, open_picture(file) as opened:
            width, height = opened.size
            if width * height > MAX_PIXELS:
                raise ImageError(
                    f"image must have at most {MAX_PIXELS:,} pixels, got {width}x{height} "
                    f"in {name}; make it smaller first"
                )
            if draft and opened.format == "JPEG":
                shrink = draft / min(width, height)
                opened.draft("RGB", (int(width * shrink) + 1, int(height * shrink) + 1))
            opened.load()
            return _to_rgb(opened, name)
    except (ImageError, MissingDependencyError):
        raise
    except FileNotFoundError:
        raise ImageError(f"image not found: {name}") from None
    except UnidentifiedImageError:
        raise ImageError(
            f"not an image that Pillow can read: {name}; it must be a {FORMAT_NAMES} file"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError(
            f"image has too many pixels: {name}; make it smaller first"
        ) from None
    except Exception as error:  # damaged bytes make the readers raise almost anything
        raise ImageError(
            f"image cannot be decoded: {name} ({one_line(error)})"
        ) from None


def as_bytes(pixels: Array) -> Array | None:
    """Return pixels as uint8: of uint8, of floats from 0 to 1, or of floats from 0 to 255.

    Others give None, such as pixels of which a mean is subtracted already.

    >>> as_bytes(np.array([0.0, 0.5, 1.0])), as_bytes(np.array([0.0, 255.0])), as_bytes(-np.ones(2))
    (array([  0, 128, 255], dtype=uint8), array([  0, 255], dtype=uint8), None)
    """
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind != "f" or pixels.size == 0:
        return None
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 255):  # NaN is neither
        return None
    scale = 255.0 if high <= 1 else 1.0
    return (pixels.astype(np.float64) * scale).round().astype(np.uint8)


def _from_array(array: Array) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    pixels = as_bytes(array)
    if not is_image or pixels is None or pixels.size == 0:
        raise ImageError(
            "an image array must be (H, W), (H, W, 3) or (H, W, 4), of uint8, of floats from 0 to "
            f"1, or of floats from 0 to 255, got {array.dtype} of shape {array.shape}"
            f"{_range_text(array)}; convert it first"
        )
    return Image.fromarray(pixels)


def _range_text(array: Array) -> str:
    if array.size == 0 or array.dtype.kind not in "iuf":
        return ""
    return f" from {array.min():g} to {array.max():g}"


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    with contextlib.suppress(Exception):
        # pixels can be read even if EXIF cannot
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            # else it would be copied
            image = ImageOps.exif_transpose(image)
    if image.mode == "RGB":
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _scaled_grey(image, name)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _scaled_grey(image: Image.Image, name: str) -> Image.Image:
    values = np.asarray(image)
    low, high = 0.0, 65535.0
    if image.mode == "F":
        if not np.isfinite(values).all():
            raise ImageError(
                f"a float image must be finite, got NaN or infinity in {name}"
            )
        low, high = float(values.min()), float(values.max())
    grey = np.empty(values.shape, np.uint8)
    # a part at a time: the whole in float64 would take 36 bytes per pixel
    for some, out in zip(_parts(values), _parts(grey), strict=True):
        scaled = (some.astype(np.float64) - low) / max(high - low, 1e-12) * 255.0
        out[:] = scaled.round().clip(0, 255)
    return Image.fromarray(grey).convert("RGB")


def _parts(values: Array, size: int = 1 << 20) -> list[Array]:
    return np.split(values.reshape(-1), range(size, values.size, size))


def unreadable(items: Sequence[Item], progress: Progress = silent) -> dict[str, str]:
    """Return id and reason of each image that cannot be decoded at the smallest size."""
    failures = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        reasons = pool.map(_reason, items)
        for done, (item, reason) in enumerate(zip(items, reasons, strict=True), 1):
            if reason:
                failures[item.id] = reason
            progress("checking", done, len(items))
    return failures


def refuse_unreadable(failures: Mapping[str, str], images: int) -> None:
    """Raise an error of one line if some of the images cannot be used."""
    if failures:
        raise ImageError(
            f"{len(failures)} of {images} images cannot be used, the first: "
            f"{next(iter(failures.values()))}; mend or remove them, or run without --strict, which "
            "lists them all and leaves them out"
        )


def _reason(item: Item) -> str:
    """Return why an image cannot be decoded, or ''."""
    try:
        open_image(item, draft=1)
    except ImageError as error:
        return str(error)
    return ""
