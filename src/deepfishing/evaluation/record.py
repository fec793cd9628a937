"""Records of results: keys of a measured row and of a point of a curve, and their checks.

A row is a line of `results.jsonl`, a point a line of `curves.jsonl`. A check returns the first key
that is missing or not usable. Rows are checked before writing and after reading, so a row that a
report would refuse is never written, and a run stops at a wrong row instead of at the end.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from deepfishing.core.metrics import DEFAULT, DEFINITIONS
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import FeatureError
from deepfishing.networks.reference import network_settings

if TYPE_CHECKING:  # scipy takes longer to load than a help to show
    from deepfishing.core.statistics import Interval

Result = dict[str, Any]  # a line of results.jsonl or curves.jsonl
Kinds = dict[str, type | tuple[type, ...]]

# the protocols that give curves, with their titles
CURVES = {
    "low-shot": "Few examples",
    "knn": "Nearest neighbours",
    "curate": "Labels chosen and doubted",
    "search": "Search by examples",
    "approximation": "Projections against the exact kernel",
}
TABLE = "table"
PROTOCOLS = (TABLE, *CURVES)

# Axes of figures against the number of labels.
POSITIVES, PHOTOS = "positive images per class", "labelled photos per class"
ACCURACY, BALANCED = "accuracy, %", "balanced accuracy, %"
# Axes of the approximation, and the line that the others are compared with.
BIAS, RMS = "bias of the kernel", "rms error of the kernel"
SECONDS = "seconds to train and score"
WITH_PROJECTION = "seconds to project, train and score"
EXACT = "exact kernel"

# Forward features without unlabelled photos. The best of them in each cell is what a gain is over.
FORWARD_KERNELS = ("x7", "pow(x7,0.5)", "rbf(x7,2)", "x6;x7")

# Points and rows that do not agree in all of these were made of other features: what
# `extraction.settings.Settings` has; a test compares them.
SETTINGS = (*network_settings(), "tau", "label", "views")
# Points that agree in all of these, too, may be in one chart.
POINT_SETTING: Kinds = {
    "dataset": str,
    "train": str,
    "test": str,
    "network": str,
    "weights_sha256": str,
    "views": str,
    "difficult": str,
    "tau": (int, float),
    "C": (int, float),
    "label": (str, int, list),
    "n_test": int,
}
_MEASURED: Kinds = {
    "feature": str,
    "command": str,
    "version": str,
    "n_train": int,
    "seconds": (int, float),
}
_POINT: Kinds = {
    **_MEASURED,
    "protocol": str,
    "series": str,
    "x_axis": str,
    "y_axis": str,
    "note": str,
}
# Settings that results of older versions lack, since there was nothing else.
OLD_SETTINGS = {"views": "centre", "head": "softmax", "scores": ""}
# Rows that agree in all of these, too, may be in one table.
ROW_SETTING: Kinds = {
    **{name: kind for name, kind in POINT_SETTING.items() if name != "views"},
    "official_ap": str,
    "classes": list,
    "n_train": int,
}
_ROW: Kinds = {**_MEASURED, "left_out": dict, "unreadable": list}

ROUNDING = 1e-6  # percent: rows of older versions have figures a hair above 100


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
    """Return the keys of one point; `x` is None for a level that does not depend on it.

    `y` is the mean of `draws`, or None where it was not measurable; `note` has the reason.
    `n_train` is given where not all training images are used.
    """
    low, high = interval or (None, None)
    keys: Result = {"x_axis": x_axis, "x": x, "y_axis": y_axis, "y": y}
    keys |= {"low": low, "high": high, "note": note, "draws": draws}
    if n_train:
        keys["n_train"] = n_train
    return keys


def map_axis(method: str) -> str:
    """Return the name of an axis of mAP; the default definition is not named."""
    return "mAP, %" if method == DEFAULT else f"{DEFINITIONS[method].label} mAP, %"


def wrong_row(row: Result) -> str | None:
    """Return the first key of a row that is missing or not usable."""
    wrong = _wrong_kind(row, {**ROW_SETTING, **_ROW})
    if wrong:
        return wrong
    classes = {name for name in row["classes"] if isinstance(name, str)}
    is_usable = {
        "classes": all(isinstance(name, str) for name in row["classes"]),
        "unreadable": all(isinstance(path, str) for path in row["unreadable"]),
        "feature": _is_recipe(row["feature"]),
        "official_ap": row["official_ap"] in DEFINITIONS,
        "map": _is_by_definition(row, "map", _is_percent)
        and (row["map"] is None) == (row.get("ap") is None),
        "ap": _is_by_definition(row, "ap", _is_each(_is_percent)),
        # rows that were measured before there were intervals or accuracies have none
        "map_interval": _is_each(_is_interval)(row.get("map_interval", {})),
        "ap_interval": _is_each(_is_each(_is_interval))(row.get("ap_interval", {})),
        "accuracy": _is_percent(row.get("accuracy")),
        "accuracy_interval": _is_interval(row.get("accuracy_interval")),
        "balanced_accuracy": _is_percent(row.get("balanced_accuracy")),
        "balanced_accuracy_interval": _is_interval(
            row.get("balanced_accuracy_interval")
        ),
        "confusion": _is_confusion(row.get("confusion"), classes),
    }
    return _first_unusable(is_usable)


def wrong_point(point: Result) -> str | None:
    """Return the first key of a point that is missing or not usable."""
    wrong = _wrong_kind(point, {**POINT_SETTING, **_POINT})
    if wrong:
        return wrong
    x, low, high = point.get("x"), point.get("low"), point.get("high")
    is_usable = {
        "feature": _is_recipe(point["feature"]),
        "protocol": point["protocol"] in CURVES,
        "x": "x" in point and (x is None or (isinstance(x, int) and x > 0)),
        "y": "y" in point and _is_finite(point["y"]),
        "high": "high" in point and _is_finite(high),
        "low": "low" in point and _is_finite(low) and (low is None) == (high is None),
        # points of older versions have no draws
        "draws": _are_draws(point.get("draws")),
    }
    return _first_unusable(is_usable)


def _first_unusable(is_usable: Mapping[str, bool]) -> str | None:
    for name, usable in is_usable.items():
        if not usable:
            return name
    return None


def _wrong_kind(row: Result, kinds: Kinds) -> str | None:
    for name, kind in kinds.items():
        if not isinstance(row.get(name), kind):
            return name
    return None


def _is_by_definition(row: Result, name: str, usable: Callable[[Any], bool]) -> bool:
    """Return whether a key is None, or has valid values by the official and all definitions."""
    if name not in row:
        return False
    values = row[name]
    if values is None:
        return True
    return _is_each(usable)(values) and row["official_ap"] in values


def _is_each(usable: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check of dictionaries whose values are all usable."""

    def check(values: Any) -> bool:
        return isinstance(values, dict) and all(map(usable, values.values()))

    return check


