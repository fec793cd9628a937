"""Overview of the gains of gradients in several folders of results.

One page or Markdown file has a part for each gradient feature: its gain over the best forward
feature on every data set and network, with its interval, and the gain against the number of
examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepfishing.core.features import split_names
from deepfishing.core.recipes import AUTO, parse_recipe
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.core.statistics import Difference, Interval, mean_interval
from deepfishing.errors import StoreError
from deepfishing.evaluation.checks import SETTINGS, Result
from deepfishing.evaluation.report.charts import (
    Axis,
    Chart,
    Mark,
    Panel,
    Series,
    panels,
    round_ticks,
)
from deepfishing.evaluation.report.gain_split import (
    FORWARD_NAME,
    GRADIENTS_GIVE,
    POOL_GIVES,
    GainSplit,
    chart_splits,
    table_split,
)
from deepfishing.evaluation.report.rows import (
    gains,
    is_chosen,
    is_plain_forward,
    open_folder,
    open_results,
    save_report,
    title,
)
from deepfishing.evaluation.report.sheets import Sheet
from deepfishing.evaluation.report.tables import comparison, one_decimal, signed_ends
from deepfishing.evaluation.report.text import markdown
from deepfishing.evaluation.report.words import WITH_EXAMPLES
from deepfishing.evaluation.results import Curves, Results

NOTHING = Mark(None, None)
# What the gains of the two choices are over: so they split the gain of `auto`.
OVER = {
    AUTO: f"{AUTO_FORWARD}: what gradients give",
    AUTO_FORWARD: "the strongest forward feature without unlabelled photos: what these give",
}
# What tells settings of the same data set and network apart, where they differ in it.
TOLD = tuple(
    dict.fromkeys(
        (
            "train",
            "test",
            "tau",
            "label",
            "views",
            "C",
            "difficult",
            "weights_sha256",
            *SETTINGS,
        )
    )
)


@dataclass(frozen=True)
class Gain:
    """A gradient's gain over the best forward feature of a setting, by the official mAP."""

    setting: str
    over: str
    forward: float
    difference: Difference


@dataclass(frozen=True)
class Part:
    """What was measured of one gradient feature: gains by setting, and against the examples."""

    feature: str
    gains: tuple[Gain, ...]
    panels: tuple[Panel, ...]

    @property
    def over(self) -> str:
        """What its gains are over."""
        return OVER.get(self.feature, "the best forward feature")

    @property
    def words(self) -> str:
        """How often it is above, and how often that holds."""
        if not self.gains:
            return ""
        above = sum(gain.difference.mean > 0 for gain in self.gains)
        holds = [gain.difference.mean for gain in self.gains if gain.difference.holds]
        mean = np.mean([gain.difference.mean for gain in self.gains])
        return (
            f"Above {self.over.partition(':')[0]} in {above} of {len(self.gains)}; at 95 % "
            f"{sum(m > 0 for m in holds)} gains and {sum(m < 0 for m in holds)} losses hold. "
            f"On average {one_decimal(float(mean), sign=True)}."
        )


def find_folders(given: Sequence[Path]) -> list[Path]:
    """Folders of results among those given, and in those that hold none themselves."""
    found: list[Path] = []
    for folder in given:
        below = [folder, *(sorted(folder.iterdir()) if folder.is_dir() else ())]
        names = (Results.name, Curves.name)
        with_results = [
            path for path in below if any((path / name).is_file() for name in names)
        ]
        if not with_results:
            open_results(folder)  # says what is missing
        found += [folder] if folder in with_results else with_results
    return list(dict.fromkeys(found))


