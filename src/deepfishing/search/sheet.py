"""Stage 7, search: hits as one picture, the query first.

Comes in: the query's images and the hits with their files (`Searcher.photo`). Goes out: a contact
sheet. Pillow alone draws it; an image that is gone or cannot be read is a grey tile.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from deepfishing.errors import ImageError, OptionError
from deepfishing.images.item import ImageBytes
from deepfishing.images.preprocess import ImageLike, open_image
from deepfishing.search.hits import Hit
from deepfishing.search.searcher import Example, Searcher

TILE, GAP, TEXT = 200, 8, 18  # pixels: a picture, between them, a line of a caption
COLUMNS = 5
PAPER, INK, GREY = (255, 255, 255), (30, 30, 30), (200, 200, 200)

Tile = tuple[ImageLike | None, str, str]  # a picture and two lines below it


def contact_sheet(tiles: Sequence[Tile]) -> Image.Image:
    """Pictures in rows.

    >>> contact_sheet([(Image.new("RGB", (9, 9)), "query", ""), (None, "0.500", "dog")]).size
    (424, 260)
    """
    columns = min(COLUMNS, len(tiles))
    rows = math.ceil(len(tiles) / max(columns, 1))
    wide, high = TILE + GAP, TILE + 2 * TEXT + 2 * GAP
    sheet = Image.new("RGB", (columns * wide + GAP, rows * high + GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for number, (image, *lines) in enumerate(tiles):
        left, top = number % columns * wide + GAP, number // columns * high + GAP
        tile = _tile(image)
        sheet.paste(tile, (left + (TILE - tile.width) // 2, top + (TILE - tile.height) // 2))
        for line, text in enumerate(lines):
            draw.text((left, top + TILE + line * TEXT + 2), _fitting(text, font), INK, font)
    return sheet


def picture_of(searcher: Searcher, example: Example) -> ImageLike | None:
    """What to draw for an example or a hit; None for an image of the store that is gone."""
    if isinstance(example, bytes):
        return ImageBytes("standard input", example)
    name = str(example)
    if searcher.collection.row_of(name) is None:
        return Path(name)
    photo = searcher.photo(name)
    return None if photo is None else ImageBytes(name, photo)


def save_sheet(
    path: Path,
    queries: Sequence[ImageLike | None],
    hits: Sequence[tuple[Hit, ImageLike | None]],
) -> None:
    """The query's images and then the hits, each with its score and its labels or its name."""
    first: list[Tile] = [(image, "query", "") for image in queries]
    save_tiles(path, [*first, *((image, f"{hit.score:.3f}", hit.caption) for hit, image in hits)])


def save_tiles(path: Path, tiles: Sequence[Tile]) -> None:
    """Write a contact sheet; the name's ending says which kind of file."""
    try:
        contact_sheet(tiles).save(path)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"a contact sheet must be a file that can be written, such as hits.png, got {path} "
            f"({error})"
        ) from None


def _tile(image: ImageLike | None) -> Image.Image:
    picture = Image.new("RGB", (TILE, TILE), GREY)
    if image is not None:
        with contextlib.suppress(ImageError):
            picture = open_image(image, draft=TILE)
            picture.thumbnail((TILE, TILE))
    return picture


def _fitting(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """As much of a line as a tile is wide."""
    while text and font.getlength(text) > TILE:
        text = text[:-2].rstrip("…") + "…" if len(text) > 2 else ""
    return text
