"""Stage 7, report: the pictures of the page, class by class.

Comes in: the rows of one setting with their scores, and the images where they still are. Goes out:
for each class what the best forward and the best gradient feature make of it, as strips of
pictures; each picture is in the page once, however often it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepfishing.errors import DeepFishingError
from deepfishing.experiments.checks import Result
from deepfishing.experiments.results import Results
from deepfishing.report.curves import row_scores
from deepfishing.report.gains import same_test
from deepfishing.report.pictures import Strips, strips
from deepfishing.report.tables import Finding, Line
from deepfishing.report.thumbnails import Album
from deepfishing.store.index import Row

MOST_CLASSES = 20  # more pictures than a page of a few megabytes can hold


@dataclass(frozen=True)
class ClassPictures:
    """What two features make of one class: their lines, AP and strips, forward first."""

    name: str
    sides: tuple[tuple[Line, float, Strips], ...]


@dataclass(frozen=True)
class Shown:
    """The pictures of one setting.

    `place` says of each image's id which picture it is, or, as text, why there is none; `problem`
    why nothing is shown at all; `of` how many classes could be shown.
    """

    classes: tuple[ClassPictures, ...] = ()
    place: dict[str, int | str] | None = None
    of: int = 0
    problem: str = ""

    @property
    def examples(self) -> dict[str, int]:
        """A picture that shows the class, for each class that has one."""
        found: dict[str, int] = {}
        for pictures in self.classes:
            for tile in (tile for _, _, side in reversed(pictures.sides) for tile in side.first):
                place = (self.place or {})[tile.id]
                if tile.shows and isinstance(place, int):
                    found.setdefault(pictures.name, place)
        return found

    @property
    def missing(self) -> int:
        """How many images have no picture."""
        return sum(isinstance(place, str) for place in (self.place or {}).values())


class Gallery:
    """Pictures of all settings of a page.

    Parameters
    ----------
    results : Results
        Where the rows' scores are, and beside them `features/`.
    images : Path, optional
        Where the images are now, if they have moved.

    Attributes
    ----------
    pictures : list of str
        Data URIs, each once.
    """

    def __init__(self, results: Results, images: Path | None = None) -> None:
        self.results = results
        self.pictures: list[str] = []
        self._number: dict[str, int] = {}
        self._album: Album | None = None
        self._images = images

    def shown(self, rows: Sequence[Result], found: Finding) -> Shown:
        """The pictures for rows of one setting, or why there are none."""
        if found.forward is None or found.gradient is None:
            return Shown(problem="pictures need a forward and a gradient feature to compare")
        row_of = {row["feature"]: row for row in rows}
        forward, gradient = row_of[found.forward.feature], row_of[found.gradient.feature]
        try:
            if not same_test(self.results, forward, gradient):
                return Shown(problem="the two best features were measured on different images")
            ids = self.results.scores(forward)[2]
            classes = _classes(self.results, (found.forward, forward), (found.gradient, gradient))
            self._album = self._album or Album(self.results.folder, self._images)
        except DeepFishingError as error:
            return Shown(problem=str(error))
        classes.sort(key=_difference, reverse=True)
        chosen = {pictures.name: pictures for pictures in classes[:MOST_CLASSES]}
        in_order = tuple(chosen[name] for name in forward["classes"] if name in chosen)
        index = self._album.index(forward["dataset"], ids)
        place = {i: self._place(self._album, index.get(i)) for i in _ids(in_order)}
        return Shown(in_order, place, len(classes))

    def _place(self, album: Album, row: Row | None) -> int | str:
        thumbnail = album.thumbnail(row)
        if not thumbnail.uri:
            return thumbnail.problem
        if thumbnail.uri not in self._number:
            self._number[thumbnail.uri] = len(self.pictures)
            self.pictures.append(thumbnail.uri)
        return self._number[thumbnail.uri]


def _classes(
    results: Results, forward: tuple[Line, Result], gradient: tuple[Line, Result]
) -> list[ClassPictures]:
    """Every class that both rows have an AP of."""
    (line, row), (other_line, other_row) = forward, gradient
    scores, labels = row_scores(results, row)
    others, _ = row_scores(results, other_row)
    ids = results.scores(row)[2]
    found = []
    for column, name in enumerate(row["classes"]):
        ap, other_ap = (r["ap"][r["official_ap"]].get(name) for r in (row, other_row))
        if ap is None or other_ap is None:
            continue
        a, b, truth = scores[:, column], others[:, column], labels[:, column]
        sides = (
            (line, ap, strips(truth, a, b, ids)),
            (other_line, other_ap, strips(truth, b, a, ids)),
        )
        found.append(ClassPictures(name, sides))
    return found


def _difference(pictures: ClassPictures) -> float:
    """How far the two features are apart in this class."""
    (_, a, _), (_, b, _) = pictures.sides
    return abs(a - b)


def _ids(classes: Sequence[ClassPictures]) -> list[str]:
    """Every image that is shown, once, in the order of the page."""
    shown = (
        tile.id
        for pictures in classes
        for _, _, side in pictures.sides
        for strip in (side.first, side.last, side.higher)
        for tile in strip
    )
    return list(dict.fromkeys(shown))
