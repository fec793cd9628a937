"""Stage 1, images: which files are pictures, by name and by content.

Comes in: a file's name, or its bytes. Goes out: whether it can be read, and Pillow's image of it,
not yet decoded. Pillow knows more formats; to read some, such as EPS, it starts other programs.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from functools import cache
from typing import IO

from PIL import Image, ImageFile, features

from deepfishing.errors import pip_install

HEIC = (".heic", ".heif", ".hif")  # what telephones write; read by the extra `heic`
HAS_AVIF = features.check("avif")
HAS_HEIC = importlib.util.find_spec("pillow_heif") is not None

# Pillow's name of a format -> how its files end
_READ: Mapping[str, tuple[str, ...]] = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    **({"AVIF": (".avif",)} if HAS_AVIF else {}),
    **({"HEIF": HEIC} if HAS_HEIC else {}),
}
FORMATS = tuple(_READ)
FORMAT_NAMES = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
EXTENSIONS = frozenset(ending for endings in _READ.values() for ending in endings)

SHOWN = 5  # endings of files that were passed over


def open_picture(file: IO[bytes]) -> ImageFile.ImageFile:
    """Read a picture's header; its pixels are decoded by `load`."""
    learn_heic()
    return Image.open(file, formats=FORMATS)


def bmp_bytes(picture: Image.Image) -> bytes:
    """A picture as the bytes of a file that has the same pixels, and the same bytes every time."""
    content = io.BytesIO()
    picture.save(content, "BMP")
    return content.getvalue()


@cache
def learn_heic() -> None:
    """Teach Pillow to read HEIC, if the extra is installed; once."""
    if HAS_HEIC:
        import pillow_heif  # takes a while to load

        pillow_heif.register_heif_opener()


def must_be(name: str) -> str:
    """What a file that is no picture should have been, or how to read what its name says it is."""
    if name.lower().endswith(HEIC) and not HAS_HEIC:
        return f"to read HEIC run `{pip_install(extra='heic')}`"
    return f"it must be a {FORMAT_NAMES} file"


def passed_over_text(counts: Mapping[str, int]) -> str:
    """Files that are no pictures, by how they end; and how to read them, if there is a way.

    >>> passed_over_text({".txt": 1, "": 2, ".csv": 12})
    '12 .csv, 2 without an ending, 1 .txt'
    >>> passed_over_text({f".{letter}": 1 for letter in "abcdefgh"})
    '1 .a, 1 .b, 1 .c, 1 .d, 1 .e and 3 others'
    """
    order = sorted(counts, key=lambda ending: (ending not in HEIC, -counts[ending], ending))
    told = []
    for ending in order[:SHOWN]:
        hint = f" (to read them: {pip_install(extra='heic')})" if ending in HEIC else ""
        told.append(f"{counts[ending]:,} {ending or 'without an ending'}{hint}")
    rest = sum(counts[ending] for ending in order[SHOWN:])
    return ", ".join(told) + (f" and {rest:,} others" if rest else "")
