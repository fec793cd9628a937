"""Stage 7, report: precision-recall curves, thin enough for a page.

Comes in: the scores and labels that were kept beside a row. Goes out: points to draw.
"""

from __future__ import annotations

import numpy as np

from deepfishing.errors import StoreError
from deepfishing.experiments.checks import Result
from deepfishing.experiments.results import Results
from deepfishing.metrics import precision_recall
from deepfishing.rank_one import Array

MOST_POINTS = 100  # as many as a small plot has pixels

Curve = list[tuple[float, float]]  # (recall, precision), both 0..1, recall rising


def curve(truth: Array, scores: Array, most: int = MOST_POINTS) -> Curve:
    """Points of the precision-recall curve of one class.

    Of the whole curve the points are kept at which recall rises, and of those at most `most`,
    evenly picked; each is a true point of the curve. The first precision is held down to
    recall 0.

    Examples
    --------
    >>> curve(np.array([1, -1, -1, 1]), np.array([0.9, 0.8, 0.7, 0.6]))
    [(0.0, 1.0), (0.5, 1.0), (1.0, 0.5)]
    """
    precision, recall = precision_recall(truth, scores)
    rises = np.flatnonzero(np.diff(recall, prepend=0.0))
    if len(rises) > most:
        rises = rises[np.linspace(0, len(rises) - 1, most).round().astype(int)]
    points = list(zip(recall[rises].tolist(), precision[rises].tolist(), strict=True))
    return [(0.0, points[0][1]), *points]


def row_curves(results: Results, row: Result) -> dict[str, Curve]:
    """The curve of each class that has an AP in this row.

    Raises
    ------
    StoreError
        If the scores are missing or do not fit the row.
    """
    scores, labels = row_scores(results, row)
    ap = row["ap"][row["official_ap"]]
    return {
        name: curve(labels[:, column], scores[:, column])
        for column, name in enumerate(row["classes"])
        if ap.get(name) is not None
    }


def row_scores(results: Results, row: Result) -> tuple[Array, Array]:
    """Scores and labels behind a row, both (n_test, n_classes).

    Raises
    ------
    StoreError
        If they are missing or do not fit the row.
    """
    scores, labels, _ = results.scores(row)
    shape = (row["n_test"], len(row["classes"]))
    if scores.shape != shape or labels.shape != shape:
        raise StoreError(
            f"scores and labels must have shape {shape}, got {scores.shape} and {labels.shape} in "
            f"{results.scores_path(row)}; run the experiment again"
        )
    return scores, labels
