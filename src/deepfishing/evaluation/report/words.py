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
from deepfishing.evaluation.checks import ACCURACY, Result
from deepfishing.evaluation.report.charts import Chart, Panel, Series, panels
from deepfishing.evaluation.report.gain_split import Gain, GainSplit, chart_splits
from deepfishing.evaluation.report.rows import is_plain_forward, title
from deepfishing.evaluation.report.tables import (
    Comparison,
    Confusions,
    Line,
    minus,
    one_decimal,
    signed_ends,
)

SOME = 4  # labels per class of the second sentence about few labels
WITH_EXAMPLES = ("low-shot", "search")  # the protocols that are drawn against examples


@dataclass(frozen=True)
class Named:
    """A feature inside a sentence."""

    feature: str
    gradient: bool

    @property
    def text(self) -> str:
        """What it is called."""
        return title(self.feature)


@dataclass(frozen=True)
class Verdict:
    """The words that matter most."""

    text: str


Paragraph = tuple[str | Named | Verdict, ...]


def plain(words: Paragraph) -> str:
    """A paragraph as text."""
    return "".join(word if isinstance(word, str) else word.text for word in words)


def summary_words(
    table: Comparison,
    confused: Confusions | None,
    found: float | None = None,
    points: Sequence[Result] = (),
) -> Paragraph:
    """Return the result for readers who want one sentence: how many photos are recognised.

    `found` is the share of right photos among those picked for a class (`precision_at_size`), for
    data sets whose photos have several classes. `points` may say how many labels it takes.
    """
    best = table.best
    if best is None:
        return ()
    words: Paragraph = ()
    if confused is not None and best.top1 is not None:
        words += (
            Verdict(f"Of 100 photos {best.top1:.0f} are recognised"),
            f" ({len(confused.classes)} classes, {table.rows[0]['n_test']:,} test photos).",
            _most_confused(confused),
        )
    elif found is not None:
        words += (
            Verdict(f"Of 100 photos picked for a class {100 * found:.0f} show it"),
            f" (mean of {len(table.rows[0]['classes'])} classes; as many photos are picked as "
            "show the class).",
        )
    return (*words, _easiest_and_hardest(table.rows, best), _few_labels(points))


def _few_labels(points: Sequence[Result]) -> str:
    """Say how many photos `auto` recognises with the fewest labels and with the most."""
    shown = [
        p for p in points if (p["series"], p["y_axis"]) == (AUTO, ACCURACY) and p["y"]
    ]
    if len(shown) < 2:
        return ""
    few, many = (pick(shown, key=lambda point: point["x"]) for pick in (min, max))
    axis = few["x_axis"]
    return (
        f" With {_counted(few['x'], axis)} {few['y']:.0f} of 100 are recognised, "
        f"with {many['x']}, {many['y']:.0f}."
    )


def _most_confused(confused: Confusions) -> str:
    """Name the two classes that are confused most, in either direction."""
    counts = np.array(confused.counts)
    mixed = np.triu(counts + counts.T, k=1)
    if mixed.max(initial=0) == 0:
        return " No two classes are confused."
    i, j = np.unravel_index(mixed.argmax(), mixed.shape)
    photos = counts[i].sum() + counts[j].sum()
    names = f"{confused.classes[i]} and {confused.classes[j]}"
    return f" {names} are confused most: {mixed[i, j]} of their {photos} photos."


def _easiest_and_hardest(rows: Sequence[Result], best: Line) -> str:
    """Name the classes with the highest and the lowest AP."""
    row = next(row for row in rows if row["feature"] == best.feature)
    measured = {
        name: ap for name, ap in row["ap"][row["official_ap"]].items() if ap is not None
    }
    if len(measured) < 3:
        return ""
    easiest = max(measured, key=lambda name: measured[name])
    hardest = min(measured, key=lambda name: measured[name])
    return f" {easiest} is found most reliably, {hardest} least."


def leak_words(row: Result) -> str:
    """Warn about test photos that resemble a training photo; "" where none does."""
    similar = row.get("similar_across") or 0
    if not similar:
        return ""
    verb = "is" if similar == 1 else "are"
    return (
        f"{similar:,} of {row['n_test']:,} test photos {verb} nearly the same as a training photo, "
        "so figures on new photos may be lower."
    )


def table_words(table: Comparison) -> Paragraph:
    """Compare the best gradient with the best forward feature; nothing if nothing was measured."""
    forward, gradient = table.forward, table.gradient
    if forward is None or gradient is None:
        if table.best is None:
            return ()
        rest = f"No {'gradient' if forward else 'forward'} feature has been measured to compare"
        figure = f" with {one_decimal(table.best.official)} mAP. {rest} it with."
        return ("The best feature is ", _named(table.best), figure)
    words: Paragraph = (
        "At one cost for all, as in the paper, the best gradient feature, ",
        _named(gradient),
        f", reaches {one_decimal(gradient.official)} mAP, ",
        Verdict(_place(minus(gradient.official, forward.official) or 0.0)),
        " the best forward feature, ",
        _named(forward),
        f" ({one_decimal(forward.official)}).",
    )
    if gradient.gain:
        words += (
            f" The difference {_certainty((gradient.gain.low, gradient.gain.high))}.",
        )
    printed = minus(gradient.printed, forward.printed)
    if printed is not None:
        figure = one_decimal(printed, sign=True)
        words += (f" In the paper the same two rows differ by {figure}.",)
    return words


