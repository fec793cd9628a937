"""Hits of a search: values, reasons, data frames and pictures.

A hit has the forward and the backward similarity of one gradient of the recipe, whose product is
the trace kernel (eq:tr), and the classes that made delta similar. With a uniform label delta_8 =
(sigma - 1/P) / tau has one number per class, so <delta_8, delta_8'> is a sum over classes, and the
term of a class is large where it is probable for both images. The terms are those of the delta that
`backward` is computed from, so they add up to it. Whitening mixes the classes, so there are no
terms then.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from deepfishing.core.features import TOP
from deepfishing.core.kernels import Comparable, gram, leaves
from deepfishing.core.rank_one import Array, RankOne
from deepfishing.core.recipes import Recipe
from deepfishing.errors import ImageError, OptionError, need, reraise_as
from deepfishing.images.item import ImageBytes
from deepfishing.images.preprocess import ImageLike, open_image
from deepfishing.images.show import pictures_html
from deepfishing.search.captions import fit_text, font_for

TOP_CLASSES = 3
IMAGENET_CLASSES = 1000

# of a contact sheet
TILE, GAP, TEXT = 200, 8, 18  # pixels: a picture, between them, a line of a caption
COLUMNS = 5
PAPER, INK, GREY = (255, 255, 255), (30, 30, 30), (200, 200, 200)

Tile = tuple[ImageLike | None, str, str]  # a picture and two lines below it


@dataclass(frozen=True)
class ClassTerm:
    """The part of a class in the backward similarity."""

    index: int
    name: str
    term: float


@dataclass(frozen=True)
class Hit:
    """One image of a result; its labels are None where it has none.

    `score` is the recipe's kernel, 1 for the same content, or that of a `Query` of several. The
    other numbers are of the gradient that explains the recipe, see `Explanation`: <x, x'>,
    <delta, delta'> (None without one), and the classes with the largest part in the latter.
    """

    id: str
    path: str
    labels: tuple[str, ...] | None
    score: float
    forward: float
    backward: float | None
    classes: tuple[ClassTerm, ...]

    @property
    def caption(self) -> str:
        """Its labels, or else the name of its file."""
        if self.labels:
            return ", ".join(self.labels)
        return Path(self.id).name


class Hits(list[Hit]):
    """Hits, the nearest first, as a list; a notebook shows their pictures.

    `searched` describes what was searched; `photo` returns the bytes of an id's file, or None.
    """

    def __init__(
        self, hits: Iterable[Hit], searched: str, photo: Callable[[str], bytes | None]
    ) -> None:
        super().__init__(hits)
        self.searched = searched
        self.photo = photo

    def __repr__(self) -> str:
        text = f"{len(self)} hits of {self.searched}"
        if self:
            text += f": {self[0].id} {self[0].score:.3f}, ..."
        return text

    def pictures(self) -> list[tuple[ImageBytes | None, str]]:
        """Return the file of each hit, None if it is missing, and a caption."""
        pictures = []
        for hit in self:
            content = self.photo(hit.id)
            file = None
            if content is not None:
                file = ImageBytes(hit.id, content)
            pictures.append((file, f"{hit.score:.3f} {hit.caption}"))
        return pictures

    def _repr_html_(self) -> str:
        return pictures_html(f"{len(self)} hits of {self.searched}", self.pictures())

    def to_pandas(self) -> Any:
        """Return a data frame: id, path, labels, score, forward, backward, classes."""
        return need("pandas", "frames").DataFrame([asdict(hit) for hit in self])


@dataclass(frozen=True)
class Explanation:
    """The gradient that explains a hit: the first with classes, or the first of all."""

    gradient: int | None  # its number; None if there are only forward features
    has_classes: bool  # whether its delta has one number per class

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> Explanation:
        """Return the explanation of hits of this recipe."""
        for number, factor in enumerate(recipe.gradients):
            if factor is not None and factor.layer == TOP:
                return cls(number, has_classes=True)
        first = None
        if recipe.gradients:
            first = 0
        return cls(first, has_classes=False)

    def similarities(
        self, images: Comparable, examples: Comparable
    ) -> tuple[Array, Array | None]:
        """Return forward <x, x'> and backward <delta, delta'>, (n, m), or the kernel and None."""
        if self.gradient is None:
            return gram(images, examples), None
        left, right = self._halves(images), self._halves(examples)
        return gram(left.x, right.x), gram(left.delta, right.delta)

    def class_terms(
        self,
        images: Comparable,
        examples: Comparable,
        names: Sequence[str] | None = None,
    ) -> list[tuple[ClassTerm, ...]]:
        """Return the classes that add most to the mean backward similarity of each image."""
        if not self.has_classes:
            return [()] * len(images)
        mean = self._halves(examples).delta.mean(axis=0, dtype=np.float64)
        if names is None and len(mean) == IMAGENET_CLASSES:
            names = imagenet_names()
        if names and len(names) != len(mean):
            raise OptionError(
                f"class names must be {len(mean)}, one per line, got {len(names)}"
            )
        return [_largest_terms(row, names) for row in self._halves(images).delta * mean]

    def _halves(self, features: Comparable) -> RankOne:
        """Return the gradient of these images, its positions pooled."""
        gradients = [leaf for leaf in leaves(features) if isinstance(leaf, RankOne)]
        return gradients[self.gradient or 0].pool().normalize()


def _largest_terms(row: Array, names: Sequence[str] | None) -> tuple[ClassTerm, ...]:
    """Return the largest positive terms of one image, the largest first."""
    largest = np.argpartition(-row, min(TOP_CLASSES, len(row) - 1))[:TOP_CLASSES]
    terms = []
    for number in largest.tolist():
        if row[number] > 0:
            name = f"class {number}"
            if names:
                name = names[number]
            terms.append(ClassTerm(number, name, round(float(row[number]), 6)))
    terms.sort(key=lambda term: (-term.term, term.index))
    return tuple(terms)


def read_class_names(path: Path) -> list[str]:
    """Return the names of the classes, one per line in the order of the network's outputs."""
    what = f"class names must be a text file with one name per line, got {path}"
    with reraise_as(OptionError, what, of=(OSError, UnicodeDecodeError)):
        return [line.strip() for line in path.read_text("utf-8").splitlines()]


