"""Reading of a folder of results: rows and points in groups that may be compared, and scores.

Rows are in the order of the paper's Table 1. From their scores follow precision-recall curves,
thinned out for a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepfishing.core.metrics import precision_recall
from deepfishing.core.rank_one import Array
from deepfishing.errors import StoreError, reraise_as
from deepfishing.evaluation.record import (
    OLD_SETTINGS,
    POINT_SETTING,
    ROW_SETTING,
    SETTINGS,
    Result,
)
from deepfishing.evaluation.report.tables import paper_order
from deepfishing.evaluation.results import Curves, Results
from deepfishing.util.files import replacing

MAX_POINTS = 100  # of a curve: as many as a small plot has pixels

Curve = list[tuple[float, float]]  # (recall, precision), both 0..1, recall rising


@dataclass(frozen=True)
class ResultsFolder:
    """A folder of results: groups of rows for its tables, and groups of points for its curves."""

    results: Results
    tables: list[list[Result]]
    curves: list[list[Result]]


def open_folder(folder: Path) -> ResultsFolder:
    """Read and check a folder of results."""
    results, points = open_results(folder), open_points(folder)
    return ResultsFolder(results, group_rows(results.rows), group_points(points))


def open_results(folder: Path) -> Results:
    """Read and check the rows of a folder; at least one, unless the folder has curves."""
    if not folder.is_dir():
        raise StoreError(
            f"results must be a folder, got {folder}, which is not one; "
            "run `deepfish reproduce` first"
        )
    has_curves = (folder / Curves.name).is_file()
    if not (folder / Results.name).is_file() and not has_curves:
        raise StoreError(
            f"a folder of results must hold results.jsonl, got {folder} without it; "
            f"run `deepfish reproduce` with --out {folder} first"
        )
    results = Results(folder)
    if not results.rows and not has_curves:
        raise StoreError(
            f"results must have at least one row, got none in {results.file}; "
            "run `deepfish reproduce` again"
        )
    return results


def open_points(folder: Path) -> list[Result]:
    """Read and check the points of a folder; none where it has no `curves.jsonl`."""
    return Curves(folder).rows if (folder / Curves.name).is_file() else []


def save_report(path: Path, text: str) -> Path:
    """Write a page or its tables, whole or not at all."""
    problem = f"report cannot be written: {path}"
    with reraise_as(StoreError, problem, of=OSError), replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def setting(row: Result, names: Iterable[str] = POINT_SETTING) -> str:
    """Return all values that rows or points must share to be compared."""
    row = {**OLD_SETTINGS, **row}
    all_names = dict.fromkeys((*SETTINGS, *names))
    return json.dumps([row.get(name) for name in all_names], sort_keys=True)


def group_rows(rows: Iterable[Result]) -> list[list[Result]]:
    """Group rows that may be compared, in the paper's order; groups in order of appearance.

    Of a feature that was measured twice, for instance by two versions, the last row counts.
    """
    groups: dict[str, dict[str, Result]] = {}
    for row in rows:
        groups.setdefault(setting(row, ROW_SETTING), {})[row["feature"]] = row
    return [sorted(group.values(), key=paper_order) for group in groups.values()]


def group_points(points: Iterable[Result]) -> list[list[Result]]:
    """Points of one setting together, in the order in which settings first came."""
    groups: dict[str, list[Result]] = {}
    for point in points:
        groups.setdefault(setting(point), []).append(point)
    return list(groups.values())


def curve(truth: Array, scores: Array, most: int = MAX_POINTS) -> Curve:
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
    """Return the curve of each class that has an AP in this row."""
    scores, labels = row_scores(results, row)
    curves = {}
    for column in measured_columns(row):
        name = row["classes"][column]
        curves[name] = curve(labels[:, column], scores[:, column])
    return curves


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


def precision_at_size(results: Results, row: Result) -> float:
    """Return the share of right photos among the first P of each class, mean over classes.

    P is the number of test photos that show the class. Difficult photos are left out.
    """
    scores, labels = row_scores(results, row)
    shares = []
    for column in measured_columns(row):
        is_known = labels[:, column] != 0
        shows = labels[is_known, column] == 1
        order = np.argsort(-scores[is_known, column], kind="stable")
        shares.append(shows[order[: shows.sum()]].mean())
    return float(np.mean(shares))


def same_test(results: Results, a: Result, b: Result) -> bool:
    """Return whether two rows were measured on the same images, labels and classes."""
    _, labels_a, ids_a = results.scores(a)
    _, labels_b, ids_b = results.scores(b)
    same_labels = ids_a == ids_b and np.array_equal(labels_a, labels_b)
    return same_labels and measured_columns(a) == measured_columns(b)


def measured_columns(row: Result) -> list[int]:
    """Numbers of the classes that have an AP."""
    ap = row["ap"][row["official_ap"]]
    columns = []
    for column, name in enumerate(row["classes"]):
        if ap.get(name) is not None:
            columns.append(column)
    return columns
