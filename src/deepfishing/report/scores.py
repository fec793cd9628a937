"""Stage 7, report: what the scores that were kept beside rows say.

Comes in: rows of one setting and their scores. Goes out: precision-recall curves thin enough for a
page, and for each row its difference from the best forward row (concatenations and recipes of
forward features included) by the official mAP, in the paired bootstrap.

The mAP of a row on each draw of test images is kept beside its scores, so it is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deepfishing.errors import DeepFishingError, StoreError
from deepfishing.experiments.checks import Result
from deepfishing.experiments.results import DAMAGED, Results
from deepfishing.files import replacing
from deepfishing.metrics import precision_recall
from deepfishing.rank_one import Array
from deepfishing.report.tables import comparison
from deepfishing.statistics import RESAMPLES, Difference, bootstrap, difference

MOST_POINTS = 100  # as many as a small plot has pixels

Curve = list[tuple[float, float]]  # (recall, precision), both 0..1, recall rising


def curve(truth: Array, scores: Array, most: int = MOST_POINTS) -> Curve:
    """Points of the precision-recall curve of one class.

    Those at which recall rises, and of these at most `most`, evenly picked; each is a true point
    of the curve. The first precision is held down to recall 0.
    """
    precision, recall = precision_recall(truth, scores)
    rises = np.flatnonzero(np.diff(recall, prepend=0.0))
    if len(rises) > most:
        rises = rises[np.linspace(0, len(rises) - 1, most).round().astype(int)]
    points = list(zip(recall[rises].tolist(), precision[rises].tolist(), strict=True))
    return [(0.0, points[0][1]), *points]


def row_curves(results: Results, row: Result) -> dict[str, Curve]:
    """The curve of each class that has an AP in this row."""
    scores, labels = row_scores(results, row)
    return {row["classes"][c]: curve(labels[:, c], scores[:, c]) for c in _columns(row)}


def row_scores(results: Results, row: Result) -> tuple[Array, Array]:
    """Scores and labels behind a row, both (n_test, n_classes)."""
    scores, labels, _ = results.scores(row)
    shape = (row["n_test"], len(row["classes"]))
    if scores.shape != shape or labels.shape != shape:
        raise StoreError(
            f"scores and labels must have shape {shape}, got {scores.shape} and {labels.shape} in "
            f"{results.scores_path(row)}; run the experiment again"
        )
    return scores, labels


def gains(results: Results, rows: Sequence[Result]) -> dict[str, Difference]:
    """Official mAP of each row minus that of the best forward row, by feature.

    Without the best forward row itself, and without rows that cannot be compared with it on the
    same images: no labels, no scores, other images, or other classes left out.
    """
    best = comparison(rows).forward
    if best is None:
        return {}
    reference = next(row for row in rows if row["feature"] == best.feature)
    method = reference["official_ap"]
    found = {}
    for row in rows:
        if row is reference or row["map"] is None or row["map"].get(method) is None:
            continue
        try:
            if same_test(results, row, reference):
                draws = _map_draws(results, row) - _map_draws(results, reference)
                measured = row["map"][method] - reference["map"][method]
                found[row["feature"]] = difference(measured, draws)
        except DeepFishingError:  # the page says it where it would draw these scores
            continue
    return found


def same_test(results: Results, a: Result, b: Result) -> bool:
    """Whether two rows were measured on the same images, labels and classes."""
    (_, labels_a, ids_a), (_, labels_b, ids_b) = results.scores(a), results.scores(b)
    return ids_a == ids_b and np.array_equal(labels_a, labels_b) and _columns(a) == _columns(b)


def _columns(row: Result) -> list[int]:
    """The classes that have an AP."""
    ap = row["ap"][row["official_ap"]]
    return [column for column, name in enumerate(row["classes"]) if ap.get(name) is not None]


def _map_draws(results: Results, row: Result) -> Array:
    """Official mAP of a row on each draw, (RESAMPLES,)."""
    source = results.scores_path(row)
    file = source.with_suffix(".draws.npy")
    kept = _kept(file, source)
    if kept is not None:
        return kept
    scores, labels = row_scores(results, row)
    columns, method = _columns(row), row["official_ap"]
    names = [row["classes"][column] for column in columns]
    draws = bootstrap(labels[:, columns], scores[:, columns], names, (method,)).map(method)
    try:
        with replacing(file) as partial, partial.open("wb") as out:
            np.save(out, draws)
    except OSError:  # a folder that is read only: computed again next time
        pass
    return draws


def _kept(file: Path, source: Path) -> Array | None:
    """Draws that were kept and are not older than the scores they were made of."""
    try:
        if file.stat().st_mtime_ns < source.stat().st_mtime_ns:
            return None
        with file.open("rb") as content:
            draws: Array = np.lib.format.read_array(content, allow_pickle=False)
    except DAMAGED:
        return None
    usable = draws.shape == (RESAMPLES,) and draws.dtype == np.float64
    return draws if usable else None
