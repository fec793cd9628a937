"""Stage 7, report: the tables as Markdown and as LaTeX, to be pasted into a page or a paper.

Comes in: `results.jsonl`, `scores/` and `curves.jsonl` of a folder. Goes out: `report.md` or
`report.tex` beside them, with Table 1, the tables of classes, confusions and curves of each
setting: the figures of the HTML page, rounded alike. The LaTeX needs the package booktabs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepfishing.experiments.checks import Result
from deepfishing.images.dataset import MEASURES
from deepfishing.metrics import DEFINITIONS
from deepfishing.recipes import pieces
from deepfishing.report.charts import panels
from deepfishing.report.confusions import Confusions, confusions
from deepfishing.report.rows import formulas, open_folder, save_report
from deepfishing.report.scores import gains
from deepfishing.report.tables import (
    Comparison,
    columns,
    comparison,
    label_text,
    left_out_text,
    one_decimal,
)

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}


class Bold(str):
    """A cell that stands out."""


class FeatureName(str):
    """A cell with a feature's name, which LaTeX sets in the paper's letters."""


Cells = Sequence[str]  # a row of a table


@dataclass(frozen=True)
class Sheet:
    """A table: blocks of rows below a head, with a caption."""

    caption: str
    head: Cells
    blocks: Sequence[Sequence[Cells]]


def write_markdown(folder: str | Path) -> Path:
    """Write the tables of a folder of results as `report.md` into it."""
    return _write(Path(folder), "report.md", markdown)


def write_latex(folder: str | Path) -> Path:
    """Write the tables of a folder of results as `report.tex`, for `\\input` into a paper."""
    return _write(Path(folder), "report.tex", latex, "% needs \\usepackage{booktabs}\n")


def _write(folder: Path, name: str, write: Callable[[Sheet], str], first: str = "") -> Path:
    found, sheets = open_folder(folder), []
    for rows in found.tables:
        sheets += table_sheets(comparison(rows, gains(found.results, rows)))
    for points in found.curves:
        sheets += curve_sheets(points)
    return save_report(folder / name, first + "\n".join(map(write, sheets)))


def table_sheets(table: Comparison) -> list[Sheet]:
    """Table 1, the table of classes and that of confusions for rows of one setting.

    Classes stand only where there is AP, confusions where images have one class each and some are
    taken for another.
    """
    found = [_table_1(table)]
    if table.detailed:
        found.append(_classes(table))
    confused = confusions(table)
    if confused and confused.pairs:
        found.append(_confusions(_setting(table.rows[0]), confused))
    return found


def curve_sheets(points: Sequence[Result]) -> list[Sheet]:
    """A table for each chart of the points of one setting: lines down, the chart's axis across."""
    found = []
    for panel in panels(points):
        for chart in panel.charts:
            body = []
            for series in chart.series:
                name = panel.called(series)
                cells = [name if panel.feature else FeatureName(name)]
                for x in chart.xs:
                    figure, interval = panel.text(chart, series.at(x))
                    cells.append(f"{figure} ({interval})" if interval else figure)
                body.append(cells)
            caption = [f"{panel.heading(chart)}, on {_setting(points[0])}."]
            caption += [f"Not measured: {note}." for note in panel.notes]
            caption += _formulas(panel.features)
            head = [panel.x_axis, *(f"{x:,}" for x in chart.xs)]
            found.append(Sheet(" ".join(caption), head, [body]))
    return found


def markdown(sheet: Sheet) -> str:
    """A table in GitHub's Markdown.

    >>> print(markdown(Sheet("mAP", ["feature", "a|b"], [[["x7", Bold("80.9")]]])))
    mAP
    <BLANKLINE>
    | feature | a\\|b |
    |---|---:|
    | x7 | **80.9** |
    <BLANKLINE>
    """

    def write(cell: str) -> str:
        text = _markdown_text(cell)
        return f"**{text}**" if isinstance(cell, Bold) and text else text

    rows = [row for block in sheet.blocks for row in block]
    rule = "|---|" + "---:|" * (len(sheet.head) - 1)
    written = [f"| {' | '.join(map(write, row))} |" for row in (sheet.head, *rows)]
    return "\n".join([_markdown_text(sheet.caption), "", written[0], rule, *written[1:], ""])


