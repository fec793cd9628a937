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

from deepfishing.errors import StoreError
from deepfishing.experiments.checks import Result
from deepfishing.experiments.results import Results
from deepfishing.files import replacing
from deepfishing.images.dataset import MEASURES
from deepfishing.metrics import DEFINITIONS
from deepfishing.recipes import pieces
from deepfishing.report.charts import mark_text
from deepfishing.report.confusions import Confusions, confusions
from deepfishing.report.gains import gains
from deepfishing.report.points import group_points, open_points, panels
from deepfishing.report.rows import formulas, group_rows, open_results, title
from deepfishing.report.tables import (
    Line,
    class_lines,
    finding,
    interval_text,
    label_text,
    left_out_text,
    official_measure,
    one_decimal,
    per_class,
    table_1,
)

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}


@dataclass(frozen=True)
class Text:
    """A cell: plain text or a feature's name, which each format writes in its own way."""

    text: str = ""
    feature: bool = False
    bold: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table: blocks of rows of cells below a head, with a caption."""

    caption: str
    head: tuple[Text, ...]
    blocks: tuple[tuple[tuple[Text, ...], ...], ...]


def write_markdown(folder: str | Path) -> Path:
    """Write the tables of a folder of results as `report.md` into it.

    Raises
    ------
    StoreError
        If the folder or its results are missing, empty or malformed.
    """
    return _write(folder, "report.md", markdown)


def write_latex(folder: str | Path) -> Path:
    """Write the tables of a folder of results as `report.tex`, for `\\input` into a paper.

    Raises
    ------
    StoreError
        If the folder or its results are missing, empty or malformed.
    """
    return _write(folder, "report.tex", latex, "% needs \\usepackage{booktabs}\n")


def sheets(results: Results, rows: Sequence[Result]) -> tuple[Sheet, ...]:
    """Table 1, the table of classes and that of confusions for rows of one setting.

    Classes stand only where there is AP, confusions where images have one class each and some are
    taken for another. Columns without a figure are left out.
    """
    lines = table_1(rows, gains(results, rows))
    found = [_table_1(rows, lines)]
    if class_lines(lines):
        found.append(_classes(rows, lines))
    confused = confusions(rows, lines)
    if confused and confused.pairs:
        found.append(_confusions(rows, confused))
    return tuple(found)


def curve_sheets(points: Sequence[Result]) -> list[Sheet]:
    """A table for each chart of the points of one setting: lines down, the chart's axis across."""
    found = []
    for panel in panels(points):
        for chart in panel.charts:
            head = [panel.x_axis, *(f"{x:,}" for x in chart.xs)]
            body = []
            for series in chart.series:
                cells = [Text(panel.called(series), feature=panel.feature is None)]
                for x in chart.xs:
                    figure, interval = mark_text(panel, chart, series.at(x))
                    cells.append(Text(f"{figure} ({interval})" if interval else figure))
                body.append(tuple(cells))
            subject = f" of {title(panel.feature)}" if panel.feature else ""
            caption = f"{panel.title}{subject}: {chart.y_axis}, on {_setting(points[0])}."
            notes = [f"Not measured: {note}." for note in panel.notes]
            caption = " ".join([caption, *notes, *_formulas(panel.features)])
            found.append(Sheet(caption, tuple(map(Text, head)), (tuple(body),)))
    return found


def markdown(sheet: Sheet) -> str:
    """A table in GitHub's Markdown.

    Examples
    --------
    >>> body = (((Text("x7", feature=True), Text("80.9", bold=True)),),)
    >>> print(markdown(Sheet("mAP", (Text("feature"), Text("a|b")), body)))
    mAP
    <BLANKLINE>
    | feature | a\\|b |
    |---|---:|
    | x7 | **80.9** |
    <BLANKLINE>
    """

    def write(cell: Text) -> str:
        text = _markdown_text(cell.text)
        return f"**{text}**" if cell.bold and text else text

    rows = [row for block in sheet.blocks for row in block]
    rule = "|---|" + "---:|" * (len(sheet.head) - 1)
    written = [f"| {' | '.join(map(write, row))} |" for row in (sheet.head, *rows)]
    return "\n".join([_markdown_text(sheet.caption), "", written[0], rule, *written[1:], ""])


