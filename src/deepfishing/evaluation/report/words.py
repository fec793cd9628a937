"""Stage 7, report: what was seen, in plain words.

Comes in: a table, or the points of curves. Goes out: a paragraph as parts, of which some are names
of features and some are the verdict, so that the terminal prints and the page draws the same
words. They say what the figures say, whichever way these fall.
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
from deepfishing.evaluation.report.tables import Comparison, Line, minus, one_decimal, signed_ends

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


def table_words(table: Comparison) -> Paragraph:
    """What a table says about gradients; nothing where nothing was measured."""
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
