"""HTML for notebooks: pictures side by side, and tables.

Pictures are small, square and part of the HTML; a missing or unreadable one is a grey square.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape

from PIL import Image

from deepfishing.errors import ImageError
from deepfishing.images.preprocess import ImageLike, open_image, resize_and_crop

SIDE = 96  # pixels: sharp on screens with two dots per pixel
QUALITY = 72


def square_uri(image: ImageLike, side: int = SIDE) -> str:
    """The central square of an image as a data URI; an `ImageError` if it cannot be read."""
    square = resize_and_crop(open_image(image, draft=2 * side), side, side, "bilinear")
    return data_uri(square, "JPEG")


def data_uri(picture: Image.Image, kind: str) -> str:
    """Return a picture as the data URL of a JPEG or PNG."""
    file = io.BytesIO()
    picture.save(file, kind, quality=QUALITY, optimize=True)
    text = base64.b64encode(file.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{text}"


def pictures_html(title: str, pictures: Iterable[tuple[ImageLike | None, str]]) -> str:
    """Pictures with a caption each, below a title."""
    tiles = []
    for image, caption in pictures:
        tile = '<div style="width:96px;height:96px;background:#ccc"></div>'
        if image is not None:
            try:
                tile = f'<img src="{square_uri(image)}" width="96" height="96">'
            except ImageError as error:
                tile = tile.replace("<div", f'<div title="{escape(str(error))}"')
        tiles.append(
            f'<div style="display:inline-block;width:96px;margin:0 6px 6px 0;font-size:11px;'
            f'vertical-align:top;overflow-wrap:anywhere">{tile}{escape(caption)}</div>'
        )
    return f"<div><div>{escape(title)}</div>{''.join(tiles)}</div>"


def table_html(
    title: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    shade: Sequence[Sequence[float]] = (),
) -> str:
    """Cells below a head, the first column to the left; `shade` colours cells, 0 to 1."""
    lines = []
    for number, row in enumerate(rows):
        tints: Sequence[float] = [0.0] * len(row)
        if shade:
            tints = shade[number]
        cells = []
        align = "left"
        for cell, tint in zip(row, tints, strict=True):
            cells.append(
                f'<td style="white-space:nowrap;text-align:{align};'
                f'background:rgba(31,119,180,{tint:.2f})">{escape(cell)}</td>'
            )
            align = "right"
        lines.append(f"<tr>{''.join(cells)}</tr>")
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return (
        f'<div>{escape(title)}<table class="dataframe"><thead><tr>{names}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
