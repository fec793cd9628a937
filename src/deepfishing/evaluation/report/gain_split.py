"""Split of a gain into the part of unlabelled photos and the part of gradients.

The paper's table compares features under one linear classifier. A user asks something else: how
good is the best that can be done with these labels and these photos? Three rows answer that:

1. the strongest forward feature that uses no unlabelled photos, the best of those measured;
2. `auto-forward`, the choice among forward features, which may use unlabelled photos (the pool);
3. `auto`, the choice among all features, gradients included.

The second minus the first is what the pool gives, the third minus the second what gradients give.
The first is the best on the test images, so what is said of the pool is rather too little.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepfishing.core.recipes import AUTO
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.core.statistics import Difference, Interval, paired_difference
from deepfishing.evaluation.checks import Result
from deepfishing.evaluation.report.charts import Chart, Mark, Panel, Series, panels
from deepfishing.evaluation.report.rows import gain_over, is_plain_forward, title
from deepfishing.evaluation.report.tables import (
    Comparison,
    Line,
    one_decimal,
    signed_ends,
)
from deepfishing.evaluation.results import Results

FORWARD_NAME = "forward (no pool)"
WITH_POOL_NAME = f"{AUTO_FORWARD} (with the pool)"
POOL_GIVES, GRADIENTS_GIVE = "the pool gives", "gradients give"


@dataclass(frozen=True)
class Figure:
    """A measured figure of a feature, in percent."""

    feature: str
    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Gain:
    """One figure minus another, in points; `difference` has its interval, if there is one."""

    over: str
    mean: float
    difference: Difference | None

    @property
    def text(self) -> str:
        """The gain with its interval."""
        ends = f" ({signed_ends(self.interval)})" if self.interval else ""
        return one_decimal(self.mean, sign=True) + ends

    @property
    def interval(self) -> Interval | None:
        """Its interval at 95 %."""
        return (self.difference.low, self.difference.high) if self.difference else None

    @property
    def holds(self) -> bool:
        """Whether the interval excludes 0."""
        return self.difference is not None and self.difference.holds

    def as_keys(self) -> dict[str, Any]:
        """A value of `results.jsonl` and `curves.jsonl`."""
        found = self.difference
        low, high, p = (found.low, found.high, found.p) if found else (None, None, None)
        return {"over": self.over, "mean": self.mean, "low": low, "high": high, "p": p}


@dataclass(frozen=True)
class GainSplit:
    """The three rows for one number of labels, and the gains between them."""

    labels: int | None  # per class; None for all
    forward: Figure
    with_pool: Figure
    auto: Figure
    of_pool: Gain
    of_gradients: Gain

    @property
    def figures(self) -> tuple[tuple[str, Figure], ...]:
        """The rows with their names in tables."""
        names = FORWARD_NAME, WITH_POOL_NAME, AUTO
        return tuple(zip(names, (self.forward, self.with_pool, self.auto), strict=True))

    @property
    def gains(self) -> tuple[tuple[str, Gain], ...]:
        """The gains with their names in tables."""
        return (POOL_GIVES, self.of_pool), (GRADIENTS_GIVE, self.of_gradients)

    def as_keys(self) -> dict[str, Any]:
        """Keys of the row, or of the point, of `auto`."""
        return {
            "gain_of_pool": self.of_pool.as_keys(),
            "gain_of_gradients": self.of_gradients.as_keys(),
        }


def table_split(results: Results, table: Comparison) -> GainSplit | None:
    """Return the split of the rows of a table by the official mAP; None if a row is missing."""
    by_name = {line.feature: line for line in table.measured}
    forward = _strongest_forward(table)
    if forward is None or not {AUTO, AUTO_FORWARD} <= set(by_name):
        return None
    lines = forward, by_name[AUTO_FORWARD], by_name[AUTO]
    figures = [
        Figure(line.feature, line.official or 0.0, line.interval) for line in lines
    ]
    row_of = {row["feature"]: row for row in table.rows}
    differences = []
    for lower, higher in itertools.pairwise(lines):
        differences.append(
            gain_over(results, row_of[higher.feature], row_of[lower.feature])
        )
    return _split(None, figures, differences)


def chart_splits(chart: Chart) -> list[GainSplit]:
    """Return the split at each number of labels of a chart where the rows are measured."""
    series = {one.name: one for one in chart.series}
    if not {AUTO, AUTO_FORWARD} <= set(series):
        # then lines may be anything, not only features
        return []
    forward = [series[name] for name in plain_forward_lines(chart)]
    if not forward:
        return []
    found = []
    for x in chart.xs:
        best = max(forward, key=lambda one: _value(one, x))
        marks = [
            (one, one.marks.get(x))
            for one in (best, series[AUTO_FORWARD], series[AUTO])
        ]
        known = [
            (one, mark, mark.y) for one, mark in marks if mark and mark.y is not None
        ]
        if len(known) == len(marks):
            figures = [Figure(one.name, y, mark.interval) for one, mark, y in known]
            pairs = itertools.pairwise(known)
            differences = [_paired(higher[1], lower[1]) for lower, higher in pairs]
            found.append(_split(x, figures, differences))
    return found


def plain_forward_lines(chart: Chart) -> list[str]:
    """Return the lines whose best is the first row."""
    return [series.name for series in chart.series if is_plain_forward(series.name)]


def panel_splits(panel: Panel) -> list[tuple[Chart, list[GainSplit]]]:
    """Return the charts of a panel that have a split, with it."""
    found = [(chart, chart_splits(chart)) for chart in panel.charts]
    return [(chart, splits) for chart, splits in found if splits]


def add_gains(points: Sequence[Result]) -> None:
    """Add the keys of the gains to the points of `auto`, in place."""
    for panel in panels(points):
        for chart, splits in panel_splits(panel):
            keys = {split.labels: split.as_keys() for split in splits}
            for point in points:
                place = point["series"], point["x_axis"], point["y_axis"]
                if place == (AUTO, panel.x_axis, chart.y_axis) and point["x"] in keys:
                    point.update(keys[point["x"]])


def _strongest_forward(table: Comparison) -> Line | None:
    lines = [line for line in table.measured if is_plain_forward(line.feature)]
    return max(lines, key=lambda line: line.official or 0.0) if lines else None


def _split(
    labels: int | None,
    figures: Sequence[Figure],
    differences: Sequence[Difference | None],
) -> GainSplit:
    forward, with_pool, auto = figures
    gains = []
    for lower, higher, difference in zip(
        figures[:-1], figures[1:], differences, strict=True
    ):
        gains.append(Gain(title(lower.feature), higher.value - lower.value, difference))
    return GainSplit(labels, forward, with_pool, auto, *gains)


def _value(series: Series, x: int) -> float:
    mark = series.marks.get(x)
    return -1.0 if mark is None or mark.y is None else mark.y


def _paired(a: Mark, b: Mark) -> Difference | None:
    """The difference of two marks that are means over the same draws."""
    return paired_difference(a.draws, b.draws) if len(a.draws) == len(b.draws) else None
