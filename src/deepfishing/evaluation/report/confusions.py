"""Confusions: which classes are taken for which, in rows of images with one class each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepfishing.core.accuracy import Confusion
from deepfishing.evaluation.report.sheet import Cell, Medium, Sheet
from deepfishing.evaluation.report.tables import Comparison, Line, setting_text

MAX_PAIRS = 10
MAX_NUMBERED = 20  # up to this many classes the matrix has a number in each cell
# of a terminal, and of the classes' names beside a matrix
WIDTH, NAMES = 80, 20


@dataclass(frozen=True)
class Pair:
    """Number of images of class `truth` that each feature takes for `answer`."""

    truth: str
    answer: str
    images: tuple[int, ...]
    of: int


@dataclass(frozen=True, repr=False)
class Confusions:
    """The matrix of the best line, and the most frequent confusions of a few lines."""

    line: Line
    classes: tuple[str, ...]  # that were tested or answered
    # [i][j] images of class i are taken for class j
    counts: tuple[tuple[int, ...], ...]
    compared: tuple[Line, ...]  # the lines that `pairs` count
    pairs: tuple[Pair, ...]  # in falling order by `line`
    of_pairs: int

    @property
    def is_numbered(self) -> bool:
        """Whether the matrix is small enough for numbers."""
        return len(self.classes) <= MAX_NUMBERED

    def __repr__(self) -> str:
        wrong = 0
        for i, counts in enumerate(self.counts):
            wrong += sum(counts) - counts[i]
        return f"Confusions of {self.line.title}: {wrong:,} images of {len(self.classes)} classes"

    def _repr_html_(self) -> str:
        sheet = matrix_sheet(self) if self.is_numbered else pairs_sheet(self)
        return sheet.as_html(repr(self))

    def share(self, row: int, column: int) -> float:
        """Return the part of a class's images that are taken for another, 0 to 1."""
        return self.counts[row][column] / (sum(self.counts[row]) or 1)


def confusions(table: Comparison) -> Confusions | None:
    """Return the confusions in rows of one setting; None where images have several classes."""
    matrices: dict[str, Confusion] = {}
    for row in table.rows:
        if row.get("confusion"):
            matrices[row["feature"]] = row["confusion"]
    lines = [line for line in table.lines if line.feature in matrices]
    with_matrix = Comparison(table.rows, lines)
    best, compared = with_matrix.best, with_matrix.compared
    if best is None:
        return None
    if best not in compared:
        compared = (*compared, best)
    all_pairs = _confused_pairs(table, matrices, best, compared)
    matrix = matrices[best.feature]
    in_matrix = set(matrix)
    for answers in matrix.values():
        in_matrix |= set(answers)
    classes = tuple(name for name in table.rows[0]["classes"] if name in in_matrix)
    counts = []
    for truth in classes:
        counts.append(tuple(_count(matrix, truth, answer) for answer in classes))
    return Confusions(
        line=best,
        classes=classes,
        counts=tuple(counts),
        compared=compared,
        pairs=tuple(all_pairs[:MAX_PAIRS]),
        of_pairs=len(all_pairs),
    )


def confusion_sheet(
    confused: Confusions, table: Comparison, medium: Medium
) -> Sheet | None:
    """Return the matrix, or for many classes the most frequent confusions, if there are any."""
    if not confused.pairs:
        return None
    row = table.rows[0]
    where = f"on {row['dataset']} {row['test']}"
    notes = [setting_text(row)] if medium == "text" else []
    if _fits(confused, medium):
        return matrix_sheet(confused, where, notes, dots=medium == "terminal")
    more = f", of which these are {len(confused.pairs)}"
    if medium == "terminal":
        more = "; the matrix is in the report"
    return pairs_sheet(confused, where, notes, more)


def matrix_sheet(
    confused: Confusions,
    where: str = "",
    notes: list[str] | None = None,
    dots: bool = False,
) -> Sheet:
    """Return the matrix with a number in each cell; `dots` are shown for zeros."""
    body = []
    for i, name in enumerate(confused.classes):
        cells = [Cell(f"{i + 1} {name}", name="class")]
        for j, count in enumerate(confused.counts[i]):
            if not count:
                cells.append(Cell("·" if dots else ""))
                continue
            kind = "yes" if i == j else "no"
            shade = confused.share(i, j)
            cells.append(Cell(str(count), bold=i == j, kind=kind, shade=shade))
        body.append(cells)
    head = [Cell("class")]
    for number, name in enumerate(confused.classes, 1):
        head.append(Cell(str(number), hint=name))
    return Sheet(
        f"Confusions of {confused.line.title}, {where}",
        head,
        [body],
        ["Rows: what images show; columns: what they are taken for.", *(notes or ())],
        kind="confusions",
    )


def pairs_sheet(
    confused: Confusions,
    where: str = "",
    notes: list[str] | None = None,
    more: str = "",
) -> Sheet:
    """Return the pairs of classes that are confused most often."""
    body = []
    for pair in confused.pairs:
        names = [Cell(pair.truth, name="class"), Cell(pair.answer, name="class")]
        counts = [Cell(str(count)) for count in (*pair.images, pair.of)]
        body.append([*names, *counts])
    lines = [line.name_cell for line in confused.compared]
    head = [Cell("shows"), Cell("taken for"), *lines, Cell("of")]
    about = ["Images that are taken for another class, of so many."]
    if confused.of_pairs > len(confused.pairs):
        about.append(f"{confused.of_pairs:,} pairs in all{more}.")
    return Sheet(
        f"Most frequent confusions of classes, {where}",
        head,
        [body],
        [*about, *(notes or ())],
        kind="pairs",
    )


def _fits(confused: Confusions, medium: Medium) -> bool:
    """Return whether the matrix has numbers and fits a terminal."""
    if medium != "terminal":
        return confused.is_numbered
    largest = max(max(counts) for counts in confused.counts)
    digits = max(len(str(len(confused.classes))), len(str(largest)))
    return NAMES + (digits + 2) * len(confused.classes) <= WIDTH


def _count(matrix: Confusion, truth: str, answer: str) -> int:
    return int(matrix.get(truth, {}).get(answer, 0))


def _confused_pairs(
    table: Comparison,
    matrices: Mapping[str, Confusion],
    best: Line,
    compared: tuple[Line, ...],
) -> list[Pair]:
    """Return all confused pairs, those that the best line confuses most first."""
    names = set()
    for line in compared:
        for truth, answers in matrices[line.feature].items():
            names |= {(truth, answer) for answer in answers if answer != truth}
    pairs = []
    for truth, answer in names:
        images, totals = [], []
        for line in compared:
            matrix = matrices[line.feature]
            images.append(_count(matrix, truth, answer))
            totals.append(sum(matrix.get(truth, {}).values()))
        pairs.append(Pair(truth, answer, tuple(images), max(totals)))
    number = {name: i for i, name in enumerate(table.rows[0]["classes"])}
    best_at = compared.index(best)

    def order(pair: Pair) -> tuple[int, ...]:
        others = [n for i, n in enumerate(pair.images) if i != best_at]
        counts = [-n for n in (pair.images[best_at], *others)]
        return *counts, number[pair.truth], number[pair.answer]

    return sorted(pairs, key=order)
