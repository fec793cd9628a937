"""Points of a setting as panels of charts.

A panel has one horizontal axis and the same lines in one chart per figure, such as accuracy and mAP
against k. Positions are in percent of the plot's width and height, so that a page can draw it at
any size with readable text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from deepfishing.core.recipes import parse_recipe
from deepfishing.core.statistics import Interval
from deepfishing.evaluation.record import (
    ACCURACY,
    BALANCED,
    BIAS,
    CURVES,
    EXACT,
    RMS,
    SECONDS,
    WITH_PROJECTION,
    Result,
)
from deepfishing.evaluation.report.tables import title

# figures that are compared by ratios, such as twice the time or half the error
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
        """Position of a value, in percent of the axis."""
        low, high = self.ticks[0], self.ticks[-1]
        if high == low:
            return 50.0
        if self.logarithmic:
            low = math.log(low)
            value = math.log(value)
            high = math.log(high)
        share = (value - low) / (high - low)
        return round(100 * share, 2)


@dataclass(frozen=True)
class Mark:
    """A measured figure."""

    y: float | None  # None where it was not measurable; `note` has the reason
    interval: Interval | None
    note: str = ""
    # values of which it is the mean, in the same order for all lines
    draws: tuple[float, ...] = ()


@dataclass(frozen=True)
class Series:
    """A line of a chart: marks by x, or one `level` for all x."""

    name: str
    marks: dict[int, Mark]
    level: Mark | None = None

    @property
    def gradient(self) -> bool:
        """Whether its feature is a gradient."""
        return parse_recipe(self.name).is_gradient

    def at(self, x: int) -> Mark | None:
        """Return the mark at x; a level is the same everywhere."""
        return self.level or self.marks.get(x)


@dataclass(frozen=True)
class Style:
    """Colour and dashes of a line."""

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
        lines = []
        for series in self.series:
            measured = {x for x, mark in series.marks.items() if mark.y is not None}
            if measured and measured.issuperset(self.xs):
                lines.append(series)
        return lines

    @property
    def across(self) -> Axis:
        """The horizontal axis: logarithmic, with a tick at each x."""
        # a chart of levels alone has no x
        return Axis(self.xs or (1,), logarithmic=True)

    @property
    def up(self) -> Axis:
        """The vertical axis, around all figures and their intervals."""
        values: list[float] = []
        for mark in self._all_marks():
            if mark.y is not None:
                values.append(mark.y)
            values += mark.interval or ()
        low, high = min(values, default=0.0), max(values, default=1.0)
        if self.y_axis in LOGARITHMIC and low > 0:
            return Axis(log_ticks(low, high), logarithmic=True)
        return Axis(round_ticks(low, high))

    def _all_marks(self) -> Iterator[Mark]:
        for series in self.series:
            yield from series.marks.values()
            if series.level:
                yield series.level

    def path(self, series: Series) -> list[tuple[float, float]]:
        """Return the line through the marks of a series in percent, y downwards as in SVG."""
        across, up = self.across, self.up
        marks = [(across.place(x), mark) for x, mark in series.marks.items()]
        if series.level:
            marks = [(0.0, series.level), (100.0, series.level)]
        points = []
        for x, mark in marks:
            if mark.y is not None:
                y = round(100 - up.place(mark.y), 2)
                points.append((x, y))
        return points


@dataclass(frozen=True)
class Panel:
    """Charts with the same axis and lines."""

    protocol: str
    # the feature that was measured, unless each line is a feature
    feature: str | None
    x_axis: str
    charts: tuple[Chart, ...]

    @property
    def title(self) -> str:
        """The name of the protocol."""
        return CURVES[self.protocol]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all lines, each once."""
        names: dict[str, None] = {}
        for chart in self.charts:
            names |= dict.fromkeys(series.name for series in chart.series)
        return tuple(names)

    @property
    def features(self) -> tuple[str, ...]:
        """The features that it is about."""
        if self.feature:
            return (self.feature,)
        return self.names

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons for missing points."""
        notes: dict[str, None] = {}
        for chart in self.charts:
            for series in chart.series:
                notes |= {mark.note: None for mark in series.marks.values()}
        return tuple(note for note in notes if note)

    @property
    def styles(self) -> dict[str, Style]:
        """Colour and dashes of each line: one colour for each projection."""
        counts: dict[str, int] = {}  # of lines of each projection
        styles = {}
        for name in self.names:
            projection = name
            if self.feature:
                projection = name.partition(", ")[0]
            if projection == EXACT:
                styles[name] = Style(None, dash=1)
                continue
            number = counts.setdefault(projection, 0)
            counts[projection] += 1
            hue = HUES[list(counts).index(projection) % len(HUES)]
            styles[name] = Style(hue, dash=min(number, 2))
        return styles

    def line_title(self, name: str) -> str:
        """Return the title of a line: of its feature, if the line is a feature."""
        if self.feature:
            return name
        return title(name)

    def heading(self, chart: Chart) -> str:
        """Return the title of a chart."""
        subject = self.title
        if self.feature:
            subject += f" of {title(self.feature)}"
        return f"{subject}: {chart.y_axis}"

    def text(self, chart: Chart, mark: Mark | None) -> tuple[str, str]:
        """Return the figure of a mark and its interval, each empty if there is none."""
        if mark is None:
            return "", ""
        exact = self.feature is not None
        ends = [figure_text(chart.y_axis, end, exact) for end in mark.interval or ()]
        return figure_text(chart.y_axis, mark.y, exact), "–".join(ends)


def panels(points: Sequence[Result]) -> tuple[Panel, ...]:
    """Return panels of the points of one setting, protocol by protocol.

    Of a point that was measured more than once, for instance by two versions, the last counts.
    """
    by_panel: dict[tuple[int, str, str], list[Result]] = {}
    protocols = list(CURVES)
    for point in points:
        subject = point["feature"]
        if point["series"] == point["feature"]:
            subject = ""
        key = protocols.index(point["protocol"]), subject, point["x_axis"]
        by_panel.setdefault(key, []).append(point)
    # axes in order of appearance
    order = sorted(by_panel, key=lambda key: key[:2])
    panels = []
    for number, subject, x_axis in order:
        charts = _charts(by_panel[number, subject, x_axis])
        panels.append(Panel(protocols[number], subject or None, x_axis, charts))
    return tuple(panels)


def _charts(points: Iterable[Result]) -> tuple[Chart, ...]:
    by_figure: dict[str, dict[str, dict[int | None, Mark]]] = {}
    for point in points:
        interval = None
        if point["low"] is not None:
            interval = point["low"], point["high"]
        draws = tuple(point.get("draws") or ())
        mark = Mark(point["y"], interval, point["note"], draws)
        lines = by_figure.setdefault(point["y_axis"], {})
        lines.setdefault(point["series"], {})[point["x"]] = mark
    charts = {y_axis: _chart(y_axis, lines) for y_axis, lines in by_figure.items()}
    accuracy, balanced = charts.get(ACCURACY), charts.get(BALANCED)
    if accuracy and balanced and _figures(accuracy) == _figures(balanced):
        # of as many test images of each class
        del charts[BALANCED]
    return tuple(charts.values())


def _chart(y_axis: str, lines: Mapping[str, dict[int | None, Mark]]) -> Chart:
    all_xs: set[int] = set()
    for marks in lines.values():
        all_xs |= {x for x in marks if x is not None}
    xs = tuple(sorted(all_xs))
    series = []
    for name, marks in lines.items():
        by_x = {x: marks[x] for x in xs if x in marks}
        series.append(Series(name, by_x, marks.get(None)))
    return Chart(y_axis, xs, tuple(series))


def _figures(chart: Chart) -> list[tuple[str, int, float]]:
    """Return all figures of a chart, rounded."""
    figures = []
    for series in chart.series:
        for x, mark in series.marks.items():
            if mark.y is not None:
                figures.append((series.name, x, round(mark.y, 6)))
    return figures


def round_ticks(low: float, high: float, least: float = 0.0) -> tuple[float, ...]:
    """Round numbers in even steps of at least `least` around a range, at most eight."""
    spread = high - low or 1.0
    scale = 10.0 ** math.floor(math.log10(spread))
    step = 2 * scale
    for factor in (1, 0.5, 0.2):
        if spread <= 5 * factor * scale:
            step = factor * scale
    step = max(least, step)
    digits = max(0, 1 - math.floor(math.log10(step)))
    first = math.floor(round(low / step, 6))
    last = max(math.ceil(round(high / step, 6)), first + 1)
    return tuple(round(i * step, digits) for i in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """1, 2 and 5 times powers of ten around a range, or the powers alone if there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors: tuple[int, ...] = (1, 2, 5)
    if len(powers) > 4:
        factors = (1,)
    ticks = []
    for power in powers:
        ticks += [round(factor * 10.0**power, 12) for factor in factors]
    ticks.append(10.0 ** (powers[-1] + 1))
    first = max(i for i, tick in enumerate(ticks) if tick <= low)
    last = min(i for i, tick in enumerate(ticks) if tick >= high and i > first)
    return tuple(ticks[first : last + 1])


def tick_text(value: float) -> str:
    """Return a tick's label, short."""
    if value >= 1000 and value % 1000 == 0:
        return f"{value / 1000:,.0f}k"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:g}".replace("-", "−")


def figure_text(y_axis: str, value: float | None, exact: bool = False) -> str:
    """Return a figure as its table shows it; `exact` is for figures that differ by little."""
    if value is None:
        return ""
    if y_axis in TIMES:
        if value >= 100:
            return f"{value:,.0f}"
        if value >= 1:
            return f"{value:.1f}"
        return f"{value:.2f}"
    if y_axis == BIAS:
        return f"{value:+.4f}"
    if y_axis == RMS:
        return f"{value:.4f}"
    if exact:
        return f"{value:.2f}"
    return f"{value:.1f}"
