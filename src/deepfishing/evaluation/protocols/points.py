"""Runs: points of a curve that are measured together, and points that are means of draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from deepfishing.core.recipes import Recipe
from deepfishing.core.statistics import Interval, bounded, mean_interval
from deepfishing.evaluation.record import Result, point


@dataclass(frozen=True)
class Run:
    """Points that are measured together."""

    feature: str  # what they are about
    series: str  # the name of their line
    decided_by: Mapping[str, Any]  # with feature and line, what decides the figures
    measure: Callable[[], list[Result]]

    @classmethod
    def of_recipe(
        cls,
        recipe: Recipe,
        measure: Callable[[Recipe], list[Result]],
        **decided_by: Any,
    ) -> Run:
        """Return the run of a line that is named after its feature."""
        return cls(recipe.name, recipe.name, decided_by, partial(measure, recipe))


def mean_point(
    x_axis: str,
    x: int,
    y_axis: str,
    draws: Sequence[float],
    interval: Interval | None = None,
    n_train: int | None = None,
) -> Result:
    """Return the mean of draws of a percentage, by default with Student's interval."""
    mean = float(np.mean(draws))
    interval = interval or mean_interval(draws)
    if interval is not None:
        interval = bounded(interval, mean)
    return point(
        x_axis,
        x,
        y_axis,
        mean,
        interval,
        n_train=n_train,
        draws=list(draws) if len(draws) > 1 else None,
    )
