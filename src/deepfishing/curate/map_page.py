"""Stage 8, curate: the map of a collection as one HTML file, without scripts or other files.

Comes in: a map and the photos that it is of. Goes out: the page: dots as one picture, and on it the
typical photo of each cluster with its name; below, the clusters as a list.
"""

from __future__ import annotations

import colorsys
import contextlib
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image, ImageDraw

from deepfishing.curate.maps import Map
from deepfishing.errors import ImageError
from deepfishing.files import replacing
from deepfishing.images.item import Held
from deepfishing.images.show import data_uri, square_uri
from deepfishing.rank_one import Array
from deepfishing.search import Searcher

WIDE, HIGH = 1600, 1200  # pixels of the dots' picture
SIDE = 144  # of a photo: sharp on screens with two dots per pixel
ROOM = np.array([0.12, 0.15])  # that a photo and its name take of the map
MARGIN = 0.05  # around the dots, as the style has it


def write_map(path: Path, found: Map, photos: Searcher) -> int:
    """Write the page; how many of the typical photos are not where they were."""
    clusters, gone = [], 0
    at = _apart(np.array([[one.x, one.y] for one in found.clusters]))
    for number, one in enumerate(found.clusters):
        picture = photos.collection[int(photos.collection.rows_of(one.typical)[0])]
        content, photo = photos.photo(picture.id), ""
        with contextlib.suppress(ImageError):
            photo = square_uri(Held(picture.id, content), SIDE) if content else ""
        gone += not photo
        left, top = (100 * (MARGIN + (1 - 2 * MARGIN) * at[number])).round(2).tolist()
        clusters.append(
            {
                "name": one.name,
                "count": f"{one.photos:,} photo{'s' * (one.photos != 1)}",
                "left": left,
                "top": top,
                "colour": "#{:02x}{:02x}{:02x}".format(*_colour(number)),
                "photo": photo,
                "typical": picture.id,
            }
        )
    loader = FileSystemLoader(Path(__file__).parent)
    page = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    text = page.get_template("map.html.j2").render(
        title=photos.store.folder.name,
        photos=f"{len(found.places):,} photos",
        recipe=photos.recipe.title,
        dots=data_uri(_dots(found), "PNG"),
        clusters=clusters,
    )
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return gone


def _apart(places: Array) -> Array:
    """Places moved until photos and names do not cover each other, if there is room."""
    places = places.copy()
    for _ in range(200):
        gap = places[:, None] - places[None]
        near = np.maximum(1 - np.abs(gap) / ROOM, 0).prod(axis=2)
        np.fill_diagonal(near, 0)
        if near.max(initial=0) == 0:
            break
        away = np.where(gap == 0, 1e-3, np.sign(gap)) * ROOM * near[..., None]
        places = np.clip(places + 0.25 * away.sum(axis=1), 0.02, 0.96)
    return places


def _dots(found: Map) -> Image.Image:
    """Every content as a dot in the colour of its cluster, smaller if there are many."""
    radius = float(np.clip(180 / np.sqrt(len(found.places)), 1.0, 7.0))
    image = Image.new("RGBA", (WIDE, HIGH), (0, 0, 0, 0))
    draw = ImageDraw.Draw(image)
    for (x, y), number in zip(found.places.tolist(), found.cluster.tolist(), strict=True):
        at = 8 + x * (WIDE - 16), 8 + y * (HIGH - 16)
        draw.circle(at, radius, (*_colour(number), 200))
    return image


def _colour(number: int) -> tuple[int, int, int]:
    """Colours that are far apart for numbers that are close, legible on light and dark."""
    red, green, blue = colorsys.hls_to_rgb(number * 0.381966 % 1, 0.45 + 0.1 * (number % 2), 0.6)
    return round(255 * red), round(255 * green), round(255 * blue)
