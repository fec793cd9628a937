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
        """Place and group of every photo."""
        places, group = self.places.round(4).tolist(), (self.cluster + 1).tolist()
        names = [
            photos.collection.table.column(name).to_pylist() for name in ("path", "id")
        ]
        rows = zip(*names, photos.collection.content.tolist(), strict=True)
        return [
            {
                "path": path,
                "id": id_,
                "x": places[n][0],
                "y": places[n][1],
                "group": group[n],
            }
            for path, id_, n in rows
        ]


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
        some = members[sample(len(members), MEMBERS)]
        typical = some[gram(photos.features.of(some)).mean(axis=0).argmax()]
        described.append(Cluster(name, len(members), x, y, int(typical)))
        progress("naming", number + 1, len(names))
    return Map(places, cluster, tuple(described))


def write_map(path: Path, found: Map, photos: Searcher) -> int:
    """Write the map as one HTML file without scripts; how many typical photos are gone.

    Dots are one picture; the typical photo of each cluster is on top, with its name.
    """
    # takes a while to load
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    clusters, gone = [], 0
    at = _apart(np.array([[one.x, one.y] for one in found.clusters]))
    for number, one in enumerate(found.clusters):
        picture = photos.collection[int(photos.collection.rows_of(one.typical)[0])]
        content, photo = photos.photo(picture.id), ""
        with contextlib.suppress(ImageError):
            photo = square_uri(ImageBytes(picture.id, content), SIDE) if content else ""
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
    page = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
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
    for (x, y), number in zip(
        found.places.tolist(), found.cluster.tolist(), strict=True
    ):
        at = 8 + x * (WIDE - 16), 8 + y * (HIGH - 16)
        draw.circle(at, radius, (*_colour(number), 200))
    return image


def _colour(number: int) -> tuple[int, int, int]:
    """Colours that are far apart for numbers that are close, legible on light and dark."""
    red, green, blue = colorsys.hls_to_rgb(
        number * 0.381966 % 1, 0.45 + 0.1 * (number % 2), 0.6
    )
    return round(255 * red), round(255 * green), round(255 * blue)
