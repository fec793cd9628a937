"""Plots of the report with matplotlib.

The functions take the result of `measure`, its rows, or a folder of `deepfish reproduce`; for
contact sheets the result of a search. They return the axes, new ones unless some are given. Needs
the extra `plot`.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.errors import OptionError, check_choice, need
from deepfishing.evaluation.checks import TABLE, Result
from deepfishing.evaluation.measuring import Measured
from deepfishing.evaluation.report.charts import (
    HUES,
    LOGARITHMIC,
    TITLES,
    panels,
    tick_text,
)
from deepfishing.evaluation.report.rows import (
    group_points,
    group_rows,
    open_points,
    open_results,
    row_curves,
    title,
)
from deepfishing.evaluation.report.tables import comparison, confusions, one_decimal
from deepfishing.evaluation.results import Results
from deepfishing.search import Hits
from deepfishing.search.hits import contact_sheet

RECALL = np.linspace(0, 1, 101)

From = Measured | Sequence[Result] | str | Path


def rows(results: From, ax: Any = None) -> Any:
    """The mAP of each row with its interval at 95 percent; gradients in another colour."""
    found = _measured(results)
    lines = comparison(found).measured[::-1]
    if not lines:
        raise OptionError("rows must have a mAP to be drawn, got none with labels")
    ax = _axes(ax, (6, 1 + 0.35 * len(lines)))
    for place, line in enumerate(lines):
        y, colour = line.official, _colour(HUES[1] if line.gradient else HUES[0])
        low, high = line.interval or (y, y)
        ax.plot([low, high], [place, place], color=colour, linewidth=2)
        ax.plot([y], [place], "o", color=colour, label=line.title)
        ax.annotate(
            one_decimal(y),
            (high, place),
            (5, 0),
            textcoords="offset points",
            va="center",
        )
    ax.set_yticks(range(len(lines)), [line.title for line in lines])
    ax.set(xlabel="mAP, %", title=_subject(found[0]), ylim=(-0.6, len(lines) - 0.4))
    ax.margins(x=0.12)
    return ax


def precision_recall(
    results: Measured | str | Path,
    name: str | None = None,
    *,
    features: Sequence[str] | None = None,
    ax: Any = None,
) -> Any:
    """Precision against recall of the best forward feature and the best gradient, or of others.

    Of the class called `name`; without one the mean over the classes, of the precision that each
    reaches at a recall or beyond it.
    """
    folder = results.page.parent if isinstance(results, Measured) else Path(results)
    found, kept = _measured(results), Results(folder)
    wanted = features or [line.feature for line in comparison(found).compared]
    by_feature, classes = {row["feature"]: row for row in found}, found[0]["classes"]
    for one in wanted:
        check_choice("features", one, tuple(by_feature))
    if name is not None:
        check_choice("class", name, classes)
    ax = _axes(ax, (5, 4))
    for hue, feature in zip(HUES, wanted, strict=False):
        curves = row_curves(kept, by_feature[feature])
        if name is not None:
            recall, precision = np.array(curves[name]).T
        else:
            recall, precision = (
                RECALL,
                np.mean([_envelope(c) for c in curves.values()], axis=0),
            )
        ax.plot(recall, precision, color=_colour(hue), label=title(feature))
    subject = f"{_subject(found[0])}: {name or 'mean over the classes'}"
    ax.set(
        xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02), title=subject
    )
    ax.legend()
    return ax


def curves(
    results: From,
    protocol: str = "low-shot",
    *,
    figure: str | None = None,
    against: str | None = None,
    ax: Any = None,
) -> Any:
    """Lines of a protocol with their intervals: low-shot, knn, search or approximation.

    `figure` is the figure to be drawn, such as "accuracy, %", and `against` the axis to the right,
    such as "labelled photos per class"; by default the first that it has.
    """
    check_choice("protocol", protocol, tuple(TITLES))
    points = _measured(results, protocol)
    charts = [(panel, chart) for panel in panels(points) for chart in panel.charts]
    if against is not None:
        check_choice(
            "axis", against, tuple({panel.x_axis: None for panel, _ in charts})
        )
        charts = [(panel, chart) for panel, chart in charts if panel.x_axis == against]
    if figure is not None:
        check_choice(
            "figure", figure, tuple({chart.y_axis: None for _, chart in charts})
        )
        charts = [(panel, chart) for panel, chart in charts if chart.y_axis == figure]
    panel, chart = charts[0]
    ax = _axes(ax, (6, 4))
    for series in chart.series:
        style = panel.styles[series.name]
        look = {"color": "black" if style.hue is None else _colour(style.hue)}
        look |= {
            "linestyle": ("-", "--", ":")[style.dash],
            "label": panel.called(series),
        }
        if series.level:
            if series.level.y is not None:
                ax.axhline(series.level.y, **look)
            continue
        known = [(x, mark) for x, mark in series.marks.items() if mark.y is not None]
        ax.plot(
            [x for x, _ in known], [mark.y for _, mark in known], marker="o", **look
        )
        sure = [(x, *mark.interval) for x, mark in known if mark.interval]
        if sure:
            ax.fill_between(
                *np.array(sure).T, color=look["color"], alpha=0.12, linewidth=0
            )
    ax.set_xscale("log")
    ax.set_xticks(chart.xs, [tick_text(x) for x in chart.xs])
    ax.minorticks_off()
    ax.set_yscale("log" if chart.y_axis in LOGARITHMIC else "linear")
    subject = f"{_subject(points[0])}: {panel.title.lower()}"
    ax.set(xlabel=panel.x_axis, ylabel=chart.y_axis, title=subject)
    ax.legend()
    return ax


def confusion(results: From, ax: Any = None) -> Any:
    """Which classes the best row takes for which: images of a class to the right."""
    measured = _measured(results)
    found = confusions(comparison(measured))
    if found is None:
        raise OptionError(
            "confusions are of images with one class each, got several or no labels"
        )
    n = len(found.classes)
    share = [[found.share(i, j) for j in range(n)] for i in range(n)]
    ax = _axes(ax, (2 + 0.35 * n, 1.5 + 0.35 * n))
    ax.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for i, j in np.argwhere(np.array(found.counts) > 0) if found.numbered else ():
        shade = "white" if share[i][j] > 0.5 else "black"
        ax.text(
            j, i, found.counts[i][j], ha="center", va="center", color=shade, fontsize=8
        )
    ax.set_xticks(range(n), found.classes, rotation=90)
    ax.set_yticks(range(n), found.classes)
    subject = f"{_subject(measured[0])}: {found.line.title}"
    ax.set(xlabel="taken for", ylabel="shows", title=subject)
    return ax


def sheet(hits: Hits, ax: Any = None) -> Any:
    """The pictures that a search found, with their scores."""
    if not hits:
        raise OptionError("a sheet must have hits, got none")
    tiles = [(file, *caption.split(" ", 1)) for file, caption in hits.pictures()]
    drawn = contact_sheet(tiles)  # type: ignore[arg-type]  # a score and a name each
    ax = _axes(ax, (drawn.width / 110, drawn.height / 110))
    ax.imshow(drawn)
    ax.set_axis_off()
    return ax


def _axes(ax: Any, size: tuple[float, float]) -> Any:
    pyplot = need("matplotlib.pyplot", "plot")
    return pyplot.subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def _colour(hue: int) -> tuple[float, float, float]:
    return colorsys.hls_to_rgb(hue / 360, 0.42, 0.7)


def _subject(row: Result) -> str:
    return f"{row['dataset']}, {row['network']}"


def _envelope(curve: Sequence[tuple[float, float]]) -> Any:
    """The best precision at each of `RECALL` or beyond."""
    recall, precision = np.array(curve).T
    best = np.maximum.accumulate(precision[::-1])[::-1]
    place = np.searchsorted(recall, RECALL - 1e-9)
    return np.append(best, 0.0)[place]


def _measured(results: From, protocol: str = TABLE) -> list[Result]:
    """Rows in the paper's order, or points of a protocol; of one setting, as a plot must be."""
    is_table, where = protocol == TABLE, ""
    if isinstance(results, str | Path):
        where, folder = f" in {results}", Path(results)
        listed: Sequence[Result] = (
            open_results(folder).rows if is_table else open_points(folder)
        )
    elif isinstance(results, Measured):
        listed = results.rows if is_table else results.points.get(protocol, ())
    else:
        listed = results
    points = (one for one in listed if one.get("protocol") == protocol)
    groups = group_rows(listed) if is_table else group_points(points)
    if len(groups) != 1:
        found = (
            "; ".join(dict.fromkeys(_subject(group[0]) for group in groups)) or "none"
        )
        raise OptionError(
            f"a plot must be of rows of one setting, got {len(groups)}{where} ({found}); "
            "give those of one, from deepfishing.evaluation.report.rows.group_rows or measure"
        )
    return groups[0]
