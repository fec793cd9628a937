"""Stage 7, report: Table 1 in the terminal, confusions, and the tables of curves.

Comes in: the rows or points of one experiment. Goes out: tables that fit 80 columns; Table 1 has
blocks as in the paper: single layers first, then layer by layer the concatenation and the gradient.
Where images have one class each, accuracies stand in the place of the other definitions of AP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from deepfishing.experiments.checks import Result
from deepfishing.images.dataset import MEASURES
from deepfishing.metrics import DEFINITIONS
from deepfishing.report.charts import Chart, Panel, panels
from deepfishing.report.confusions import Confusions, confusions
from deepfishing.report.rows import formulas, paper_order
from deepfishing.report.tables import (
    Comparison,
    columns,
    comparison,
    label_text,
    left_out_text,
    one_decimal,
)
from deepfishing.statistics import Difference

GRADIENT_STYLE = "cyan"
WIDTH, NAMES = 80, 20  # of a terminal, and of the classes' names beside a matrix


def table_1(rows: Sequence[Result], gains: Mapping[str, Difference] | None = None) -> Table:
    """Table 1 for rows of one setting: mAP in percent, measured beside printed.

    `gains` are those of `report.scores`. Columns without a figure are left out.
    """
    found = comparison(sorted(rows, key=paper_order), gains)
    shown = columns(found)
    official, *others = (DEFINITIONS[method].label for method in found.lines[0].map)
    for name in ("balanced interval", *others) if found.has("top1") else ():
        del shown[name]
    if found.has("gain"):  # padded so that figures stay below each other
        gained = [line.gain for line in found.lines]
        shown["gain"] = [
            f"{one_decimal(gain.mean, True):>5}{' !' * gain.holds}" if gain else ""
            for gain in gained
        ]
    table = _table(f"mAP in percent on {rows[0]['dataset']} {rows[0]['test']}", _caption(found))
    table.add_column("feature", overflow="fold")
    starred = {"accuracy": "top-1", "balanced_accuracy": "balanced"}.get(found.measure, official)
    for name in shown:
        if name == "gain":
            table.add_column(" gain", no_wrap=True)
        else:
            head = "interval" if name.endswith(" interval") else name
            table.add_column(f"{head}{'*' * (name == starred)}", justify="right")
    rows_of_figures = zip(*shown.values(), strict=True)
    following = (*found.lines[1:], None)
    for line, after, figures in zip(found.lines, following, rows_of_figures, strict=True):
        cells = [Text(line.title), *map(Text, figures)]
        cells[1].style = "bold" if line == found.best else ""
        table.add_row(
            *cells,
            style=GRADIENT_STYLE if line.gradient else None,
            end_section=after is not None and after.block != line.block,
        )
    return table


def confusion_table(rows: Sequence[Result]) -> Table | None:
    """Which classes are taken for which by the best row, as a matrix or, of many classes, by pair.

    None where images have several classes, or where nothing is confused.
    """
    found = confusions(comparison(sorted(rows, key=paper_order)))
    if found is None or not found.pairs:
        return None
    digits = max(len(str(n)) for n in (len(found.classes), *map(max, found.counts)))
    if NAMES + (digits + 2) * len(found.classes) <= WIDTH:
        return _matrix(found)
    table = _table("Most frequent confusions")
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
    caption = "Rows: what images show; columns: what they are taken for."
    table = _table(f"Confusions of {found.line.title}", [caption])
    table.add_column("class", overflow="fold")
    for number in range(len(found.classes)):
        table.add_column(str(number + 1), justify="right", no_wrap=True)
    for number, (name, counts) in enumerate(zip(found.classes, found.counts, strict=True), 1):
        cells = [Text(str(n) if n else "·", "" if n else "dim") for n in counts]
        cells[number - 1].stylize("bold")
        table.add_row(Text(f"{number} {name}"), *cells)
    return table


def chart_tables(points: Sequence[Result]) -> list[Table]:
    """A table for each chart of these points: lines down, the chart's axis across."""
    where = f"{points[0]['dataset']} {points[0]['test']}"
    return [_chart(panel, chart, where) for panel in panels(points) for chart in panel.charts]


def _chart(panel: Panel, chart: Chart, where: str) -> Table:
    notes = [f"Not measured: {note}." for note in panel.notes]
    notes += [f"{called} = {name}" for called, name in formulas(panel.features)]
    table = _table(f"{panel.heading(chart)}, on {where}", notes, least=78)  # the longest heading
    table.add_column(panel.x_axis, overflow="fold")
    for x in chart.xs:
        table.add_column(f"{x:,}", justify="right", no_wrap=True)
    for series in chart.series:
        cells = [Text(panel.called(series))]
        for mark in map(series.at, chart.xs):
            cells.append(Text(panel.text(chart, mark)[0]))
            if mark and mark.interval:  # half of it: the whole one is in the report
                low, high = mark.interval
                cells[-1].append(f"\n±{(high - low) / 2:.1f}", style="dim")
        table.add_row(*cells)
    return table


def _table(heading: str, caption: Iterable[str] = (), least: int = 60) -> Table:
    return Table(
        title=Text(heading),
        caption=Text("\n".join(caption)),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
        pad_edge=False,
        min_width=least,
    )


def _caption(found: Comparison) -> list[str]:
    row = found.rows[0]
    official = f"AP: {DEFINITIONS[row['official_ap']].label}"
    if found.measure != "map":
        official = f"measure: {MEASURES[found.measure]}"
    parts = [
        f"{row['network']}, {row['train']} ({row['n_train']:,} images) to {row['test']} "
        f"({row['n_test']:,}), tau {row['tau']:g}, {label_text(row)}. * official {official}.",
        "x, y: what a layer puts out; dW: the gradient of its weights.",
    ]
    if found.has("interval"):
        parts.append("interval: 95 %, bootstrap over test images.")
    if found.has("gain") and found.forward:
        parts.append(
            f"gain: over {found.forward.title}, the best forward feature; ! holds at 95 % "
            "(paired bootstrap)."
        )
    if found.has("top1"):
        parts.append(
            "top-1: images whose class has the highest score, in percent; balanced: the mean of "
            "that over the classes. results.jsonl has the other definitions of AP."
        )
    if absent := left_out_text(found.rows):
        parts.append(f"Left out of the mean: {absent}.")
    parts += [f"{line.title}: {line.note}." for line in found.lines if line.official is None]
    features = (line.feature for line in found.lines)
    parts += [f"{called} = {name}" for called, name in formulas(features, found.rows)]
    return parts
