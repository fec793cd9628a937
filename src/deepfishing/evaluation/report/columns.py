"""Columns of Table 1: one record each, from which the page and every text format are made.

A new column is a new record in `columns`; headings, cells and the notes below the table follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deepfishing.core.metrics import DEFINITIONS
from deepfishing.evaluation.report.tables import (
    Comparison,
    Line,
    interval_text,
    one_decimal,
    signed_ends,
)
from deepfishing.images.dataset import MEASURES


@dataclass(frozen=True)
class Column:
    """A column of Table 1.

    `cell` gives its text for a line, "" for nothing; `hint` a longer text that the page shows on
    hovering. `note` explains it below the table. `official` marks the figure by which the data
    set is usually compared, `narrow` a column that fits a terminal of 80 columns.
    """

    key: str
    title: str
    cell: Callable[[Line], str]
    small: str = ""
    note: str = ""
    hint: Callable[[Line], str] | None = None
    official: bool = False
    narrow: bool = True

    @property
    def second_line(self) -> str:
        """The small print of its heading."""
        return "official" if self.official else self.small


def columns(table: Comparison) -> list[Column]:
    """Return the columns behind the feature's name, without those that have no figure."""
    official, *others = table.lines[0].map
    lines = table.table_1
    one_class_each = table.has("top1")
    found = [
        Column(
            "map",
            DEFINITIONS[official].label,
            lambda line: one_decimal(line.official),
            small="mAP",
            official=table.measure == "map",
        ),
        Column(
            "interval",
            "interval",
            lambda line: interval_text(line.interval),
            small="95 %",
            note="interval of mAP: 95 %, bootstrap over test images.",
        ),
        Column(
            "gain",
            "gain",
            _gain_text,
            small=f"on {table.forward.title}" if table.forward else "",
            note=_gain_note(table),
            hint=_gain_hint,
        ),
        Column(
            "top1",
            "top-1",
            lambda line: one_decimal(line.top1),
            small="accuracy",
            note="top-1: percent of images whose class has the highest score; balanced: the mean "
            "of that over the classes; their intervals: Wilson's.",
            official=table.measure == "accuracy",
        ),
        Column(
            "interval",
            "interval",
            lambda line: interval_text(line.top1_interval),
            small="95 %",
        ),
        Column(
            "balanced",
            "balanced",
            lambda line: one_decimal(line.balanced),
            small="accuracy",
            official=table.measure == "balanced_accuracy",
        ),
        Column(
            "interval",
            "interval",
            lambda line: interval_text(line.balanced_interval),
            small="95 %",
            narrow=False,
        ),
    ]
    for method in others:
        found.append(_other_definition(method, narrow=not one_class_each))
    found += [
        Column(
            "printed",
            "paper",
            lambda line: one_decimal(line.printed),
            note="paper: the paper's figure for its own network and weights; difference: ours "
            "minus that.",
        ),
        Column(
            "difference",
            "difference",
            lambda line: one_decimal(line.difference, sign=True),
        ),
    ]
    return [column for column in found if any(map(column.cell, lines))]


def column_notes(table: Comparison) -> list[str]:
    """Return the sentences that explain the columns, in their order."""
    shown = [f"* official {official_measure(table)}."]
    return shown + [column.note for column in columns(table) if column.note]


def official_measure(table: Comparison) -> str:
    """Name the figure by which the data set is usually compared."""
    if table.measure == "map":
        return "AP: " + DEFINITIONS[table.rows[0]["official_ap"]].label
    return f"measure: {MEASURES[table.measure]}"


def _other_definition(method: str, narrow: bool) -> Column:
    label = DEFINITIONS[method].label
    return Column(
        method, label, lambda line: one_decimal(line.map[method]), narrow=narrow
    )


def _gain_text(line: Line) -> str:
    if line.gain is None:
        return ""
    mark = "!" if line.gain.holds else ""
    return one_decimal(line.gain.mean, sign=True) + mark


def _gain_hint(line: Line) -> str:
    if line.gain is None:
        return ""
    return f"{signed_ends((line.gain.low, line.gain.high))}, p = {line.gain.p:.2g}"


def _gain_note(table: Comparison) -> str:
    if table.forward is None:
        return ""
    return (
        f"gain: over {table.forward.title}, the best forward feature; ! holds at 95 % "
        "(paired bootstrap)."
    )
