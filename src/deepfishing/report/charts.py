"""Stage 7, report: where the marks of a chart lie, and how its figures are written.

Comes in: a chart. Goes out: places in percent of the plot's width and height, so that a page can
draw it at any size with text that stays readable, and figures as text for the tables below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from deepfishing.experiments.approximation import BIAS, EXACT, RMS, SECONDS, WITH_PROJECTION
from deepfishing.report.points import Chart, Mark, Panel, Series

# Ratios matter here, not differences: twice the time, half the error.
TIMES = (SECONDS, WITH_PROJECTION)
LOGARITHMIC = (*TIMES, RMS)
# Cool and warm in turn, so that neighbours in the list differ.
HUES = (206, 20, 140, 285, 45, 330, 175, 95, 250)


@dataclass(frozen=True)
class Axis:
    """An axis with round ticks; percent 0 is its lower end."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool

    def place(self, value: float) -> float:
        """Where a value lies, in percent of the axis.

        Examples
        --------
        >>> Axis(1, 100, (1, 10, 100), True).place(10), Axis(0, 10, (0, 5, 10), False).place(2.5)
        (50.0, 25.0)
        """
        ends = (self.low, value, self.high)
        low, at, high = map(math.log, ends) if self.logarithmic else ends
        return 50.0 if high == low else round(100 * (at - low) / (high - low), 2)


def x_axis(chart: Chart) -> Axis:
    """The axis to the right: counts that double, so logarithmic, with a tick at each."""
    xs = chart.xs or (1,)  # a chart of levels alone
    return Axis(xs[0], xs[-1], tuple(xs), logarithmic=True)


def y_axis(chart: Chart) -> Axis:
    """The axis upwards, around all figures and their intervals."""
    marks = [m for s in chart.series for m in (*s.marks.values(), s.level) if m]
    values = [v for m in marks for v in (m.y, *(m.interval or ())) if v is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if chart.y_axis in LOGARITHMIC and low > 0:
        ticks = log_ticks(low, high)
        return Axis(ticks[0], ticks[-1], ticks, logarithmic=True)
    ticks = round_ticks(low, high)
    return Axis(ticks[0], ticks[-1], ticks, logarithmic=False)


def round_ticks(low: float, high: float) -> tuple[float, ...]:
    """Round numbers in even steps around a range, at most eight.

    Examples
    --------
    >>> round_ticks(41.2, 78.0)
    (40.0, 50.0, 60.0, 70.0, 80.0)
    >>> round_ticks(-0.0062, 0.0023)
    (-0.008, -0.006, -0.004, -0.002, 0.0, 0.002, 0.004)
    >>> round_ticks(5.0, 5.0)
    (5.0, 5.2)
    """
    spread = high - low or 1.0
    scale = 10.0 ** math.floor(math.log10(spread))
    step = next(s * scale for s in (0.2, 0.5, 1, 2) if spread <= 5 * s * scale)
    digits = max(0, 1 - math.floor(math.log10(step)))
    first = math.floor(round(low / step, 6))
    last = max(math.ceil(round(high / step, 6)), first + 1)
    return tuple(round(i * step, digits) for i in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """1, 2 and 5 times powers of ten around a range, or the powers alone if there are many.

    Examples
    --------
    >>> log_ticks(0.3, 7.0)
    (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    >>> log_ticks(0.3, 2000.0)
    (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    heads = (1, 2, 5) if len(powers) <= 4 else (1,)
    every = [round(head * 10.0**power, 12) for power in powers for head in heads]
    every.append(10.0 ** (powers[-1] + 1))
    first = max(i for i, tick in enumerate(every) if tick <= low)
    last = min(i for i, tick in enumerate(every) if tick >= high and i > first)
    return tuple(every[first : last + 1])


def tick_text(value: float) -> str:
    """A tick's label, short.

    Examples
    --------
    >>> tick_text(1024), tick_text(16_000), tick_text(0.002), tick_text(70.0)
    ('1,024', '16k', '0.002', '70')
    """
    if value >= 1000 and value % 1000 == 0:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:g}".replace("-", "−")


def figure_text(y_axis: str, value: float | None, exact: bool = False) -> str:
    """A figure as its table shows it; `exact` is for figures that differ by little.

    Examples
    --------
    >>> figure_text("accuracy, %", 71.26), figure_text("mAP, %", 82.424, exact=True)
    ('71.3', '82.42')
    >>> [figure_text(SECONDS, seconds) for seconds in (0.4132, 147.2, None)]
    ['0.41', '147', '']
    >>> figure_text("bias of the kernel", -0.00041)
    '-0.0004'
    """
    if value is None:
        return ""
    if y_axis in TIMES:
        return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
    if y_axis in (BIAS, RMS):
        return f"{value:+.4f}" if y_axis == BIAS else f"{value:.4f}"
    return f"{value:.2f}" if exact else f"{value:.1f}"


def mark_text(panel: Panel, chart: Chart, mark: Mark | None) -> tuple[str, str]:
    """A mark's figure and its interval, each empty if there is none."""
    if mark is None:
        return "", ""
    exact = panel.feature is not None
    ends = [figure_text(chart.y_axis, end, exact) for end in mark.interval or ()]
    return figure_text(chart.y_axis, mark.y, exact), "–".join(ends)


def curve_points(chart: Chart, series: Series) -> list[tuple[float, float]]:
    """The line through the marks of a series in percent, y downwards as in SVG."""
    across, up = x_axis(chart), y_axis(chart)
    if series.level:
        level = series.level.y
        return [] if level is None else [(x, round(100 - up.place(level), 2)) for x in (0.0, 100.0)]
    return [
        (across.place(x), round(100 - up.place(mark.y), 2))
        for x, mark in series.marks.items()
        if mark.y is not None
    ]


@dataclass(frozen=True)
class Style:
    """How a line is drawn; `hue` is None for the exact kernel, which has the colour of text.

    `dash` is 0 for a whole line, 1 for dashes, 2 for dots.
    """

    hue: int | None
    dash: int


def styles(panel: Panel) -> dict[str, Style]:
    """How each line of a panel is drawn.

    Lines of one projection that differ in its length have one colour and differ in their dashes.

    Examples
    --------
    >>> names = ("exact kernel", "product, 2,048", "product, 8,192", "product, 1,024", "nystroem")
    >>> lines = tuple(Series(name, {}, None) for name in names)
    >>> panel = Panel("approximation", "dW8", "training images", (Chart("seconds", (), lines),))
    >>> [(style.hue, style.dash) for style in styles(panel).values()]
    [(None, 1), (206, 0), (206, 1), (206, 2), (20, 0)]
    """
    seen: dict[str, int] = {}  # how many lines of each projection there were
    found = {}
    for name in panel.names:
        base = name.partition(", ")[0] if panel.feature else name
        if base == EXACT:
            found[name] = Style(None, dash=1)
            continue
        seen[base] = seen.get(base, -1) + 1
        hue = HUES[list(seen).index(base) % len(HUES)]
        found[name] = Style(hue, min(seen[base], 2))
    return found
