"""Stage 7, report: one self-contained HTML page for a folder of results.

Comes in: `results.jsonl`, `scores/` and `curves.jsonl` of a folder, and the images where they still
are. Goes out: `report.html` beside them, with tables, plots, pictures and how they were measured.
The page needs no network and no script, and the same results give the same page, byte for byte.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from deepfishing import __version__
from deepfishing.errors import DeepFishingError, ImageError, StoreError
from deepfishing.experiments.checks import POINT_SETTING, Result
from deepfishing.experiments.results import Results
from deepfishing.files import replacing
from deepfishing.images.tree import is_folder
from deepfishing.metrics import DEFINITIONS
from deepfishing.recipes import pieces
from deepfishing.report.charts import (
    Style,
    curve_points,
    mark_text,
    styles,
    tick_text,
    x_axis,
    y_axis,
)
from deepfishing.report.confusions import confusions
from deepfishing.report.curves import Curve, row_curves
from deepfishing.report.gains import gains
from deepfishing.report.gallery import Gallery
from deepfishing.report.points import Panel, group_points, open_points, panels
from deepfishing.report.rows import formulas, group_rows, open_results, title
from deepfishing.report.tables import (
    Line,
    class_lines,
    finding,
    interval_text,
    label_text,
    left_out,
    left_out_text,
    official_measure,
    one_decimal,
    per_class,
    table_1,
)
from deepfishing.report.words import curve_words, table_words
from deepfishing.statistics import Interval


@dataclass(frozen=True)
class _Axis:
    """An axis of mAP. It need not start at 0: it is for dots, whose place counts, not for bars."""

    ticks: tuple[int, ...]

    def place(self, value: float) -> float:
        """Where a value lies, in percent of the axis."""
        return round(100 * (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0]), 2)


def write_report(folder: str | Path, images: str | Path | None = None) -> Path:
    """Write `report.html` into a folder of results.

    Parameters
    ----------
    folder : path
        Where `deepfish reproduce` left `results.jsonl` and `scores/`, or `curves.jsonl`. Rows
        and points of several data sets, networks or settings each get their own part of the page.
    images : path, optional
        Where the test images are now, if they have moved.

    Returns
    -------
    page : Path
        `<folder>/report.html`. Where scores or images are missing, the page says so.

    Raises
    ------
    StoreError
        If the folder or its results are missing, empty or malformed.
    ImageError
        If `images` is given and not a folder.
    """
    folder = Path(folder)
    if images is not None and not is_folder(Path(images)):
        raise ImageError(f"images must be a folder, got {images}, which is none")
    results, points = open_results(folder), open_points(folder)
    gallery = Gallery(results, Path(images) if images else None)
    curves = {_setting(group[0]): group for group in group_points(points)}
    groups = [
        _group(rows, curves.pop(_setting(rows[0]), []), results, gallery)
        for rows in group_rows(results.rows)
    ]
    page = folder / "report.html"
    template = _environment().get_template("report.html.j2")
    html = template.render(
        groups=groups,
        curve_groups=[_curve_group(group) for group in curves.values()],
        pictures=gallery.pictures,
        version=__version__,
    )
    try:
        with replacing(page) as partial:
            partial.write_text(html, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"report cannot be written: {page} ({error})") from None
    return page


def render_overview(parts: Sequence[Any], axis: Any, version: str) -> str:
    """The page of `report.overview`."""
    template = _environment().get_template("overview.html.j2")
    return template.render(parts=parts, axis=axis, version=version, styles=styles)


def feature_label(name: str) -> Markup:
    """A feature's title in the paper's letters, as HTML.

    Examples
    --------
    >>> print(feature_label("x6;x7"), feature_label("dW7"))
    x<sub>6</sub>;&thinsp;x<sub>7</sub> ∂E/∂W<sub>7</sub>
    >>> print(feature_label("dW:head.<b>@exact"))
    ∂E/∂W<sub>head.&lt;b&gt;</sub> exact
    >>> print(feature_label("pow(dW7,0.5)+x7"))
    pow(∂E/∂W<sub>7</sub>,0.5)+<wbr>x<sub>7</sub>
    """
    return formula_label(title(name))


def formula_label(name: str) -> Markup:
    """A formula in the paper's letters, as HTML; it may be broken behind each sign."""
    return Markup("").join(
        _sign(piece)
        if isinstance(piece, str)
        else Markup(";&thinsp;").join(map(_symbol, piece.symbols))
        for piece in pieces(name)
    )


def _sign(sign: str) -> Markup:
    return escape(sign) + Markup("<wbr>") if sign in "+*" else escape(sign)


def _symbol(symbol: tuple[str, str, str]) -> Markup:
    letter, layer, note = symbol
    label = Markup("{}<sub>{}</sub>").format({"dW": "∂E/∂W"}.get(letter, letter), layer)
    return label + f" {note}" if note else label


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["label"] = feature_label
    environment.filters["formula"] = formula_label
    environment.filters["figure"] = _figure
    environment.filters["interval"] = _interval
    environment.filters["points"] = _points
    environment.filters["typeset"] = _typeset
    for drawn in (x_axis, y_axis, curve_points, mark_text):
        environment.filters[drawn.__name__] = drawn
    environment.filters["tick"] = tick_text
    environment.globals["definitions"] = DEFINITIONS
    return environment


def _setting(row: Result) -> str:
    """What a table and curves must agree in to stand in one part of the page."""
    return json.dumps([{"views": "centre", **row}[name] for name in POINT_SETTING])


