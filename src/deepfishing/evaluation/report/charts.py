"""Points of a setting as panels of charts.

A panel has one horizontal axis and the same lines in one chart per figure, such as accuracy and mAP
against k. Places are in percent of the plot's width and height, so a page can draw it at any size
with text that stays readable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deepfishing.core.recipes import parse_recipe
from deepfishing.core.statistics import Interval
from deepfishing.evaluation.approximation import (
    BIAS,
    EXACT,
    RMS,
    SECONDS,
    WITH_PROJECTION,
)
from deepfishing.evaluation.checks import ACCURACY, BALANCED, Result
from deepfishing.evaluation.report.rows import title

TITLES = {
    "low-shot": "Few examples",
    "knn": "Nearest neighbours",
    "curate": "Labels chosen and doubted",
    "search": "Search by examples",
    "approximation": "Projections against the exact kernel",
}
# Ratios matter here, not differences: twice the time, half the error.
TIMES = (SECONDS, WITH_PROJECTION)
LOGARITHMIC = (*TIMES, RMS)
# Cool and warm in turn, so that neighbours in the list differ.
HUES = (206, 20, 140, 285, 45, 330, 175, 95, 250)


@dataclass(frozen=True)
class Axis:
    """An axis from its first tick to its last."""

    ticks: tuple[float, ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, in percent of the axis."""
        ends = (self.ticks[0], value, self.ticks[-1])
        low, at, high = map(math.log, ends) if self.logarithmic else ends
        return 50.0 if high == low else round(100 * (at - low) / (high - low), 2)


@dataclass(frozen=True)
class Mark:
    """A measured figure."""

    y: float | None  # None where it could not be measured; `note` says why
    interval: Interval | None
    note: str = ""
    # of which it is the mean, in the same order for all lines
    draws: tuple[float, ...] = ()


@dataclass(frozen=True)
class Series:
    """A line of a chart: marks by x, or one `level` for all x."""

    name: str
    marks: dict[int, Mark]
    level: Mark | None = None

    @property
    def gradient(self) -> bool:
        """Whether the feature that it stands for is a gradient."""
        return parse_recipe(self.name).is_gradient

    def at(self, x: int) -> Mark | None:
        """The mark at x; a level is the same everywhere."""
        return self.level or self.marks.get(x)


@dataclass(frozen=True)
class Style:
    """How a line is drawn."""

    hue: int | None  # None for the exact kernel, which has the colour of text
    dash: int  # 0 for a whole line, 1 for dashes, 2 for dots


@dataclass(frozen=True)
class Chart:
    """One figure against the panel's axis."""

    y_axis: str
    xs: tuple[int, ...]
    series: tuple[Series, ...]

    @property
    def whole(self) -> list[Series]:
        """The lines that have a figure at every x, if there is any x."""
        known = [
            (s, {x for x, mark in s.marks.items() if mark.y is not None})
            for s in self.series
        ]
        return [s for s, xs in known if xs and xs.issuperset(self.xs)]

    @property
    def across(self) -> Axis:
        """The axis to the right: counts that double, so logarithmic, with a tick at each."""
        # without any: a chart of levels alone
        return Axis(self.xs or (1,), logarithmic=True)

    @property
    def up(self) -> Axis:
        """The axis upwards, around all figures and their intervals."""
        marks = [m for s in self.series for m in (*s.marks.values(), s.level) if m]
        values = [v for m in marks for v in (m.y, *(m.interval or ())) if v is not None]
        low, high = min(values, default=0.0), max(values, default=1.0)
        if self.y_axis in LOGARITHMIC and low > 0:
            return Axis(log_ticks(low, high), logarithmic=True)
        return Axis(round_ticks(low, high))

    def path(self, series: Series) -> list[tuple[float, float]]:
        """The line through the marks of a series in percent, y downwards as in SVG."""
        across, up = self.across, self.up
        marks = [(across.place(x), mark) for x, mark in series.marks.items()]
        if series.level:
            marks = [(0.0, series.level), (100.0, series.level)]
        return [
            (x, round(100 - up.place(mark.y), 2))
            for x, mark in marks
            if mark.y is not None
        ]


