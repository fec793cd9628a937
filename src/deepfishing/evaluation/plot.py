"""Plots of the report with matplotlib.

The functions take the result of `measure`, its rows, or a folder of `deepfish reproduce`; for
contact sheets the result of a search. They return the axes, new ones unless some are given. Needs
the extra `plot`.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.errors import OptionError, check_choice, need
from deepfishing.evaluation.measure import Measured
from deepfishing.evaluation.record import CURVES, TABLE, Result
from deepfishing.evaluation.report.charts import (
    HUES,
    Chart,
    Mark,
    Panel,
    panels,
    tick_text,
)
from deepfishing.evaluation.report.confusions import confusions
from deepfishing.evaluation.report.folder import (
    group_points,
    group_rows,
    open_points,
    open_results,
    row_curves,
)
from deepfishing.evaluation.report.sheet import one_decimal
from deepfishing.evaluation.report.tables import comparison, title
from deepfishing.evaluation.results import Results
from deepfishing.search import Hits
from deepfishing.search.hits import contact_sheet

RECALL = np.linspace(0, 1, 101)

From = Measured | Sequence[Result] | str | Path


def rows(results: From, ax: Any = None) -> Any:
    """Draw the mAP of each row with its interval at 95 percent; gradients in another colour."""
    measured = _measured(results)
    lines = comparison(measured).measured[::-1]
    if not lines:
        raise OptionError("rows must have a mAP to be drawn, got none with labels")
    ax = _axes(ax, (6, 1 + 0.35 * len(lines)))
    for y, line in enumerate(lines):
        figure = line.official
        colour = _colour(HUES[0])
        if line.gradient:
            colour = _colour(HUES[1])
        low, high = line.interval or (figure, figure)
        ax.plot([low, high], [y, y], color=colour, linewidth=2)
        ax.plot([figure], [y], "o", color=colour, label=line.title)
        ax.annotate(
            one_decimal(figure),
            (high, y),
            (5, 0),
            textcoords="offset points",
            va="center",
        )
    ax.set_yticks(range(len(lines)), [line.title for line in lines])
    ax.set(xlabel="mAP, %", title=_subject(measured[0]), ylim=(-0.6, len(lines) - 0.4))
    ax.margins(x=0.12)
    return ax


def precision_recall(
    results: Measured | str | Path,
    name: str | None = None,
    *,
    features: Sequence[str] | None = None,
    ax: Any = None,
) -> Any:
    """Draw precision against recall of the best forward feature and gradient, or of `features`.

    With `name` it is the curve of this class, otherwise the mean over the classes, each with the
    best precision at a recall or beyond it.
    """
    if isinstance(results, Measured):
        folder = results.page.parent
    else:
        folder = Path(results)
    measured = _measured(results)
    row_of = {row["feature"]: row for row in measured}
    if features is None:
        features = [line.feature for line in comparison(measured).compared]
    for feature in features:
        check_choice("features", feature, tuple(row_of))
    if name is not None:
        check_choice("class", name, measured[0]["classes"])
    ax = _axes(ax, (5, 4))
    for hue, feature in zip(HUES, features, strict=False):
        by_class = row_curves(Results(folder), row_of[feature])
        if name is not None:
            recall, precision = np.array(by_class[name]).T
        else:
            envelopes = [_envelope(curve) for curve in by_class.values()]
            recall, precision = RECALL, np.mean(envelopes, axis=0)
        ax.plot(recall, precision, color=_colour(hue), label=title(feature))
    subject = f"{_subject(measured[0])}: {name or 'mean over the classes'}"
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
    """Draw the lines of a protocol with their intervals: low-shot, knn, search or approximation.

    `figure` is the figure to be drawn, such as "accuracy, %", and `against` the axis to the right,
    such as "labelled photos per class"; by default the first that it has.
    """
    check_choice("protocol", protocol, CURVES)
    points = _measured(results, protocol)
    panel, chart = _find_chart(points, figure, against)
    ax = _axes(ax, (6, 4))
    for series in chart.series:
        style = panel.styles[series.name]
        look: dict[str, Any] = {
            "color": "black",
            "linestyle": ("-", "--", ":")[style.dash],
            "label": panel.line_title(series.name),
        }
        if style.hue is not None:
            look["color"] = _colour(style.hue)
        if series.level:
            if series.level.y is not None:
                ax.axhline(series.level.y, **look)
        else:
            _draw_line(ax, series.marks, look)
    ax.set_xscale("log")
    ax.set_xticks(chart.xs, [tick_text(x) for x in chart.xs])
    ax.minorticks_off()
    if chart.up.logarithmic:
        ax.set_yscale("log")
    subject = f"{_subject(points[0])}: {panel.title.lower()}"
    ax.set(xlabel=panel.x_axis, ylabel=chart.y_axis, title=subject)
    ax.legend()
    return ax


def _find_chart(
    points: Sequence[Result], figure: str | None, against: str | None
) -> tuple[Panel, Chart]:
    """Return the first chart of a figure, against an axis, with its panel."""
    charts: list[tuple[Panel, Chart]] = []
    for panel in panels(points):
        charts += [(panel, chart) for chart in panel.charts]
    if against is not None:
        axes = dict.fromkeys(panel.x_axis for panel, _ in charts)
        check_choice("axis", against, tuple(axes))
        charts = [(panel, chart) for panel, chart in charts if panel.x_axis == against]
    if figure is not None:
        figures = dict.fromkeys(chart.y_axis for _, chart in charts)
        check_choice("figure", figure, tuple(figures))
        charts = [(panel, chart) for panel, chart in charts if chart.y_axis == figure]
    return charts[0]


def _draw_line(ax: Any, marks: Mapping[int, Mark], look: Mapping[str, Any]) -> None:
    """Draw the marks of a line, and their intervals as an area."""
    xs, ys, area = [], [], []
    for x, mark in marks.items():
        if mark.y is None:
            continue
        xs.append(x)
        ys.append(mark.y)
        if mark.interval:
            area.append((x, *mark.interval))
    ax.plot(xs, ys, marker="o", **look)
    if area:
        x, low, high = np.array(area).T
        ax.fill_between(x, low, high, color=look["color"], alpha=0.12, linewidth=0)


def confusion(results: From, ax: Any = None) -> Any:
    """Draw the confusions of classes by the best row: images of a class to the right."""
    measured = _measured(results)
    confused = confusions(comparison(measured))
    if confused is None:
        raise OptionError(
            "confusions are of images with one class each, got several or no labels"
        )
    n = len(confused.classes)
    shares = np.empty((n, n))
    for i, j in np.ndindex(n, n):
        shares[i, j] = confused.share(i, j)
    ax = _axes(ax, (2 + 0.35 * n, 1.5 + 0.35 * n))
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if confused.is_numbered:
        for i, j in np.argwhere(shares > 0):
            colour = "black"
            if shares[i, j] > 0.5:
                colour = "white"
            look = {"ha": "center", "va": "center", "color": colour, "fontsize": 8}
            ax.text(j, i, confused.counts[i][j], **look)
    ax.set_xticks(range(n), confused.classes, rotation=90)
    ax.set_yticks(range(n), confused.classes)
    subject = f"{_subject(measured[0])}: {confused.line.title}"
    ax.set(xlabel="taken for", ylabel="shows", title=subject)
    return ax


def sheet(hits: Hits, ax: Any = None) -> Any:
    """Draw the pictures that a search found, with their scores."""
    if not hits:
        raise OptionError("a sheet must have hits, got none")
    tiles = [(file, *caption.split(" ", 1)) for file, caption in hits.pictures()]
    picture = contact_sheet(tiles)  # type: ignore[arg-type]  # a score and a name each
    ax = _axes(ax, (picture.width / 110, picture.height / 110))
    ax.imshow(picture)
    ax.set_axis_off()
    return ax


def _axes(ax: Any, size: tuple[float, float]) -> Any:
    """Return the given axes, or new ones of a size in inches."""
    pyplot = need("matplotlib.pyplot", "plot")
    if ax is None:
        _, ax = pyplot.subplots(figsize=size, layout="constrained")
    return ax


def _colour(hue: int) -> tuple[float, float, float]:
    return colorsys.hls_to_rgb(hue / 360, 0.42, 0.7)


def _subject(row: Result) -> str:
    return f"{row['dataset']}, {row['network']}"


def _envelope(curve: Sequence[tuple[float, float]]) -> Any:
    """Return the best precision at each of `RECALL` or beyond."""
    recall, precision = np.array(curve).T
    best = np.maximum.accumulate(precision[::-1])[::-1]
    place = np.searchsorted(recall, RECALL - 1e-9)
    return np.append(best, 0.0)[place]


def _measured(results: From, protocol: str = TABLE) -> list[Result]:
    """Return rows in the paper's order, or points of a protocol; refuse several settings."""
    place = ""
    if isinstance(results, str | Path):
        place = f" in {results}"
    if protocol == TABLE:
        groups = group_rows(_rows_of(results))
    else:
        points = _points_of(results, protocol)
        groups = group_points(
            point for point in points if point["protocol"] == protocol
        )
    if len(groups) != 1:
        subjects = dict.fromkeys(_subject(group[0]) for group in groups)
        listed = "; ".join(subjects) or "none"
        raise OptionError(
            f"a plot must be of rows of one setting, got {len(groups)}{place} ({listed}); "
            "give those of one, from deepfishing.evaluation.report.folder.group_rows or measure"
        )
    return groups[0]


def _rows_of(results: From) -> Sequence[Result]:
    if isinstance(results, Measured):
        return results.rows
    if isinstance(results, str | Path):
        return open_results(Path(results)).rows
    return results


def _points_of(results: From, protocol: str) -> Sequence[Result]:
    if isinstance(results, Measured):
        return results.points.get(protocol, ())
    if isinstance(results, str | Path):
        return open_points(Path(results))
    return [result for result in results if "protocol" in result]