@cache
def imagenet_names() -> list[str]:
    """Return the names of ImageNet's 1,000 classes, in the order of a network's outputs."""
    text = (Path(__file__).parent / "imagenet_names.txt").read_text("utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def contact_sheet(tiles: Sequence[Tile]) -> Image.Image:
    """Return pictures in rows; one that is missing or cannot be read is a grey tile."""
    columns = min(COLUMNS, len(tiles))
    rows = math.ceil(len(tiles) / max(columns, 1))
    wide, high = TILE + GAP, TILE + 2 * TEXT + 2 * GAP
    sheet = Image.new("RGB", (columns * wide + GAP, rows * high + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (image, *lines) in enumerate(tiles):
        left = number % columns * wide + GAP
        top = number // columns * high + GAP
        tile = Image.new("RGB", (TILE, TILE), GREY)
        if image is not None:
            with contextlib.suppress(ImageError):
                tile = open_image(image, draft=TILE)
                tile.thumbnail((TILE, TILE))
        to_centre = (TILE - tile.width) // 2, (TILE - tile.height) // 2
        sheet.paste(tile, (left + to_centre[0], top + to_centre[1]))
        for line, text in enumerate(lines):
            font = font_for(text)
            fitting = fit_text(text, font, TILE)
            draw.text((left, top + TILE + line * TEXT + 2), fitting, INK, font)
    return sheet


def save_tiles(path: Path, tiles: Sequence[Tile]) -> None:
    """Write a contact sheet; the kind of file follows from the end of its name."""
    what = f"a contact sheet must be a file that can be written, such as hits.png, got {path}"
    with reraise_as(OptionError, what, of=(OSError, ValueError)):
        contact_sheet(tiles).save(path)
