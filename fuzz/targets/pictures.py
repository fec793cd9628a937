"""Target: image files, in the formats that photos come in.

The limit of pixels is lowered, so that an image that claims to be huge is refused at once.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from deepfishing.images import preprocess
from deepfishing.images.item import ImageBytes
from deepfishing.images.preprocess import FORMATS, register_heic
from deepfishing.web.photos import check_photo
from fuzz.formats import mutate_png
from fuzz.rule import obey
from fuzz.target import Run, Target

_PIXELS = 1_000_000
_EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
)


def _image(folder: Path) -> Run:
    preprocess.MAX_PIXELS = _PIXELS
    see = preprocess.Preprocess(size=8, short_side=8, mean=(0.0,) * 3, std=(1.0,) * 3)

    def run(data: bytes) -> None:
        obey(lambda: see(ImageBytes("a.jpg", data)))
        obey(lambda: check_photo(data))

    return run


def _photos() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    photo = Image.fromarray(pixels)
    register_heic()
    exif = Image.Exif()
    exif[0x0112] = 6
    wide = Image.fromarray(np.arange(108, dtype=np.uint16).reshape(9, 12) * 600)
    real = Image.fromarray(np.linspace(-1, 1, 108, dtype=np.float32).reshape(9, 12))
    saved: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (photo, "JPEG", {"exif": exif}),
        (photo.resize((40, 30)), "JPEG", {"progressive": True, "quality": 50}),
        (photo.convert("CMYK"), "JPEG", {}),
        (photo, "PNG", {"exif": exif}),
        (photo.convert("P"), "PNG", {"transparency": 3}),
        (photo.convert("LA"), "PNG", {}),
        (photo.convert("1"), "PNG", {}),
        (wide, "PNG", {}),
        (
            photo.convert("P"),
            "GIF",
            {"save_all": True, "append_images": [photo.convert("P")]},
        ),
        (photo, "BMP", {}),
        (photo.convert("P"), "BMP", {}),
        (photo, "TIFF", {"compression": "tiff_lzw"}),
        (photo, "TIFF", {"compression": "jpeg"}),
        (photo.convert("CMYK"), "TIFF", {}),
        (real, "TIFF", {}),
        (photo, "WEBP", {"exif": exif}),
        (photo.convert("RGBA"), "WEBP", {"lossless": True}),
        *(
            (photo.resize((64, 48)), kind, {})
            for kind in FORMATS
            if kind in ("AVIF", "HEIF")
        ),
        (photo, "PPM", {}),
        (photo, "ICO", {}),
        (photo, "TGA", {}),
        (photo, "JPEG2000", {}),
    ]
    return [_bytes(image, kind, options) for image, kind, options in saved] + [_EPS]


def _bytes(image: Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


TARGETS = {
    "image": Target(
        "image files, to the pixels of a network",
        _image,
        _photos,
        tokens=(
            b"\xff\xd8",
            b"\xff\xc0",
            b"\xff\xe1",
            b"Exif\0\0",
            b"II*\0",
            b"MM\0*",
            b"GIF89a",
        ),
        mutate=mutate_png,
    )
}
