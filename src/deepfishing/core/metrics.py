"""Average precision (AP) in its definitions, and mAP.

AP per class and its mean over classes are in percent and not rounded. The truth of a test image is
1 (present), -1 (absent) or 0 (difficult).

Each definition is a record in `DEFINITIONS`, and that is the only place that knows it. All of them
start from the same precision-recall curve (`Ranking`).

Two rules where the official devkit leaves the answer to chance: images with the same score enter
the curve together, so the order of the images does not matter, and recall is compared with t in
integers, so 3 of 10 found is a recall of at least 0.3.

An AP is between 0 and 100, also in floating point: it is a sum of counts times precisions, divided
by the sum of the counts, and no partial sum is rounded to above that of the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from deepfishing.errors import DatasetError, FeatureError, check_choice

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Ranking:
    """The precision-recall curves of draws of images, from the highest score down.

    Both arrays are whole numbers (points, draws); a draw may have none.
    """

    gained: Array  # positive images that each point of a curve adds
    added: Array  # all images that it adds, positive or not

    @cached_property
    def positive(self) -> Array:
        """Positive images up to each point."""
        return np.cumsum(self.gained, axis=0)

    @cached_property
    def precision(self) -> Array:
        """Share of positives up to each point, 0..1; 0 as long as a draw has no image."""
        ranked = np.cumsum(self.added, axis=0)
        none = np.zeros(ranked.shape)
        precision: Array = np.divide(self.positive, ranked, out=none, where=ranked > 0)
        return precision

    @cached_property
    def best(self) -> Array:
        """The best precision at the same or a higher recall."""
        best: Array = np.maximum.accumulate(self.precision[::-1], axis=0)[::-1]
        return best

    @cached_property
    def total(self) -> Array:
        """Positive images of each draw, (draws,); NaN for a draw without."""
        last = self.positive[-1]
        return np.where(last > 0, last, np.nan)

    def average(self, counts: Array, curve: Array, total: Array | int) -> Array:
        """Mean of a curve with whole numbers as weights, whose sum is total: percent (draws,)."""
        mean: Array = 100.0 * np.einsum("pd,pd->d", counts, curve) / total
        return mean


def _eleven_points(ranking: Ranking) -> Array:
    # how many of t = 0, 0.1, ..., 1 the recall has reached: whole numbers, so exact
    reached = np.floor(10 * ranking.positive / ranking.total) + 1
    return ranking.average(np.diff(reached, axis=0, prepend=0), ranking.best, 11)


def _area(ranking: Ranking) -> Array:
    return ranking.average(ranking.gained, ranking.best, ranking.total)


def _steps(ranking: Ranking) -> Array:
    return ranking.average(ranking.gained, ranking.precision, ranking.total)


@dataclass(frozen=True)
class Definition:
    """One definition of AP."""

    name: str  # the key in `results.jsonl`
    label: str  # as tables and axes show it
    help: str  # description in the report and in docs/notation.md
    ap: Callable[[Ranking], Array]  # in percent, (draws,)
    official_for: tuple[str, ...] = ()  # data sets whose own definition it is


DEFINITIONS = {
    definition.name: definition
    for definition in (
        Definition(
            "11point",
            "11-point",
            "mean of the best precision at recall 0, 0.1, ..., 1 or higher",
            _eleven_points,
            ("voc2007", "voc2008", "voc2009"),
        ),
        Definition(
            "area",
            "area",
            "area under the curve, each precision raised to the best at this or a higher recall",
            _area,
            ("voc2010", "voc2011", "voc2012"),
        ),
        Definition(
            "sklearn",
            "sklearn",
            "sum of precision times the step in recall, without raising, as in scikit-learn",
            _steps,
        ),
    )
}
DEFAULT = "area"  # of data sets that have no definition of their own


def official_ap(dataset: str) -> str:
    """The definition that is a data set's own, or the default one."""
    own = (one.name for one in DEFINITIONS.values() if dataset in one.official_for)
    return next(own, DEFAULT)


def check_definition(name: str) -> Definition:
    """The definition of this name; an error names those that exist."""
    check_choice("the definition of AP", name, DEFINITIONS)
    return DEFINITIONS[name]


@dataclass(frozen=True)
class Evaluation:
    """AP of every class and their mean, by each definition, in percent; None where there is none.

    Skipped are classes without a positive test example: they are not in the mean.
    """

    ap: dict[str, dict[str, float | None]]  # {definition: {class: AP}}
    map: dict[str, float | None]
    skipped: tuple[str, ...]


