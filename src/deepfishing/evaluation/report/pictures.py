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
from deepfishing.evaluation.record import Result
from deepfishing.evaluation.report.folder import row_scores, same_test
from deepfishing.evaluation.report.tables import Comparison, Line
from deepfishing.evaluation.results import Results
from deepfishing.images.item import ImageBytes
from deepfishing.images.show import square_uri
from deepfishing.store.manifest import Row, read_index

TILES = 5  # in a strip
SIDE = 224  # pixels of a picture, for the size at which it is looked at when enlarged
MAX_CLASSES = 20  # more pictures than a page of a few megabytes can hold


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
    """Images of one class in the order of one kernel."""

    first: tuple[Tile, ...]  # the highest scores
    # the lowest scores of images that show the class, the worst one first
    last: tuple[Tile, ...]
    # Of the first P images, P being how many show the class, those that the other kernel ranks
    # lowest, and lower than this one.
    higher: tuple[Tile, ...]


def strips(
    truth: Array, scores: Array, other: Array, ids: Sequence[str], most: int = TILES
) -> Strips:
    """Most informative images of one class for one kernel, beside another; arrays are (n,).

    Difficult images, 0 in `truth`, are left out, as in every AP here. Equal scores keep the order.
    """
    counted = np.flatnonzero(truth != 0)
    rank, rank_other = _ranks(scores[counted]), _ranks(other[counted])
    shows = truth[counted] == 1
    positive = np.flatnonzero(shows)
    higher = np.flatnonzero((rank <= len(positive)) & (rank < rank_other))

    def tiles(chosen: Array) -> tuple[Tile, ...]:
        strip = []
        for i in chosen[:most]:
            id_ = ids[counted[i]]
            strip.append(Tile(id_, bool(shows[i]), int(rank[i]), int(rank_other[i])))
        return tuple(strip)

    return Strips(
        first=tiles(np.argsort(rank)),
        last=tiles(positive[np.argsort(-rank[positive])]),
        higher=tiles(higher[np.argsort(-rank_other[higher])]),
    )


def _ranks(scores: Array) -> Array:
    """Return the rank of each image, 1 for the highest score."""
    order = np.argsort(-scores, kind="stable")
    return np.argsort(order) + 1


@dataclass(frozen=True)
class Side:
    """One feature's AP of a class, and its images."""

    line: Line
    ap: float
    strips: Strips


@dataclass(frozen=True)
class ClassPictures:
    """Images of one class by two features: their lines, AP and strips, forward first."""

    name: str
    sides: tuple[Side, Side]


@dataclass(frozen=True)
class SettingPictures:
    """The pictures of one setting."""

    classes: tuple[ClassPictures, ...] = ()
    # by image id: the number of its picture, or why it has none
    numbers: dict[str, int | str] = field(default_factory=dict)
    of: int = 0  # how many classes could be shown
    problem: str = ""  # why nothing is shown at all

    @property
    def examples(self) -> dict[str, int]:
        """A picture that shows the class, for each class that has one."""
        by_class: dict[str, int] = {}
        for pictures in self.classes:
            forward, gradient = pictures.sides
            for tile in (*gradient.strips.first, *forward.strips.first):
                number = self.numbers[tile.id]
                if tile.shows and isinstance(number, int):
                    by_class.setdefault(pictures.name, number)
        return by_class

    @property
    def missing(self) -> int:
        """How many images have no picture."""
        return sum(isinstance(number, str) for number in self.numbers.values())


