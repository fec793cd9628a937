"""Stage 7, report: Table 1 in the terminal, confusions, and the tables of curves.

Comes in: the rows or points of one experiment. Goes out: tables that fit 80 columns; Table 1 has
blocks as in the paper: single layers first, then layer by layer the concatenation and the gradient.
Where images have one class each, accuracies stand in the place of the other definitions of AP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from deepfishing.experiments.checks import Result
from deepfishing.images.dataset import MEASURES
from deepfishing.metrics import DEFINITIONS
from deepfishing.report.charts import mark_text
from deepfishing.report.confusions import Confusions, confusions
from deepfishing.report.points import Chart, Panel, panels
from deepfishing.report.rows import formulas, paper_order, title
from deepfishing.report.tables import (
    Line,
    finding,
    interval_text,
    label_text,
    left_out_text,
    official_measure,
    one_decimal,
)
from deepfishing.report.tables import table_1 as table_1_lines
from deepfishing.statistics import Difference

GRADIENT_STYLE = "cyan"
WIDTH, NAMES = 80, 20  # of a terminal, and of the classes' names beside a matrix


def table_1(rows: Sequence[Result], gains: Mapping[str, Difference] | None = None) -> Table:
    """Table 1 for rows of one setting: mAP in percent, measured beside printed.

    `gains` are those of `report.gains`. Columns without a figure are left out.
    """
    lines = table_1_lines(sorted(rows, key=paper_order), gains)
    found = finding(lines)
    printed = any(line.printed is not None for line in lines)
    intervals = any(line.interval for line in lines)
    table = _plain_table(Text(f"mAP in percent on {rows[0]['dataset']} {rows[0]['test']}"))
    table.caption = _caption(rows, lines, found.forward if gains else None, intervals)
    table.add_column("feature", overflow="fold")
    official, *others = (DEFINITIONS[method].label for method in lines[0].map)
    accuracies = any(line.top1 for line in lines)
    measure = official_measure(rows[0])
    table.add_column(f"{official}{'*' * (measure == 'map')}", justify="right")
    if intervals:
        table.add_column("interval", justify="right")
    if gains:
        table.add_column(" gain", no_wrap=True)
    starred = {"accuracy": "top-1", "balanced_accuracy": "balanced"}.get(measure)
    for name in ("top-1", "interval", "balanced") if accuracies else others:
        table.add_column(f"{name}{'*' * (name == starred)}", justify="right")
    if printed:
        table.add_column("paper", justify="right")
        table.add_column("difference", justify="right")
    for line, following in zip(lines, (*lines[1:], None), strict=True):
        first, *rest = (one_decimal(value) for value in line.map.values())
        cells = [Text(line.title), Text(first, "bold" if line == found.best else "")]
        if intervals:
            cells.append(Text(interval_text(line.interval)))
        if gains:
            cells.append(Text(_gain(line.gain)))
        cells += map(Text, _accuracies(line) if accuracies else rest)
        if printed:
            cells += [Text(one_decimal(line.printed)), Text(one_decimal(line.difference, True))]
        table.add_row(
            *cells,
            style=GRADIENT_STYLE if line.gradient else None,
            end_section=following is not None and following.block != line.block,
        )
    return table


def confusion_table(rows: Sequence[Result]) -> Table | None:
    """Which classes are taken for which by the best row, as a matrix or, of many classes, by pair.

    None where images have several classes, or where nothing is confused.
    """
    rows = sorted(rows, key=paper_order)
    found = confusions(rows, table_1_lines(rows))
    if found is None or not found.pairs:
        return None
    digits = max(len(str(n)) for n in (len(found.classes), *map(max, found.counts)))
    if NAMES + (digits + 2) * len(found.classes) <= WIDTH:
        return _matrix(found)
    table = _plain_table(Text("Most frequent confusions"))
    if found.of_pairs > len(found.pairs):
        table.caption = Text(f"{found.of_pairs:,} pairs in all; the matrix is in the report.")
    for name in ("shows", "taken for"):
        table.add_column(name, overflow="fold", max_width=28)
    for line in found.compared:
        table.add_column(Text(line.title), justify="right", overflow="fold", max_width=16)
    table.add_column("of", justify="right")
    for pair in found.pairs:
        table.add_row(Text(pair.truth), Text(pair.answer), *map(str, (*pair.images, pair.of)))
    return table


def _matrix(found: Confusions) -> Table:
    table = _plain_table(Text(f"Confusions of {found.line.title}"))
    table.caption = Text("Rows: what images show; columns: what they are taken for.")
    table.add_column("class", overflow="fold")
    for number in range(len(found.classes)):
        table.add_column(str(number + 1), justify="right", no_wrap=True)
    for number, (name, counts) in enumerate(zip(found.classes, found.counts, strict=True), 1):
        cells = [Text(str(n) if n else "·", "" if n else "dim") for n in counts]
        cells[number - 1].stylize("bold")
        table.add_row(Text(f"{number} {name}"), *cells)
    return table


def _plain_table(heading: Text, least: int = 60) -> Table:
    return Table(
        title=heading,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
        pad_edge=False,
        min_width=least,
    )


def _accuracies(line: Line) -> tuple[str, ...]:
    top1, balanced = line.top1, line.balanced
    return (
        one_decimal(top1.value if top1 else None),
        interval_text(top1.interval if top1 else None),
        one_decimal(balanced.value if balanced else None),
    )


def chart_tables(points: Sequence[Result]) -> list[Table]:
    """A table for each chart of these points: lines down, the chart's axis across."""
    tables = []
    for panel in panels(points):
        for chart in panel.charts:
            tables.append(_chart_table(panel, chart, points[0]))
    return tables


