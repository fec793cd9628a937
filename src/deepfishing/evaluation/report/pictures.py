"""Pictures of the report, class by class.

For each class the page shows the test images that the best forward and the best gradient feature
rank first, last and differently, as thumbnails; each is in the page once. The stores in `features/`
have the last place and the content of each image. Images may have been moved, so a few places are
tried; only a file with the measured content is shown.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.errors import DeepFishingError, ImageError, StoreError
from deepfishing.evaluation.checks import Result
from deepfishing.evaluation.report.rows import row_scores, same_test
from deepfishing.evaluation.report.tables import Comparison, Line
from deepfishing.evaluation.results import Results
from deepfishing.images.item import ImageBytes
from deepfishing.images.show import square_uri
from deepfishing.store.manifest import Row, read_index

TILES = 5  # in a strip
SIDE = 224  # pixels of a picture, for the size at which it is looked at when enlarged
MOST_CLASSES = 20  # more pictures than a page of a few megabytes can hold


@dataclass(frozen=True)
class Picture:
    """A test image in the page: its pixels as a data URI, and the name of its file."""

    uri: str
    name: str


@dataclass(frozen=True)
class Tile:
    """One test image: its rank by this kernel and by the other one, 1 being the highest score."""

    id: str
    shows: bool
    rank: int
    other: int


@dataclass(frozen=True)
class Strips:
    """What one kernel makes of one class."""

    first: tuple[Tile, ...]  # the highest scores
    # the lowest scores of images that show the class, the worst one first
    last: tuple[Tile, ...]
    # Of the first P images, P being how many show the class, those that the other kernel ranks
    # lowest, and lower than this one.
    higher: tuple[Tile, ...]


def strips(
    truth: Array, scores: Array, other: Array, ids: Sequence[str], most: int = TILES
) -> Strips:
    """The telling images of one class for one kernel, beside another; arrays are (n,).

    Difficult images, 0 in `truth`, are left out, as in every AP here. Equal scores keep the order.
    """
    kept = np.flatnonzero(truth != 0)
    orders = (np.argsort(-some[kept], kind="stable") for some in (scores, other))
    # 1 for the highest score
    rank, rank_other = (np.argsort(order) + 1 for order in orders)
    shows = truth[kept] == 1
    positive = np.flatnonzero(shows)
    found = np.flatnonzero((rank <= len(positive)) & (rank < rank_other))

    def tiles(chosen: Array) -> tuple[Tile, ...]:
        return tuple(
            Tile(ids[kept[i]], bool(shows[i]), int(rank[i]), int(rank_other[i]))
            for i in chosen[:most]
        )

    return Strips(
        first=tiles(np.argsort(rank)),
        last=tiles(positive[np.argsort(-rank[positive])]),
        higher=tiles(found[np.argsort(-rank_other[found])]),
    )


@dataclass(frozen=True)
class ClassPictures:
    """What two features make of one class: their lines, AP and strips, forward first."""

    name: str
    sides: tuple[tuple[Line, float, Strips], tuple[Line, float, Strips]]


@dataclass(frozen=True)
class SettingPictures:
    """The pictures of one setting."""

    classes: tuple[ClassPictures, ...] = ()
    # by id: its number, or why none
    place: dict[str, int | str] = field(default_factory=dict)
    of: int = 0  # how many classes could be shown
    problem: str = ""  # why nothing is shown at all

    @property
    def examples(self) -> dict[str, int]:
        """A picture that shows the class, for each class that has one."""
        found: dict[str, int] = {}
        for pictures in self.classes:
            for tile in (
                tile for _, _, side in reversed(pictures.sides) for tile in side.first
            ):
                place = self.place[tile.id]
                if tile.shows and isinstance(place, int):
                    found.setdefault(pictures.name, place)
        return found

    @property
    def missing(self) -> int:
        """How many images have no picture."""
        return sum(isinstance(place, str) for place in self.place.values())


class Album:
    """The pictures of a page; `images` is where the images are now, if they have moved.

    Each picture is in `pictures` once. Without `features/` beside the results no image is found.
    """

    def __init__(self, results: Results, images: Path | None = None) -> None:
        self.results = results
        self.folder = results.folder.absolute()
        self.roots = ([images] if images else []) + [self.folder]
        self.pictures: list[Picture] = []
        self._placed: dict[str, int | str] = {}  # by content

    @cached_property
    def rows(self) -> list[Row]:
        """What the stores know of every image."""
        indexes = sorted(self.results.folder.glob("features/*/index.parquet"))
        return [row for index in indexes for row in read_index(index.parent).values()]

    def show(self, table: Comparison) -> SettingPictures:
        """The pictures for rows of one setting, or why there are none."""
        try:
            if table.forward is None or table.gradient is None:
                raise StoreError(
                    "pictures need a forward and a gradient feature to compare"
                )
            row_of = {row["feature"]: row for row in table.rows}
            rows = row_of[table.forward.feature], row_of[table.gradient.feature]
            if not same_test(self.results, *rows):
                raise StoreError(
                    "the two best features were measured on different images"
                )
            ids = self.results.scores(rows[0])[2]
            classes = self._classes((table.forward, table.gradient), rows, ids)
            known = match_ids(self.rows, rows[0]["dataset"], ids)
        except DeepFishingError as error:
            return SettingPictures(problem=str(error))
        apart = sorted(
            classes, key=lambda c: abs(c.sides[0][1] - c.sides[1][1]), reverse=True
        )
        chosen = tuple(
            pictures for pictures in classes if pictures in apart[:MOST_CLASSES]
        )
        shown = (
            tile.id
            for pictures in chosen
            for _, _, side in pictures.sides
            for tile in (*side.first, *side.last, *side.higher)
        )
        place = {id_: self.place(known.get(id_)) for id_ in dict.fromkeys(shown)}
        return SettingPictures(chosen, place, len(classes))

    def _classes(
        self, lines: tuple[Line, Line], rows: tuple[Result, Result], ids: Sequence[str]
    ) -> list[ClassPictures]:
        """Every class that both rows have an AP of."""
        (scores, labels), (others, _) = (row_scores(self.results, row) for row in rows)
        found = []
        for column, name in enumerate(rows[0]["classes"]):
            ap, other_ap = (row["ap"][row["official_ap"]].get(name) for row in rows)
            if ap is None or other_ap is None:
                continue
            a, b, truth = scores[:, column], others[:, column], labels[:, column]
            forward = lines[0], ap, strips(truth, a, b, ids)
            gradient = lines[1], other_ap, strips(truth, b, a, ids)
            found.append(ClassPictures(name, (forward, gradient)))
        return found

    def place(self, row: Row | None) -> int | str:
        """Which picture shows an image, its central square as the network saw it; or why none."""
        if row is None or row.sha256 is None:
            return "not in features/"
        if row.sha256 in self._placed:
            return self._placed[row.sha256]
        found = (_read(path, row.size, row.sha256) for path in self._places(row))
        place: int | str = "not found"
        content = next(filter(None, found), None)
        if content is not None:
            try:
                uri = square_uri(ImageBytes(str(row.path), content), SIDE)
            except ImageError:
                place = "not readable"
            else:
                self.pictures.append(Picture(uri, Path(row.path).name))
                place = len(self.pictures) - 1
        self._placed[row.sha256] = place
        return place

    def _places(self, row: Row) -> Iterator[Path]:
        """Where the image may be, the likeliest first."""
        path = Path(row.path)
        yield path
        # a relative path started where the command ran, which often is above the results
        yield from (parent / path for parent in (self.folder, *self.folder.parents))
        parts = [part for part in path.parts if part not in ("..", path.anchor)]
        for root in self.roots:
            yield from (root.joinpath(*parts[start:]) for start in range(len(parts)))


def match_ids(rows: Sequence[Row], dataset: str, ids: Sequence[str]) -> dict[str, Row]:
    """The row of each id: paths of one folder end in the ids, with or without a suffix.

    Several data sets may share ids; then the folder counts that has the data set's name in it.
    """
    named: defaultdict[str, list[tuple[PurePosixPath, Row]]] = defaultdict(list)
    for row in rows:
        path = PurePosixPath(Path(row.path).as_posix())
        for name in {path.name, path.stem}:
            named[name].append((path, row))
    folders: defaultdict[str, dict[str, Row]] = defaultdict(dict)
    for image_id in ids:
        for path, row in named[PurePosixPath(image_id).name]:
            for tail in (str(path), str(path.with_suffix(""))):
                if f"/{tail}".endswith(f"/{image_id}"):
                    folders[tail.removesuffix(image_id)][image_id] = row
    whole = {
        name: found for name, found in folders.items() if len(found) == len(set(ids))
    }
    by_name = {name: found for name, found in whole.items() if dataset in name.lower()}
    for candidates in (by_name, whole):
        # the same contents in two places are as good as one
        contents = {
            tuple(found[i].sha256 for i in ids): found for found in candidates.values()
        }
        if len(contents) == 1:
            return next(iter(contents.values()))
    return {}


def _read(path: Path, size: int, sha256: str) -> bytes | None:
    """The bytes of a file if they are these; never those of a pipe, which may not end."""
    try:
        if not path.is_file() or path.stat().st_size != size:
            return None
        content = path.read_bytes()
    except (OSError, ValueError):  # no permission, a name too long or with a zero in it
        return None
    return content if hashlib.sha256(content).hexdigest() == sha256 else None
