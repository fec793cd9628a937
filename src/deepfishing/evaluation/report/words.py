"""Findings of a report in plain sentences, for the terminal and for the page.

A paragraph is a tuple of parts; some parts are names of features and some are the verdict, which
the page emphasises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import AUTO
from deepfishing.core.statistics import Interval, mean_interval
from deepfishing.evaluation.record import ACCURACY, Result
from deepfishing.evaluation.report.charts import Chart, Panel, Series, panels
from deepfishing.evaluation.report.confusions import Confusions
from deepfishing.evaluation.report.gains import Gain, GainSplit, chart_splits
from deepfishing.evaluation.report.sheet import one_decimal, signed_ends
from deepfishing.evaluation.report.tables import (
    Comparison,
    Line,
    is_plain_forward,
    minus,
    official_map,
    title,
)

SECOND_EXAMPLE = 4  # labels per class of the second sentence about few labels
WITH_EXAMPLES = ("low-shot", "search")  # the protocols that are drawn against examples


@dataclass(frozen=True)
class Named:
    """A feature inside a sentence."""

    feature: str
    gradient: bool

    @property
    def text(self) -> str:
        """The title of the feature."""
        return title(self.feature)

    @property
    def kind(self) -> str:
        """Whether the feature is forward or a gradient, as the page colours it."""
        if self.gradient:
            return "gradient"
        return "forward"


@dataclass(frozen=True)
class Verdict:
    """The words that matter most."""

    text: str


Paragraph = tuple[str | Named | Verdict, ...]


def plain(words: Paragraph) -> str:
    """Return a paragraph as text."""
    return "".join(word if isinstance(word, str) else word.text for word in words)


def summary_words(
    table: Comparison,
    confused: Confusions | None,
    precision: float | None = None,
    points: Sequence[Result] = (),
) -> Paragraph:
    """Return the result for readers who want one sentence: how many photos are recognised.

    `precision` is the share of right photos among those picked for a class (`precision_at_size`),
    for data sets whose photos have several classes. `points` add figures for few labels.
    """
    best = table.best
    if best is None:
        return ()
    row = table.row_of(best)
    words: Paragraph = ()
    if confused is not None and best.accuracy is not None:
        # those of classes that have a classifier
        n_test = sum(map(sum, confused.counts))
        words += (
            Verdict(f"Of 100 photos {best.accuracy:.0f} are recognised"),
            f" ({len(confused.classes)} classes, {n_test:,} test photos).",
            _most_confused(confused),
        )
    elif precision is not None:
        words += (
            Verdict(f"Of 100 photos picked for a class {100 * precision:.0f} show it"),
            f" (mean of {_n_measured(row)} classes; as many photos are picked as show the class).",
        )
    return (*words, _easiest_and_hardest(row), _few_labels(points))


def leak_words(rows: Sequence[Result]) -> str:
    """Warn about test photos that resemble a training photo; "" where none does."""
    if not rows or not rows[0].get("similar_across"):
        return ""
    row = max(rows, key=lambda row: official_map(row) or 0.0)
    similar, n_test = row["similar_across"], row["n_test"]
    verb = "are"
    if similar == 1:
        verb = "is"
    words = (
        f"{similar:,} of {n_test:,} test photos {verb} nearly the same as a training photo, so "
        "figures on new photos may be lower"
    )
    figure = official_map(row)
    if figure is None or "map_apart" not in row:
        return f"{words}."
    apart = (row["map_apart"] or {}).get(row["official_ap"])
    if apart is None:
        return f"{words}; without them the mAP is not measurable."
    name = title(row["feature"])
    return f"{words}; without them {name} has {apart:.1f} instead of {figure:.1f} mAP."


def table_words(table: Comparison) -> Paragraph:
    """Compare the best gradient with the best forward feature; nothing if nothing was measured."""
    forward, gradient = table.forward, table.gradient
    if forward is None or gradient is None:
        if table.best is None:
            return ()
        missing = "forward"
        if forward:
            missing = "gradient"
        return (
            "The best feature is ",
            _named(table.best),
            f" with {one_decimal(table.best.official)} mAP. No {missing} feature has been measured "
            "to compare it with.",
        )
    words: Paragraph = (
        "At one cost for all, as in the paper, the best gradient feature, ",
        _named(gradient),
        f", reaches {one_decimal(gradient.official)} mAP, ",
        Verdict(_above_or_below(minus(gradient.official, forward.official) or 0.0)),
        " the best forward feature, ",
        _named(forward),
        f" ({one_decimal(forward.official)}).",
    )
    if gradient.gain:
        certainty = _certainty((gradient.gain.low, gradient.gain.high))
        words += (f" The difference {certainty}.",)
    printed = minus(gradient.printed, forward.printed)
    if printed is not None:
        figure = one_decimal(printed, sign=True)
        words += (f" In the paper the same two rows differ by {figure}.",)
    return words


def layer_words(table: Comparison) -> Paragraph:
    """Count the layers whose gradient is above the concatenation of input and output."""
    if not table.layers:
        return ()
    return (
        "The gradient is above the concatenation of the same layer's input and output for "
        f"{table.layers_won} of {len(table.layers)} layers.",
    )


def gain_words(split: GainSplit | None) -> Paragraph:
    """Report the gains of unlabelled photos and gradients with all labels; nothing without rows."""
    if split is None:
        return ()
    auto = Named(split.auto.feature, True)
    if split.forward.value == split.with_pool.value == split.auto.value:
        return (
            "With all labels ",
            auto,
            f" ({one_decimal(split.auto.value)} mAP) is level with the strongest forward feature: "
            "unlabelled photos and gradients give nothing.",
        )
    return (
        "With all labels and the best kernel and cost, ",
        auto,
        f" reaches {one_decimal(split.auto.value)} mAP and the strongest forward feature, ",
        Named(split.forward.feature, False),
        f", {one_decimal(split.forward.value)}: ",
        *_both_gains(split),
    )


def curve_words(points: Sequence[Result]) -> list[Paragraph]:
    """Report the curves over the number of examples: with the fewest, with more, or on average."""
    paragraphs = []
    for panel in panels(points):
        if panel.protocol not in WITH_EXAMPLES:
            continue
        # where photos have one class each, accuracy is what users look at
        by_figure = {chart.y_axis: chart for chart in panel.charts}
        chart = by_figure.get(ACCURACY, panel.charts[0])
        splits = chart_splits(chart)
        if splits:
            paragraph = _split_words(panel, chart, splits)
        else:
            paragraph = _chart_words(chart, panel.protocol)
        if paragraph:
            paragraphs.append(paragraph)
    return paragraphs


def _most_confused(confused: Confusions) -> str:
    """Name the two classes that are confused most, in either direction."""
    counts = np.array(confused.counts)
    both_ways = np.triu(counts + counts.T, k=1)
    if both_ways.max(initial=0) == 0:
        return " No two classes are confused."
    i, j = np.unravel_index(both_ways.argmax(), both_ways.shape)
    n_photos = counts[i].sum() + counts[j].sum()
    names = f"{confused.classes[i]} and {confused.classes[j]}"
    return f" {names} are confused most: {both_ways[i, j]} of their {n_photos} photos."


def _n_measured(row: Result) -> int:
    """Return the number of classes that have an AP."""
    by_class = row["ap"][row["official_ap"]]
    return sum(ap is not None for ap in by_class.values())


def _easiest_and_hardest(row: Result) -> str:
    """Name the classes with the highest and the lowest AP."""
    by_class = row["ap"][row["official_ap"]]
    measured = {name: ap for name, ap in by_class.items() if ap is not None}
    if len(measured) < 3:
        return ""
    easiest = max(measured, key=lambda name: measured[name])
    hardest = min(measured, key=lambda name: measured[name])
    if measured[easiest] == measured[hardest]:
        return ""
    return f" {easiest} is found most reliably, {hardest} least."


def _few_labels(points: Sequence[Result]) -> str:
    """Report how many photos `auto` recognises with the fewest labels and with the most."""
    parts = []
    for point in points:
        is_auto = point["series"] == AUTO and point["y_axis"] == ACCURACY
        if is_auto and point["y"] is not None and point["x"] is not None:
            parts.append(point)
    if len(parts) < 2:
        return ""
    few = min(parts, key=lambda point: point["x"])
    many = max(parts, key=lambda point: point["x"])
    return (
        f" With {_counted(few['x'], few['x_axis'])} {few['y']:.0f} of 100 are recognised, "
        f"with {many['x']}, {many['y']:.0f}."
    )


def _both_gains(split: GainSplit) -> Paragraph:
    """Return the gains of unlabelled photos and of gradients, with their intervals."""
    return (
        "unlabelled photos give ",
        Verdict(one_decimal(split.of_pool.mean, sign=True)),
        f"{_ends(split.of_pool)}, gradients ",
        Verdict(one_decimal(split.of_gradients.mean, sign=True)),
        f"{_ends(split.of_gradients)}.",
    )


def _ends(gain: Gain) -> str:
    if not gain.interval:
        return ""
    return f" ({signed_ends(gain.interval)})"


def _split_words(panel: Panel, chart: Chart, splits: Sequence[GainSplit]) -> Paragraph:
    """Return the three rows with the fewest labels, and those with `SECOND_EXAMPLE` labels."""
    figure = chart.y_axis.removesuffix(", %")
    first, *other_splits = splits
    shown_splits = [
        first,
        *(split for split in other_splits if split.labels == SECOND_EXAMPLE),
    ]
    words: Paragraph = ()
    for split in shown_splits:
        space = " " if words else ""
        words += (
            f"{space}With {_counted(split.labels or 0, panel.x_axis)}, ",
            Named(split.auto.feature, True),
            f" has {one_decimal(split.auto.value)} % {figure} and the best forward feature, ",
            Named(split.forward.feature, False),
            f", {one_decimal(split.forward.value)} %: ",
            *_both_gains(split),
        )
    return words


def _counted(n: int, axis: str) -> str:
    """Return a number with the unit of an axis."""
    if n > 1:
        return f"{n:,} {axis}"
    singular = re.sub(r"(photo|image|example)s\b", r"\1", axis)
    return f"{n} {singular}"


def _chart_words(chart: Chart, protocol: str) -> Paragraph:
    """Compare the best gradient line with the best forward line, on average."""
    forward_lines = [line for line in chart.whole if is_plain_forward(line.name)]
    gradient_lines = [line for line in chart.whole if line.gradient]
    if not forward_lines or not gradient_lines:
        return ()
    forward = max(forward_lines, key=_mean)
    gradient = max(gradient_lines, key=_mean)
    few, many = chart.xs[0], chart.xs[-1]
    is_range = many > few
    number, verb = f"{few} example", " is "
    if is_range:
        number, verb = f"{few} to {many} examples", " is on average "
    if many == few > 1:
        number += "s"
    start = f"With {number} per class, "
    if protocol == "search":
        start = f"In search by {number}, "
    words: Paragraph = (
        start,
        Named(gradient.name, True),
        verb,
        Verdict(_above_or_below(_mean(gradient) - _mean(forward))),
        " ",
        Named(forward.name, False),
    )
    gradient_draws, forward_draws = _draws(gradient), _draws(forward)
    if gradient_draws.shape == forward_draws.shape:
        per_draw = (gradient_draws - forward_draws).mean(axis=1)
        interval = mean_interval(per_draw.tolist())
        if interval:
            n_draws = len(per_draw)
            certainty = _certainty(interval)
            words += (f"; over {n_draws} draws of the examples that {certainty}",)
    words += (".",)
    first = max((*forward_lines, *gradient_lines), key=_first)
    if is_range and first is not forward:
        words += (
            f" With {few}, ",
            Named(first.name, first.gradient),
            f" is the best line: {one_decimal(_first(first))}, ",
            Named(forward.name, False),
            f" {one_decimal(_first(forward))}.",
        )
    return words


def _figures(series: Series) -> Array:
    """Return the figures (m,) of a line that has all of them."""
    return np.array([mark.y for mark in series.marks.values()])


def _mean(series: Series) -> float:
    return float(_figures(series).mean())


def _first(series: Series) -> float:
    return float(_figures(series)[0])


def _draws(series: Series) -> Array:
    """Return the draws (n, m) of which the figures are means; (0, m) if they are not known."""
    draws = [mark.draws for mark in series.marks.values()]
    if len(set(map(len, draws))) > 1:
        return np.empty((0, len(draws)))
    return np.array(draws).T


def _named(line: Line) -> Named:
    return Named(line.feature, line.gradient)


def _above_or_below(difference: float) -> str:
    """Return a difference of two figures in words."""
    size = one_decimal(abs(difference))
    if size == "0.0":
        return "level with"
    points, side = "points", "below"
    if size == "1.0":
        points = "point"
    if difference > 0:
        side = "above"
    return f"{size} {points} {side}"


def _certainty(interval: Interval) -> str:
    """Return whether a difference is significant: its interval excludes 0."""
    holds = interval[0] > 0 or interval[1] < 0
    verdict = "could be chance"
    if holds:
        verdict = "holds at 95 %"
    return f"{verdict}: its interval is {signed_ends(interval)}"