def latex(sheet: Sheet) -> str:
    r"""A table in LaTeX, with the rules of booktabs.

    Examples
    --------
    >>> body = (((Text("dW7*x6;x7", feature=True), Text("-0.4", bold=True)),),)
    >>> print(latex(Sheet("50 %", (Text("feature"), Text("gain")), body)))
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

    def write(cell: Text) -> str:
        text = _latex_feature(cell.text) if cell.feature else _latex_text(cell.text)
        return rf"\textbf{{{text}}}" if cell.bold and text else text

    def row(cells: Sequence[Text]) -> str:
        return " & ".join(map(write, cells)) + r" \\"

    blocks = ["\n".join(map(row, block)) for block in sheet.blocks]
    return "\n".join(
        [
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
        ]
    )


def _write(folder: str | Path, name: str, write: Callable[[Sheet], str], first: str = "") -> Path:
    results = open_results(Path(folder))
    written = [sheet for rows in group_rows(results.rows) for sheet in sheets(results, rows)]
    for points in group_points(open_points(results.folder)):
        written += curve_sheets(points)
    text = "\n".join(map(write, written))
    path = results.folder / name
    try:
        with replacing(path) as partial:
            partial.write_text(first + text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"report cannot be written: {path} ({error})") from None
    return path


def _table_1(rows: Sequence[Result], lines: Sequence[Line]) -> Sheet:
    found = finding(lines)
    intervals = any(line.interval for line in lines)
    gained = any(line.gain for line in lines)
    printed = any(line.printed is not None for line in lines)
    official, *others = [DEFINITIONS[method].label for method in lines[0].map]
    accurate = any(line.top1 for line in lines)
    head = ["feature", official] + ["interval"] * intervals + ["gain"] * gained
    head += ["top-1", "interval", "balanced", "interval"] * accurate
    head += others + ["paper", "difference"] * printed

    def row(line: Line) -> tuple[Text, ...]:
        first, *rest = map(one_decimal, line.map.values())
        cells = [Text(line.title, feature=True), Text(first, bold=line == found.best)]
        if intervals:
            cells.append(Text(interval_text(line.interval)))
        if gained:
            mark = "!" if line.gain and line.gain.holds else ""
            cells.append(Text(one_decimal(line.gain.mean, True) + mark if line.gain else ""))
        for accuracy in (line.top1, line.balanced) if accurate else ():
            cells.append(Text(one_decimal(accuracy.value if accuracy else None)))
            cells.append(Text(interval_text(accuracy.interval if accuracy else None)))
        cells += map(Text, rest)
        if printed:
            cells += [Text(one_decimal(line.printed)), Text(one_decimal(line.difference, True))]
        return tuple(cells)

    blocks: dict[int, list[tuple[Text, ...]]] = {}
    for line in lines:
        blocks.setdefault(line.block, []).append(row(line))
    parts = [f"mAP in percent on {_setting(rows[0])}; {official} is the official definition."]
    if gained and found.forward:
        parts.append(
            f"Gain: over {found.forward.title}, the best forward feature; "
            "! holds at 95 % in the paired bootstrap."
        )
    if accurate:
        parts.append(
            "Top-1: images whose class has the highest score; balanced: the mean over the classes."
        )
    if (measure := official_measure(rows[0])) != "map":
        parts.append(f"The data set's official measure is {MEASURES[measure]}.")
    if absent := left_out_text(rows):
        parts.append(f"Left out of the mean: {absent}.")
    parts += [f"{line.title}: {line.note}." for line in lines if line.official is None]
    parts += _formulas((line.feature for line in lines), rows)
    return Sheet(" ".join(parts), tuple(map(Text, head)), tuple(map(tuple, blocks.values())))


def _classes(rows: Sequence[Result], lines: Sequence[Line]) -> Sheet:
    detailed = class_lines(lines)
    classes = per_class(rows, [line.feature for line in detailed])
    columns = zip(*classes.values(), strict=True)
    printed = [any(cell.printed is not None for cell in column) for column in columns]
    head, mean = [Text("class")], [Text("mean")]
    for line, has_printed in zip(detailed, printed, strict=True):
        head.append(Text(line.title, feature=True))
        mean.append(Text(one_decimal(line.official)))
        if has_printed:
            head.append(Text("paper"))
            mean.append(Text(one_decimal(line.printed)))
    body = []
    for name, cells in classes.items():
        top = max((cell.measured for cell in cells if cell.measured is not None), default=None)
        row = [Text(name)]
        for cell, has_printed in zip(cells, printed, strict=True):
            best = cell.measured is not None and cell.measured == top
            row.append(Text(one_decimal(cell.measured), bold=best))
            if has_printed:
                row.append(Text(one_decimal(cell.printed)))
        body.append(tuple(row))
    official = DEFINITIONS[rows[0]["official_ap"]].label
    caption = f"{official} AP in percent by class on {_setting(rows[0])}."
    caption = " ".join([caption, *_formulas(line.feature for line in detailed)])
    return Sheet(caption, tuple(head), (tuple(body), (tuple(mean),)))


def _confusions(rows: Sequence[Result], found: Confusions) -> Sheet:
    """The matrix, or of many classes the pairs that are confused most often."""
    if found.numbered:
        head = ["class", *(str(number + 1) for number in range(len(found.classes)))]
        body = tuple(
            (
                Text(f"{i + 1} {name}"),
                *(Text(str(n) if n else "", bold=i == j) for j, n in enumerate(counts)),
            )
            for i, (name, counts) in enumerate(zip(found.classes, found.counts, strict=True))
        )
        what = f"Images of each class (rows) by the class that {found.line.title} takes them for"
        caption = f"{what} (columns), on {_setting(rows[0])}."
        return Sheet(caption, tuple(map(Text, head)), (body,))
    titles = (Text(line.title, feature=True) for line in found.compared)
    pairs = tuple(
        tuple(map(Text, (pair.truth, pair.answer, *map(str, (*pair.images, pair.of)))))
        for pair in found.pairs
    )
    caption = (
        f"The {len(pairs)} most frequent confusions of {found.of_pairs:,} pairs of classes: images "
        f"that are taken for another class, of so many, on {_setting(rows[0])}."
    )
    return Sheet(caption, (Text("shows"), Text("taken for"), *titles, Text("of")), (pairs,))


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
