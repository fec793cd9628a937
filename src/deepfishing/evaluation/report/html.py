"""Report of a folder of results as one self-contained HTML page.

`report.html` has tables, plots, pictures and how they were measured. The page needs no network and
no script, and the same results give the same page, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from deepfishing import __version__
from deepfishing.core.metrics import DEFINITIONS
from deepfishing.core.recipes import pieces
from deepfishing.errors import DeepFishingError, ImageError
from deepfishing.evaluation.record import Result
from deepfishing.evaluation.report.charts import (
    Axis,
    Panel,
    panels,
    round_ticks,
    tick_text,
)
from deepfishing.evaluation.report.columns import table_1_sheet
from deepfishing.evaluation.report.confusions import (
    Confusions,
    confusions,
    matrix_sheet,
    pairs_sheet,
)
from deepfishing.evaluation.report.folder import (
    Curve,
    open_folder,
    precision_at_size,
    row_curves,
    save_report,
    setting,
)
from deepfishing.evaluation.report.gains import (
    gains,
    panel_splits,
    table_split,
)
from deepfishing.evaluation.report.pictures import Album
from deepfishing.evaluation.report.sheet import Sheet, interval_text, one_decimal
from deepfishing.evaluation.report.sheets import (
    chart_sheet,
    class_sheet,
    cost_sheet,
    curve_split_sheet,
    split_sheet,
)
from deepfishing.evaluation.report.tables import (
    Comparison,
    Line,
    comparison,
    formulas,
    label_text,
    title,
)
from deepfishing.evaluation.report.words import (
    curve_words,
    gain_words,
    layer_words,
    leak_words,
    summary_words,
    table_words,
)
from deepfishing.evaluation.results import Results
from deepfishing.images.dataset import DATASETS
from deepfishing.images.folder import is_folder


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
        `<folder>/report.html`. Missing scores or images are reported on the page.
    """
    folder = Path(folder)
    if images is not None and not is_folder(Path(images)):
        raise ImageError(f"images must be a folder, got {images}, which is not one")
    opened = open_folder(folder)
    album = Album(opened.results, Path(images) if images else None)
    points_by_setting = {setting(points[0]): points for points in opened.curves}
    parts = []
    for rows in opened.tables:
        points = points_by_setting.pop(setting(rows[0]), [])
        parts.append(_part(rows, points, album))
    page = render(
        "report.html.j2",
        parts=parts,
        curve_parts=[_common(group, group) for group in points_by_setting.values()],
        pictures=album.pictures,
    )
    return save_report(folder / "report.html", page)


def render(template: str, **values: Any) -> str:
    """Return a page from one of the templates."""
    return _environment().get_template(template).render(version=__version__, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "label": feature_label,
        "formula": formula_label,
        "figure": lambda value, sign=False: _typeset(one_decimal(value, sign)),
        "interval": lambda interval: _typeset(interval_text(interval)),
        "points": _points,
        "typeset": _typeset,
        "tick": tick_text,
    }
    environment.globals["definitions"] = DEFINITIONS
    return environment


def feature_label(name: str) -> Markup:
    """Return a feature's title in the paper's letters, as HTML."""
    return formula_label(title(name))


def formula_label(name: str) -> Markup:
    """Return a formula in the paper's letters, as HTML; it may be broken behind each sign.

    Text after a comma and a space, such as a cost, stays text.
    """
    recipe, comma, rest = name.partition(", ")
    label = Markup("")
    for piece in pieces(recipe):
        if not isinstance(piece, str):
            label += Markup(";&thinsp;").join(map(_symbol, piece.symbols))
            continue
        label += escape(piece)
        if piece in "+*":
            label += Markup("<wbr>")
    return label + comma + rest


def _symbol(symbol: tuple[str, str, str]) -> Markup:
    letter, layer, note = symbol
    label = Markup("{}<sub>{}</sub>").format({"dW": "∂E/∂W"}.get(letter, letter), layer)
    if note:
        label += f" {note}"
    return label


def _typeset(text: str) -> str:
    """Text with real minus signs and en dashes, a figure and its percent sign kept together."""
    text = re.sub(r"(?<=\d)-(?=\d)", "–", text)
    return re.sub(r"(?<![a-z])-(?=\d)", "−", text).replace(" %", "\u00a0%")


def _points(points: Curve) -> str:
    """Return a curve as SVG coordinates on a square of 100 units, precision upwards."""
    return " ".join(f"{100 * recall:.4g},{100 - 100 * p:.4g}" for recall, p in points)


def _common(measured: Sequence[Result], points: Sequence[Result]) -> dict[str, Any]:
    """Return what the template shows of any setting: `measured` are its rows and points."""
    curve_panels = panels(points)
    return {
        "row": measured[0],
        "label": label_text(measured[0]),
        "panels": [_panel(panel, points[0]) for panel in curve_panels],
        "titles": list(dict.fromkeys(panel.title for panel in curve_panels)),
        "formulas": formulas(name for panel in curve_panels for name in panel.features),
        "commands": _features_by(measured, _command),
        "versions": _features_by(measured, _versions),
    }


