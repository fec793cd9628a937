"""Values of the report's tables.

Rows of one setting become the lines of the paper's Table 1 and of its per-class tables, measured
beside printed, with their summary in sentences and the confusions of classes. Pages and sheets show
the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from deepfishing.core.metrics import DEFINITIONS
from deepfishing.core.recipes import parse_recipe
from deepfishing.core.statistics import Difference, Interval
from deepfishing.evaluation.checks import Result
from deepfishing.evaluation.paper import printed_ap, printed_map
from deepfishing.evaluation.report.rows import (
    OTHER,
    block,
    is_chosen,
    is_fixed_forward,
    paper_order,
    title,
)
from deepfishing.images.dataset import MEASURES
from deepfishing.images.show import table_html

ALWAYS_SHOWN = ("x7", "dW7")  # the two that the paper's per-class tables have
MOST_PAIRS = 10
NUMBERED = 20  # up to this many classes the matrix has a number in each cell


@dataclass(frozen=True)
class Line:
    """One line of Table 1, in percent; what is not known is None."""

    feature: str
    gradient: bool
    block: int
    map: dict[str, float | None]  # the data set's official definition first
    printed: float | None
    note: str  # why it was not measured
    interval: Interval | None  # of the official mAP
    gain: Difference | None  # the official mAP against the best forward row
    # accuracy over all images; `balanced` is that over all classes
    top1: float | None = None
    top1_interval: Interval | None = None
    balanced: float | None = None
    balanced_interval: Interval | None = None

    @property
    def title(self) -> str:
        """What the feature is called."""
        return title(self.feature)

    @property
    def official(self) -> float | None:
        """The mAP by the data set's official definition."""
        return next(iter(self.map.values()))

    @property
    def difference(self) -> float | None:
        """Official minus printed."""
        return minus(self.official, self.printed)


@dataclass(frozen=True)
class Cell:
    """AP of one class and feature, measured and printed; `note` says why it was not measured."""

    measured: float | None
    printed: float | None
    note: str
    interval: Interval | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """Rows of one setting, some of their lines, and what these say about the method.

    Table 1 has the lines of one cost and kernel, as the paper's. Lines that are chosen by the
    labels, `auto` and its like, answer another question (`report.gain_split`).
    """

    rows: Sequence[Result]
    lines: Sequence[Line]

    @property
    def table_1(self) -> list[Line]:
        """The lines of Table 1; all lines where there are no others."""
        fixed = [line for line in self.lines if not is_chosen(line.feature)]
        return fixed or list(self.lines)

    @cached_property
    def forward(self) -> Line | None:
        """The best forward feature of Table 1, without a pool, by the official definition."""
        return _best(line for line in self.lines if is_fixed_forward(line.feature))

    @cached_property
    def gradient(self) -> Line | None:
        """The best gradient of Table 1."""
        return _best(line for line in self.table_1 if line.gradient)

    @property
    def best_of_table_1(self) -> Line | None:
        """The best line of Table 1."""
        return _best(self.table_1)

    @property
    def best(self) -> Line | None:
        """The best line of all."""
        return _best(self.lines)

    @cached_property
    def layers(self) -> list[tuple[Line, Line]]:
        """For each layer the concatenation of its input and output, and the gradient."""
        blocks = sorted({line.block for line in self.lines} - {0, OTHER})
        parts = [
            Comparison((), [ln for ln in self.lines if ln.block == k]) for k in blocks
        ]
        return [
            (part.forward, part.gradient)
            for part in parts
            if part.forward and part.gradient
        ]

    @property
    def measured(self) -> list[Line]:
        """The lines that have a figure."""
        return [line for line in self.lines if line.official is not None]

    def has(self, figure: str) -> bool:
        """Whether some line has this figure: a column without any is left out."""
        return any(getattr(line, figure) is not None for line in self.lines)

    @property
    def compared(self) -> tuple[Line, ...]:
        """The best forward and the best gradient line, as far as they exist."""
        return tuple(line for line in (self.forward, self.gradient) if line)

    @property
    def layers_won(self) -> int:
        """In how many layers the gradient is above the concatenation."""
        return sum((minus(g.official, f.official) or 0.0) > 0 for f, g in self.layers)

    @property
    def measure(self) -> str:
        """What the data set is compared by, of `MEASURES`; mAP where its rows do not say it."""
        named = self.rows[0].get("official_measure")
        return (
            named
            if named in MEASURES and self.rows[0].get(named) is not None
            else "map"
        )

    @property
    def detailed(self) -> list[Line]:
        """The lines that the table of classes has: the best ones, and those of the paper's."""
        best = [self.best] if self.best else []
        shown = {*ALWAYS_SHOWN, *(line.feature for line in (*self.compared, *best))}
        return [line for line in self.measured if line.feature in shown]

    @cached_property
    def classes(self) -> dict[str, list[Cell]]:
        """Official AP by class: a cell for each of the detailed lines."""
        return per_class(self.rows, [line.feature for line in self.detailed])

    @cached_property
    def class_columns(self) -> list[tuple[Line, bool]]:
        """The detailed lines, and whether the paper prints the AP of their classes."""
        columns = zip(*self.classes.values(), strict=True)
        printed = [
            any(cell.printed is not None for cell in column) for column in columns
        ]
        return list(zip(self.detailed, printed, strict=False))


