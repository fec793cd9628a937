"""Stage 7, report: what stands in the tables, as values.

Comes in: rows of one setting. Goes out: the lines of the paper's Table 1 and of its per-class
tables, measured beside printed, and what they say about the method. Nothing is rounded here and
nothing is drawn: the terminal and the HTML page show the same values, each in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deepfishing.experiments.checks import Result
from deepfishing.experiments.paper import printed_ap, printed_map
from deepfishing.images.dataset import MEASURES
from deepfishing.metrics import DEFINITIONS
from deepfishing.recipes import parse_recipe
from deepfishing.report.rows import OTHER, block, title
from deepfishing.statistics import Difference, Interval

ALWAYS_SHOWN = ("x7", "dW7")  # the two that the paper's per-class tables have


@dataclass(frozen=True)
class Accuracy:
    """A share of images that are classified right, in percent, and its interval at 95 percent."""

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Line:
    """One line of Table 1, in percent.

    `map` has the data set's official definition first; a value that was not measured is None,
    and `note` says why. `interval` is that of the official mAP at 95 percent, `gain` its difference
    from the best forward row; None where they are not known. `top1` and `balanced` are the
    accuracies over all images and over all classes; None where images have several classes.
    """

    feature: str
    gradient: bool
    block: int
    map: dict[str, float | None]
    printed: float | None
    note: str
    interval: Interval | None
    gain: Difference | None
    top1: Accuracy | None = None
    balanced: Accuracy | None = None

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
        return _minus(self.official, self.printed)


@dataclass(frozen=True)
class Cell:
    """AP of one class and feature, measured and printed; `note` says why it was not measured."""

    measured: float | None
    printed: float | None
    note: str
    interval: Interval | None


@dataclass(frozen=True)
class Finding:
    """The best gradient against the best forward feature, by the official definition.

    `layers` has the same two for each layer: the concatenation of the layer's input and output,
    and the gradient.
    """

    forward: Line | None
    gradient: Line | None
    layers: tuple[tuple[Line, Line], ...]

    @property
    def best(self) -> Line | None:
        """The best line of all."""
        return _best(line for line in (self.forward, self.gradient) if line)

    @property
    def difference(self) -> float | None:
        """Gradient minus forward, in points."""
        if self.gradient is None or self.forward is None:
            return None
        return _minus(self.gradient.official, self.forward.official)

    @property
    def printed_difference(self) -> float | None:
        """The difference between the same two rows in the paper."""
        if self.gradient is None or self.forward is None:
            return None
        return _minus(self.gradient.printed, self.forward.printed)

    @property
    def layers_won(self) -> int:
        """In how many layers the gradient is above the concatenation."""
        return sum((_minus(g.official, f.official) or 0.0) > 0 for f, g in self.layers)


def table_1(
    rows: Sequence[Result], gains: Mapping[str, Difference] | None = None
) -> tuple[Line, ...]:
    """The lines of Table 1, one per row; `gains` are those of `report.gains`, by feature.

    Examples
    --------
    >>> row = {"dataset": "voc2007", "test": "test", "network": "vgg16", "official_ap": "area"}
    >>> row |= {"feature": "dW7", "map": {"11point": 88.25, "area": 91.5, "sklearn": 91.0}}
    >>> [line] = table_1([row])
    >>> line.map
    {'area': 91.5, '11point': 88.25, 'sklearn': 91.0}
    >>> line.printed, line.difference, line.block
    (90.0, 1.5, 7)
    """
    gains = gains or {}
    return tuple(_line(row, gains.get(row["feature"])) for row in rows)


def per_class(rows: Sequence[Result], features: Sequence[str]) -> dict[str, list[Cell]]:
    """Official AP by class: one cell for each of these features."""
    row_of = {row["feature"]: row for row in rows}
    chosen = [row_of[feature] for feature in features]
    return {name: [_cell(row, name) for row in chosen] for name in rows[0]["classes"]}


def class_lines(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines that the table of classes has: the best two, and those of the paper's tables."""
    found = finding(lines)
    return tuple(
        line
        for line in lines
        if line.official is not None
        and (line in (found.forward, found.gradient) or line.feature in ALWAYS_SHOWN)
    )


def finding(lines: Sequence[Line]) -> Finding:
    """What the table says about the method."""
    pairs = []
    for k in sorted({line.block for line in lines} - {0, OTHER}):
        forward = _best(line for line in lines if line.block == k and not line.gradient)
        gradient = _best(line for line in lines if line.block == k and line.gradient)
        if forward and gradient:
            pairs.append((forward, gradient))
    return Finding(
        forward=_best(line for line in lines if not line.gradient),
        gradient=_best(line for line in lines if line.gradient),
        layers=tuple(pairs),
    )


def one_decimal(value: float | None, sign: bool = False) -> str:
    """A figure as it is shown: one decimal, and nothing if there is no figure.

    Examples
    --------
    >>> one_decimal(80.94), one_decimal(0.26, sign=True), one_decimal(-0.01, sign=True)
    ('80.9', '+0.3', '0.0')
    >>> one_decimal(None)
    ''
    """
    if value is None:
        return ""
    text = f"{value:+.1f}" if sign else f"{value:.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def interval_text(interval: Interval | None, dash: str = "-") -> str:
    """An interval as it is shown.

    Examples
    --------
    >>> interval_text((79.812, 82.04)), interval_text(None)
    ('79.8-82.0', '')
    """
    return "" if interval is None else dash.join(map(one_decimal, interval))


def label_text(row: Result) -> str:
    """The label of the error in words.

    Examples
    --------
    >>> label_text({"label": "uniform"}), label_text({"label": 3}), label_text({"label": [0.5] * 2})
    ('uniform label', 'one-hot label of class 3', 'given label vector of 2 entries')
    """
    label = row["label"]
    if isinstance(label, str):
        return f"{label} label"
    if isinstance(label, int):
        return f"one-hot label of class {label}"
    return f"given label vector of {len(label)} entries"


def official_measure(row: Result) -> str:
    """What the data set is compared by, of `MEASURES`; mAP in rows that do not say it."""
    named = row.get("official_measure")
    return named if named in MEASURES and row.get(named) is not None else "map"


def left_out(rows: Iterable[Result]) -> dict[str, str]:
    """Classes that are not in the mean of some row, and why."""
    return {name: why for row in rows for name, why in row["left_out"].items()}


def left_out_text(rows: Iterable[Result], most: int = 10) -> str:
    """The same in words, by reason, with at most so many names for each; empty if there are none.

    Examples
    --------
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
        top1=_accuracy(row, "accuracy"),
        balanced=_accuracy(row, "balanced_accuracy"),
    )


def _accuracy(row: Result, name: str) -> Accuracy | None:
    value = row.get(name)
    return None if value is None else Accuracy(value, _interval(row.get(f"{name}_interval")))


def _cell(row: Result, name: str) -> Cell:
    printed = printed_ap(row["dataset"], row["test"], row["network"], row["feature"])
    measured = (row["ap"] or {}).get(row["official_ap"], {}).get(name)
    interval = row.get("ap_interval", {}).get(row["official_ap"], {}).get(name)
    return Cell(measured, printed.get(name), row["left_out"].get(name, ""), _interval(interval))


def _interval(pair: list[float] | None) -> Interval | None:
    return None if pair is None else (pair[0], pair[1])


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _best(lines: Iterable[Line]) -> Line | None:
    measured = [(line.official, line) for line in lines if line.official is not None]
    return max(measured, key=lambda pair: pair[0])[1] if measured else None
