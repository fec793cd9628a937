"""Stage 6, experiments: points of a curve, and a run that measures some.

Comes in: what a protocol measured. Goes out: values that `curves.jsonl` keeps and charts draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deepfishing.experiments.checks import Result
from deepfishing.metrics import DEFAULT, DEFINITIONS
from deepfishing.statistics import Interval


@dataclass(frozen=True)
class Run:
    """Points that are measured together: their line's name, what decides them, how to measure.

    `feature` is what they are about, where it is not the feature that the run belongs to.
    """

    series: str
    decided_by: Mapping[str, Any]
    measure: Callable[[], list[Result]]
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

    `y` is None where it could not be measured, and `note` says why. `draws` are the figures of
    which it is the mean.
    """
    low, high = interval or (None, None)
    axes = {"x_axis": x_axis, "x": x, "y_axis": y_axis, "y": y, "low": low, "high": high}
    return {**axes, "n_train": n_train, "note": note, "draws": draws}


def map_axis(method: str) -> str:
    """The name of an axis of mAP; the default definition needs no word.

    >>> map_axis("11point"), map_axis("area")
    ('11-point mAP, %', 'mAP, %')
    """
    return "mAP, %" if method == DEFAULT else f"{DEFINITIONS[method].label} mAP, %"