def _chart_table(panel: Panel, chart: Chart, row: Result) -> Table:
    subject = f" of {title(panel.feature)}" if panel.feature else ""
    heading = f"{panel.title}{subject}: {chart.y_axis}, on {row['dataset']} {row['test']}"
    notes = [f"Not measured: {note}." for note in panel.notes]
    notes += [f"{called} = {name}" for called, name in formulas(panel.features)]
    table = _plain_table(Text(heading), least=78)  # of the longest heading
    table.caption = Text("\n".join(notes))
    table.add_column(panel.x_axis, overflow="fold")
    for x in chart.xs:
        table.add_column(f"{x:,}", justify="right", no_wrap=True)
    for series in chart.series:
        cells = [Text(panel.called(series))]
        for x in chart.xs:
            mark = series.at(x)
            cell = Text(mark_text(panel, chart, mark)[0])
            if mark and mark.interval:  # half of it: the whole one is in the report
                low, high = mark.interval
                cell.append(f"\n±{(high - low) / 2:.1f}", style="dim")
            cells.append(cell)
        table.add_row(*cells)
    return table


def _gain(gain: Difference | None) -> str:
    """The gain and whether it holds, padded so that figures stay below each other."""
    mark = " !" if gain and gain.holds else ""
    return "" if gain is None else f"{one_decimal(gain.mean, True):>5}{mark}"


def _caption(
    rows: Sequence[Result], lines: Sequence[Line], reference: Line | None, intervals: bool
) -> Text:
    row = rows[0]
    official = f"AP: {DEFINITIONS[row['official_ap']].label}"
    if (measure := official_measure(row)) != "map":
        official = f"measure: {MEASURES[measure]}"
    parts = [
        f"{row['network']}, {row['train']} ({row['n_train']:,} images) to {row['test']} "
        f"({row['n_test']:,}), tau {row['tau']:g}, {label_text(row)}. * official {official}."
    ]
    parts.append("x, y: what a layer puts out; dW: the gradient of its weights.")
    if intervals:
        parts.append("interval: 95 %, bootstrap over test images.")
    if reference:
        parts.append(
            f"gain: over {reference.title}, the best forward feature; ! holds at 95 % "
            "(paired bootstrap)."
        )
    if any(line.top1 for line in lines):
        parts.append(
            "top-1: images whose class has the highest score, in percent; balanced: the mean of "
            "that over the classes. results.jsonl has the other definitions of AP."
        )
    if absent := left_out_text(rows):
        parts.append(f"Left out of the mean: {absent}.")
    parts += [f"{line.title}: {line.note}." for line in lines if line.official is None]
    parts += [f"{called} = {name}" for called, name in formulas((ln.feature for ln in lines), rows)]
    return Text("\n".join(parts))
