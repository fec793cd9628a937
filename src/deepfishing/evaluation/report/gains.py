"""Gains of one row over another, and their split into unlabelled photos and gradients.

The difference of two rows is that of their official mAP in the paired bootstrap. The mAP of a row
on each draw of test images is kept beside its scores, so it is computed once.

The paper's table compares features under one linear classifier. A user asks something else: how
good is the best that can be done with these labels and these photos? Three rows answer that:

1. the strongest forward feature that uses no unlabelled photos, the best of those measured;
2. `auto-forward`, the choice among forward features, which may use unlabelled photos (the pool);
3. `auto`, the choice among all features, gradients included.

The second minus the first is what the pool gives, the third minus the second what gradients give.
The first is the best on the test images, so the gain of the pool is rather too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import AUTO
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.core.statistics import (
    RESAMPLES,
    Difference,
    Interval,
    bootstrap,
    difference,
    paired_difference,
)
from deepfishing.errors import DeepFishingError
from deepfishing.evaluation.record import Result
from deepfishing.evaluation.report.charts import Chart, Mark, Panel, Series, panels
from deepfishing.evaluation.report.folder import (
    measured_columns,
    row_scores,
    same_test,
)
from deepfishing.evaluation.report.sheet import one_decimal, signed_ends
from deepfishing.evaluation.report.tables import (
    Comparison,
    best_line,
    is_fixed_forward,
    is_plain_forward,
    official_map,
    paper_order,
    title,
)
from deepfishing.evaluation.results import DAMAGED, Results
from deepfishing.util.files import replacing

FORWARD_NAME = "forward (no pool)"
WITH_POOL_NAME = f"{AUTO_FORWARD} (with the pool)"
POOL_GIVES, GRADIENTS_GIVE = "the pool gives", "gradients give"


def gains(results: Results, rows: Sequence[Result]) -> dict[str, Difference]:
    """Official mAP of each row minus that of the best forward row of fixed cost, by feature.

    Without the best forward row itself, and without rows that cannot be compared with it on the
    same images: no labels, no scores, other images, or other classes left out.
    """
    rows = sorted(rows, key=paper_order)
    measured = [row for row in rows if official_map(row) is not None]
    forward = [row for row in measured if is_fixed_forward(row["feature"])]
    if not forward:
        return {}
    reference = max(forward, key=lambda row: official_map(row) or 0.0)
    by_feature = {}
    for row in measured:
        gain = None
        if row is not reference:
            gain = gain_over(results, row, reference)
        if gain is not None:
            by_feature[row["feature"]] = gain
    return by_feature


def gain_over(results: Results, row: Result, reference: Result) -> Difference | None:
    """Return the official mAP of a row minus that of another one, in the paired bootstrap.

    None where they cannot be compared on the same images.
    """
    figure, other = official_map(row), official_map(reference)
    try:
        if figure is None or other is None or not same_test(results, row, reference):
            return None
        draws = _map_draws(results, row) - _map_draws(results, reference)
    except DeepFishingError:  # the page reports it where it would draw these scores
        return None
    return difference(figure - other, draws)


@dataclass(frozen=True)
class RowFigure:
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
        if not self.difference:
            return None
        return self.difference.low, self.difference.high

    @property
    def holds(self) -> bool:
        """Whether the interval excludes 0."""
        return self.difference is not None and self.difference.holds

    def as_keys(self) -> dict[str, Any]:
        """Return a value of `results.jsonl` and `curves.jsonl`."""
        keys: dict[str, Any] = {"over": self.over, "mean": self.mean}
        for name in ("low", "high", "p"):
            keys[name] = getattr(self.difference, name, None)
        return keys


@dataclass(frozen=True)
class GainSplit:
    """The three rows for one number of labels, and the gains between them."""

    labels: int | None  # per class; None for all
    forward: RowFigure
    with_pool: RowFigure
    auto: RowFigure
    of_pool: Gain
    of_gradients: Gain

    @property
    def figures(self) -> tuple[tuple[str, RowFigure], ...]:
        """The rows with their names in tables."""
        return (
            (FORWARD_NAME, self.forward),
            (WITH_POOL_NAME, self.with_pool),
            (AUTO, self.auto),
        )

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
    forward = best_line(ln for ln in table.measured if is_plain_forward(ln.feature))
    with_pool, auto = by_name.get(AUTO_FORWARD), by_name.get(AUTO)
    if forward is None or with_pool is None or auto is None:
        return None
    figures = []
    for line in (forward, with_pool, auto):
        figures.append(RowFigure(line.feature, line.official or 0.0, line.interval))
    rows = [table.row_of(line) for line in (forward, with_pool, auto)]
    return _split(
        None,
        figures,
        gain_over(results, rows[1], rows[0]),
        gain_over(results, rows[2], rows[1]),
    )


def chart_splits(chart: Chart) -> list[GainSplit]:
    """Return the split at each number of labels of a chart where the rows are measured."""
    by_name = {series.name: series for series in chart.series}
    if not {AUTO, AUTO_FORWARD} <= set(by_name):
        # then lines may be anything, not only features
        return []
    forward = [by_name[name] for name in plain_forward_lines(chart)]
    if not forward:
        return []
    splits = []
    for x in chart.xs:
        best = max(forward, key=lambda series: _value(series, x))
        lines = best, by_name[AUTO_FORWARD], by_name[AUTO]
        marks = [line.marks[x] for line in lines if _value(line, x) >= 0]
        if len(marks) < len(lines):
            continue
        figures = []
        for line, mark in zip(lines, marks, strict=True):
            figures.append(RowFigure(line.name, mark.y or 0.0, mark.interval))
        of_pool, of_gradients = (
            _paired(marks[1], marks[0]),
            _paired(marks[2], marks[1]),
        )
        splits.append(_split(x, figures, of_pool, of_gradients))
    return splits


def plain_forward_lines(chart: Chart) -> list[str]:
    """Return the lines whose best is the first row."""
    return [series.name for series in chart.series if is_plain_forward(series.name)]


def panel_splits(panel: Panel) -> list[tuple[Chart, list[GainSplit]]]:
    """Return the charts of a panel that have a split, with it."""
    pairs = [(chart, chart_splits(chart)) for chart in panel.charts]
    return [(chart, splits) for chart, splits in pairs if splits]


def add_gains(points: Sequence[Result]) -> None:
    """Add the keys of the gains to the points of `auto`, in place."""
    for panel in panels(points):
        for chart, splits in panel_splits(panel):
            keys = {split.labels: split.as_keys() for split in splits}
            axes = AUTO, panel.x_axis, chart.y_axis
            for point in points:
                is_auto = (point["series"], point["x_axis"], point["y_axis"]) == axes
                if is_auto and point["x"] in keys:
                    point.update(keys[point["x"]])


def _split(
    labels: int | None,
    figures: Sequence[RowFigure],
    of_pool: Difference | None,
    of_gradients: Difference | None,
) -> GainSplit:
    forward, with_pool, auto = figures
    return GainSplit(
        labels,
        forward,
        with_pool,
        auto,
        Gain(title(forward.feature), with_pool.value - forward.value, of_pool),
        Gain(title(with_pool.feature), auto.value - with_pool.value, of_gradients),
    )


def _value(series: Series, x: int) -> float:
    """Return the figure of a line, -1 for none."""
    mark = series.marks.get(x)
    if mark is None or mark.y is None:
        return -1.0
    return mark.y


def _paired(a: Mark, b: Mark) -> Difference | None:
    """Return the difference of two marks that are means over the same draws."""
    if len(a.draws) != len(b.draws):
        return None
    return paired_difference(a.draws, b.draws)


def _map_draws(results: Results, row: Result) -> Array:
    """Official mAP of a row on each draw, (RESAMPLES,)."""
    source = results.scores_path(row)
    file = source.with_suffix(".draws.npy")
    cached = _kept_draws(file, source)
    if cached is not None:
        return cached
    scores, labels = row_scores(results, row)
    columns, method = measured_columns(row), row["official_ap"]
    sampled = bootstrap(
        labels[:, columns],
        scores[:, columns],
        [row["classes"][column] for column in columns],
        (method,),
        groups=results.groups(row),
    )
    draws = sampled.map(method)
    try:
        with replacing(file) as partial, partial.open("wb") as out:
            np.save(out, draws)
    except OSError:  # a folder that is read only: computed again next time
        pass
    return draws


def _kept_draws(file: Path, source: Path) -> Array | None:
    """Draws that were kept and are not older than the scores they were made of."""
    try:
        if file.stat().st_mtime_ns < source.stat().st_mtime_ns:
            return None
        with file.open("rb") as content:
            draws: Array = np.lib.format.read_array(content, allow_pickle=False)
    except DAMAGED:
        return None
    usable = draws.shape == (RESAMPLES,) and draws.dtype == np.float64
    if not usable:
        return None
    return draws
