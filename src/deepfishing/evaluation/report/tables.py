"""Rows of one setting as lines of the paper's Table 1, with comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deepfishing.core.metrics import DEFINITIONS
from deepfishing.core.recipes import AUTO, Recipe, parse_recipe
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.core.statistics import Difference, Interval
from deepfishing.evaluation.paper import printed_ap, printed_map
from deepfishing.evaluation.record import Result
from deepfishing.evaluation.report.sheet import Cell, Name
from deepfishing.images.dataset import MEASURES

OTHER = 99  # the block of rows that the paper's Table 1 does not have
ALWAYS_SHOWN = ("x7", "dW7")  # the two that the paper's per-class tables have

# the figures of a row that the report shows, by their key; "map" is the official definition
FIGURES = ("map", "accuracy", "balanced_accuracy")


@dataclass(frozen=True)
class Figure:
    """A figure in percent with its interval; None where it is unknown."""

    value: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True)
class Line:
    """One line of Table 1, in percent; None where a figure is unknown."""

    feature: str
    gradient: bool
    block: int
    map: dict[str, float | None]  # the data set's official definition first
    printed: float | None
    note: str  # why it was not measured
    figures: Mapping[str, Figure]  # by `FIGURES`
    gain: Difference | None  # the official mAP against the best forward row

    @property
    def title(self) -> str:
        """The title of the feature."""
        return title(self.feature)

    @property
    def kind(self) -> Name:
        """Whether the feature is forward or a gradient, as the page colours it."""
        if self.gradient:
            return "gradient"
        return "forward"

    @property
    def name_cell(self) -> Cell:
        """The cell that names the line."""
        return Cell(self.title, name=self.kind)

    @property
    def official(self) -> float | None:
        """The mAP by the data set's official definition."""
        return next(iter(self.map.values()))

    @property
    def interval(self) -> Interval | None:
        """The interval of the official mAP."""
        return self.figures["map"].interval

    @property
    def accuracy(self) -> float | None:
        """The share of images that are recognised; None where images have several classes."""
        return self.figures["accuracy"].value

    @property
    def difference(self) -> float | None:
        """Official minus printed."""
        return minus(self.official, self.printed)


@dataclass(frozen=True)
class ClassFigure:
    """AP of one class and feature, measured and printed; `note` is why it was not measured."""

    measured: float | None
    printed: float | None
    note: str
    interval: Interval | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """Rows of one setting as lines of Table 1, with comparisons.

    Table 1 has the lines of one cost and kernel, as the paper's. Lines that are chosen by the
    labels, `auto` and its like, answer another question (`report.gains`).
    """

    rows: Sequence[Result]
    lines: Sequence[Line]

    @property
    def table_1(self) -> list[Line]:
        """The lines of Table 1; all lines where there are no others."""
        fixed = [line for line in self.lines if not is_chosen(line.feature)]
        return fixed or list(self.lines)

    @property
    def blocks(self) -> list[list[Line]]:
        """The lines of Table 1 as in the paper: single layers first, then layer by layer."""
        blocks: dict[int, list[Line]] = {}
        for line in self.table_1:
            blocks.setdefault(line.block, []).append(line)
        return list(blocks.values())

    @cached_property
    def forward(self) -> Line | None:
        """The best forward feature of Table 1, without a pool, by the official definition."""
        return best_line(line for line in self.lines if is_fixed_forward(line.feature))

    @cached_property
    def gradient(self) -> Line | None:
        """The best gradient of Table 1."""
        return best_line(line for line in self.table_1 if line.gradient)

    @property
    def best_of_table_1(self) -> Line | None:
        """The best line of Table 1."""
        return best_line(self.table_1)

    @property
    def best(self) -> Line | None:
        """The best line of all."""
        return best_line(self.lines)

    @cached_property
    def layers(self) -> list[tuple[Line, Line]]:
        """For each layer the concatenation of its input and output, and the gradient."""
        pairs = []
        for number in sorted({line.block for line in self.lines} - {0, OTHER}):
            lines = [line for line in self.lines if line.block == number]
            layer = Comparison((), lines)
            if layer.forward and layer.gradient:
                pairs.append((layer.forward, layer.gradient))
        return pairs

    @property
    def measured(self) -> list[Line]:
        """The lines that have a figure."""
        return [line for line in self.lines if line.official is not None]

    @property
    def has_accuracy(self) -> bool:
        """Whether some line has an accuracy, as where every image has one class."""
        return any(line.accuracy is not None for line in self.lines)

    @property
    def compared(self) -> tuple[Line, ...]:
        """The best forward and the best gradient line, as far as they exist."""
        return tuple(line for line in (self.forward, self.gradient) if line)

    @property
    def layers_won(self) -> int:
        """In how many layers the gradient is above the concatenation."""
        won = 0
        for forward, gradient in self.layers:
            difference = minus(gradient.official, forward.official)
            won += difference is not None and difference > 0
        return won

    @property
    def measure(self) -> str:
        """The figure that the data set is compared by, of `MEASURES`; mAP if rows lack it."""
        measure = self.rows[0].get("official_measure")
        if measure in MEASURES and self.rows[0].get(measure) is not None:
            return str(measure)
        return "map"

    @property
    def detailed(self) -> list[Line]:
        """The lines that the table of classes has: the best ones, and those of the paper's."""
        best = [self.best] if self.best else []
        features = {*ALWAYS_SHOWN, *(line.feature for line in (*self.compared, *best))}
        return [line for line in self.measured if line.feature in features]

    def row_of(self, line: Line) -> Result:
        """Return the row that a line was made of."""
        return next(row for row in self.rows if row["feature"] == line.feature)