class Album:
    """The pictures of a page; `images` is where the images are now, if they have moved.

    Each picture is in `pictures` once. Without `features/` beside the results no image is found.
    """

    def __init__(self, results: Results, images: Path | None = None) -> None:
        self.results = results
        self.folder = results.folder.absolute()
        self.roots = ([images] if images else []) + [self.folder]
        self.pictures: list[Picture] = []
        self._numbers: dict[str, int | str] = {}  # by content

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of all stores in `features/`, one per image."""
        rows: list[Row] = []
        for index in sorted(self.results.folder.glob("features/*/index.parquet")):
            rows += read_index(index.parent).values()
        return rows

    def show(self, table: Comparison) -> SettingPictures:
        """Return the pictures for rows of one setting, or why there are none."""
        try:
            if table.forward is None or table.gradient is None:
                raise StoreError(
                    "pictures need a forward and a gradient feature to compare"
                )
            lines = table.forward, table.gradient
            rows = table.row_of(lines[0]), table.row_of(lines[1])
            if not same_test(self.results, *rows):
                raise StoreError(
                    "the two best features were measured on different images"
                )
            ids = self.results.scores(rows[0])[2]
            classes = self._classes(lines, rows, ids)
            row_of_id = match_ids(self.rows, rows[0]["dataset"], ids)
        except DeepFishingError as error:
            return SettingPictures(problem=str(error))
        chosen = _most_different(classes)
        numbers: dict[str, int | str] = {}
        for pictures in chosen:
            for side in pictures.sides:
                strips = side.strips
                for tile in (*strips.first, *strips.last, *strips.higher):
                    if tile.id not in numbers:
                        numbers[tile.id] = self.add(row_of_id.get(tile.id))
        return SettingPictures(chosen, numbers, len(classes))

    def _classes(
        self, lines: tuple[Line, Line], rows: tuple[Result, Result], ids: Sequence[str]
    ) -> list[ClassPictures]:
        """Return every class that both rows have an AP of."""
        forward, gradient = rows
        forward_scores, labels = row_scores(self.results, forward)
        gradient_scores, _ = row_scores(self.results, gradient)
        classes = []
        for column, name in enumerate(forward["classes"]):
            forward_ap = forward["ap"][forward["official_ap"]].get(name)
            gradient_ap = gradient["ap"][gradient["official_ap"]].get(name)
            if forward_ap is None or gradient_ap is None:
                continue
            truth = labels[:, column]
            a, b = forward_scores[:, column], gradient_scores[:, column]
            sides = (
                Side(lines[0], forward_ap, strips(truth, a, b, ids)),
                Side(lines[1], gradient_ap, strips(truth, b, a, ids)),
            )
            classes.append(ClassPictures(name, sides))
        return classes

    def add(self, row: Row | None) -> int | str:
        """Add the picture of an image, its central square; return its number, or why none."""
        if row is None or row.sha256 is None:
            return "not in features/"
        if row.sha256 not in self._numbers:
            self._numbers[row.sha256] = self._add(row, row.sha256)
        return self._numbers[row.sha256]

    def _add(self, row: Row, sha256: str) -> int | str:
        for path in self._paths(row):
            content = _read(path, row.size, sha256)
            if content is None:
                continue
            try:
                uri = square_uri(ImageBytes(str(row.path), content), SIDE)
            except ImageError:
                return "not readable"
            self.pictures.append(Picture(uri, Path(row.path).name))
            return len(self.pictures) - 1
        return "not found"

    def _paths(self, row: Row) -> Iterator[Path]:
        """Candidate paths of an image, the most likely first."""
        path = Path(row.path)
        yield path
        # a relative path started where the command ran, which often is above the results
        yield from (parent / path for parent in (self.folder, *self.folder.parents))
        parts = [part for part in path.parts if part not in ("..", path.anchor)]
        for root in self.roots:
            yield from (root.joinpath(*parts[start:]) for start in range(len(parts)))


def _most_different(classes: Sequence[ClassPictures]) -> tuple[ClassPictures, ...]:
    """Return the classes whose two AP differ most, in their order."""

    def difference(pictures: ClassPictures) -> float:
        forward, gradient = pictures.sides
        return abs(forward.ap - gradient.ap)

    by_difference = sorted(classes, key=difference, reverse=True)
    chosen = {pictures.name for pictures in by_difference[:MAX_CLASSES]}
    return tuple(pictures for pictures in classes if pictures.name in chosen)


def match_ids(rows: Sequence[Row], dataset: str, ids: Sequence[str]) -> dict[str, Row]:
    """Return the row of each id: paths of one folder end in the ids, with or without a suffix.

    Several data sets may share ids; then the folder counts that has the data set's name in it.
    """
    by_name: defaultdict[str, list[tuple[PurePosixPath, Row]]] = defaultdict(list)
    for row in rows:
        path = PurePosixPath(Path(row.path).as_posix())
        for name in {path.name, path.stem}:
            by_name[name].append((path, row))
    folders: defaultdict[str, dict[str, Row]] = defaultdict(dict)
    for image_id in ids:
        for path, row in by_name[PurePosixPath(image_id).name]:
            for tail in (str(path), str(path.with_suffix(""))):
                if f"/{tail}".endswith(f"/{image_id}"):
                    folders[tail.removesuffix(image_id)][image_id] = row
    complete = {
        folder: by_id
        for folder, by_id in folders.items()
        if len(by_id) == len(set(ids))
    }
    named_after = {
        folder: by_id for folder, by_id in complete.items() if dataset in folder.lower()
    }
    for candidates in (named_after, complete):
        # folders with the same contents count once
        by_contents = {}
        for by_id in candidates.values():
            by_contents[tuple(by_id[id_].sha256 for id_ in ids)] = by_id
        if len(by_contents) == 1:
            return next(iter(by_contents.values()))
    return {}


def _read(path: Path, size: int, sha256: str) -> bytes | None:
    """Return the bytes of a file if they are these; never those of a pipe, which may not end."""
    try:
        if not path.is_file() or path.stat().st_size != size:
            return None
        content = path.read_bytes()
    except (OSError, ValueError):  # no permission, a name too long or with a zero in it
        return None
    return content if hashlib.sha256(content).hexdigest() == sha256 else None
