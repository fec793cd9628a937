"""Tables of a setting as cells.

The terminal, Markdown and LaTeX write the same sheets: Table 1 with blocks as in the paper (single
layers first, then layer by layer the concatenation and the gradient), the classes, the confusions,
and a table per chart. Sheets for the terminal fit 80 columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deepfishing.core.metrics import DEFINITIONS
from deepfishing.core.statistics import Interval
from deepfishing.evaluation.checks import Result
from deepfishing.evaluation.report.charts import Chart, Panel, panels
from deepfishing.evaluation.report.columns import Column, column_notes, columns
from deepfishing.evaluation.report.gain_split import (
    FORWARD_NAME,
    GainSplit,
    chart_splits,
    plain_forward_lines,
)
from deepfishing.evaluation.report.rows import formulas, title
from deepfishing.evaluation.report.tables import (
    Comparison,
    Confusions,
    Line,
    confusions,
    interval_text,
    label_text,
    left_out_text,
    one_decimal,
    signed_ends,
)

WIDTH, NAMES = 80, 20  # of a terminal, and of the classes' names beside a matrix


class Bold(str):
    """A cell that stands out."""


class FeatureName(str):
    """A cell with a feature's name, which LaTeX sets in the paper's letters."""


class GradientName(FeatureName):
    """One of a gradient; the terminal gives its row a colour."""


Cells = Sequence[str]  # a row of a table


@dataclass(frozen=True)
class Sheet:
    """A table: blocks of rows below a head, what it shows, and sentences about it."""

    title: str
    head: Cells
    blocks: Sequence[Sequence[Cells]]
    notes: Sequence[str] = ()

    @property
    def caption(self) -> str:
        """Title and sentences in one."""
        sentences = (text.removesuffix(".") + "." for text in (self.title, *self.notes))
        return " ".join(sentences) if self.notes else self.title


def table_sheets(
    table: Comparison, split: GainSplit | None = None, *, narrow: bool = False
) -> list[Sheet]:
    """Table 1, the gains of pool and gradients, the classes (unless narrow) and the confusions.

    Classes stand only where there is AP, confusions where images have one class each and some are
    taken for another.
    """
    found = [_table_1(table, narrow)]
    if split is not None:
        found.append(_table_gains(table, split))
    if table.detailed and not narrow:
        found.append(_classes(table))
    confused = confusions(table)
    if confused and confused.pairs:
        found.append(_confusions(table.rows[0], confused, narrow))
    return found


def curve_sheets(points: Sequence[Result], *, narrow: bool = False) -> list[Sheet]:
    """A table for each chart of the points of one setting: lines down, the chart's axis across."""
    found = []
    for panel in panels(points):
        notes = [] if narrow else [_setting(points[0])]
        notes += [f"Not measured: {note}." for note in panel.notes] + _formulas(
            panel.features
        )
        for chart in panel.charts:
            splits = chart_splits(chart)
            if splits:
                found.append(_curve_gains(panel, chart, splits, points[0], narrow))
            if splits and narrow:  # the report has all lines
                continue
            body = []
            for series in chart.series:
                name = panel.called(series)
                cells = [name if panel.feature else FeatureName(name)]
                for mark in map(series.at, chart.xs):
                    figure, interval = panel.text(chart, mark)
                    if narrow and mark:  # half of it: the report has both ends
                        figure = _with_half(figure, mark.interval, narrow)
                    elif interval:
                        figure += f" ({interval})"
                    cells.append(figure)
                body.append(cells)
            heading = (
                f"{panel.heading(chart)}, on {points[0]['dataset']} {points[0]['test']}"
            )
            head = [panel.x_axis, *(f"{x:,}" for x in chart.xs)]
            found.append(Sheet(heading, head, [body], notes))
    return found


def _table_1(table: Comparison, narrow: bool) -> Sheet:
    shown = [column for column in columns(table) if column.narrow or not narrow]
    head = ["feature", *(column.title + "*" * column.official for column in shown)]
    blocks: dict[int, list[Cells]] = {}
    for line in table.table_1:
        cells = [_cell(column, line, narrow) for column in shown]
        if cells and line == table.best_of_table_1:
            cells[0] = Bold(cells[0])
        blocks.setdefault(line.block, []).append([_name(line), *cells])
    row = table.rows[0]
    setting, notes = _setting(row), column_notes(table)
    notes[0] = f"{setting} {notes[0]}"
    if narrow:
        notes.insert(1, "x, y: output of a layer; dW: gradient of its weights.")
    if narrow and table.has("top1"):
        notes.append("results.jsonl has the other definitions of AP.")
    if absent := left_out_text(table.rows):
        notes.append(f"Left out of the mean: {absent}.")
    notes += [
        f"{line.title}: {line.note}." for line in table.lines if line.official is None
    ]
    notes += _formulas(line.feature for line in table.table_1)
    heading = f"mAP in percent on {row['dataset']} {row['test']}"
    return Sheet(heading, head, list(blocks.values()), notes)


def _table_gains(table: Comparison, split: GainSplit) -> Sheet:
    """The three rows with all labels, and the gains between them."""
    row, line_of = table.rows[0], {line.feature: line for line in table.lines}
    has_accuracy = table.has("top1")
    body = []
    for name, figure in split.figures:
        cells = [one_decimal(figure.value), interval_text(figure.interval)]
        if has_accuracy:
            cells.append(one_decimal(line_of[figure.feature].top1))
        body.append([_row_name(name, split), *cells])
    gains = []
    for name, gain in split.gains:
        ends = signed_ends(gain.interval) if gain.interval else ""
        cells = [one_decimal(gain.mean, sign=True) + " !" * gain.holds, ends]
        gains.append([name, *cells, *[""] * has_accuracy])
    head = ["all labels", "mAP", "95 %", *["top-1"] * has_accuracy]
    notes = [
        f"{FORWARD_NAME}: {title(split.forward.feature)}, the best forward row measured. The pool: "
        "the training images without their labels. ! holds at 95 % (paired bootstrap).",
        *_formulas((), table.rows),
    ]
    heading = f"With the best kernel and cost, on {row['dataset']} {row['test']}"
    return Sheet(heading, head, [body, gains], notes)