def comparison(
    rows: Sequence[Result], gains: Mapping[str, Difference] | None = None
) -> Comparison:
    """Return the lines of these rows in the paper's order; `gains` are those of `report.gains`."""
    rows = sorted(rows, key=paper_order)
    gains = gains or {}
    return Comparison(rows, [_line(row, gains.get(row["feature"])) for row in rows])


def per_class(
    rows: Sequence[Result], features: Iterable[str]
) -> dict[str, list[ClassFigure]]:
    """Official AP by class: one figure for each of these features."""
    row_of = {row["feature"]: row for row in rows}
    columns = [row_of[feature] for feature in features]
    figures = {}
    for name in rows[0]["classes"]:
        figures[name] = [_class_figure(row, name) for row in columns]
    return figures


def label_text(row: Result) -> str:
    """Return the label of the error in words."""
    label = row["label"]
    if isinstance(label, str):
        return f"{label} label"
    if isinstance(label, int):
        return f"one-hot label of class {label}"
    return f"given label vector of {len(label)} entries"


def setting_text(row: Result) -> str:
    """Network, data and method of a row in a sentence."""
    return (
        f"{row['network']}, {row['train']} ({row['n_train']:,} images) to {row['test']} "
        f"({row['n_test']:,}), tau {row['tau']:g}, {label_text(row)}, C {row['C']:g}."
    )


def left_out(rows: Iterable[Result]) -> dict[str, str]:
    """Classes that are not in the mean of some row, and why."""
    reasons: dict[str, str] = {}
    for row in rows:
        reasons |= row["left_out"]
    return reasons


