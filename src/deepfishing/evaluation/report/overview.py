"""Overview of the gains of gradients in several folders of results.

One page or Markdown file has a part for each gradient feature: its gain over the best forward
feature on every data set and network, with its interval, and the gain against the number of
examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepfishing.core.recipes import AUTO, parse_recipe
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.core.statistics import Difference, mean_interval
from deepfishing.errors import StoreError
from deepfishing.evaluation.record import SETTINGS, Result
from deepfishing.evaluation.report.charts import (
    Axis,
    Chart,
    Mark,
    Panel,
    Series,
    panels,
    round_ticks,
)
from deepfishing.evaluation.report.folder import (
    open_folder,
    open_results,
    save_report,
)
from deepfishing.evaluation.report.gains import (
    FORWARD_NAME,
    GRADIENTS_GIVE,
    POOL_GIVES,
    GainSplit,
    chart_splits,
    gains,
    table_split,
)
from deepfishing.evaluation.report.sheet import Cell, Sheet, gain_cell, one_decimal
from deepfishing.evaluation.report.tables import (
    comparison,
    is_chosen,
    is_plain_forward,
    title,
)
from deepfishing.evaluation.report.text import markdown
from deepfishing.evaluation.report.words import WITH_EXAMPLES
from deepfishing.evaluation.results import Curves, Results

# The gains of the two choices are over these: so they split the gain of `auto`.
OVER = {
    AUTO: f"{AUTO_FORWARD}: what gradients give",
    AUTO_FORWARD: "the strongest forward feature without unlabelled photos: what these give",
}
# Keys in which settings of the same data set and network may differ.
_FIRST = ("train", "test", "tau", "label", "views", "C", "difficult", "weights_sha256")
DIFFERENCES = tuple(dict.fromkeys((*_FIRST, *SETTINGS)))

# a protocol and the two axes of a chart
Place = tuple[str, str, str]


@dataclass(frozen=True)
class Gain:
    """A gradient's gain over the best forward feature of a setting, by the official mAP."""

    setting: str
    over: str
    forward: float
    difference: Difference


@dataclass(frozen=True)
class Part:
    """Gains of one gradient feature: by setting, and against the examples."""

    feature: str
    gains: tuple[Gain, ...]
    panels: tuple[Panel, ...]

    @property
    def over(self) -> str:
        """The reference of its gains."""
        return OVER.get(self.feature, "the best forward feature")

    @property
    def words(self) -> str:
        """The number of gains and losses, and how many are significant."""
        if not self.gains:
            return ""
        means = [gain.difference.mean for gain in self.gains]
        above = significant_gains = significant_losses = 0
        for gain in self.gains:
            is_gain = gain.difference.mean > 0
            above += is_gain
            if gain.difference.holds and is_gain:
                significant_gains += 1
            elif gain.difference.holds:
                significant_losses += 1
        reference = self.over.partition(":")[0]
        average = one_decimal(float(np.mean(means)), sign=True)
        return (
            f"Above {reference} in {above} of {len(means)}; at 95 % {significant_gains} gains and "
            f"{significant_losses} losses hold. On average {average}."
        )

    @property
    def panel_sheets(self) -> list[tuple[Panel, Sheet]]:
        """The panels with their tables."""
        return [(panel, panel_sheet(self, panel)) for panel in self.panels]


def find_folders(given: Sequence[Path]) -> list[Path]:
    """Folders of results among those given, and in those that hold none themselves."""
    result_folders: list[Path] = []
    for folder in given:
        if _has_results(folder):
            result_folders.append(folder)
            continue
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
        with_results = [path for path in inside if _has_results(path)]
        if not with_results:
            open_results(folder)  # an error that names what is missing
        result_folders += with_results
    return list(dict.fromkeys(result_folders))


def _has_results(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (Results.name, Curves.name))


def overview(folders: Iterable[Path]) -> list[Part]:
    """Return the gains of each gradient feature; the one of most settings first."""
    tables, curves = [], []
    for folder in map(open_folder, folders):
        tables += [(folder.results, rows) for rows in folder.tables]
        curves += folder.curves
    first_rows = [rows[0] for _, rows in tables] + [points[0] for points in curves]
    names = _setting_names(first_rows)
    by_feature: dict[str, list[Gain]] = {}
    for results, rows in tables:
        for name, gain in _table_gains(results, rows, names[_values(rows[0])]):
            by_feature.setdefault(name, []).append(gain)
    lines: dict[str, dict[Place, list[Series]]] = {}
    for points in curves:
        for feature, place, series in _lines(points, names[_values(points[0])]):
            lines.setdefault(feature, {}).setdefault(place, []).append(series)
    parts = []
    for feature in dict.fromkeys((*by_feature, *lines)):
        feature_gains = tuple(by_feature.get(feature, ()))
        feature_panels = []
        for place, series_of_place in lines.get(feature, {}).items():
            feature_panels.append(_panel(feature, place, series_of_place))
        parts.append(Part(feature, feature_gains, tuple(feature_panels)))
    return sorted(parts, key=lambda part: (part.feature not in OVER, -len(part.gains)))


