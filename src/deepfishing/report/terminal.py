"""Stage 7, report: Table 1 in the terminal, and the tables of curves.

Comes in: the rows or points of one experiment. Goes out: tables that fit 80 columns; Table 1 has
blocks as in the paper: single layers first, then layer by layer the concatenation and the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from deepfishing.experiments.checks import Row
from deepfishing.metrics import DEFINITIONS
from deepfishing.report.charts import mark_text
from deepfishing.report.points import Chart, Panel, panels
from deepfishing.report.rows import formulas, paper_order, title
from deepfishing.report.tables import (
    Line,
    finding,
    interval_text,
    label_text,
    left_out,
    one_decimal,
)
from deepfishing.report.tables import table_1 as table_1_lines
from deepfishing.statistics import Difference

GRADIENT_STYLE = "cyan"


def table_1(rows: Sequence[Row], gains: Mapping[str, Difference] | None = None) -> Table:
    """Table 1 for rows of one setting: mAP in percent, measured beside printed.

    `gains` are those of `report.gains`. Columns without a figure are left out.
    """
    lines = table_1_lines(sorted(rows, key=paper_order), gains)
    found = finding(lines)
    printed = any(line.printed is not None for line in lines)
    intervals = any(line.interval for line in lines)
    table = Table(
        title=Text(f"mAP in percent on {rows[0]['dataset']} {rows[0]['test']}"),
        caption=_caption(rows, lines, found.forward if gains else None, intervals),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
        pad_edge=False,
        min_width=60,
    )
    table.add_column("feature", overflow="fold")
    for number, method in enumerate(lines[0].map):
        table.add_column(DEFINITIONS[method].label + ("*" if number == 0 else ""), justify="right")
        if number == 0 and intervals:
            table.add_column("interval", justify="right")
        if number == 0 and gains:
            table.add_column(" gain", no_wrap=True)
    if printed:
        table.add_column("paper", justify="right")
        table.add_column("difference", justify="right")
    for line, following in zip(lines, (*lines[1:], None), strict=True):
        official, *others = (Text(one_decimal(value)) for value in line.map.values())
        if line == found.best:
            official.stylize("bold")
        cells = [Text(line.title), official]
        if intervals:
            cells.append(Text(interval_text(line.interval)))
        if gains:
            cells.append(Text(_gain(line.gain)))
        cells += others
        if printed:
            cells += [Text(one_decimal(line.printed)), Text(one_decimal(line.difference, True))]
        table.add_row(
            *cells,
            style=GRADIENT_STYLE if line.gradient else None,
            end_section=following is not None and following.block != line.block,
        )
    return table


def chart_tables(points: Sequence[Row]) -> list[Table]:
    """A table for each chart of these points: lines down, the chart's axis across."""
    tables = []
    for panel in panels(points):
        for chart in panel.charts:
            tables.append(_chart_table(panel, chart, points[0]))
    return tables


def _chart_table(panel: Panel, chart: Chart, row: Row) -> Table:
    subject = f" of {title(panel.feature)}" if panel.feature else ""
    notes = [f"Not measured: {note}." for note in panel.notes]
    notes += [f"{called} = {name}" for called, name in formulas(panel.features)]
    table = Table(
        title=Text(f"{panel.title}{subject}: {chart.y_axis}, on {row['dataset']} {row['test']}"),
        caption=Text("\n".join(notes)),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
        pad_edge=False,
        min_width=78,  # of the longest title
    )
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
    rows: Sequence[Row], lines: Sequence[Line], reference: Line | None, intervals: bool
) -> Text:
    row = rows[0]
    official = DEFINITIONS[row["official_ap"]].label
    parts = [
        f"{row['network']}, {row['train']} ({row['n_train']:,} images) to {row['test']} "
        f"({row['n_test']:,}), tau {row['tau']:g}, {label_text(row)}. * official AP: {official}."
    ]
    if intervals:
        parts.append("interval: 95 %, bootstrap over test images.")
    if reference:
        parts.append(
            f"gain: over {reference.title}, the best forward feature; ! holds at 95 % "
            "(paired bootstrap)."
        )
    parts += [f"Left out of the mean: {name} ({why})." for name, why in left_out(rows).items()]
    parts += [f"{line.title}: {line.note}." for line in lines if line.official is None]
    parts += [f"{called} = {name}" for called, name in formulas(ln.feature for ln in lines)]
    return Text("\n".join(parts))
