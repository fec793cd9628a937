"""Report of a folder of results as one self-contained HTML page.

`report.html` has tables, plots, pictures and how they were measured. The page needs no network and
no script, and the same results give the same page, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from deepfishing import __version__
from deepfishing.core.metrics import DEFINITIONS
from deepfishing.core.recipes import pieces
from deepfishing.errors import DeepFishingError, ImageError
from deepfishing.evaluation.checks import Result
from deepfishing.evaluation.report.charts import Axis, panels, round_ticks, tick_text
from deepfishing.evaluation.report.columns import column_notes, columns
from deepfishing.evaluation.report.gain_split import (
    panel_splits,
    plain_forward_lines,
    table_split,
)
from deepfishing.evaluation.report.pictures import Album
from deepfishing.evaluation.report.rows import (
    Curve,
    formulas,
    gains,
    open_folder,
    precision_at_size,
    row_curves,
    save_report,
    setting,
    title,
)
from deepfishing.evaluation.report.tables import (
    Comparison,
    comparison,
    confusions,
    interval_text,
    label_text,
    left_out,
    left_out_text,
    one_decimal,
)
from deepfishing.evaluation.report.words import (
    curve_words,
    gain_words,
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
        `<folder>/report.html`. Where scores or images are missing, the page says so.
    """
    folder = Path(folder)
    if images is not None and not is_folder(Path(images)):
        raise ImageError(f"images must be a folder, got {images}, which is not one")
    found = open_folder(folder)
    album = Album(found.results, Path(images) if images else None)
    curves = {setting(points[0]): points for points in found.curves}
    groups = [
        _group(rows, curves.pop(setting(rows[0]), []), album) for rows in found.tables
    ]
    page = render(
        "report.html.j2",
        groups=groups,
        curve_groups=[_shared(group, group) for group in curves.values()],
        pictures=album.pictures,
    )
    return save_report(folder / "report.html", page)


def render(template: str, **values: Any) -> str:
    """A page from one of the templates."""
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
        "interval": lambda interval: interval_text(interval, "–"),
        "points": _points,
        "splits": panel_splits,
        "forward_lines": plain_forward_lines,
        "typeset": _typeset,
        "tick": tick_text,
    }
    environment.globals["definitions"] = DEFINITIONS
    return environment


def feature_label(name: str) -> Markup:
    """A feature's title in the paper's letters, as HTML."""
    return formula_label(title(name))


def formula_label(name: str) -> Markup:
    """A formula in the paper's letters, as HTML; it may be broken behind each sign.

    What follows a comma and a space, such as a cost, is text.
    """
    recipe, comma, rest = name.partition(", ")
    found = Markup("")
    for piece in pieces(recipe):
        if isinstance(piece, str):
            found += escape(piece) + (Markup("<wbr>") if piece in "+*" else "")
        else:
            found += Markup(";&thinsp;").join(map(_symbol, piece.symbols))
    return found + comma + rest


def _symbol(symbol: tuple[str, str, str]) -> Markup:
    letter, layer, note = symbol
    label = Markup("{}<sub>{}</sub>").format({"dW": "∂E/∂W"}.get(letter, letter), layer)
    return label + f" {note}" if note else label


def _typeset(text: str) -> str:
    """Text with real minus signs and en dashes, a figure and its percent sign kept together."""
    text = re.sub(r"(?<=\d)-(?=\d)", "–", text)
    return re.sub(r"(?<![a-z])-(?=\d)", "−", text).replace(" %", "\u00a0%")


def _points(points: Curve) -> str:
    """A curve as SVG coordinates on a square of 100 units, precision upwards."""
    return " ".join(f"{100 * recall:.4g},{100 - 100 * p:.4g}" for recall, p in points)