def _table_gains(
    results: Results, rows: Sequence[Result], setting: str
) -> Iterable[tuple[str, Gain]]:
    """Yield the gains of the two choices, and of each gradient of fixed cost."""
    table = comparison(rows)
    split = table_split(results, table)
    if split is not None:
        yield from _split_gains(split, setting)
    forward = table.forward
    if forward is None or forward.official is None:
        return
    for name, difference in gains(results, rows).items():
        if _is_fixed_gradient(name):
            yield (
                title(name),
                Gain(setting, forward.title, forward.official, difference),
            )


def _split_gains(split: GainSplit, setting: str) -> Iterable[tuple[str, Gain]]:
    """Yield the gain of gradients as that of `auto`, and of the pool as that of `auto-forward`."""
    pairs = (
        (AUTO, split.of_gradients, split.with_pool),
        (AUTO_FORWARD, split.of_pool, split.forward),
    )
    for name, gain, below in pairs:
        if gain.difference is not None:
            yield name, Gain(setting, gain.over, below.value, gain.difference)


def _is_fixed_gradient(feature: str) -> bool:
    return parse_recipe(feature).is_gradient and not is_chosen(feature)


def _panel(feature: str, place: Place, series: Sequence[Series]) -> Panel:
    protocol, x_axis, y_axis = place
    xs: set[int] = set()
    for line in series:
        xs |= set(line.marks)
    chart = Chart(y_axis, tuple(sorted(xs)), tuple(series))
    return Panel(protocol, feature, x_axis, (chart,))


def write_overview(folders: Sequence[Path], page: Path) -> Path:
    """Write the page, or the tables if its name ends in `.md`."""
    parts = list(overview(folders))
    if not parts:
        raise StoreError(
            "results must have a gradient and a forward feature to compare it with, got none in "
            f"{', '.join(map(str, folders))}; run `deepfish reproduce` with --features all"
        )
    if page.suffix == ".md":
        return save_report(page, "\n".join(map(markdown, sheets(parts))))
    # jinja2 takes a while to import
    from deepfishing.evaluation.report.html import render

    ends = [0.0]
    for part in parts:
        for gain in part.gains:
            ends += [gain.difference.low, gain.difference.high]
    axis = Axis(round_ticks(min(ends), max(ends)))
    return save_report(page, render("overview.html.j2", parts=parts, axis=axis))


def _values(row: Result) -> tuple[str, ...]:
    """Return all values by which a setting may differ from another one."""
    names = ("dataset", "network", *DIFFERENCES)
    return tuple(str(row.get(name, "")) for name in names)


def _setting_names(rows: Sequence[Result]) -> dict[tuple[str, ...], str]:
    """Return the name of each setting: data set, network and the values that differ."""
    settings = list(dict.fromkeys(map(_values, rows)))
    names = {}
    for values in settings:
        parts = list(values[:2])
        alike = [other for other in settings if other[:2] == values[:2]]
        for i, (key, value) in enumerate(zip(DIFFERENCES, values[2:], strict=True), 2):
            if len({other[i] for other in alike}) > 1:
                parts.append(f"{key.partition('_')[0]} {value[:12]}")
                alike = [other for other in alike if other[i] == value]
        names[values] = ", ".join(parts)
    return names


def _lines(
    points: Sequence[Result], setting: str
) -> Iterable[tuple[str, Place, Series]]:
    """Yield gains over the best forward line: their feature, the chart and the line."""
    for panel in panels(points):
        if panel.protocol not in WITH_EXAMPLES:
            continue
        for chart in panel.charts:
            # each data set by its official definition
            figure = (
                "mAP" if "mAP" in chart.y_axis else chart.y_axis.removesuffix(", %")
            )
            place = panel.protocol, panel.x_axis, f"gain, points of {figure}"
            for name, marks in (_split_marks(chart) | _gain_marks(chart)).items():
                yield name, place, Series(setting, marks)


