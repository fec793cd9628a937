"""Stage 6, experiments: what a measured row and a point of a curve must be.

Comes in: a line of `results.jsonl` or `curves.jsonl` as a dict. Goes out: the first key that is
missing or not usable. The same check stands before writing and behind reading, so what a report
would refuse is never written: a run stops at the row that is wrong, not when all are measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from deepfishing.errors import FeatureError, OptionError, did_you_mean
from deepfishing.metrics import DEFINITIONS
from deepfishing.recipes import parse_recipe

Result = dict[str, Any]  # a line of results.jsonl or curves.jsonl
Kinds = dict[str, type | tuple[type, ...]]

CURVES = ("low-shot", "knn", "curate", "search", "approximation")  # the protocols that give curves
TABLE = "table"
PROTOCOLS = (TABLE, *CURVES)

# Points that agree in all of these may stand in one chart.
POINT_SETTING: Kinds = {
    "dataset": str,
    "train": str,
    "test": str,
    "network": str,
    "weights_sha256": str,
    "tau": (int, float),
    "label": (str, int, list),
    "views": str,
    "C": (int, float),
    "difficult": str,
    "n_test": int,
}
_POINT: Kinds = {
    "protocol": str,
    "feature": str,
    "series": str,
    "x_axis": str,
    "y_axis": str,
    "n_train": int,
    "seconds": (int, float),
    "note": str,
    "command": str,
    "version": str,
}
# Rows that agree in all of these may stand in one table. Those of older versions have no views.
# what results of older versions do not say, since there was nothing else
UNSAID = {"views": "centre", "head": "softmax", "scores": ""}
ROW_SETTING: Kinds = {
    **{name: kind for name, kind in POINT_SETTING.items() if name != "views"},
    "official_ap": str,
    "classes": list,
    "n_train": int,
}
_ROW: Kinds = {
    "feature": str,
    "left_out": dict,
    "unreadable": list,
    "seconds": (int, float),
    "command": str,
    "version": str,
}

ROUNDING = 1e-6  # percent: rows of older versions have figures a hair above 100


def check_protocol(name: str, known: Sequence[str] = PROTOCOLS) -> None:
    """Refuse a word that is no protocol.

    Examples
    --------
    >>> check_protocol("lowshot")
    Traceback (most recent call last):
    deepfishing.errors.OptionError: protocol must be one of table, low-shot, knn, curate,
        search, approximation, got 'lowshot'; did you mean low-shot?
    """
    if name not in known:
        raise OptionError(
            f"protocol must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}"
        )


def wrong_row(row: Result) -> str | None:
    """The first key of a row that is missing or not of its type.

    Examples
    --------
    >>> wrong_row({"dataset": "photos", "train": 7})
    'train'
    """
    wrong = _wrong_kind(row, {**ROW_SETTING, **_ROW})
    if wrong:
        return wrong
    for name in ("classes", "unreadable"):
        if not all(isinstance(item, str) for item in row[name]):
            return name
    if not _is_recipe(row["feature"]):
        return "feature"
    if row["official_ap"] not in DEFINITIONS:
        return "official_ap"
    for name in ("map", "ap"):
        if name not in row:
            return name
    mean, ap = row["map"], row["ap"]
    if (mean is None) != (ap is None) or (mean is not None and not _has(row, "map", _percent)):
        return "map"
    if ap is not None and not _has(row, "ap", _percentages):
        return "ap"
    # rows that were measured before there were intervals have neither
    if not _intervals(row.get("map_interval", {})):
        return "map_interval"
    each = row.get("ap_interval", {})
    if not (isinstance(each, dict) and all(_intervals(by_class) for by_class in each.values())):
        return "ap_interval"
    # rows of older versions, and those with several classes per image, have no accuracy
    for name in ("accuracy", "balanced_accuracy"):
        if not _percent(row.get(name)):
            return name
        if not _intervals({name: row.get(f"{name}_interval")}):
            return f"{name}_interval"
    return None if _is_confusion(row.get("confusion"), row["classes"]) else "confusion"


def wrong_point(point: Result) -> str | None:
    """The first key of a point that is missing or not of its type."""
    wrong = _wrong_kind(point, {**POINT_SETTING, **_POINT})
    if wrong:
        return wrong
    if not _is_recipe(point["feature"]):
        return "feature"
    if point["protocol"] not in CURVES:
        return "protocol"
    x = point.get("x")
    if "x" not in point or not (x is None or (isinstance(x, int) and x > 0)):
        return "x"
    for name in ("y", "low", "high"):
        if name not in point or not _finite(point[name]):
            return name
    if (point["low"] is None) != (point["high"] is None):
        return "low"
    draws = point.get("draws")  # points of older versions have none
    if draws is not None and not (isinstance(draws, list) and all(map(_number, draws))):
        return "draws"
    return None


def _wrong_kind(row: Result, kinds: Kinds) -> str | None:
    return next((name for name, kind in kinds.items() if not isinstance(row.get(name), kind)), None)


def _has(row: Result, name: str, usable: Any) -> bool:
    """Whether there is a usable value for the official definition, and for all that are given."""
    values = row[name]
    return (
        isinstance(values, dict)
        and row["official_ap"] in values
        and all(usable(value) for value in values.values())
    )


def _is_recipe(name: str) -> bool:
    try:
        parse_recipe(name)
    except FeatureError:
        return False
    return True


def _finite(value: Any) -> bool:
    return value is None or _number(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _percent(value: Any) -> bool:
    """Whether it is a percentage, up to rounding, or None; NaN is not."""
    return value is None or (
        isinstance(value, int | float) and -ROUNDING <= value <= 100 + ROUNDING
    )


def _percentages(values: Any) -> bool:
    return isinstance(values, dict) and all(map(_percent, values.values()))


def _intervals(values: Any) -> bool:
    """Whether all are pairs of percentages, the lower first up to rounding, or None."""
    return isinstance(values, dict) and all(
        pair is None
        or (
            isinstance(pair, list)
            and len(pair) == 2
            and None not in pair
            and all(map(_percent, pair))
            and pair[0] <= pair[1] + ROUNDING
        )
        for pair in values.values()
    )


def _is_confusion(table: Any, classes: list[str]) -> bool:
    """Whether it counts images of a class by the class that they are taken for, or is None."""
    if table is None:
        return True
    known = set(classes)
    return (
        isinstance(table, dict)
        and known.issuperset(table)
        and all(
            isinstance(answers, dict)
            and known.issuperset(answers)
            and all(isinstance(n, int) and 0 < n < 10**12 for n in answers.values())
            for answers in table.values()
        )
    )
