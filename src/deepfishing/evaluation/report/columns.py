"""Columns of Table 1: one record each, from which every format of the table is made.

The page, the terminal, Markdown, LaTeX, notebooks and data frames have these columns. A new column
is a new record in `columns`; headings, cells and the notes below the table follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from deepfishing.core.metrics import DEFINITIONS
from deepfishing.errors import need
from deepfishing.evaluation.record import Result
from deepfishing.evaluation.report.sheet import (
    Cell,
    Medium,
    Sheet,
    interval_text,
    one_decimal,
    signed_ends,
)
from deepfishing.evaluation.report.tables import (
    FIGURES,
    Comparison,
    Line,
    comparison,
    figure_of,
    formulas,
    left_out_text,
    official_map,
    setting_text,
    title,
)
from deepfishing.images.dataset import MEASURES

# the name of each figure in a data frame
FRAME_NAMES = {"map": "mAP", "accuracy": "top-1", "balanced_accuracy": "balanced"}


@dataclass(frozen=True)
class Column:
    """A column of Table 1.

    `cell` returns the cell of a line, with an empty text for nothing. `note` explains the column
    below the table. `official` marks the figure by which the data set is usually compared,
    `narrow` a column that fits a terminal of 80 columns.
    """

    key: str
    title: str
    cell: Callable[[Line], Cell]
    small: str = ""
    note: str = ""
    official: bool = False
    narrow: bool = True

    @property
    def heading(self) -> Cell:
        """The cell of its heading."""
        if self.official:
            return Cell(self.title, small="official", kind=f"{self.key} official")
        return Cell(self.title, small=self.small, kind=self.key)

    def cell_of(self, line: Line) -> Cell:
        """Return the cell of a line, with the class that it has on the page."""
        return replace(self.cell(line), kind=self.heading.kind)


def columns(table: Comparison) -> list[Column]:
    """Return the columns behind the feature's name, without those that have no figure."""
    official, *other_definitions = table.lines[0].map
    all_columns = [
        _figure(table, "map", DEFINITIONS[official].label, "mAP"),
        _interval("map", note="interval of mAP: 95 %, bootstrap over test images."),
        Column(
            "gain",
            "gain",
            _gain,
            small=f"on {table.forward.title}" if table.forward else "",
            note=_gain_note(table),
        ),
        _figure(
            table,
            "accuracy",
            "top-1",
            "accuracy",
            note="top-1: percent of images whose class has the highest score; balanced: the mean "
            "of that over the classes; their intervals: Wilson's.",
        ),
        _interval("accuracy"),
        _figure(table, "balanced_accuracy", "balanced", "accuracy"),
        _interval("balanced_accuracy", narrow=False),
    ]
    for method in other_definitions:
        all_columns.append(_other_definition(method, narrow=not table.has_accuracy))
    all_columns += [
        Column(
            "printed",
            "paper",
            lambda line: Cell(one_decimal(line.printed)),
            note="paper: the paper's figure for its own network and weights; difference: ours "
            "minus that.",
        ),
        Column(
            "difference",
            "difference",
            lambda line: Cell(one_decimal(line.difference, sign=True)),
        ),
    ]
    used = []
    for column in all_columns:
        if any(column.cell(line).text for line in table.table_1):
            used.append(column)
    return used


def column_notes(table: Comparison) -> list[str]:
    """Return the sentences that explain the columns, in their order."""
    notes = [column.note for column in columns(table) if column.note]
    return [f"* official {official_measure(table)}.", *notes]


def official_measure(table: Comparison) -> str:
    """Name the figure by which the data set is usually compared."""
    if table.measure == "map":
        return "AP: " + DEFINITIONS[table.rows[0]["official_ap"]].label
    return f"measure: {MEASURES[table.measure]}"


def table_1_sheet(table: Comparison, medium: Medium = "text") -> Sheet:
    """Return Table 1, with blocks as in the paper."""
    shown_columns = columns(table)
    if medium == "terminal":
        shown_columns = [column for column in shown_columns if column.narrow]
    blocks = []
    for lines in table.blocks:
        blocks.append([_row(table, line, shown_columns, medium) for line in lines])
    row = table.rows[0]
    return Sheet(
        f"mAP in percent on {row['dataset']} {row['test']}",
        head=[Cell("feature"), *(column.heading for column in shown_columns)],
        blocks=blocks,
        notes=_notes(table, medium),
        kind="table-1",
    )