def _panel(panel: Panel, row: Result) -> dict[str, Any]:
    """Return a panel with its tables: the split of the gains, if there is one, and all lines."""
    splits = []
    for chart, chart_splits in panel_splits(panel):
        splits.append(curve_split_sheet(panel, chart, chart_splits, row, "page"))
    return {
        "panel": panel,
        "splits": splits,
        "sheets": [chart_sheet(panel, chart, row, "page") for chart in panel.charts],
    }


def _features_by(
    measured: Sequence[Result], key: Callable[[Result], str]
) -> dict[str, list[str]]:
    """Return the titles of the features by the command, or the versions, of their rows."""
    by_key: dict[str, dict[str, None]] = {}
    for row in measured:
        by_key.setdefault(key(row), {})[title(row["feature"])] = None
    by_key.pop("", None)
    return {text: list(titles) for text, titles in by_key.items()}


def _command(row: Result) -> str:
    return str(row["command"])


def _versions(row: Result) -> str:
    packages = row.get("versions")  # older rows have the package's own alone
    texts = [row["version"]]
    if isinstance(packages, dict):
        texts += [f"{name} {number}" for name, number in packages.items()]
    return ", ".join(texts)


def _part(rows: list[Result], points: list[Result], album: Album) -> dict[str, Any]:
    """Return all that the template shows of the rows of one setting, and of its curves."""
    results = album.results
    table = comparison(rows, gains(results, rows))
    split = table_split(results, table)
    common = _common([*rows, *points], points)
    curves, problems = _curves(results, table)
    confused = confusions(table)
    lines = [line.feature for line in table.lines]
    in_panels = [name for panel in common["panels"] for name in panel["panel"].features]
    return {
        **common,
        "formulas": formulas([*lines, *in_panels], rows),
        # in words
        "summary": summary_words(table, confused, _precision(results, table), points),
        "leak": leak_words(rows),
        "gain_words": gain_words(split),
        "curve_words": curve_words(points),
        "words": table_words(table),
        "layer_words": layer_words(table),
        # tables and charts
        "table": table,
        "table_1": table_1_sheet(table, "page"),
        "split_sheet": split_sheet(table, split, "page") if split else None,
        "classes": class_sheet(table, "page") if table.measured else None,
        "cost": cost_sheet(table),
        "axis": _axis(table) if table.measured else None,
        "confusions": confused,
        "confusion_sheets": _confusion_sheets(confused),
        "ap": _class_figures(rows),
        "curves": curves,
        "problems": problems,
        "album": album.show(table),
        # how it was measured
        "split": _split(rows[0]),
        "pixels": _pixels(rows[0].get("preprocess")),
        "unreadable": sorted(set().union(*(row["unreadable"] for row in rows))),
    }


def _curves(
    results: Results, table: Comparison
) -> tuple[dict[str, dict[str, Curve]], list[tuple[Line, str]]]:
    """Return precision-recall curves by class and feature, and why lines have none."""
    curves: dict[str, dict[str, Curve]] = {}
    problems = []
    for line in table.measured:
        try:
            by_class = row_curves(results, table.row_of(line))
        except DeepFishingError as error:
            problems.append((line, str(error)))
            continue
        for name, curve in by_class.items():
            curves.setdefault(name, {})[line.feature] = curve
    return curves, problems


def _confusion_sheets(confused: Confusions | None) -> dict[str, Sheet]:
    """Return the matrix, if it is small enough for numbers, and the most frequent pairs."""
    sheets = {}
    if confused is not None and confused.is_numbered:
        sheets["matrix"] = matrix_sheet(confused)
    if confused is not None and confused.pairs:
        more = f", of which these are {len(confused.pairs)}"
        sheets["pairs"] = pairs_sheet(confused, more=more)
    return sheets


def _class_figures(rows: Sequence[Result]) -> dict[str, dict[str, float | None]]:
    """Return official AP by feature and class."""
    figures = {}
    for row in rows:
        if row["ap"]:
            figures[row["feature"]] = row["ap"][row["official_ap"]]
    return figures


def _precision(results: Results, table: Comparison) -> float | None:
    """Return `precision_at_size` of the best row; None where its scores are missing."""
    if table.best is None:
        return None
    try:
        return precision_at_size(results, table.row_of(table.best))
    except DeepFishingError:
        # the page names the problem where it would draw these scores
        return None


def _split(row: Result) -> str:
    """Describe how training and test photos were separated; "" if unknown."""
    if row.get("split"):
        return str(row["split"])
    record = DATASETS.get(row["dataset"])
    if record is None:
        return ""
    return record.split


def _pixels(preprocess: Any) -> str:
    """Describe how images were resized for the network; "" if a row does not have it."""
    text = "short side to {short_side} pixels ({resample}), central square of {size}, {order}"
    try:
        return text.format_map(preprocess)
    except (KeyError, TypeError):
        return ""


def _axis(table: Comparison) -> Axis:
    """Return an axis of mAP around all values; it need not start at 0, since it carries dots."""
    values: list[float] = []
    for line in table.lines:
        figures = (line.official, line.printed, *(line.interval or ()))
        # a mean may be a hair above 100
        values += [round(value, 6) for value in figures if value is not None]
    return Axis(round_ticks(min(values), max(values), least=1))