def latex(sheet: Sheet) -> str:
    r"""A table in LaTeX, with the rules of booktabs.

    >>> row = [FeatureName("dW7*x6;x7"), Bold("-0.4")]
    >>> print(latex(Sheet("50 %", ["feature", "gain"], [[row]])))
    \begin{table}
    \centering
    \caption{50 \%}
    \begin{tabular}{lr}
    \toprule
    feature & gain \\
    \midrule
    $\partial E / \partial W_{7}$*$x_{6}$; $x_{7}$ & \textbf{$-$0.4} \\
    \bottomrule
    \end{tabular}
    \end{table}
    <BLANKLINE>
    """

    def write(cell: str) -> str:
        text = _latex_feature(cell) if isinstance(cell, FeatureName) else _latex_text(cell)
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


def _table_1(table: Comparison) -> Sheet:
    shown = columns(table)
    blocks: dict[int, list[Cells]] = {}
    for line, (first, *rest) in zip(table.lines, zip(*shown.values(), strict=True), strict=True):
        figure = Bold(first) if line == table.best else first
        blocks.setdefault(line.block, []).append([FeatureName(line.title), figure, *rest])
    official, row = next(iter(shown)), table.rows[0]
    parts = [f"mAP in percent on {_setting(row)}; {official} is the official definition."]
    if table.has("gain") and table.forward:
        parts.append(
            f"Gain: over {table.forward.title}, the best forward feature; "
            "! holds at 95 % in the paired bootstrap."
        )
    if table.has("top1"):
        parts.append(
            "Top-1: images whose class has the highest score; balanced: the mean over the classes."
        )
    if table.measure != "map":
        parts.append(f"The data set's official measure is {MEASURES[table.measure]}.")
    if absent := left_out_text(table.rows):
        parts.append(f"Left out of the mean: {absent}.")
    parts += [f"{line.title}: {line.note}." for line in table.lines if line.official is None]
    parts += _formulas((line.feature for line in table.lines), table.rows)
    heads = ("interval" if name.endswith(" interval") else name for name in shown)
    return Sheet(" ".join(parts), ["feature", *heads], list(blocks.values()))


def _classes(table: Comparison) -> Sheet:
    head, mean = ["class"], ["mean"]
    for line, has_printed in table.class_columns:
        head += [FeatureName(line.title), *["paper"] * has_printed]
        mean += [one_decimal(line.official), *[one_decimal(line.printed)] * has_printed]
    body = []
    for name, cells in table.classes.items():
        top = max((cell.measured for cell in cells if cell.measured is not None), default=None)
        row = [name]
        for cell, (_, has_printed) in zip(cells, table.class_columns, strict=True):
            figure = one_decimal(cell.measured)
            row.append(Bold(figure) if cell.measured == top else figure)
            row += [one_decimal(cell.printed)] * has_printed
        body.append(row)
    official = DEFINITIONS[table.rows[0]["official_ap"]].label
    caption = [f"{official} AP in percent by class on {_setting(table.rows[0])}."]
    caption += _formulas(line.feature for line in table.detailed)
    return Sheet(" ".join(caption), head, [body, [mean]])


def _confusions(where: str, found: Confusions) -> Sheet:
    """The matrix, or of many classes the pairs that are confused most often."""
    if found.numbered:
        head = ["class", *(str(number + 1) for number in range(len(found.classes)))]
        body = []
        for i, (name, counts) in enumerate(zip(found.classes, found.counts, strict=True)):
            cells = [str(n or "") for n in counts]
            cells[i] = Bold(cells[i])
            body.append([f"{i + 1} {name}", *cells])
        what = f"Images of each class (rows) by the class that {found.line.title} takes them for"
        return Sheet(f"{what} (columns), on {where}.", head, [body])
    titles = (FeatureName(line.title) for line in found.compared)
    pairs = [[p.truth, p.answer, *map(str, (*p.images, p.of))] for p in found.pairs]
    caption = (
        f"The {len(pairs)} most frequent confusions of {found.of_pairs:,} pairs of classes: images "
        f"that are taken for another class, of so many, on {where}."
    )
    return Sheet(caption, ["shows", "taken for", *titles, "of"], [pairs])


def _formulas(features: Iterable[str], rows: Iterable[Result] = ()) -> list[str]:
    return [f"{called} = {name}." for called, name in formulas(features, rows)]


def _setting(row: Result) -> str:
    return (
        f"{row['dataset']} {row['test']} ({row['n_test']:,} images), trained on {row['train']} "
        f"({row['n_train']:,}): {row['network']}, tau {row['tau']:g}, {label_text(row)}, "
        f"C {row['C']:g}"
    )


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
