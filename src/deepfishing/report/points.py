"""Stage 7, report: the points of a results folder, checked, and grouped into panels of charts.

Comes in: a folder with `curves.jsonl`. Goes out: for each setting its panels. A panel has one axis
to the right and the same lines in one chart per figure: accuracy and mAP against k, say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepfishing.experiments.checks import POINT_SETTING, UNSAID, Result
from deepfishing.experiments.results import Curves
from deepfishing.report.rows import title
from deepfishing.statistics import Interval

TITLES = {
    "low-shot": "Few examples",
    "knn": "Nearest neighbours",
    "curate": "Labels chosen and doubted",
    "search": "Search by examples",
    "approximation": "Projections against the exact kernel",
}


@dataclass(frozen=True)
class Mark:
    """A measured figure; `y` is None where it could not be measured, and `note` says why.

    `draws` are the figures of which it is the mean, in the same order for all lines.
    """

    y: float | None
    interval: Interval | None
    note: str
    draws: tuple[float, ...] = ()


@dataclass(frozen=True)
class Series:
    """A line of a chart: marks by x, or one `level` for all x."""

    name: str
    marks: dict[int, Mark]
    level: Mark | None

    def at(self, x: int) -> Mark | None:
        """The mark at x; a level is the same everywhere."""
        return self.level or self.marks.get(x)


@dataclass(frozen=True)
class Chart:
    """One figure against the panel's axis."""

    y_axis: str
    xs: tuple[int, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Panel:
    """Charts with the same axis and lines.

    `feature` is what was measured where the lines are not features themselves, else None.
    """

    protocol: str
    feature: str | None
    x_axis: str
    charts: tuple[Chart, ...]

    @property
    def title(self) -> str:
        """The protocol in words."""
        return TITLES[self.protocol]

    @property
    def names(self) -> tuple[str, ...]:
        """The lines of its charts, each once."""
        return tuple(dict.fromkeys(s.name for chart in self.charts for s in chart.series))

    @property
    def features(self) -> tuple[str, ...]:
        """The features that it is about."""
        return (self.feature,) if self.feature else self.names

    def called(self, series: Series) -> str:
        """What a line is called: by the title of its feature, if it stands for one."""
        return series.name if self.feature else title(series.name)

    @property
    def notes(self) -> tuple[str, ...]:
        """Why points are missing."""
        marks = [m for c in self.charts for s in c.series for m in s.marks.values()]
        return tuple(dict.fromkeys(mark.note for mark in marks if mark.note))


def open_points(folder: Path) -> list[Result]:
    """The points of a folder, each of them whole; none where there is no `curves.jsonl`.

    Raises
    ------
    StoreError
        If a line is malformed.
    """
    if not (folder / Curves.name).is_file():
        return []
    return Curves(folder).rows


def group_points(points: Iterable[Result]) -> list[list[Result]]:
    """Points of one setting together, in the order in which settings first came."""
    groups: dict[str, list[Result]] = {}
    for point in points:
        unsaid = [point.get(name, value) for name, value in UNSAID.items()]
        setting = json.dumps([*unsaid, *(point[name] for name in POINT_SETTING)])
        groups.setdefault(setting, []).append(point)
    return list(groups.values())


def panels(points: Sequence[Result]) -> tuple[Panel, ...]:
    """Panels of the points of one setting, protocol by protocol.

    Where a point was measured more than once, by two versions of the package say, the last counts.
    """
    found: dict[tuple[int, str, str], list[Result]] = {}
    for point in points:
        subject = "" if point["series"] == point["feature"] else point["feature"]
        place = list(TITLES).index(point["protocol"])
        found.setdefault((place, subject, point["x_axis"]), []).append(point)
    return tuple(
        Panel(list(TITLES)[place], subject or None, x_axis, _charts(rows))
        for (place, subject, x_axis), rows in sorted(found.items(), key=lambda item: item[0][:2])
    )


def _charts(points: Sequence[Result]) -> tuple[Chart, ...]:
    by_figure: dict[str, dict[str, dict[int | None, Mark]]] = {}
    for p in points:
        interval = None if p["low"] is None else (p["low"], p["high"])
        lines = by_figure.setdefault(p["y_axis"], {})
        lines.setdefault(p["series"], {})[p["x"]] = Mark(
            p["y"], interval, p["note"], tuple(p.get("draws") or ())
        )
    return tuple(
        Chart(
            y_axis,
            tuple(sorted({x for marks in lines.values() for x in marks if x is not None})),
            tuple(
                Series(name, dict(_known(marks)), marks.get(None)) for name, marks in lines.items()
            ),
        )
        for y_axis, lines in by_figure.items()
    )


def _known(marks: dict[int | None, Mark]) -> list[tuple[int, Mark]]:
    return sorted(
        ((x, mark) for x, mark in marks.items() if x is not None), key=lambda pair: pair[0]
    )