@dataclass(frozen=True)
class Panel:
    """Charts with the same axis and lines."""

    protocol: str
    # what was measured, where the lines are not features themselves
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
        return tuple(
            dict.fromkeys(s.name for chart in self.charts for s in chart.series)
        )

    @property
    def features(self) -> tuple[str, ...]:
        """The features that it is about."""
        return (self.feature,) if self.feature else self.names

    @property
    def notes(self) -> tuple[str, ...]:
        """Why points are missing."""
        marks = [m for c in self.charts for s in c.series for m in s.marks.values()]
        return tuple(dict.fromkeys(mark.note for mark in marks if mark.note))

    @property
    def styles(self) -> dict[str, Style]:
        """How each line is drawn: those of one projection in one colour, with other dashes."""
        seen: dict[str, int] = {}  # how many lines of each projection there were
        found = {}
        for name in self.names:
            base = name.partition(", ")[0] if self.feature else name
            if base == EXACT:
                found[name] = Style(None, dash=1)
                continue
            seen[base] = seen.get(base, -1) + 1
            hue = HUES[list(seen).index(base) % len(HUES)]
            found[name] = Style(hue, min(seen[base], 2))
        return found

    def called(self, series: Series) -> str:
        """What a line is called: by the title of its feature, if it stands for one."""
        return series.name if self.feature else title(series.name)

    def heading(self, chart: Chart) -> str:
        """What a chart shows."""
        subject = f" of {title(self.feature)}" if self.feature else ""
        return f"{self.title}{subject}: {chart.y_axis}"

    def text(self, chart: Chart, mark: Mark | None) -> tuple[str, str]:
        """A mark's figure and its interval, each empty if there is none."""
        if mark is None:
            return "", ""
        exact = self.feature is not None
        ends = [figure_text(chart.y_axis, end, exact) for end in mark.interval or ()]
        return figure_text(chart.y_axis, mark.y, exact), "–".join(ends)


def panels(points: Sequence[Result]) -> tuple[Panel, ...]:
    """Panels of the points of one setting, protocol by protocol.

    Where a point was measured more than once, by two versions of the package say, the last counts.
    """
    protocols = list(TITLES)
    found: dict[tuple[str, str, str], list[Result]] = {}
    for point in points:
        subject = "" if point["series"] == point["feature"] else point["feature"]
        found.setdefault((point["protocol"], subject, point["x_axis"]), []).append(
            point
        )
    order = sorted(found, key=lambda key: (protocols.index(key[0]), key[1]))
    return tuple(
        Panel(key[0], key[1] or None, key[2], _charts(found[key])) for key in order
    )


def _charts(points: Iterable[Result]) -> tuple[Chart, ...]:
    by_figure: dict[str, dict[str, dict[int | None, Mark]]] = {}
    for p in points:
        interval = None if p["low"] is None else (p["low"], p["high"])
        mark = Mark(p["y"], interval, p["note"], tuple(p.get("draws") or ()))
        by_figure.setdefault(p["y_axis"], {}).setdefault(p["series"], {})[p["x"]] = mark
    charts = []
    for y_axis, lines in by_figure.items():
        xs = tuple(
            sorted({x for marks in lines.values() for x in marks if x is not None})
        )
        series = (
            Series(name, {x: marks[x] for x in xs if x in marks}, marks.get(None))
            for name, marks in lines.items()
        )
        charts.append(Chart(y_axis, xs, tuple(series)))
    figures = {chart.y_axis: _figures(chart) for chart in charts}
    if figures.get(BALANCED) == figures.get(ACCURACY):
        # of as many test images of each class
        charts = [chart for chart in charts if chart.y_axis != BALANCED]
    return tuple(charts)


def _figures(chart: Chart) -> list[tuple[str, int, float]]:
    """All figures of a chart, rounded."""
    found = []
    for series in chart.series:
        found += [
            (series.name, x, round(m.y, 6))
            for x, m in series.marks.items()
            if m.y is not None
        ]
    return found


def round_ticks(low: float, high: float, least: float = 0.0) -> tuple[float, ...]:
    """Round numbers in even steps of at least `least` around a range, at most eight."""
    spread = high - low or 1.0
    scale = 10.0 ** math.floor(math.log10(spread))
    step = max(
        least, next(s * scale for s in (0.2, 0.5, 1, 2) if spread <= 5 * s * scale)
    )
    digits = max(0, 1 - math.floor(math.log10(step)))
    first = math.floor(round(low / step, 6))
    last = max(math.ceil(round(high / step, 6)), first + 1)
    return tuple(round(i * step, digits) for i in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """1, 2 and 5 times powers of ten around a range, or the powers alone if there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    heads = (1, 2, 5) if len(powers) <= 4 else (1,)
    every = [round(head * 10.0**power, 12) for power in powers for head in heads]
    every.append(10.0 ** (powers[-1] + 1))
    first = max(i for i, tick in enumerate(every) if tick <= low)
    last = min(i for i, tick in enumerate(every) if tick >= high and i > first)
    return tuple(every[first : last + 1])


def tick_text(value: float) -> str:
    """A tick's label, short."""
    if value >= 1000 and value % 1000 == 0:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:g}".replace("-", "−")


def figure_text(y_axis: str, value: float | None, exact: bool = False) -> str:
    """A figure as its table shows it; `exact` is for figures that differ by little."""
    if value is None:
        return ""
    if y_axis in TIMES:
        return (
            f"{value:.2f}"
            if value < 1
            else f"{value:.1f}"
            if value < 100
            else f"{value:,.0f}"
        )
    if y_axis in (BIAS, RMS):
        return f"{value:+.4f}" if y_axis == BIAS else f"{value:.4f}"
    return f"{value:.2f}" if exact else f"{value:.1f}"