def comparison(
    rows: Sequence[Result], gains: Mapping[str, Difference] | None = None
) -> Comparison:
    """Table 1 of these rows in the paper's order; `gains` are those of `report.rows`."""
    rows = sorted(rows, key=paper_order)
    return Comparison(
        rows, [_line(row, (gains or {}).get(row["feature"])) for row in rows]
    )


def per_class(rows: Sequence[Result], features: Iterable[str]) -> dict[str, list[Cell]]:
    """Official AP by class: one cell for each of these features."""
    row_of = {row["feature"]: row for row in rows}
    chosen = [row_of[feature] for feature in features]
    return {name: [_cell(row, name) for row in chosen] for name in rows[0]["classes"]}


def one_decimal(value: float | None, sign: bool = False) -> str:
    """A figure as it is shown: one decimal, and nothing if there is no figure."""
    if value is None:
        return ""
    text = f"{value:+.1f}" if sign else f"{value:.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def interval_text(interval: Interval | None, dash: str = "-") -> str:
    """An interval as it is shown."""
    return "" if interval is None else dash.join(map(one_decimal, interval))


def signed_ends(interval: Interval) -> str:
    """The ends of an interval of a difference."""
    return " to ".join(one_decimal(end, sign=True) for end in interval)


def label_text(row: Result) -> str:
    """The label of the error in words."""
    label = row["label"]
    if isinstance(label, str):
        return f"{label} label"
    if isinstance(label, int):
        return f"one-hot label of class {label}"
    return f"given label vector of {len(label)} entries"


def left_out(rows: Iterable[Result]) -> dict[str, str]:
    """Classes that are not in the mean of some row, and why."""
    return {name: why for row in rows for name, why in row["left_out"].items()}


def left_out_text(rows: Iterable[Result], most: int = 10) -> str:
    """The same in words, by reason, with at most so many names for each; empty if all count."""
    by_reason: dict[str, list[str]] = {}
    for name, why in left_out(rows).items():
        by_reason.setdefault(why, []).append(name)
    return ", ".join(
        f"{', '.join(names[:most])}{f' and {len(names) - most} more' * (len(names) > most)} ({why})"
        for why, names in by_reason.items()
    )


def minus(a: float | None, b: float | None) -> float | None:
    """The difference of two figures, where both are known."""
    return None if a is None or b is None else a - b