def left_out_text(rows: Iterable[Result], most: int = 10) -> str:
    """Return the same in words, by reason, with at most `most` names each; "" if all count."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out(rows).items():
        by_reason.setdefault(reason, []).append(name)
    parts = []
    for reason, names in by_reason.items():
        listed = ", ".join(names[:most])
        if len(names) > most:
            listed += f" and {len(names) - most} more"
        parts.append(f"{listed} ({reason})")
    return ", ".join(parts)


def minus(a: float | None, b: float | None) -> float | None:
    """Return the difference of two figures, where both are known."""
    if a is None or b is None:
        return None
    return a - b


def best_line(lines: Iterable[Line]) -> Line | None:
    """Return the line with the highest official mAP; None if none is measured."""
    measured = [line for line in lines if line.official is not None]
    return max(measured, key=lambda line: line.official or 0.0, default=None)


def _line(row: Result, gain: Difference | None) -> Line:
    recipe = parse_recipe(row["feature"])
    official = row["official_ap"]
    by_definition = row["map"] or {}
    maps = {official: by_definition.get(official)}
    for method in DEFINITIONS:
        maps[method] = by_definition.get(method)
    note = ""
    if row["map"] is None:
        note = f"no labels; submission files in {row.get('submission', 'submission')}"
    elif maps[official] is None:
        note = "every class is left out"
    return Line(
        feature=row["feature"],
        gradient=recipe.is_gradient,
        block=block(recipe),
        map=maps,
        printed=printed_map(
            row["dataset"], row["test"], row["network"], row["feature"]
        ),
        note=note,
        figures={key: figure_of(row, key) for key in FIGURES},
        gain=gain,
    )


def figure_of(row: Result, key: str) -> Figure:
    """Return a figure of a row, of `FIGURES`."""
    value, interval = row.get(key), row.get(f"{key}_interval")
    if key == "map":  # by each definition
        official = row["official_ap"]
        value, interval = (value or {}).get(official), (interval or {}).get(official)
    return Figure(value, interval)


def _class_figure(row: Result, name: str) -> ClassFigure:
    official = row["official_ap"]
    printed = printed_ap(row["dataset"], row["test"], row["network"], row["feature"])
    by_class = (row["ap"] or {}).get(official, {})
    intervals = row.get("ap_interval", {}).get(official, {})
    return ClassFigure(
        by_class.get(name),
        printed.get(name),
        row["left_out"].get(name, ""),
        intervals.get(name),
    )


# Names and order of features.


def title(feature: str) -> str:
    """Return the title of a feature in tables and plots."""
    return parse_recipe(feature).title


def formulas(
    features: Iterable[str], rows: Iterable[Result] = ()
) -> list[tuple[str, str]]:
    """Return explanations of titles that are not names of features; for `auto` its choice."""
    lines = []
    for name in dict.fromkeys(features):
        if title(name) != name:
            lines.append((title(name), name))
    for row in rows:
        if row.get("auto"):
            lines.append((row["feature"], choice_text(row["auto"])))
    return lines


def choice_text(choice: Mapping[str, Any]) -> str:
    """Return the recipe, the temperature and the cost that `auto` has chosen, or tried."""
    tau = ""
    if choice["tau"] is not None:
        tau = f", tau {choice['tau']:g}"
    return f"{title(choice['recipe'])}{tau}, cost {choice['cost']:g}"


def block(recipe: Recipe) -> int:
    """Return the part of Table 1 that a recipe belongs to.

    0 is for a single layer's output, k for the concatenation around layer k and its gradient.
    """
    feature = recipe.features[0]
    if recipe.name != feature.name:
        return OTHER
    if feature.around:
        return feature.around
    is_layer = len(feature.factors) == 1 and isinstance(feature.factors[0].layer, int)
    if is_layer:
        return 0
    return OTHER


def paper_order(row: Result) -> tuple[int, bool, int, bool]:
    """Single layers from below (y8 before x8), then layer by layer, the gradient last."""
    recipe = parse_recipe(row["feature"])
    number = block(recipe)
    if number != 0:
        return number, recipe.is_gradient, 0, False
    letter, layer, _ = recipe.features[0].symbols[0]
    return number, recipe.is_gradient, int(layer), letter == "x"


def official_map(row: Result) -> float | None:
    """Return the mAP by the data set's official definition; None if it was not measured."""
    return figure_of(row, "map").value


def is_plain_forward(feature: str) -> bool:
    """Return whether a feature has no gradient and uses no unlabelled photos."""
    if feature in (AUTO, AUTO_FORWARD):
        return False
    recipe = parse_recipe(feature)
    return not recipe.is_gradient and not recipe.uses_pool


def is_chosen(feature: str) -> bool:
    """Return whether feature and cost are chosen by the labels: `auto` or `auto-forward`."""
    return parse_recipe(feature).is_chosen_later


def is_fixed_forward(feature: str) -> bool:
    """Return whether a feature is forward, without unlabelled photos and not chosen by labels."""
    return is_plain_forward(feature) and not is_chosen(feature)
