"""Stage 6, experiments: a point of a curve, and a run that measures some.

Comes in: what a protocol measured. Goes out: values that `curves.jsonl` keeps and charts draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deepfishing.metrics import DEFAULT, DEFINITIONS


@dataclass(frozen=True)
class Point:
    """One point of a curve; `x` is None for a level that does not depend on it.

    `y` is None where it could not be measured, and `note` says why. `draws` are the figures of
    which it is the mean.
    """

    x_axis: str
    x: int | None
    y_axis: str
    y: float | None
    low: float | None = None
    high: float | None = None
    n_train: int | None = None
    note: str = ""
    draws: list[float] | None = None


@dataclass(frozen=True)
class Run:
    """Points that are measured together: their line's name, what decides them, how to measure.

    `feature` is what they are about, where it is not the feature that the run belongs to.
    """

    series: str
    decided_by: Mapping[str, Any]
    measure: Callable[[], list[Point]]
    feature: str | None = None


def map_axis(method: str) -> str:
    """The name of an axis of mAP; the default definition needs no word.

    Examples
    --------
    >>> map_axis("11point"), map_axis("area")
    ('11-point mAP, %', 'mAP, %')
    """
    return "mAP, %" if method == DEFAULT else f"{DEFINITIONS[method].label} mAP, %"