def _line(row: Result, gain: Difference | None) -> Line:
    first, measured, note = row["official_ap"], row["map"] or {}, ""
    recipe = parse_recipe(row["feature"])
    if row["map"] is None:
        note = f"no labels; submission files in {row.get('submission', 'submission')}"
    elif measured.get(first) is None:
        note = "every class is left out"
    return Line(
        feature=row["feature"],
        gradient=recipe.is_gradient,
        block=block(recipe),
        map={
            m: measured.get(m) for m in (first, *(m for m in DEFINITIONS if m != first))
        },
        printed=printed_map(
            row["dataset"], row["test"], row["network"], row["feature"]
        ),
        note=note,
        interval=row.get("map_interval", {}).get(first),
        gain=gain,
        top1=row.get("accuracy"),
        top1_interval=row.get("accuracy_interval"),
        balanced=row.get("balanced_accuracy"),
        balanced_interval=row.get("balanced_accuracy_interval"),
    )


def _cell(row: Result, name: str) -> Cell:
    printed = printed_ap(row["dataset"], row["test"], row["network"], row["feature"])
    measured = (row["ap"] or {}).get(row["official_ap"], {}).get(name)
    interval = row.get("ap_interval", {}).get(row["official_ap"], {}).get(name)
    return Cell(measured, printed.get(name), row["left_out"].get(name, ""), interval)


def _best(lines: Iterable[Line]) -> Line | None:
    measured = [(line.official, line) for line in lines if line.official is not None]
    return max(measured, key=lambda pair: pair[0])[1] if measured else None


@dataclass(frozen=True)
class Pair:
    """Images of class `truth` that are taken for `answer`, by each feature, of so many."""

    truth: str
    answer: str
    images: tuple[int, ...]
    of: int


@dataclass(frozen=True, repr=False)
class Confusions:
    """The matrix of one line, and the most frequent confusions of some."""

    line: Line
    classes: tuple[str, ...]  # that were tested or answered
    # [i][j] images of class i are taken for class j
    counts: tuple[tuple[int, ...], ...]
    compared: tuple[Line, ...]  # the lines that `pairs` count
    pairs: tuple[Pair, ...]  # in falling order by `line`
    of_pairs: int

    @property
    def numbered(self) -> bool:
        """Whether the matrix is small enough for numbers."""
        return len(self.classes) <= NUMBERED

    def __repr__(self) -> str:
        wrong = sum(map(sum, self.counts)) - sum(
            self.counts[i][i] for i in range(len(self.counts))
        )
        return f"Confusions of {self.line.title}: {wrong:,} images of {len(self.classes)} classes"

    def _repr_html_(self) -> str:
        if not self.numbered:
            head = ["shows", "taken for", *(line.title for line in self.compared), "of"]
            pairs = [
                [p.truth, p.answer, *map(str, p.images), str(p.of)] for p in self.pairs
            ]
            return table_html(repr(self), head, pairs)
        n = range(len(self.classes))
        rows = [
            [name, *map(str, self.counts[i])] for i, name in enumerate(self.classes)
        ]
        shade = [[0.0, *(self.share(i, j) for j in n)] for i in n]
        return table_html(repr(self), ["shows", *self.classes], rows, shade)

    def share(self, row: int, column: int) -> float:
        """The part of a class's images that are taken for another, 0 to 1."""
        return self.counts[row][column] / (sum(self.counts[row]) or 1)


def confusions(table: Comparison) -> Confusions | None:
    """What is confused in rows of one setting; None where images have several classes."""
    matrices = {
        row["feature"]: row["confusion"] for row in table.rows if row.get("confusion")
    }
    found = Comparison(table.rows, [ln for ln in table.lines if ln.feature in matrices])
    if found.best is None:
        return None
    best, classes = found.best, table.rows[0]["classes"]
    compared = found.compared if best in found.compared else (*found.compared, best)

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
        key=lambda pair: (
            *(-count(ln, *pair) for ln in order),
            place[pair[0]],
            place[pair[1]],
        ),
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
                of=max(
                    sum(matrices[ln.feature].get(pair[0], {}).values())
                    for ln in compared
                ),
            )
            for pair in pairs[:MOST_PAIRS]
        ),
        of_pairs=len(pairs),
    )