def _split_marks(chart: Chart) -> dict[str, dict[int, Mark]]:
    """Return the gains of gradients and of the pool, by the number of labels."""
    marks: dict[str, dict[int, Mark]] = {}
    for split in chart_splits(chart):
        for name, gain in ((AUTO, split.of_gradients), (AUTO_FORWARD, split.of_pool)):
            mark = Mark(gain.mean, gain.interval)
            marks.setdefault(name, {})[split.labels or 0] = mark
    return marks


def _gain_marks(chart: Chart) -> dict[str, dict[int, Mark]]:
    """Return the gain of each gradient line over the forward line that is the best on average."""
    forward = [series for series in chart.whole if is_plain_forward(series.name)]
    if not forward:
        return {}

    def total(series: Series) -> float:
        return sum(mark.y or 0.0 for mark in series.marks.values())

    best = max(forward, key=total)
    marks = {}
    for series in chart.whole:
        if _is_fixed_gradient(series.name):
            by_x = {x: _minus(series.marks[x], best.marks[x]) for x in chart.xs}
            marks[title(series.name)] = by_x
    return marks


def _minus(a: Mark, b: Mark) -> Mark:
    """Return the difference of two marks, which are means over the same draws."""
    interval = None
    if len(a.draws) == len(b.draws):
        interval = mean_interval((np.array(a.draws) - np.array(b.draws)).tolist())
    return Mark((a.y or 0.0) - (b.y or 0.0), interval)


def sheets(parts: Sequence[Part]) -> Iterable[Sheet]:
    """Return a table of all gains, settings down and features across, and one per chart."""
    yield from _split_sheets({part.feature: part for part in parts})
    fixed = [part for part in parts if part.gains and part.feature not in OVER]
    if fixed:
        yield _gains_sheet(fixed)
    for part in parts:
        for panel in part.panels:
            yield panel_sheet(part, panel)


def _gains_sheet(parts: Sequence[Part]) -> Sheet:
    """Return the gains of gradients of fixed cost."""
    forward: dict[str, str] = {}
    by_part: list[dict[str, Difference]] = []
    for part in parts:
        by_part.append({gain.setting: gain.difference for gain in part.gains})
        for gain in part.gains:
            forward[gain.setting] = f"{gain.over} {one_decimal(gain.forward)}"
    body = []
    for setting, over in forward.items():
        cells = [_difference_cell(by_setting.get(setting)) for by_setting in by_part]
        body.append([Cell(setting), Cell(over), *cells])
    head = ["data set, network", "best forward", *(part.feature for part in parts)]
    return Sheet(
        "mAP of the best forward feature, and how much each gradient is above it (interval at "
        "95 %, paired bootstrap over test images)",
        list(map(Cell, head)),
        [body],
    )


def panel_sheet(part: Part, panel: Panel) -> Sheet:
    """Return the gains against the number of examples."""
    (chart,) = panel.charts
    body = []
    for series in chart.series:
        cells = [Cell(series.name)]
        for x in chart.xs:
            mark = series.marks.get(x)
            if mark is None or mark.y is None:
                cells.append(Cell())
            else:
                cells.append(gain_cell(mark.y, mark.interval))
        body.append(cells)
    return Sheet(
        f"{part.feature}, {panel.title.lower()}: {chart.y_axis}",
        [Cell(panel.x_axis), *(Cell(f"{x:,}") for x in chart.xs)],
        [body],
        caption=chart.y_axis,
    )


def _split_sheets(parts: Mapping[str, Part]) -> Iterable[Sheet]:
    """Return a table of the gains of the pool and of gradients with all labels, settings down."""
    if not {AUTO, AUTO_FORWARD} <= set(parts):
        return
    of_gradients = {gain.setting: gain for gain in parts[AUTO].gains}
    body = []
    for pool in parts[AUTO_FORWARD].gains:
        gradients = of_gradients.get(pool.setting)
        body.append(
            [
                Cell(pool.setting),
                Cell(f"{pool.over} {one_decimal(pool.forward)}"),
                _difference_cell(pool.difference),
                _difference_cell(gradients.difference if gradients else None),
            ]
        )
    if body:
        head = ["data set, network", FORWARD_NAME, POOL_GIVES, GRADIENTS_GIVE]
        yield Sheet(
            "mAP of the strongest forward feature without unlabelled photos, with the best kernel "
            "and cost, and what unlabelled photos and gradients add (interval at 95 %, paired "
            "bootstrap over test images)",
            list(map(Cell, head)),
            [body],
        )


def _difference_cell(difference: Difference | None) -> Cell:
    if difference is None:
        return Cell()
    return gain_cell(difference.mean, (difference.low, difference.high))