class Table(list[Result]):
    """Measured rows, as a list; a notebook shows them with their intervals."""

    def __repr__(self) -> str:
        if not self:
            return "no rows"
        best = max(self, key=lambda row: official_map(row) or 0.0)
        text = f"{len(self)} rows of {best['dataset']} with {best['network']}"
        figure = official_map(best)
        if figure is not None:
            text += f", best {title(best['feature'])}: {figure:.1f} mAP"
        return text

    def _repr_html_(self) -> str:
        if not self:
            return "<p>no rows</p>"
        table = comparison(self)
        narrow_columns = [column for column in columns(table) if column.narrow]
        body = []
        for line in table.lines:
            body.append(
                [line.name_cell, *(column.cell(line) for column in narrow_columns)]
            )
        head = [Cell("feature"), *(column.heading for column in narrow_columns)]
        return Sheet("", head, [body]).as_html(repr(self))

    def to_pandas(self) -> Any:
        """Return a data frame: feature, figures in percent with their intervals, setting."""
        setting = ("dataset", "network", "tau", "n_train", "n_test", "seconds")
        records = []
        for row in self:
            record = {"feature": row["feature"]}
            for key in FIGURES:
                name, figure = FRAME_NAMES[key], figure_of(row, key)
                low, high = figure.interval or (None, None)
                record |= {name: figure.value, f"{name} low": low, f"{name} high": high}
            for name in setting:
                record[name] = row.get(name)
            records.append(record)
        return need("pandas", "frames").DataFrame(records)


def _figure(
    table: Comparison, key: str, heading: str, small: str, note: str = ""
) -> Column:
    """Return the column of a figure, of `FIGURES`."""
    return Column(
        key,
        heading,
        lambda line: Cell(one_decimal(line.figures[key].value)),
        small=small,
        note=note,
        official=table.measure == key,
    )


def _interval(key: str, note: str = "", narrow: bool = True) -> Column:
    """Return the column of a figure's interval."""
    return Column(
        "interval",
        "interval",
        lambda line: Cell(interval_text(line.figures[key].interval)),
        small="95 %",
        note=note,
        narrow=narrow,
    )


def _other_definition(method: str, narrow: bool) -> Column:
    return Column(
        method,
        DEFINITIONS[method].label,
        lambda line: Cell(one_decimal(line.map[method])),
        narrow=narrow,
    )


def _gain(line: Line) -> Cell:
    gain = line.gain
    if gain is None:
        return Cell()
    hint = f"{signed_ends((gain.low, gain.high))}, p = {gain.p:.2g}"
    return Cell(one_decimal(gain.mean, sign=True), holds=gain.holds, hint=hint)


def _gain_note(table: Comparison) -> str:
    if table.forward is None:
        return ""
    return (
        f"gain: over {table.forward.title}, the best forward feature; ! holds at 95 % "
        "(paired bootstrap)."
    )


def _row(
    table: Comparison, line: Line, shown_columns: list[Column], medium: Medium
) -> list[Cell]:
    if line.official is None and medium == "page":
        return [line.name_cell, Cell(line.note, kind="why")]
    cells = [column.cell_of(line) for column in shown_columns]
    if cells and line == table.best_of_table_1:
        cells[0] = replace(cells[0], bold=True)
    return [line.name_cell, *cells]


def _notes(table: Comparison, medium: Medium) -> list[str]:
    official, *other_notes = column_notes(table)
    left_out = left_out_text(table.rows)
    if medium == "page":
        n_classes = len(table.rows[0]["classes"])
        notes = ["mAP in percent; bold: the best row.", official.removeprefix("* ")]
        notes += other_notes
        if left_out:
            names: set[str] = set()
            for row in table.rows:
                names.update(row["left_out"])
            notes.append(
                f"The mean is over {n_classes - len(names)} of {n_classes} classes; "
                f"left out: {left_out}."
            )
        return notes
    notes = [f"{setting_text(table.rows[0])} {official}"]
    if medium == "terminal":
        notes.append("x, y: output of a layer; dW: gradient of its weights.")
    notes += other_notes
    if medium == "terminal" and table.has_accuracy:
        notes.append("results.jsonl has the other definitions of AP.")
    if left_out:
        notes.append(f"Left out of the mean: {left_out}.")
    for line in table.lines:
        if line.official is None:
            notes.append(f"{line.title}: {line.note}.")
    # without a full stop, to be copied from a terminal
    for name, formula in formulas(line.feature for line in table.table_1):
        notes.append(f"{name} = {formula}")
    return notes