def overview(folders: Iterable[Path]) -> list[Part]:
    """What these folders say about each gradient feature; the one of most settings first."""
    tables, curves = [], []
    for held in map(open_folder, folders):
        tables += [(held.results, rows) for rows in held.tables]
        curves += held.curves
    names = _names(
        [*(rows[0] for _, rows in tables), *(points[0] for points in curves)]
    )
    found: dict[str, list[Gain]] = {}
    for results, rows in tables:
        table, setting = comparison(rows), names[_facts(rows[0])]
        for name, gain in _split_gains(table_split(results, table), setting):
            found.setdefault(name, []).append(gain)
        forward = table.forward
        for name, difference in gains(results, rows).items():
            if _is_fixed_gradient(name) and forward and forward.official is not None:
                gain = Gain(setting, forward.title, forward.official, difference)
                found.setdefault(title(name), []).append(gain)
    lines: dict[str, dict[tuple[str, str, str], list[Series]]] = {}
    for points in curves:
        for feature, place, series in _lines(points, names[_facts(points[0])]):
            lines.setdefault(feature, {}).setdefault(place, []).append(series)
    parts = []
    for feature in dict.fromkeys((*found, *lines)):
        shown = []
        for (protocol, x_axis, y_axis), some in lines.get(feature, {}).items():
            xs = tuple(sorted({x for series in some for x in series.marks}))
            shown.append(
                Panel(protocol, feature, x_axis, (Chart(y_axis, xs, tuple(some)),))
            )
        parts.append(Part(feature, tuple(found.get(feature, ())), tuple(shown)))
    return sorted(parts, key=lambda part: (part.feature not in OVER, -len(part.gains)))


def _split_gains(split: GainSplit | None, setting: str) -> Iterable[tuple[str, Gain]]:
    """What gradients give and what the pool gives, as gains of `auto` and of `auto-forward`."""
    if split is None:
        return
    pairs = (
        (AUTO, split.of_gradients, split.with_pool),
        (AUTO_FORWARD, split.of_pool, split.forward),
    )
    for name, gain, below in pairs:
        if gain.difference is not None:
            yield name, Gain(setting, gain.over, below.value, gain.difference)


def _is_fixed_gradient(feature: str) -> bool:
    return parse_recipe(feature).is_gradient and not is_chosen(feature)


def write_overview(
    folders: Sequence[Path], page: Path, features: str | None = None
) -> Path:
    """Write the page, or the tables if its name ends in `.md`; of these features only, if given."""
    wanted = None if features is None else split_names(features)
    parts = [
        part for part in overview(folders) if wanted is None or part.feature in wanted
    ]
    if not parts:
        raise StoreError(
            f"results must have {features or 'a gradient'} and a forward feature to compare it "
            f"with, got none in {', '.join(map(str, folders))}; run `deepfish reproduce` with "
            f"--features '{features or 'all'}'"
        )
    if page.suffix == ".md":
        return save_report(page, "\n".join(map(markdown, sheets(parts))))
    from deepfishing.evaluation.report.html import render

    ends = [
        e for p in parts for g in p.gains for e in (g.difference.low, g.difference.high)
    ]
    axis = Axis(round_ticks(min((0.0, *ends)), max((0.0, *ends))))
    return save_report(page, render("overview.html.j2", parts=parts, axis=axis))


def _facts(row: Result) -> tuple[str, ...]:
    return tuple(str(row.get(name, "")) for name in ("dataset", "network", *TOLD))


def _names(rows: Sequence[Result]) -> dict[tuple[str, ...], str]:
    """What each setting is called: data set and network, and what else tells it from others."""
    every = list(dict.fromkeys(map(_facts, rows)))
    found = {}
    for facts in every:
        name = list(facts[:2])
        same = [other for other in every if other[:2] == facts[:2]]
        for key, value in enumerate(facts[2:], start=2):
            if len({other[key] for other in same}) > 1:
                name.append(f"{TOLD[key - 2].partition('_')[0]} {value[:12]}")
                same = [other for other in same if other[key] == value]
        found[facts] = ", ".join(name)
    return found