def _curve_gains(
    panel: Panel,
    chart: Chart,
    splits: Sequence[GainSplit],
    setting: Result,
    narrow: bool,
) -> Sheet:
    """The three rows against the number of labels, and the gains between them."""
    figures, gains = [], []
    for row, (name, _) in enumerate(splits[0].figures):
        cells = []
        for split in splits:
            _, figure = split.figures[row]
            cells.append(_with_half(one_decimal(figure.value), figure.interval, narrow))
        figures.append([_row_name(name, splits[0]), *cells])
    for row, (name, _) in enumerate(splits[0].gains):
        cells = []
        for split in splits:
            _, gain = split.gains[row]
            text = one_decimal(gain.mean, sign=True)
            cells.append(_with_half(text, gain.interval, True) if narrow else gain.text)
        gains.append([name, *cells])
    forward = ", ".join(plain_forward_lines(chart))
    notes = [] if narrow else [_setting(setting)]
    notes.append(
        f"{FORWARD_NAME}: the best of {forward} in each column. The pool: the training images "
        "without their labels."
    )
    heading = f"{panel.heading(chart)}, on {setting['dataset']} {setting['test']}"
    head = [panel.x_axis, *(f"{split.labels:,}" for split in splits)]
    return Sheet(heading, head, [figures, gains], notes)


def _row_name(name: str, split: GainSplit) -> str:
    return GradientName(name) if name == split.auto.feature else name


def _with_half(text: str, interval: Interval | None, narrow: bool) -> str:
    """A figure with its interval, or with half of it below where there is little room."""
    if interval is None:
        return text
    if narrow:
        return f"{text}\n±{(interval[1] - interval[0]) / 2:.1f}"
    return f"{text} ({interval_text(interval)})"


def _cell(column: Column, line: Line, narrow: bool) -> str:
    """The text of a cell; gains are padded on a terminal so that figures align."""
    text = column.cell(line)
    if not (narrow and column.key == "gain" and text):
        return text
    figure = text.removesuffix("!")
    return f"{figure:>5}" + " !" * (figure != text)


def _classes(table: Comparison) -> Sheet:
    head, mean = ["class"], ["mean"]
    for line, has_printed in table.class_columns:
        head += [_name(line), *["paper"] * has_printed]
        mean += [one_decimal(line.official), *[one_decimal(line.printed)] * has_printed]
    body = []
    for name, cells in table.classes.items():
        top = max(
            (cell.measured for cell in cells if cell.measured is not None), default=None
        )
        row = [name]
        for cell, (_, has_printed) in zip(cells, table.class_columns, strict=True):
            figure = one_decimal(cell.measured)
            row.append(Bold(figure) if cell.measured == top else figure)
            row += [one_decimal(cell.printed)] * has_printed
        body.append(row)
    first = table.rows[0]
    official = DEFINITIONS[first["official_ap"]].label
    heading = f"{official} AP in percent by class on {first['dataset']} {first['test']}"
    notes = [_setting(first), *_formulas(line.feature for line in table.detailed)]
    return Sheet(heading, head, [body, [mean]], notes)


def _confusions(row: Result, found: Confusions, narrow: bool) -> Sheet:
    """The matrix, or of many classes the pairs that are confused most often."""
    where = f"on {row['dataset']} {row['test']}"
    notes = [] if narrow else [_setting(row)]
    n = len(found.classes)
    digits = max(len(str(number)) for number in (n, *map(max, found.counts)))
    if NAMES + (digits + 2) * n <= WIDTH if narrow else found.numbered:
        body = []
        for i, (name, counts) in enumerate(
            zip(found.classes, found.counts, strict=True)
        ):
            cells = [str(count or ("·" if narrow else "")) for count in counts]
            cells[i] = Bold(cells[i])
            body.append([f"{i + 1} {name}", *cells])
        head = ["class", *(str(i + 1) for i in range(n))]
        notes.insert(0, "Rows: what images show; columns: what they are taken for.")
        return Sheet(f"Confusions of {found.line.title}, {where}", head, [body], notes)
    pairs = [
        [pair.truth, pair.answer, *map(str, (*pair.images, pair.of))]
        for pair in found.pairs
    ]
    head = ["shows", "taken for", *map(_name, found.compared), "of"]
    if found.of_pairs > len(pairs):
        more = (
            "; the matrix is in the report"
            if narrow
            else f", of which these are {len(pairs)}"
        )
        notes.insert(0, f"{found.of_pairs:,} pairs in all{more}.")
    notes.insert(0, "Images that are taken for another class, of so many.")
    return Sheet(f"Most frequent confusions of classes, {where}", head, [pairs], notes)


def _name(line: Line) -> FeatureName:
    return (GradientName if line.gradient else FeatureName)(line.title)


def _formulas(features: Iterable[str], rows: Iterable[Result] = ()) -> list[str]:
    # without a full stop, to be copied from a terminal
    return [f"{called} = {name}" for called, name in formulas(features, rows)]


def _setting(row: Result) -> str:
    return (
        f"{row['network']}, {row['train']} ({row['n_train']:,} images) to {row['test']} "
        f"({row['n_test']:,}), tau {row['tau']:g}, {label_text(row)}, C {row['C']:g}."
    )
