"""Formats of a sheet: the terminal, Markdown and LaTeX.

`report.md` and `report.tex` have the figures of the HTML page, rounded alike. The LaTeX needs the
package booktabs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from deepfishing.core.recipes import pieces
from deepfishing.evaluation.report.folder import open_folder, save_report
from deepfishing.evaluation.report.gains import gains, table_split
from deepfishing.evaluation.report.sheet import Cell, Row, Sheet, fill
from deepfishing.evaluation.report.sheets import curve_sheets, table_sheets
from deepfishing.evaluation.report.tables import comparison

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}


def write_markdown(folder: str | Path) -> Path:
    """Write the tables of a folder of results as `report.md` into it."""
    return _write(Path(folder), "report.md", markdown)


def write_latex(folder: str | Path) -> Path:
    """Write the tables of a folder of results as `report.tex`, for `\\input` into a paper."""
    return _write(Path(folder), "report.tex", latex, "% needs \\usepackage{booktabs}\n")


def _write(
    folder: Path, name: str, write: Callable[[Sheet], str], first: str = ""
) -> Path:
    opened = open_folder(folder)
    sheets: list[Sheet] = []
    for rows in opened.tables:
        table = comparison(rows, gains(opened.results, rows))
        sheets += table_sheets(table, table_split(opened.results, table))
    for points in opened.curves:
        sheets += curve_sheets(points)
    return save_report(folder / name, first + "\n".join(map(write, sheets)))


def terminal(sheet: Sheet) -> Table:
    """Return a table for the terminal: long names fold and figures do not."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(sheet.title),
        caption=Text("\n".join(sheet.notes)),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
        pad_edge=False,
        min_width=min(max(60, len(sheet.title)), 78),
    )
    rows = list(sheet.rows)
    with_marks = set()
    for number, heading in enumerate(sheet.head):
        cells = [row[number] for row in rows]
        name = _starred(heading)
        is_gain = any(cell.holds for cell in cells)
        if is_gain:
            with_marks.add(number)
            name = name.rjust(5)
        letters = "".join(cell.text for cell in cells)
        has_words = any(map(str.isalpha, letters))
        is_figures = number > 0 and len(name) <= 16 and not has_words
        is_left = number == 0 or is_gain or has_words
        table.add_column(Text(name), no_wrap=is_figures, overflow="fold")
        column = table.columns[-1]
        if not is_left:
            column.justify = "right"
        if number > 0 and not is_figures:
            column.max_width = 16
            if is_left:
                column.max_width = 28
    blocks = sheet.blocks_and_foot
    for block in blocks:
        for row in block:
            texts = []
            for number, cell in enumerate(fill(row, len(sheet.head))):
                texts.append(_terminal_text(cell, number in with_marks))
            style = None
            if "gradient" in (row[0].name, row[0].kind):
                style = "cyan"
            table.add_row(*texts, style=style)
        if block is not blocks[-1]:
            table.add_section()
    return table


def _terminal_text(cell: Cell, is_gain: bool) -> Text:
    """Return the text of a cell; gains are padded so that they align beside their marks."""
    from rich.text import Text

    style = ""
    if cell.bold:
        style = "bold"
    elif cell.text == "·":
        style = "dim"
    figure = cell.text
    if is_gain and figure:
        figure = figure.rjust(5)
        if cell.holds and cell.half:
            figure += "!"  # columns with intervals are narrow
        elif cell.holds:
            figure += " !"
    text = Text(figure, style)
    if cell.half:
        text.append(f"\n{cell.half}", "dim")
    return text


def markdown(sheet: Sheet) -> str:
    """Return a table in GitHub's Markdown."""

    def write(cell: Cell) -> str:
        text = _markdown_text(_marked(cell))
        if cell.bold and text:
            return f"**{text}**"
        return text

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    head = line([_markdown_text(_starred(cell)) for cell in sheet.head])
    rule = "|---|" + "---:|" * (len(sheet.head) - 1)
    body = [line(list(map(write, row))) for row in sheet.rows]
    caption = _markdown_text(sheet.title_and_notes)
    return "\n".join([caption, "", head, rule, *body, ""])


def latex(sheet: Sheet) -> str:
    """Return a table in LaTeX, with the rules of booktabs."""

    def write(cell: Cell) -> str:
        text = _latex_text(_marked(cell))
        if cell.is_feature:
            text = _latex_feature(cell.text)
        if cell.bold and text:
            return rf"\textbf{{{text}}}"
        return text

    def line(row: Row) -> str:
        cells = [write(cell) for cell in fill(row, len(sheet.head))]
        return " & ".join(cells) + r" \\"

    head = [Cell(_starred(cell), name=cell.name) for cell in sheet.head]
    blocks = ["\n".join(map(line, block)) for block in sheet.blocks]
    if sheet.foot:
        blocks.append(line(sheet.foot))
    lines = (
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex_text(sheet.title_and_notes)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(sheet.head) - 1)}}}",
        r"\toprule",
        line(head),
        r"\midrule",
        "\n\\midrule\n".join(blocks),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    )
    return "\n".join(lines)


def _starred(heading: Cell) -> str:
    """Return the heading of a column, with a star for the official figure."""
    if heading.small == "official":
        return f"{heading.text}*"
    return heading.text


def _marked(cell: Cell) -> str:
    """Return the text of a cell with its interval, and `!` for a gain that holds."""
    text = cell.text
    if cell.holds:
        text += "!"
    if cell.small:
        text += f" ({cell.small})"
    return text


def _markdown_text(text: str) -> str:
    """Escape a text for Markdown and HTML, on one line."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", text)


def _latex_text(text: str) -> str:
    text = " ".join(text.split())
    signed = re.fullmatch(r"-(\d.*)", text)
    if signed:
        return f"$-${signed[1]}"
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<=\d)-(?=\d+\.)", "--", escaped)  # an interval


def _latex_feature(name: str) -> str:
    text = ""
    for piece in pieces(name):
        if isinstance(piece, str):
            text += _latex_text(piece)
        else:
            text += "; ".join(map(_latex_symbol, piece.symbols))
    return text


def _latex_symbol(symbol: tuple[str, str, str]) -> str:
    letter, layer, note = symbol
    if letter == "dW":
        letter = r"\partial E / \partial W"
    if not layer.isdigit():
        layer = rf"\textrm{{{_latex_text(layer)}}}"
    text = f"${letter}_{{{layer}}}$"
    if note:
        text += f" {note}"
    return text
