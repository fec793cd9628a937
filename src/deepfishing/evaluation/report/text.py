"""Tables in the terminal, as Markdown and as LaTeX.

`report.md` and `report.tex` have the figures of the HTML page, rounded alike. The LaTeX needs the
package booktabs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from deepfishing.core.recipes import pieces
from deepfishing.evaluation.report.gain_split import table_split
from deepfishing.evaluation.report.rows import gains, open_folder, save_report
from deepfishing.evaluation.report.sheets import (
    Bold,
    Cells,
    FeatureName,
    GradientName,
    Sheet,
    curve_sheets,
    table_sheets,
)
from deepfishing.evaluation.report.tables import comparison

if TYPE_CHECKING:
    from rich.table import Table

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
    found, sheets = open_folder(folder), []
    for rows in found.tables:
        table = comparison(rows, gains(found.results, rows))
        sheets += table_sheets(table, table_split(found.results, table))
    for points in found.curves:
        sheets += curve_sheets(points)
    return save_report(folder / name, first + "\n".join(map(write, sheets)))


def terminal(sheet: Sheet) -> Table:
    """A table for the terminal: long names fold and figures do not."""
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
    rows = [row for block in sheet.blocks for row in block]
    for number, name in enumerate(sheet.head):
        cells = "".join(row[number] for row in rows)
        left = number == 0 or "!" in cells or any(map(str.isalpha, cells))
        short = len(name) <= 16 and not any(map(str.isalpha, cells))
        table.add_column(
            Text(name.rjust(5) if "!" in cells else name),
            justify="left" if left else "right",
            no_wrap=number > 0 and short,
            overflow="fold",
            max_width=None if number == 0 or short else 28 if left else 16,
        )
    for block in sheet.blocks:
        for row in block:
            texts = []
            for cell in row:
                first, _, below = cell.partition("\n")
                style = (
                    "bold" if isinstance(cell, Bold) else "dim" if cell == "·" else ""
                )
                texts.append(
                    Text(first, style).append(f"\n{below}" if below else "", "dim")
                )
            table.add_row(
                *texts, style="cyan" if isinstance(row[0], GradientName) else None
            )
        if block is not sheet.blocks[-1]:
            table.add_section()
    return table


def markdown(sheet: Sheet) -> str:
    """A table in GitHub's Markdown."""

    def write(cell: str) -> str:
        text = _markdown_text(cell)
        return f"**{text}**" if isinstance(cell, Bold) and text else text

    rows = [row for block in sheet.blocks for row in block]
    rule = "|---|" + "---:|" * (len(sheet.head) - 1)
    written = [f"| {' | '.join(map(write, row))} |" for row in (sheet.head, *rows)]
    return "\n".join(
        [_markdown_text(sheet.caption), "", written[0], rule, *written[1:], ""]
    )


def latex(sheet: Sheet) -> str:
    """A table in LaTeX, with the rules of booktabs."""

    def write(cell: str) -> str:
        text = (
            _latex_feature(cell) if isinstance(cell, FeatureName) else _latex_text(cell)
        )
        return rf"\textbf{{{text}}}" if isinstance(cell, Bold) and text else text

    def row(cells: Cells) -> str:
        return " & ".join(map(write, cells)) + r" \\"

    blocks = ["\n".join(map(row, block)) for block in sheet.blocks]
    lines = (
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex_text(sheet.caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(sheet.head) - 1)}}}",
        r"\toprule",
        row(sheet.head),
        r"\midrule",
        "\n\\midrule\n".join(blocks),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    )
    return "\n".join(lines)


def _markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, on one line; quotes and tags are only text."""
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
    return "".join(
        _latex_text(piece)
        if isinstance(piece, str)
        else "; ".join(map(_latex_symbol, piece.symbols))
        for piece in pieces(name)
    )


def _latex_symbol(symbol: tuple[str, str, str]) -> str:
    letter, layer, note = symbol
    letter = {"dW": r"\partial E / \partial W"}.get(letter, letter)
    below = layer if layer.isdigit() else rf"\textrm{{{_latex_text(layer)}}}"
    return f"${letter}_{{{below}}}$" + (f" {note}" if note else "")