def gain_words(split: GainSplit | None) -> Paragraph:
    """Say what unlabelled photos and gradients give with all labels; nothing if it is not known."""
    if split is None:
        return ()
    if split.forward.value == split.with_pool.value == split.auto.value:
        return (
            "With all labels ",
            Named(split.auto.feature, True),
            f" ({one_decimal(split.auto.value)} mAP) is level with the strongest forward feature: "
            "unlabelled photos and gradients give nothing.",
        )
    return (
        "With all labels and the best kernel and cost, ",
        Named(split.auto.feature, True),
        f" reaches {one_decimal(split.auto.value)} mAP and the strongest forward feature, ",
        Named(split.forward.feature, False),
        f", {one_decimal(split.forward.value)}: ",
        *_gains(split),
    )


def _gains(split: GainSplit) -> Paragraph:
    """What each of the two gives, with its interval."""
    return (
        "unlabelled photos give ",
        Verdict(one_decimal(split.of_pool.mean, sign=True)),
        f"{_ends(split.of_pool)}, gradients ",
        Verdict(one_decimal(split.of_gradients.mean, sign=True)),
        f"{_ends(split.of_gradients)}.",
    )


def _ends(gain: Gain) -> str:
    return f" ({signed_ends(gain.interval)})" if gain.interval else ""


def curve_words(points: Sequence[Result]) -> list[Paragraph]:
    """What curves over the number of examples say: with the fewest, with more, or on average."""
    paragraphs = []
    for panel in panels(points):
        if panel.protocol not in WITH_EXAMPLES:
            continue
        # where photos have one class each, accuracy is what users look at
        chart = next((c for c in panel.charts if c.y_axis == ACCURACY), panel.charts[0])
        splits = chart_splits(chart)
        said = (
            _split_words(panel, chart, splits)
            if splits
            else _chart_words(chart, panel.protocol)
        )
        if said:
            paragraphs.append(said)
    return paragraphs


def _split_words(panel: Panel, chart: Chart, splits: Sequence[GainSplit]) -> Paragraph:
    """The three rows with the fewest labels and with `SOME`, as far as they were measured."""
    figure = chart.y_axis.removesuffix(", %")
    words: Paragraph = ()
    for split in (splits[0], *(split for split in splits[1:] if split.labels == SOME)):
        words += (
            f"{' ' if words else ''}With {_counted(split.labels or 0, panel.x_axis)}, ",
            Named(split.auto.feature, True),
            f" has {one_decimal(split.auto.value)} % {figure} and the best forward feature, ",
            Named(split.forward.feature, False),
            f", {one_decimal(split.forward.value)} %: ",
            *_gains(split),
        )
    return words


def _counted(n: int, axis: str) -> str:
    """A number of what an axis counts."""
    if n > 1:
        return f"{n:,} {axis}"
    singular = re.sub(r"(photo|image|example)s\b", r"\1", axis)
    return f"{n} {singular}"


def _chart_words(chart: Chart, protocol: str) -> Paragraph:
    forward_lines = [s for s in chart.whole if is_plain_forward(s.name)]
    sides = [forward_lines, [s for s in chart.whole if s.gradient]]
    if not all(sides):
        return ()
    forward, gradient = (
        max(side, key=lambda s: float(_figures(s).mean())) for side in sides
    )
    few, many = chart.xs[0], chart.xs[-1]
    number = f"{few}{f' to {many}' if many > few else ''} example{'s' * (many > 1)}"
    words: Paragraph = (
        f"In search by {number}, "
        if protocol == "search"
        else f"With {number} per class, ",
        Named(gradient.name, True),
        " is on average " if many > few else " is ",
        Verdict(_place(float(_figures(gradient).mean() - _figures(forward).mean()))),
        " ",
        Named(forward.name, False),
    )
    draws = _draws(gradient), _draws(forward)
    if draws[0].shape == draws[1].shape:
        interval = mean_interval((draws[0] - draws[1]).mean(axis=1).tolist())
        if interval:
            over = f"; over {len(draws[0])} draws of the examples that "
            words += (over + _certainty(interval),)
    words += (".",)
    first = max((*sides[0], *sides[1]), key=lambda s: float(_figures(s)[0]))
    if many > few and first is not forward:
        best, other = (one_decimal(float(_figures(s)[0])) for s in (first, forward))
        named = Named(first.name, first.gradient)
        words += (f" With {few}, ", named, f" is the best line: {best}, ")
        words += (Named(forward.name, False), f" {other}.")
    return words


def _figures(series: Series) -> Array:
    """Its figures (m,), of a line that has all of them."""
    return np.array([mark.y for mark in series.marks.values()])


def _draws(series: Series) -> Array:
    """The draws (n, m) of which they are the means; (0, m) if they are not known."""
    draws = [mark.draws for mark in series.marks.values()]
    same = len(set(map(len, draws))) == 1
    return np.array(draws).T if same else np.empty((0, len(draws)))


def _named(line: Line) -> Named:
    return Named(line.feature, line.gradient)


def _place(difference: float) -> str:
    """Where a figure lies beside another."""
    size = one_decimal(abs(difference))
    if size == "0.0":
        return "level with"
    return f"{size} point{'' if size == '1.0' else 's'} {'above' if difference > 0 else 'below'}"


def _certainty(interval: Interval) -> str:
    """Whether a difference with this interval is one."""
    holds = interval[0] > 0 or interval[1] < 0
    verdict = "holds at 95 %" if holds else "could be chance"
    return f"{verdict}: its interval is {signed_ends(interval)}"
