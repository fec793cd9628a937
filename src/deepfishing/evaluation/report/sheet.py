"""A table of the report, independent of its format.

The terminal, Markdown, LaTeX, the page and notebooks show the same `Sheet`. A cell has the kind of
its text, a format decides how that looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from deepfishing.core.statistics import Interval
from deepfishing.images.show import table_html

# A terminal has 80 columns; a text is Markdown or LaTeX.
Medium = Literal["terminal", "text", "page"]
Name = Literal["", "feature", "forward", "gradient", "class"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    `small` is in small print beside or below the text, such as an interval, `half` the same for
    narrow tables. `name` is the kind of name that the text is: formats typeset features as in the
    paper, and gradients in a colour. `holds` marks a significant gain. On the page, `kind` is a CSS
    class, `hint` appears on hovering and `shade`, 0 to 1, colours the cell.
    """

    text: str = ""
    small: str = ""
    half: str = ""
    bold: bool = False
    holds: bool = False
    name: Name = ""
    kind: str = ""
    hint: str = ""
    shade: float = 0.0

    @property
    def is_feature(self) -> bool:
        """Whether the text is the title of a feature."""
        return self.name in ("feature", "forward", "gradient")


Row = Sequence[Cell]


@dataclass(frozen=True)
class Sheet:
    """A table: blocks of rows below a head, a foot, and sentences about it.

    A row may be shorter than the head; on the page its last cell is as wide as the rest. The title
    names the table, `caption` is shown above it on the page. `kind` names its looks on the page.
    """

    title: str
    head: Row
    blocks: Sequence[Sequence[Row]]
    notes: Sequence[str] = ()
    foot: Row = ()
    caption: str = ""
    kind: str = "points"

    @property
    def rows(self) -> Iterator[Row]:
        """All rows below the head, filled up to its length."""
        for block in self.blocks_and_foot:
            for row in block:
                yield fill(row, len(self.head))

    @property
    def blocks_and_foot(self) -> list[Sequence[Row]]:
        """The blocks, with the foot as the last one if there is one."""
        if self.foot:
            return [*self.blocks, [self.foot]]
        return list(self.blocks)

    @property
    def title_and_notes(self) -> str:
        """Title and sentences in one paragraph."""
        if not self.notes:
            return self.title
        sentences = [self.title, *self.notes]
        return " ".join(sentence.removesuffix(".") + "." for sentence in sentences)

    def _repr_html_(self) -> str:
        return self.as_html(self.title)

    def as_html(self, title: str) -> str:
        """Return the HTML for a notebook, below a title."""
        texts, shades = [], []
        for row in self.rows:
            texts.append([_notebook_text(cell) for cell in row])
            shades.append([cell.shade for cell in row])
        head = [_notebook_text(cell) for cell in self.head]
        return table_html(title, head, texts, shades)


def fill(row: Row, length: int) -> list[Cell]:
    """Return a row with empty cells up to a length."""
    return [*row, *[Cell()] * (length - len(row))]


def _notebook_text(cell: Cell) -> str:
    text = cell.text
    if cell.small:
        text += f" {cell.small}"
    return _long_dashes(text) + "!" * cell.holds


def _long_dashes(text: str) -> str:
    """Return an interval with an en dash."""
    return re.sub(r"(?<=\d)-(?=\d)", "–", text)


def one_decimal(value: float | None, sign: bool = False) -> str:
    """Return a figure with one decimal, and nothing if there is no figure."""
    if value is None:
        return ""
    text = f"{value:.1f}"
    if sign:
        text = f"{value:+.1f}"
    if text in ("+0.0", "-0.0"):
        return "0.0"
    return text


def interval_text(interval: Interval | None) -> str:
    """Return an interval of a figure."""
    if interval is None:
        return ""
    low, high = interval
    return f"{one_decimal(low)}-{one_decimal(high)}"


def signed_ends(interval: Interval) -> str:
    """Return the ends of an interval of a difference."""
    low, high = interval
    return f"{one_decimal(low, sign=True)} to {one_decimal(high, sign=True)}"


def figure_cell(value: float | None, interval: Interval | None) -> Cell:
    """Return the cell of a figure in percent with its interval."""
    return Cell(one_decimal(value), interval_text(interval), half_text(interval))


def gain_cell(mean: float, interval: Interval | None, holds: bool = False) -> Cell:
    """Return the cell of a difference with its interval."""
    ends = ""
    if interval is not None:
        ends = signed_ends(interval)
    text = one_decimal(mean, sign=True)
    return Cell(text, ends, half_text(interval), holds=holds)


def half_text(interval: Interval | None) -> str:
    """Return half of an interval."""
    if interval is None:
        return ""
    low, high = interval
    return f"±{(high - low) / 2:.1f}"
