"""Tables of a setting, each made once for every format.

Table 1 (`columns`), the gains of pool and gradients, AP by class, confusions, cost, and a table per
chart. Sheets for the terminal fit 80 columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from deepfishing.core.metrics import DEFINITIONS
from deepfishing.evaluation.record import Result
from deepfishing.evaluation.report.charts import Chart, Panel, Series, panels
from deepfishing.evaluation.report.columns import table_1_sheet
from deepfishing.evaluation.report.confusions import confusion_sheet, confusions
from deepfishing.evaluation.report.gains import (
    FORWARD_NAME,
    GainSplit,
    chart_splits,
    plain_forward_lines,
)
from deepfishing.evaluation.report.sheet import (
    Cell,
    Medium,
    Sheet,
    figure_cell,
    gain_cell,
    half_text,
    interval_text,
    one_decimal,
)
from deepfishing.evaluation.report.tables import (
    Comparison,
    Line,
    formulas,
    per_class,
    setting_text,
    title,
)

POOL_NOTE = "The pool: the training images without their labels."


def table_sheets(
    table: Comparison, split: GainSplit | None = None, *, medium: Medium = "text"
) -> list[Sheet]:
    """Table 1, the gains of pool and gradients, the classes and the confusions.

    The classes are left out where there is no AP and on a terminal, the confusions where images
    have several classes or none is taken for another.
    """
    sheets = [table_1_sheet(table, medium)]
    if split is not None:
        sheets.append(split_sheet(table, split, medium))
    if table.detailed and medium != "terminal":
        sheets.append(class_sheet(table, medium))
    confused = confusions(table)
    if confused is not None:
        sheet = confusion_sheet(confused, table, medium)
        if sheet is not None:
            sheets.append(sheet)
    return sheets


def curve_sheets(points: Sequence[Result], *, medium: Medium = "text") -> list[Sheet]:
    """Return a table for each chart of one setting: lines down, the chart's axis across."""
    sheets = []
    for panel in panels(points):
        for chart in panel.charts:
            splits = chart_splits(chart)
            if splits:
                sheets.append(
                    curve_split_sheet(panel, chart, splits, points[0], medium)
                )
            if splits and medium == "terminal":  # the report has all lines
                continue
            sheets.append(chart_sheet(panel, chart, points[0], medium))
    return sheets


def split_sheet(table: Comparison, split: GainSplit, medium: Medium) -> Sheet:
    """Return the three rows with all labels, and the gains between them."""
    accuracy = {line.feature: line.accuracy for line in table.lines}
    figures, gains = [], []
    for name, figure in split.figures:
        cells = [
            Cell(one_decimal(figure.value)),
            Cell(interval_text(figure.interval)),
            Cell(one_decimal(accuracy[figure.feature])),
        ]
        figures.append([_split_name(name, split), *cells])
    for name, gain in split.gains:
        cell = gain_cell(gain.mean, gain.interval, gain.holds)
        gains.append([Cell(name), replace(cell, small="", half=""), Cell(cell.small)])
    head = [Cell("all labels"), Cell("mAP"), Cell("95 %"), Cell("top-1")]
    if not table.has_accuracy:
        del head[-1]
        figures = [row[:-1] for row in figures]
    row = table.rows[0]
    notes = [
        f"{FORWARD_NAME}: {title(split.forward.feature)}, the best forward row measured. "
        f"{POOL_NOTE} ! holds at 95 % (paired bootstrap)."
    ]
    if medium != "page":  # which has all formulas in one place
        notes += _formula_notes(formulas((), table.rows))
    return Sheet(
        f"With the best kernel and cost, on {row['dataset']} {row['test']}",
        head,
        [figures, gains],
        notes,
        kind="points gains",
    )


def curve_split_sheet(
    panel: Panel,
    chart: Chart,
    splits: Sequence[GainSplit],
    setting: Result,
    medium: Medium,
) -> Sheet:
    """Return the three rows against the number of labels, and the gains between them."""
    figures, gains = [], []
    for number, (name, _) in enumerate(splits[0].figures):
        cells = [_split_name(name, splits[0])]
        for split in splits:
            _, figure = split.figures[number]
            cell = figure_cell(figure.value, figure.interval)
            cells.append(replace(cell, hint=title(figure.feature)))
        figures.append(cells)
    for number, (name, _) in enumerate(splits[0].gains):
        cells = [Cell(name)]
        for split in splits:
            _, gain = split.gains[number]
            cells.append(gain_cell(gain.mean, gain.interval, gain.holds))
        gains.append(cells)
    lines = ", ".join(map(title, plain_forward_lines(chart)))
    notes = [setting_text(setting)] if medium == "text" else []
    notes.append(
        f"{FORWARD_NAME}: the best of {lines} in each column, chosen on the test images, so that "
        f"its gains are rather too small. {POOL_NOTE} ! holds at 95 %, paired over the draws."
    )
    return Sheet(
        _chart_title(panel, chart, setting),
        [Cell(panel.x_axis), *(Cell(f"{split.labels:,}") for split in splits)],
        [figures, gains],
        notes,
        caption=chart.y_axis,
        kind="points gains",
    )