def _lines(
    points: Sequence[Result], setting: str
) -> Iterable[tuple[str, tuple[str, str, str], Series]]:
    """Gains over the best forward line: their feature, protocol and both axes, and the line."""
    for panel in panels(points):
        for chart in panel.charts if panel.protocol in WITH_EXAMPLES else ():
            figure = (
                "mAP" if "mAP" in chart.y_axis else chart.y_axis.removesuffix(", %")
            )
            # each data set by its official definition
            axis = f"gain, points of {figure}"
            place = panel.protocol, panel.x_axis, axis
            for name, marks in _split_marks(chart).items():
                yield name, place, Series(setting, marks)
            forward = [
                series for series in chart.whole if is_plain_forward(series.name)
            ]
            if not forward:
                continue
            best = max(
                forward,
                key=lambda series: sum(m.y or 0.0 for m in series.marks.values()),
            )
            for series in chart.whole:
                if _is_fixed_gradient(series.name):
                    marks = {
                        x: _minus(series.marks[x], best.marks[x]) for x in chart.xs
                    }
                    yield title(series.name), place, Series(setting, marks)


def _split_marks(chart: Chart) -> dict[str, dict[int, Mark]]:
    """What gradients give and what the pool gives, by the number of labels."""
    marks: dict[str, dict[int, Mark]] = {}
    for split in chart_splits(chart):
        for name, gain in ((AUTO, split.of_gradients), (AUTO_FORWARD, split.of_pool)):
            marks.setdefault(name, {})[split.labels or 0] = Mark(
                gain.mean, gain.interval
            )
    return marks


def _minus(a: Mark, b: Mark) -> Mark:
    """The difference of two marks, which are means over the same draws."""
    interval = None
    if len(a.draws) == len(b.draws):
        interval = mean_interval((np.array(a.draws) - np.array(b.draws)).tolist())
    return Mark((a.y or 0.0) - (b.y or 0.0), interval)


def sheets(parts: Sequence[Part]) -> Iterable[Sheet]:
    """A table of all gains, settings down and features across, and one per chart."""
    yield from _split_sheets({part.feature: part for part in parts})
    shown = [part for part in parts if part.gains and part.feature not in OVER]
    settings = {g.setting: (g.over, g.forward) for part in shown for g in part.gains}
    if shown:
        known = [{g.setting: g.difference for g in part.gains} for part in shown]
        body = []
        for setting, (over, forward) in settings.items():
            found = [differences.get(setting) for differences in known]
            cells = [
                "" if d is None else _with_interval(d.mean, (d.low, d.high))
                for d in found
            ]
            body.append([setting, f"{over} {one_decimal(forward)}", *cells])
        yield Sheet(
            "mAP of the best forward feature, and how much each gradient is above it (interval at "
            "95 %, paired bootstrap over test images)",
            ["data set, network", "best forward", *(part.feature for part in shown)],
            [body],
        )
    for part in parts:
        for panel in part.panels:
            (chart,) = panel.charts
            body = []
            for series in chart.series:
                marks = [series.marks.get(x, NOTHING) for x in chart.xs]
                body.append(
                    [series.name, *(_with_interval(m.y, m.interval) for m in marks)]
                )
            head = [panel.x_axis, *(f"{x:,}" for x in chart.xs)]
            caption = f"{part.feature}, {panel.title.lower()}: {chart.y_axis}"
            yield Sheet(caption, head, [body])


def _split_sheets(parts: Mapping[str, Part]) -> Iterable[Sheet]:
    """A table of what the pool and gradients give with all labels, settings down."""
    if not {AUTO, AUTO_FORWARD} <= set(parts):
        return
    by_setting = {gain.setting: gain for gain in parts[AUTO].gains}
    body = []
    for pool in parts[AUTO_FORWARD].gains:
        gradients = by_setting[pool.setting]
        gains = [pool.difference, gradients.difference]
        cells = [_with_interval(gain.mean, (gain.low, gain.high)) for gain in gains]
        body.append([pool.setting, f"{pool.over} {one_decimal(pool.forward)}", *cells])
    if body:
        yield Sheet(
            "mAP of the strongest forward feature without unlabelled photos, with the best kernel "
            "and cost, and what unlabelled photos and gradients add (interval at 95 %, paired "
            "bootstrap over test images)",
            ["data set, network", FORWARD_NAME, POOL_GIVES, GRADIENTS_GIVE],
            [body],
        )


def _with_interval(value: float | None, interval: Interval | None) -> str:
    ends = f" ({signed_ends(interval)})" if interval else ""
    return one_decimal(value, sign=True) + ends