def _is_recipe(name: str) -> bool:
    with contextlib.suppress(FeatureError):
        return bool(parse_recipe(name))
    return False


def _is_finite(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _are_draws(draws: Any) -> bool:
    if draws is None:
        return True
    return isinstance(draws, list) and None not in draws and all(map(_is_finite, draws))


def _is_percent(value: Any) -> bool:
    """Return whether a value is None or a percentage, up to rounding; NaN is not."""
    if value is None:
        return True
    return isinstance(value, int | float) and -ROUNDING <= value <= 100 + ROUNDING


def _is_interval(pair: Any) -> bool:
    """Return whether a value is None or a pair of percentages in ascending order."""
    if pair is None:
        return True
    if not isinstance(pair, list) or len(pair) != 2 or None in pair:
        return False
    return all(map(_is_percent, pair)) and pair[0] <= pair[1] + ROUNDING


def _is_confusion(table: Any, classes: set[str]) -> bool:
    """Return whether it is None, or counts of images by class and answer."""
    if table is None:
        return True
    if not isinstance(table, dict) or not classes.issuperset(table):
        return False
    for answers in table.values():
        if not isinstance(answers, dict) or not classes.issuperset(answers):
            return False
        if not all(map(_is_count, answers.values())):
            return False
    return True


def _is_count(n: Any) -> bool:
    return isinstance(n, int) and 0 < n < 10**12
