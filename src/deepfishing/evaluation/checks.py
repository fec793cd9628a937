"""Checks of measured rows and points of curves.

A check returns the first key of a line of `results.jsonl` or `curves.jsonl` that is missing or not
usable. Rows are checked before writing and after reading, so a row that a report would refuse is
never written, and a run stops at a wrong row instead of at the end.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepfishing.core.metrics import DEFAULT, DEFINITIONS
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import FeatureError
from deepfishing.networks.reference import network_settings

if TYPE_CHECKING:  # scipy takes longer to load than a help to show
    from deepfishing.core.statistics import Interval

Result = dict[str, Any]  # a line of results.jsonl or curves.jsonl
Kinds = dict[str, type | tuple[type, ...]]

# the protocols that give curves
CURVES = ("low-shot", "knn", "curate", "search", "approximation")
TABLE = "table"
PROTOCOLS = (TABLE, *CURVES)

# Axes of figures against the number of labels.
POSITIVES, PHOTOS = "positive images per class", "labelled photos per class"
ACCURACY, BALANCED = "accuracy, %", "balanced accuracy, %"

# Forward features without unlabelled photos. The best of them in each cell is what a gain is over.
FORWARD_KERNELS = ("x7", "pow(x7,0.5)", "rbf(x7,2)", "x6;x7")

# Points and rows that do not agree in all of these were made of other features: what
# `extraction.settings.Settings` has; a test compares them.
SETTINGS = (*network_settings(), "tau", "label", "views")
# Points that agree in all of these, too, may stand in one chart.
POINT_SETTING: Kinds = {
    **dict.fromkeys(("dataset", "train", "test", "network", "weights_sha256"), str),
    **dict.fromkeys(("views", "difficult"), str),
    **dict.fromkeys(("tau", "C"), (int, float)),
    **{"label": (str, int, list), "n_test": int},
}
_MEASURED: Kinds = {
    **dict.fromkeys(("feature", "command", "version"), str),
    **{"n_train": int, "seconds": (int, float)},
}
_POINT: Kinds = {
    **_MEASURED,
    **dict.fromkeys(("protocol", "series", "x_axis", "y_axis", "note"), str),
}
# What results of older versions do not say, since there was nothing else.
UNSAID = {"views": "centre", "head": "softmax", "scores": ""}
# Rows that agree in all of these, too, may stand in one table.
ROW_SETTING: Kinds = {
    **{name: kind for name, kind in POINT_SETTING.items() if name != "views"},
    **{"official_ap": str, "classes": list, "n_train": int},
}
_ROW: Kinds = {**_MEASURED, "left_out": dict, "unreadable": list}

ROUNDING = 1e-6  # percent: rows of older versions have figures a hair above 100


@dataclass(frozen=True)
class Run:
    """Points that are measured together: their line's name, what decides them, how to measure."""

    series: str
    decided_by: Mapping[str, Any]
    measure: Callable[[], list[Result]]
    # what they are about, unless it is the feature of the run
    feature: str | None = None


def point(
    x_axis: str,
    x: int | None,
    y_axis: str,
    y: float | None,
    interval: Interval | None = None,
    *,
    n_train: int | None = None,
    note: str = "",
    draws: list[float] | None = None,
) -> Result:
    """What is measured at one point; `x` is None for a level that does not depend on it.

    `y` is None where it could not be measured, as `note` says, or else the mean of `draws`.
    """
    low, high = interval or (None, None)
    axes = {
        "x_axis": x_axis,
        "x": x,
        "y_axis": y_axis,
        "y": y,
        "low": low,
        "high": high,
    }
    # else all training images are seen
    trained = {"n_train": n_train} if n_train else {}
    return {**axes, **trained, "note": note, "draws": draws}


def map_axis(method: str) -> str:
    """The name of an axis of mAP; the default definition needs no word."""
    return "mAP, %" if method == DEFAULT else f"{DEFINITIONS[method].label} mAP, %"