def _group(
    rows: list[Result], points: list[Result], results: Results, gallery: Gallery
) -> dict[str, Any]:
    """All that the template shows of the rows of one setting, and of its curves."""
    known_gains = gains(results, rows)
    lines = table_1(rows, known_gains)
    found = finding(lines)
    compared = [line for line in (found.forward, found.gradient) if line]
    detailed = class_lines(lines)
    classes = per_class(rows, [line.feature for line in detailed])
    measured = [line for line in lines if line.official is not None]
    curves, problems = _curves(rows, measured, results)
    shown, lines_of = gallery.shown(rows, found), [*rows, *points]
    return {
        "row": rows[0],
        "rows": rows,
        "lines": lines,
        "printed": any(line.printed is not None for line in lines),
        "intervals": any(line.interval for line in lines),
        "gains": bool(known_gains),
        "finding": found,
        "compared": compared,
        "formulas": formulas([*(ln.feature for ln in lines), *_features(panels(points))], rows),
        "accurate": any(line.top1 for line in lines),
        "measure": official_measure(rows[0]),
        "confusions": confusions(rows, lines),
        "measured": measured,
        "columns": [
            (line, any(cells[i].printed is not None for cells in classes.values()))
            for i, line in enumerate(detailed)
        ],
        "classes": classes,
        "ap": {row["feature"]: row["ap"][row["official_ap"]] for row in rows if row["ap"]},
        "curves": curves,
        "problems": problems,
        "gallery": shown,
        "examples": shown.examples,
        "words": table_words(found),
        "curve_words": curve_words(points),
        "panels": _styled(panels(points)),
        "slowest": max(row["seconds"] for row in rows),
        "axis": _axis(lines),
        "label": label_text(rows[0]),
        "pixels": _pixels(rows[0].get("preprocess")),
        "left_out": left_out(rows),
        "left_out_text": left_out_text(rows),
        "unreadable": sorted({path for row in rows for path in row["unreadable"]}),
        "commands": _features_by("command", lines_of),
        "versions": _features_by("version", [{**r, "version": _made_with(r)} for r in lines_of]),
    }


def _curve_group(points: list[Result]) -> dict[str, Any]:
    """All that the template shows of the points of one setting."""
    return {
        "row": points[0],
        "label": label_text(points[0]),
        "titles": list(dict.fromkeys(panel.title for panel in panels(points))),
        "panels": _styled(panels(points)),
        "formulas": formulas(_features(panels(points))),
        "commands": _features_by("command", points),
        "versions": _features_by("version", [{**p, "version": _made_with(p)} for p in points]),
    }


def _features(found: Sequence[Panel]) -> list[str]:
    return [name for panel in found for name in panel.features]


def _styled(found: Sequence[Panel]) -> list[tuple[Panel, dict[str, Style], bool]]:
    """Panels, how their lines are drawn, and whether they are the first of their subject."""
    before = [None, *((panel.protocol, panel.feature) for panel in found)]
    return [
        (panel, styles(panel), (panel.protocol, panel.feature) != last)
        for panel, last in zip(found, before, strict=False)
    ]


def _pixels(preprocess: Any) -> str:
    """How images were made to fit the network; empty where a row does not say it."""
    try:
        return (
            "short side to {short_side} pixels ({resample}), central square of {size}, {order}"
        ).format_map(preprocess)
    except (KeyError, TypeError):
        return ""


def _made_with(row: Result) -> str:
    """Versions of this package, of Python and of others; older rows have the first alone."""
    others = row.get("versions")
    others = others if isinstance(others, dict) else {}
    return ", ".join([row["version"], *(f"{name} {number}" for name, number in others.items())])


def _features_by(key: str, rows: Sequence[Result]) -> dict[str, list[str]]:
    """The features that share a value, for each value that is not empty."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row[key]:
            found.setdefault(row[key], {})[title(row["feature"])] = None
    return {value: list(features) for value, features in found.items()}


def _curves(
    rows: Sequence[Result], lines: Sequence[Line], results: Results
) -> tuple[dict[str, dict[str, Curve]], list[tuple[Line, str]]]:
    """Curves of these lines by class and feature, and why some are not there."""
    row_of = {row["feature"]: row for row in rows}
    curves: dict[str, dict[str, Curve]] = {}
    problems = []
    for line in lines:
        try:
            for name, points in row_curves(results, row_of[line.feature]).items():
                curves.setdefault(name, {})[line.feature] = points
        except DeepFishingError as error:
            problems.append((line, str(error)))
    return curves, problems


def _axis(lines: Sequence[Line]) -> _Axis | None:
    """An axis around all values in round steps; None where nothing was measured."""
    if all(line.official is None for line in lines):
        return None
    shown = [(line.official, line.printed, *(line.interval or ())) for line in lines]
    known = [value for values in shown for value in values if value is not None]
    values = [round(value, 6) for value in known]  # a mean may be a hair above 100
    spread = max(values) - min(values)
    step = next(step for step in (1, 2, 5, 10, 20) if spread <= 5 * step)
    low = math.floor(min(values) / step) * step
    high = max(math.ceil(max(values) / step) * step, low + step)
    return _Axis(tuple(range(low, high + 1, step)))


def _figure(value: float | None, sign: bool = False) -> str:
    return _typeset(one_decimal(value, sign))


def _typeset(text: str) -> str:
    """Text with real minus signs, in which a figure and its percent sign stay together."""
    return re.sub(r"-(?=\d)", "−", text).replace(" %", "\u00a0%")


def _interval(interval: Interval | None) -> str:
    return interval_text(interval, "–")


def _points(points: Curve) -> str:
    """A curve as SVG coordinates on a square of 100 units, precision upwards."""
    return " ".join(f"{100 * recall:.4g},{100 - 100 * p:.4g}" for recall, p in points)
