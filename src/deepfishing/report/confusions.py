"""Stage 7, report: which classes are taken for which.

Comes in: rows of one setting with one class per image. Goes out: the confusion matrix of the best
row, and the pairs of classes that are confused most often, by the best forward and the best
gradient feature. Nothing is drawn here: the terminal, the page and the text tables show the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepfishing.experiments.checks import Result
from deepfishing.images.show import table_html
from deepfishing.report.tables import Line, finding

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


def confusions(rows: Sequence[Result], lines: Sequence[Line]) -> Confusions | None:
    """What is confused in rows of one setting; None where images have several classes.

    Parameters
    ----------
    rows : sequence of dict
        Of one setting.
    lines : sequence of Line
        Their lines of Table 1, from `table_1`.
    """
    found = {row["feature"]: row["confusion"] for row in rows if row.get("confusion")}
    having = [line for line in lines if line.feature in found]
    both = finding(having)
    if both.best is None:
        return None
    compared = tuple(line for line in (both.forward, both.gradient) if line)
    matrix = found[both.best.feature]
    seen = set(matrix) | {answer for by_answer in matrix.values() for answer in by_answer}
    classes = tuple(name for name in rows[0]["classes"] if name in seen)
    wrong = {
        (truth, answer)
        for line in compared
        for truth, by_answer in found[line.feature].items()
        for answer in by_answer
        if truth != answer
    }
    place = {name: number for number, name in enumerate(rows[0]["classes"])}
    order = sorted(compared, key=lambda line: line is not both.best)
    pairs = sorted(
        wrong,
        key=lambda pair: (
            *(-found[line.feature].get(pair[0], {}).get(pair[1], 0) for line in order),
            *map(place.__getitem__, pair),
        ),
    )
    return Confusions(
        line=both.best,
        classes=classes,
        counts=tuple(tuple(matrix.get(i, {}).get(j, 0) for j in classes) for i in classes),
        compared=compared,
        pairs=tuple(
            Pair(
                truth,
                answer,
                tuple(found[line.feature].get(truth, {}).get(answer, 0) for line in compared),
                max(sum(found[line.feature].get(truth, {}).values()) for line in compared),
            )
            for truth, answer in pairs[:MOST_PAIRS]
        ),
        of_pairs=len(pairs),
    )