def evaluate(labels: Array, scores: Array, classes: Sequence[str]) -> Evaluation:
    """AP by all definitions, per class and in the mean.

    Parameters
    ----------
    labels : array of shape (n, C)
        1 present, -1 absent, 0 difficult (left out, in its class only).
    scores : array of shape (n, C)
        Higher means more probably present.
    classes : sequence of C names

    Examples
    --------
    >>> labels = np.array([[1, -1], [-1, -1], [1, -1]])
    >>> scores = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> result = evaluate(labels, scores, ["cat", "dog"])
    >>> result.ap["area"]
    {'cat': 83.33333333333333, 'dog': None}
    >>> result.map["area"], result.skipped
    (83.33333333333333, ('dog',))
    """
    labels, scores = np.asarray(labels), np.asarray(scores)
    check_columns(labels, scores, classes)
    check_signs(labels)
    ap: dict[str, dict[str, float | None]] = {method: {} for method in DEFINITIONS}
    for column, name in enumerate(classes):
        ranking = _ranking(labels[:, column], scores[:, column])
        for method, definition in DEFINITIONS.items():
            ap[method][name] = None
            if ranking is not None:
                ap[method][name] = float(definition.ap(ranking)[0])
    means: dict[str, float | None] = {}
    for method, by_class in ap.items():
        values = [value for value in by_class.values() if value is not None]
        means[method] = None
        if values:
            means[method] = float(np.mean(values))
    skipped = tuple(name for name in classes if ap[DEFAULT][name] is None)
    return Evaluation(ap, means, skipped)


def check_columns(labels: Array, scores: Array, classes: Sequence[str]) -> None:
    """Refuse labels and scores that do not have a column per class."""
    if (
        labels.ndim != 2
        or labels.shape != scores.shape
        or labels.shape[1] != len(classes)
    ):
        raise FeatureError(
            f"labels and scores must both have shape (n, {len(classes)}), one column per class, "
            f"got {labels.shape} and {scores.shape}"
        )


def check_signs(labels: Array) -> None:
    """Refuse 0 and 1 as scikit-learn has them: all that is absent would count as difficult."""
    if (labels == 1).any() and (labels == 0).any() and not (labels == -1).any():
        raise FeatureError(
            "labels must be 1 for present, -1 for absent and 0 for difficult, got none that is "
            "absent; pass np.where(labels > 0, 1, -1)"
        )


def average_precision(truth: Array, scores: Array, method: str) -> float:
    """AP of one class, in percent.

    Parameters
    ----------
    truth : array of shape (n,)
        1 present, -1 absent, 0 difficult (left out).
    scores : array of shape (n,)
        Higher means more probably present.
    method : str
        Name of a definition, of `DEFINITIONS`.

    Examples
    --------
    >>> truth, scores = np.array([1, -1, 1, 0]), np.array([0.9, 0.8, 0.7, 0.6])
    >>> [round(average_precision(truth, scores, method), 1) for method in DEFINITIONS]
    [84.8, 83.3, 83.3]
    """
    return float(check_definition(method).ap(_some_ranking(truth, scores))[0])


def precision_recall(truth: Array, scores: Array) -> tuple[Array, Array]:
    """Precision and recall (0..1) after each distinct score, from the highest score down."""
    ranking = _some_ranking(truth, scores)
    return ranking.precision[:, 0], ranking.positive[:, 0] / ranking.total


def _some_ranking(truth: Array, scores: Array) -> Ranking:
    ranking = _ranking(np.asarray(truth), np.asarray(scores))
    if ranking is None:
        raise DatasetError(
            f"average precision needs an image that shows the class, got none of {len(truth)}; "
            "leave the class out of the mean"
        )
    return ranking


def _ranking(truth: Array, scores: Array) -> Ranking | None:
    """The curve of one class, a point for each distinct score; None without a positive image."""
    if truth.ndim != 1 or truth.shape != scores.shape:
        raise FeatureError(
            f"truth and scores must have the same shape (n,), got {truth.shape} and {scores.shape}"
        )
    scores = scores.astype(np.float64)
    if not np.isin(truth, (-1, 0, 1)).all():
        raise DatasetError(
            f"truth must be 1, -1 or 0, got {sorted(set(truth.tolist()) - {-1, 0, 1})[:5]}"
        )
    if not np.isfinite(scores).all():
        raise FeatureError(
            f"scores must be finite, got {int((~np.isfinite(scores)).sum())} NaN or infinite "
            f"of {len(scores)}"
        )
    truth, scores = truth[truth != 0], scores[truth != 0]
    if not (truth == 1).any():
        return None
    _, point = np.unique(-scores, return_inverse=True)
    return Ranking(np.bincount(point, truth == 1)[:, None], np.bincount(point)[:, None])