def chart_sheet(panel: Panel, chart: Chart, setting: Result, medium: Medium) -> Sheet:
    """Return the figures of a chart: lines down, the axis across."""
    body = []
    for series in chart.series:
        name = panel.line_title(series.name)
        cells = [Cell(name, name="" if panel.feature else "feature")]
        cells += [_mark_cell(panel, chart, series, x) for x in chart.xs]
        body.append(cells)
    notes = [setting_text(setting)] if medium == "text" else []
    if medium != "page":
        notes += [f"Not measured: {note}." for note in panel.notes]
        notes += _formula_notes(formulas(panel.features))
    return Sheet(
        _chart_title(panel, chart, setting),
        [Cell(panel.x_axis), *(Cell(f"{x:,}") for x in chart.xs)],
        [body],
        notes,
        caption=chart.y_axis,
    )


def class_sheet(table: Comparison, medium: Medium) -> Sheet:
    """Official AP by class, measured and printed, with the mean below."""
    lines = table.detailed
    by_class = per_class(table.rows, [line.feature for line in lines])
    is_printed = [False] * len(lines)
    for figures in by_class.values():
        for number, figure in enumerate(figures):
            if figure.printed is not None:
                is_printed[number] = True
    head, mean = [Cell("class")], [Cell("mean")]
    for line, printed in zip(lines, is_printed, strict=True):
        head.append(line.name_cell)
        mean.append(Cell(one_decimal(line.official)))
        if printed:
            head.append(_printed_heading(line, medium))
            mean.append(Cell(one_decimal(line.printed), kind="printed"))
    body = []
    for name, figures in by_class.items():
        measured = [figure.measured or 0.0 for figure in figures]
        row = [Cell(name, name="class")]
        for figure, printed in zip(figures, is_printed, strict=True):
            text = one_decimal(figure.measured)
            if medium == "page" and not text:
                row.append(Cell(figure.note, kind="why"))
            else:
                small = interval_text(figure.interval) if medium == "page" else ""
                is_best = bool(text) and figure.measured == max(measured)
                row.append(Cell(text, small=small, bold=is_best))
            if printed:
                row.append(Cell(one_decimal(figure.printed), kind="printed"))
        body.append(row)
    first = table.rows[0]
    official = DEFINITIONS[first["official_ap"]].label
    if medium == "page":
        notes = [
            f"{official} AP in percent; bold: the best of the measured ones in each class"
        ]
        if any(line.interval for line in lines):
            notes[0] += "; small: its interval at 95 %"
        notes[0] += "."
    else:
        names = [line.feature for line in lines]
        notes = [setting_text(first), *_formula_notes(formulas(names))]
    return Sheet(
        f"{official} AP in percent by class on {first['dataset']} {first['test']}",
        head,
        [body],
        notes,
        foot=mean,
        kind="classes",
    )


def cost_sheet(table: Comparison) -> Sheet:
    """Seconds of each row, and milliseconds per image."""
    body = []
    for line in table.lines:
        row = table.row_of(line)
        per_image = row["seconds"] / (row["n_train"] + row["n_test"])
        body.append(
            [
                line.name_cell,
                Cell(f"{row['seconds']:.3g}"),
                Cell(f"{1000 * per_image:.2f}"),
            ]
        )
    return Sheet(
        "Seconds by feature",
        [Cell("feature"), Cell("seconds"), Cell("ms per image")],
        [body],
        [
            "Seconds to train, score and evaluate all classes once the features are on disk, and "
            "the same over all training and test images, as they were measured with the row; "
            "compare rows of one computer only."
        ],
        kind="seconds",
    )


def _chart_title(panel: Panel, chart: Chart, setting: Result) -> str:
    return f"{panel.heading(chart)}, on {setting['dataset']} {setting['test']}"


def _split_name(name: str, split: GainSplit) -> Cell:
    """Return the name of one of the three rows; only the last has gradients."""
    is_gradient = name == split.auto.feature
    return Cell(name, kind="gradient" if is_gradient else "forward")


def _mark_cell(panel: Panel, chart: Chart, series: Series, x: int) -> Cell:
    mark = series.at(x)
    text, interval = panel.text(chart, mark)
    half = half_text(mark.interval) if mark else ""
    return Cell(text, small=interval, half=half)


def _printed_heading(line: Line, medium: Medium) -> Cell:
    """Return the heading of the paper's figures, which are beside the measured ones."""
    if medium == "page":
        return Cell(line.title, small="paper", name="feature", kind="printed")
    return Cell("paper")


def _formula_notes(pairs: Iterable[tuple[str, str]]) -> list[str]:
    # without a full stop, to be copied from a terminal
    return [f"{name} = {formula}" for name, formula in pairs]
