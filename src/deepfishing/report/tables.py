"""Stage 7, report: what stands in the tables, as values.

Comes in: rows of one setting. Goes out: the lines of the paper's Table 1 and of its per-class
tables, measured beside printed, and what they say about the method. Nothing is drawn here: the
terminal, the page and the text tables show the same values, each in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from deepfishing.experiments.checks import Result
from deepfishing.experiments.paper import printed_ap, printed_map
from deepfishing.images.dataset import MEASURES
from deepfishing.metrics import DEFINITIONS
from deepfishing.recipes import parse_recipe
from deepfishing.report.rows import OTHER, block, paper_order, title
from deepfishing.statistics import Difference, Interval

ALWAYS_SHOWN = ("x7", "dW7")  # the two that the paper's per-class tables have


@dataclass(frozen=True)
class Line:
    """One line of Table 1, in percent; what is not known is None.

    `map` has the data set's official definition first, and `note` says why it was not measured.
    `interval` is that of the official mAP, `gain` its difference from the best forward row.
    `top1` and `balanced` are the accuracies over all images and over all classes.
    """

    feature: str
    gradient: bool
    block: int
    map: dict[str, float | None]
    printed: float | None
    note: str
    interval: Interval | None
    gain: Difference | None
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
    """Rows of one setting, their lines of Table 1, and what these say about the method.

    `forward` and `gradient` are the best lines of each kind by the official definition, `best` the
    better of the two. `layers` has a pair per layer: the concatenation of its input and output,
    and the gradient.
    """

    rows: Sequence[Result]
    lines: Sequence[Line]
    forward: Line | None
    gradient: Line | None
    best: Line | None
    layers: list[tuple[Line, Line]]

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
        return named if named in MEASURES and self.rows[0].get(named) is not None else "map"

    @property
    def detailed(self) -> list[Line]:
        """The lines that the table of classes has: the best two, and those of the paper's."""
        shown = {*ALWAYS_SHOWN, *(line.feature for line in self.compared)}
        return [ln for ln in self.lines if ln.official is not None and ln.feature in shown]

    @cached_property
    def classes(self) -> dict[str, list[Cell]]:
        """Official AP by class: a cell for each of the detailed lines."""
        return per_class(self.rows, [line.feature for line in self.detailed])

    @cached_property
    def class_columns(self) -> list[tuple[Line, bool]]:
        """The detailed lines, and whether the paper prints the AP of their classes."""
        columns = zip(*self.classes.values(), strict=True)
        printed = [any(cell.printed is not None for cell in column) for column in columns]
        return list(zip(self.detailed, printed, strict=False))


def comparison(rows: Sequence[Result], gains: Mapping[str, Difference] | None = None) -> Comparison:
    """Table 1 of these rows in the paper's order; `gains` are those of `report.scores`, by feature.

    >>> row = {"dataset": "voc2007", "test": "test", "network": "vgg16", "official_ap": "area"}
    >>> row |= {"feature": "dW7", "map": {"11point": 88.25, "area": 91.5, "sklearn": 91.0}}
    >>> [line] = comparison([row]).lines
    >>> line.map
    {'area': 91.5, '11point': 88.25, 'sklearn': 91.0}
    >>> line.printed, line.difference, line.block
    (90.0, 1.5, 7)
    """
    rows = sorted(rows, key=paper_order)
    return compare_lines(rows, [_line(row, (gains or {}).get(row["feature"])) for row in rows])


def compare_lines(rows: Sequence[Result], lines: Sequence[Line]) -> Comparison:
    """What these lines say; they may be some of those of the rows."""
    forward, gradient = _best_of_each_kind(lines)
    blocks = sorted({line.block for line in lines} - {0, OTHER})
    layers = [_best_of_each_kind([line for line in lines if line.block == k]) for k in blocks]
    return Comparison(
        rows=rows,
        lines=lines,
        forward=forward,
        gradient=gradient,
        best=_best(line for line in (forward, gradient) if line),
        layers=[(below, above) for below, above in layers if below and above],
    )