def wrong_row(row: Result) -> str | None:
    """The first key of a row that is missing or not usable."""
    if wrong := _wrong_kind(row, {**ROW_SETTING, **_ROW}):
        return wrong
    method = row["official_ap"]

    def by_definition(name: str, usable: Callable[[Any], bool]) -> bool:
        """Whether it is None, or has usable values by the official definition and by all others."""
        values = row.get(name)
        return name in row and (
            values is None or (_each(values, usable) and method in values)
        )

    usable = {
        "classes": all(isinstance(name, str) for name in row["classes"]),
        "unreadable": all(isinstance(path, str) for path in row["unreadable"]),
        "feature": _is_recipe(row["feature"]),
        "official_ap": method in DEFINITIONS,
        "map": by_definition("map", _percent)
        and (row["map"] is None) == (row.get("ap") is None),
        "ap": by_definition("ap", lambda by_class: _each(by_class, _percent)),
        # rows that were measured before there were intervals or accuracies have none
        "map_interval": _each(row.get("map_interval", {}), _interval),
        "ap_interval": _each(
            row.get("ap_interval", {}), lambda some: _each(some, _interval)
        ),
    }
    for name in ("accuracy", "balanced_accuracy"):
        usable[name] = _percent(row.get(name))
        usable[f"{name}_interval"] = _interval(row.get(f"{name}_interval"))
    classes = {name for name in row["classes"] if isinstance(name, str)}
    usable["confusion"] = _is_confusion(row.get("confusion"), classes)
    return next((name for name, good in usable.items() if not good), None)


def wrong_point(point: Result) -> str | None:
    """The first key of a point that is missing or not usable."""
    if wrong := _wrong_kind(point, {**POINT_SETTING, **_POINT}):
        return wrong
    # points of older versions have no draws
    x, draws = point.get("x"), point.get("draws")
    ends = point.get("low"), point.get("high")
    usable = {
        "feature": _is_recipe(point["feature"]),
        "protocol": point["protocol"] in CURVES,
        "x": "x" in point and (x is None or (isinstance(x, int) and x > 0)),
        **{name: name in point and _finite(point[name]) for name in ("y", "high")},
        "low": "low" in point
        and _finite(ends[0])
        and (ends[0] is None) == (ends[1] is None),
        "draws": draws is None
        or (isinstance(draws, list) and None not in draws and all(map(_finite, draws))),
    }
    return next((name for name, good in usable.items() if not good), None)


def _wrong_kind(row: Result, kinds: Kinds) -> str | None:
    return next(
        (name for name, kind in kinds.items() if not isinstance(row.get(name), kind)),
        None,
    )


def _each(values: Any, usable: Callable[[Any], bool]) -> bool:
    return isinstance(values, dict) and all(map(usable, values.values()))


def _is_recipe(name: str) -> bool:
    with contextlib.suppress(FeatureError):
        return bool(parse_recipe(name))
    return False


def _finite(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _percent(value: Any) -> bool:
    """Whether it is a percentage, up to rounding, or None; NaN is not."""
    return value is None or (
        isinstance(value, int | float) and -ROUNDING <= value <= 100 + ROUNDING
    )


def _interval(pair: Any) -> bool:
    """Whether it is a pair of percentages, the lower first up to rounding, or None."""
    if not isinstance(pair, list) or len(pair) != 2 or None in pair:
        return pair is None
    return all(map(_percent, pair)) and pair[0] <= pair[1] + ROUNDING


def _is_confusion(table: Any, classes: set[str]) -> bool:
    """Whether it counts images of a class by the class that they are taken for, or is None."""

    def by_class(values: Any, usable: Callable[[Any], bool]) -> bool:
        return _each(values, usable) and classes.issuperset(values)

    def is_count(n: Any) -> bool:
        return isinstance(n, int) and 0 < n < 10**12

    return table is None or by_class(table, lambda answers: by_class(answers, is_count))
