"""Map of a collection with named clusters, and the page that draws it.

Every content has a place in [0, 1] x [0, 1], and every cluster a name, which is the class that the
network recognises there, and a typical photo. Places are computed by t-SNE (openTSNE) on the graph
of the kernel's nearest neighbours.
"""

from __future__ import annotations

import colorsys
import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from deepfishing.core.kernels import gram
from deepfishing.core.rank_one import Array
from deepfishing.curate.layout import class_names, find_groups, lay_out
from deepfishing.errors import ImageError, OptionError
from deepfishing.images.item import ImageBytes
from deepfishing.images.show import data_uri, square_uri
from deepfishing.search import Searcher
from deepfishing.search.compare import sample
from deepfishing.util.files import replacing
from deepfishing.util.progress import Progress, silent

MEMBERS = 400  # that a typical photo is chosen among
WIDE, HIGH = 1600, 1200  # pixels of the dots' picture
SIDE = 144  # of a photo: sharp on screens with two dots per pixel
ROOM = np.array([0.12, 0.15])  # that a photo and its name take of the map
MARGIN = 0.05  # around the dots, as the style has it


@dataclass(frozen=True)
class Cluster:
    """Photos that are close together: name, count, place, and the number of a typical one."""

    name: str
    photos: int
    x: float
    y: float
    typical: int


@dataclass(frozen=True, eq=False)
class Map:
    """Places (n, 2) of the contents, the number of each one's cluster (n,), and the clusters."""

    places: Array
    cluster: Array
    clusters: tuple[Cluster, ...]

    def records(self, photos: Searcher) -> list[dict[str, object]]:
        """Return place and group of every photo."""
        places = self.places.round(4).tolist()
        groups = (self.cluster + 1).tolist()
        paths = photos.collection.table.column("path").to_pylist()
        ids = photos.collection.table.column("id").to_pylist()
        records: list[dict[str, object]] = []
        for row, content in enumerate(photos.collection.content.tolist()):
            x, y = places[content]
            group = groups[content]
            records.append(
                {"path": paths[row], "id": ids[row], "x": x, "y": y, "group": group}
            )
        return records


def make_map(
    photos: Searcher, clusters: int | None = None, *, progress: Progress = silent
) -> Map:
    """Lay out the contents of a store and name their clusters, the largest first.

    By default there are about half the root of the number of photos, at most 24.
    """
    if clusters is not None and clusters < 1:
        raise OptionError(f"clusters must be at least 1, got {clusters}")
    places = lay_out(photos, progress)
    cluster = find_groups(places, clusters)
    names = class_names(photos, cluster, int(cluster.max()) + 1)
    described = []
    for number, name in enumerate(names):
        members = np.flatnonzero(cluster == number)
        x, y = places[members].mean(axis=0).tolist()
        drawn = members[sample(len(members), MEMBERS)]
        similarity = gram(photos.features.of(drawn)).mean(axis=0)
        typical = drawn[similarity.argmax()]
        described.append(Cluster(name, len(members), x, y, int(typical)))
        progress("naming", number + 1, len(names))
    return Map(places, cluster, tuple(described))


def write_map(path: Path, map_: Map, photos: Searcher) -> int:
    """Write the map as one HTML file without scripts; return how many typical photos are missing.

    Dots are one picture; the typical photo of each cluster is on top, with its name.
    """
    # takes a while to load
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    clusters = []
    missing = 0
    places = _apart(np.array([[cluster.x, cluster.y] for cluster in map_.clusters]))
    percent = (100 * (MARGIN + (1 - 2 * MARGIN) * places)).round(2).tolist()
    for number, cluster in enumerate(map_.clusters):
        row = photos.collection.rows_of(cluster.typical)[0]
        picture = photos.collection[int(row)]
        photo = _photo_uri(photos, picture.id)
        if not photo:
            missing += 1
        count = f"{cluster.photos:,} photos"
        if cluster.photos == 1:
            count = "1 photo"
        left, top = percent[number]
        clusters.append(
            {
                "name": cluster.name,
                "count": count,
                "left": left,
                "top": top,
                "colour": "#{:02x}{:02x}{:02x}".format(*_colour(number)),
                "photo": photo,
                "typical": picture.id,
            }
        )
    loader = FileSystemLoader(Path(__file__).parent)
    page = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    text = page.get_template("map.html.j2").render(
        title=photos.store.folder.name,
        photos=f"{len(map_.places):,} photos",
        recipe=photos.recipe.title,
        dots=data_uri(_dots(map_), "PNG"),
        clusters=clusters,
    )
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return missing


def _photo_uri(photos: Searcher, id_: str) -> str:
    """Return a photo as a data URI, or '' if its file is missing or cannot be read."""
    content = photos.photo(id_)
    if not content:
        return ""
    with contextlib.suppress(ImageError):
        return square_uri(ImageBytes(id_, content), SIDE)
    return ""


def _apart(places: Array) -> Array:
    """Return places that are moved until photos and names do not overlap, if there is room."""
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


def _dots(map_: Map) -> Image.Image:
    """Draw every content as a dot in the colour of its cluster, smaller if there are many."""
    radius = float(np.clip(180 / np.sqrt(len(map_.places)), 1.0, 7.0))
    image = Image.new("RGBA", (WIDE, HIGH), (0, 0, 0, 0))
    draw = ImageDraw.Draw(image)
    clusters = map_.cluster.tolist()
    for (x, y), number in zip(map_.places.tolist(), clusters, strict=True):
        centre = 8 + x * (WIDE - 16), 8 + y * (HIGH - 16)
        draw.circle(centre, radius, (*_colour(number), 200))
    return image


def _colour(number: int) -> tuple[int, int, int]:
    """Return a colour that is far from those of close numbers, legible on light and dark."""
    hue = number * 0.381966 % 1
    lightness = 0.45 + 0.1 * (number % 2)
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, 0.6)
    return round(255 * red), round(255 * green), round(255 * blue)
