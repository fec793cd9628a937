"""Findings of a report in plain sentences, for the terminal and for the page.

A paragraph is a tuple of parts; some parts are names of features and some are the verdict, which
the page emphasises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.core.statistics import Interval, mean_interval
from deepfishing.evaluation.checks import Result
from deepfishing.evaluation.report.charts import Chart, Series, panels
from deepfishing.evaluation.report.rows import title
from deepfishing.evaluation.report.tables import (
    Comparison,
    Confusions,
    Line,
    minus,
    one_decimal,
    signed_ends,
)

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
    table: Comparison, confused: Confusions | None, found: float | None = None
) -> Paragraph:
    """Return the result for readers who want one sentence: how many photos are recognised.

    `found` is the share of right photos among those picked for a class (`precision_at_size`), for
    data sets whose photos have several classes.
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
    return (*words, _easiest_and_hardest(table.rows, best))


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
    measured = {name: ap for name, ap in row["ap"][row["official_ap"]].items() if ap is not None}
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
        "The best gradient feature, ",
        _named(gradient),
        f", reaches {one_decimal(gradient.official)} mAP, ",
        Verdict(_place(minus(gradient.official, forward.official) or 0.0)),
        " the best forward feature, ",
        _named(forward),
        f" ({one_decimal(forward.official)}).",
    )
    if gradient.gain:
        words += (f" The difference {_certainty((gradient.gain.low, gradient.gain.high))}.",)
    printed = minus(gradient.printed, forward.printed)
    if printed is not None:
        figure = one_decimal(printed, sign=True)
        words += (f" In the paper the same two rows differ by {figure}.",)
    return words


def curve_words(points: Sequence[Result]) -> Paragraph:
    """What curves over the number of examples say: on average, and with the fewest."""
    words: list[str | Named | Verdict] = []
    for panel in panels(points):
        for chart in panel.charts if panel.protocol in WITH_EXAMPLES else ():
            words += [" "] * bool(words) + [*_chart_words(chart, panel.protocol)]
    return tuple(words)


def _chart_words(chart: Chart, protocol: str) -> Paragraph:
    sides = [[s for s in chart.whole if s.gradient == kind] for kind in (False, True)]
    if not all(sides):
        return ()
    forward, gradient = (max(side, key=lambda s: float(_figures(s).mean())) for side in sides)
    few, many = chart.xs[0], chart.xs[-1]
    number = f"{few}{f' to {many}' if many > few else ''} example{'s' * (many > 1)}"
    words: Paragraph = (
        f"In search by {number}, " if protocol == "search" else f"With {number} per class, ",
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