def per_class(rows: Sequence[Result], features: Iterable[str]) -> dict[str, list[Cell]]:
    """Official AP by class: one cell for each of these features."""
    row_of = {row["feature"]: row for row in rows}
    chosen = [row_of[feature] for feature in features]
    return {name: [_cell(row, name) for row in chosen] for name in rows[0]["classes"]}


def columns(table: Comparison) -> dict[str, list[str]]:
    """The columns of Table 1 behind the feature, a figure per line; none that has no figure."""
    lines, (official, *others) = table.lines, table.lines[0].map
    found = {DEFINITIONS[official].label: [one_decimal(line.official) for line in lines]}
    if table.has("interval"):
        found["interval"] = [interval_text(line.interval) for line in lines]
    if table.has("gain"):
        found["gain"] = [gain_text(line.gain) for line in lines]
    if table.has("top1"):
        found["top-1"] = [one_decimal(line.top1) for line in lines]
        found["top-1 interval"] = [interval_text(line.top1_interval) for line in lines]
        found["balanced"] = [one_decimal(line.balanced) for line in lines]
        found["balanced interval"] = [interval_text(line.balanced_interval) for line in lines]
    for method in others:
        found[DEFINITIONS[method].label] = [one_decimal(line.map[method]) for line in lines]
    if table.has("printed"):
        found["paper"] = [one_decimal(line.printed) for line in lines]
        found["difference"] = [one_decimal(line.difference, sign=True) for line in lines]
    return found


def one_decimal(value: float | None, sign: bool = False) -> str:
    """A figure as it is shown: one decimal, and nothing if there is no figure.

    >>> one_decimal(80.94), one_decimal(0.26, sign=True), one_decimal(-0.01, sign=True)
    ('80.9', '+0.3', '0.0')
    """
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


def gain_text(gain: Difference | None) -> str:
    """A gain, marked if it holds."""
    return "" if gain is None else one_decimal(gain.mean, sign=True) + "!" * gain.holds


def label_text(row: Result) -> str:
    """The label of the error in words.

    >>> label_text({"label": "uniform"}), label_text({"label": 3}), label_text({"label": [0.5] * 2})
    ('uniform label', 'one-hot label of class 3', 'given label vector of 2 entries')
    """
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
    """The same in words, by reason, with at most so many names for each; empty if there are none.

    >>> left_out_text([{"left_out": {"cat": "no image", "dog": "no image", "cow": "no label"}}], 1)
    'cat and 1 more (no image), cow (no label)'
    """
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
        map={m: measured.get(m) for m in (first, *(m for m in DEFINITIONS if m != first))},
        printed=printed_map(row["dataset"], row["test"], row["network"], row["feature"]),
        note=note,
        interval=_interval(row.get("map_interval", {}).get(first)),
        gain=gain,
        top1=row.get("accuracy"),
        top1_interval=_interval(row.get("accuracy_interval")),
        balanced=row.get("balanced_accuracy"),
        balanced_interval=_interval(row.get("balanced_accuracy_interval")),
    )


def _cell(row: Result, name: str) -> Cell:
    printed = printed_ap(row["dataset"], row["test"], row["network"], row["feature"])
    measured = (row["ap"] or {}).get(row["official_ap"], {}).get(name)
    interval = row.get("ap_interval", {}).get(row["official_ap"], {}).get(name)
    return Cell(measured, printed.get(name), row["left_out"].get(name, ""), _interval(interval))


def _interval(pair: list[float] | None) -> Interval | None:
    return None if pair is None else (pair[0], pair[1])


def _best(lines: Iterable[Line]) -> Line | None:
    measured = [(line.official, line) for line in lines if line.official is not None]
    return max(measured, key=lambda pair: pair[0])[1] if measured else None


def _best_of_each_kind(lines: Sequence[Line]) -> tuple[Line | None, Line | None]:
    forward, gradient = (
        _best(line for line in lines if line.gradient == kind) for kind in (False, True)
    )
    return forward, gradient
