"""Stage 7, report: which classes are taken for which.

Comes in: rows of one setting with one class per image. Goes out: the confusion matrix of the best
row, and the pairs of classes that are confused most often, by the best forward and the best
gradient feature. Nothing is drawn here: the terminal, the page and the text tables show the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepfishing.images.show import table_html
from deepfishing.report.tables import Comparison, Line, compare_lines

MOST_PAIRS = 10
NUMBERED = 20  # up to this many classes the matrix has a number in each cell


@dataclass(frozen=True)
class Pair:
    """Images of class `truth` that are taken for `answer`, by each feature, of so many."""

    truth: str
    answer: str
    images: tuple[int, ...]
    of: int


@dataclass(frozen=True, repr=False)
class Confusions:
    """The matrix of one line, and the most frequent confusions of some.

    `counts[i][j]` images of class i are taken for class j; only classes that were tested or
    answered. `pairs` are in falling order by `line`; `compared` are the lines that they count.
    """

    line: Line
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    compared: tuple[Line, ...]
    pairs: tuple[Pair, ...]
    of_pairs: int

    @property
    def numbered(self) -> bool:
        """Whether the matrix is small enough for numbers."""
        return len(self.classes) <= NUMBERED

    def __repr__(self) -> str:
        wrong = sum(map(sum, self.counts)) - sum(self.counts[i][i] for i in range(len(self.counts)))
        return f"Confusions of {self.line.title}: {wrong:,} images of {len(self.classes)} classes"

    def _repr_html_(self) -> str:
        if not self.numbered:
            head = ["shows", "taken for", *(line.title for line in self.compared), "of"]
            pairs = [[p.truth, p.answer, *map(str, p.images), str(p.of)] for p in self.pairs]
            return table_html(repr(self), head, pairs)
        n = range(len(self.classes))
        rows = [[name, *map(str, self.counts[i])] for i, name in enumerate(self.classes)]
        shade = [[0.0, *(self.share(i, j) for j in n)] for i in n]
        return table_html(repr(self), ["shows", *self.classes], rows, shade)

    def share(self, row: int, column: int) -> float:
        """The part of a class's images that are taken for another, 0 to 1."""
        return self.counts[row][column] / (sum(self.counts[row]) or 1)


def confusions(table: Comparison) -> Confusions | None:
    """What is confused in rows of one setting; None where images have several classes."""
    matrices = {row["feature"]: row["confusion"] for row in table.rows if row.get("confusion")}
    found = compare_lines(table.rows, [ln for ln in table.lines if ln.feature in matrices])
    if found.best is None:
        return None
    best, compared, classes = found.best, found.compared, table.rows[0]["classes"]

    def count(line: Line, truth: str, answer: str) -> int:
        return int(matrices[line.feature].get(truth, {}).get(answer, 0))

    wrong = {
        (truth, answer)
        for line in compared
        for truth, answers in matrices[line.feature].items()
        for answer in answers
        if truth != answer
    }
    order = sorted(compared, key=lambda line: line is not best)
    place = {name: number for number, name in enumerate(classes)}
    pairs = sorted(
        wrong,
        key=lambda pair: (*(-count(ln, *pair) for ln in order), place[pair[0]], place[pair[1]]),
    )
    matrix = matrices[best.feature]
    seen = {*matrix, *(answer for answers in matrix.values() for answer in answers)}
    shown = tuple(name for name in classes if name in seen)
    return Confusions(
        line=best,
        classes=shown,
        counts=tuple(tuple(count(best, i, j) for j in shown) for i in shown),
        compared=compared,
        pairs=tuple(
            Pair(
                *pair,
                images=tuple(count(line, *pair) for line in compared),
                of=max(sum(matrices[ln.feature].get(pair[0], {}).values()) for ln in compared),
            )
            for pair in pairs[:MOST_PAIRS]
        ),
        of_pairs=len(pairs),
    )