def _shared(measured: Sequence[Result], points: Sequence[Result]) -> dict[str, Any]:
    """What the template shows of any setting: `measured` are its rows and points."""
    shown = panels(points)
    commands: dict[str, dict[str, None]] = {}
    versions: dict[str, dict[str, None]] = {}
    for row in measured:
        # features by the command and by the versions that they were measured with
        others = row.get("versions")  # older rows have the package's own alone
        others = others if isinstance(others, dict) else {}
        made_with = ", ".join(
            [row["version"], *(f"{name} {n}" for name, n in others.items())]
        )
        for text, found in ((row["command"], commands), (made_with, versions)):
            if text:
                found.setdefault(text, {})[title(row["feature"])] = None
    return {
        "row": measured[0],
        "label": label_text(measured[0]),
        "panels": shown,
        "titles": list(dict.fromkeys(panel.title for panel in shown)),
        "formulas": formulas(name for panel in shown for name in panel.features),
        "commands": {text: list(features) for text, features in commands.items()},
        "versions": {text: list(features) for text, features in versions.items()},
    }


def _group(rows: list[Result], points: list[Result], album: Album) -> dict[str, Any]:
    """All that the template shows of the rows of one setting, and of its curves."""
    table = comparison(rows, gains(album.results, rows))
    split = table_split(album.results, table)
    shared = _shared([*rows, *points], points)
    curves: dict[str, dict[str, Curve]] = {}  # by class and feature
    problems = []
    for line, row in zip(table.lines, table.rows, strict=True):
        if line.official is None:
            continue
        try:
            for name, curve in row_curves(album.results, row).items():
                curves.setdefault(name, {})[line.feature] = curve
        except DeepFishingError as error:
            problems.append((line, str(error)))
    features = [line.feature for line in table.lines]
    confused = confusions(table)
    return {
        **shared,
        "table": table,
        "columns": columns(table),
        "column_notes": [note.removeprefix("* ") for note in column_notes(table)],
        "formulas": formulas(
            [
                *features,
                *(name for panel in shared["panels"] for name in panel.features),
            ],
            rows,
        ),
        "confusions": confused,
        "ap": {
            row["feature"]: row["ap"][row["official_ap"]] for row in rows if row["ap"]
        },
        "curves": curves,
        "problems": problems,
        "album": album.show(table),
        "summary": summary_words(
            table, confused, _precision(album.results, table), points
        ),
        "leak": leak_words(rows[0]),
        "split": _split(rows[0]),
        "words": table_words(table),
        "gain_split": split,
        "gain_words": gain_words(split),
        "curve_words": curve_words(points),
        "axis": _axis(table) if table.measured else None,
        "pixels": _pixels(rows[0].get("preprocess")),
        "left_out": left_out(rows),
        "left_out_text": left_out_text(rows),
        "unreadable": sorted({path for row in rows for path in row["unreadable"]}),
    }


def _precision(results: Results, table: Comparison) -> float | None:
    """The figure of `precision_at_size` for the best row; None where its scores are missing."""
    if table.best is None:
        return None
    row = next(row for row in table.rows if row["feature"] == table.best.feature)
    try:
        return precision_at_size(results, row)
    except DeepFishingError:
        # the page names the problem where it would draw these scores
        return None


def _split(row: Result) -> str:
    """How training and test photos were separated, as far as it is known."""
    if row.get("split"):
        return str(row["split"])
    record = DATASETS.get(row["dataset"])
    return record.split if record else ""


def _pixels(preprocess: Any) -> str:
    """How images were made to fit the network; empty where a row does not say it."""
    text = "short side to {short_side} pixels ({resample}), central square of {size}, {order}"
    try:
        return text.format_map(preprocess)
    except (KeyError, TypeError):
        return ""


def _axis(table: Comparison) -> Axis:
    """An axis of mAP around all values. It need not start at 0: dots are drawn on it, not bars."""
    shown = [
        (line.official, line.printed, *(line.interval or ())) for line in table.lines
    ]
    # a mean may be a hair above 100
    values = [round(value, 6) for some in shown for value in some if value is not None]
    return Axis(round_ticks(min(values), max(values), least=1))
