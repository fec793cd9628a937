"""Reading and checking of a folder of results, and gains computed from its scores.

Rows and points are in groups that may be compared, rows in the order of the paper's Table 1. From
their scores follow precision-recall curves, thinned out for a page, and for each row its difference
from the best forward row by the official mAP, in the paired bootstrap. The mAP of a row on each
draw of test images is kept beside its scores, so it is computed once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.core.metrics import precision_recall
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import AUTO, Recipe, parse_recipe
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.core.statistics import RESAMPLES, Difference, bootstrap, difference
from deepfishing.errors import DeepFishingError, StoreError, explained
from deepfishing.evaluation.checks import (
    POINT_SETTING,
    ROW_SETTING,
    SETTINGS,
    UNSAID,
    Result,
)
from deepfishing.evaluation.results import DAMAGED, Curves, Results
from deepfishing.util.files import replacing

MOST_POINTS = 100  # of a curve: as many as a small plot has pixels
OTHER = 99  # the block of rows that the paper's Table 1 does not have

Curve = list[tuple[float, float]]  # (recall, precision), both 0..1, recall rising


@dataclass(frozen=True)
class ResultsFolder:
    """A folder of results: groups of rows for its tables, and groups of points for its curves."""

    results: Results
    tables: list[list[Result]]
    curves: list[list[Result]]


def open_folder(folder: Path) -> ResultsFolder:
    """All that a folder of results holds, checked."""
    results, points = open_results(folder), open_points(folder)
    return ResultsFolder(results, group_rows(results.rows), group_points(points))


def open_results(folder: Path) -> Results:
    """The results of a folder, each row whole; at least one, unless the folder has curves."""
    if not folder.is_dir():
        raise StoreError(
            f"results must be a folder, got {folder}, which is not one; "
            "run `deepfish reproduce` first"
        )
    curves = (folder / Curves.name).is_file()
    if not (folder / Results.name).is_file() and not curves:
        raise StoreError(
            f"a folder of results must hold results.jsonl, got {folder} without it; "
            f"run `deepfish reproduce` with --out {folder} first"
        )
    results = Results(folder)
    if not results.rows and not curves:
        raise StoreError(
            f"results must have at least one row, got none in {results.file}; "
            "run `deepfish reproduce` again"
        )
    return results


def open_points(folder: Path) -> list[Result]:
    """The points of a folder, each of them whole; none where it has no `curves.jsonl`."""
    return Curves(folder).rows if (folder / Curves.name).is_file() else []


def save_report(path: Path, text: str) -> Path:
    """Write a page or its tables, whole or not at all."""
    cannot = explained(StoreError, f"report cannot be written: {path}", of=OSError)
    with cannot, replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def setting(row: Result, names: Iterable[str] = POINT_SETTING) -> str:
    """What rows and points must agree in to be compared."""
    said = {**UNSAID, **row}
    every = dict.fromkeys((*SETTINGS, *names))
    return json.dumps([said.get(name) for name in every], sort_keys=True)


def group_rows(rows: Iterable[Result]) -> list[list[Result]]:
    """Rows that may be compared, together and in the paper's order; groups as they first came.

    Of a feature that was measured twice, by two versions of the package say, the last row counts.
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


def title(feature: str) -> str:
    """What a feature is called in tables and plots."""
    return parse_recipe(feature).title


def formulas(
    features: Iterable[str], rows: Iterable[Result] = ()
) -> list[tuple[str, str]]:
    """Titles that are not the names of their features, and these; of `auto` what it has chosen."""
    found = [
        (title(name), name) for name in dict.fromkeys(features) if title(name) != name
    ]
    return found + [
        (row["feature"], choice_text(row["auto"])) for row in rows if row.get("auto")
    ]


def choice_text(choice: Mapping[str, Any]) -> str:
    """What `auto` has chosen, or tried: a recipe, a temperature and a cost."""
    tau = "" if choice["tau"] is None else f", tau {choice['tau']:g}"
    return f"{title(choice['recipe'])}{tau}, cost {choice['cost']:g}"


def block(recipe: Recipe) -> int:
    """The part of Table 1 that a recipe stands in.

    0 is for a single layer's output, k for the concatenation around layer k and its gradient.
    """
    feature = recipe.features[0]
    if recipe.name != feature.name:
        return OTHER
    single = len(feature.factors) == 1 and isinstance(feature.factors[0].layer, int)
    return feature.around or (0 if single else OTHER)


def paper_order(row: Result) -> tuple[int, bool, int, bool]:
    """Single layers from below (y8 before x8), then layer by layer, the gradient last."""
    recipe = parse_recipe(row["feature"])
    place, (letter, layer, _) = block(recipe), recipe.features[0].symbols[0]
    single = place == 0
    return (
        place,
        recipe.is_gradient,
        int(layer) if single else 0,
        single and letter == "x",
    )


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


def precision_at_size(results: Results, row: Result) -> float:
    """Return the share of right photos among the first P of each class, mean over classes.

    P is the number of test photos that show the class. Difficult photos are left out.
    """
    scores, labels = row_scores(results, row)
    shares = []
    for column in _columns(row):
        known = labels[:, column] != 0
        shows = labels[known, column] == 1
        order = np.argsort(-scores[known, column], kind="stable")
        shares.append(shows[order[: shows.sum()]].mean())
    return float(np.mean(shares))


def gains(results: Results, rows: Sequence[Result]) -> dict[str, Difference]:
    """Official mAP of each row minus that of the best forward row of fixed cost, by feature.

    Without the best forward row itself, and without rows that cannot be compared with it on the
    same images: no labels, no scores, other images, or other classes left out.
    """
    rows = sorted(rows, key=paper_order)
    measured = [row for row in rows if official_map(row) is not None]
    forward = [row for row in measured if is_fixed_forward(row["feature"])]
    if not forward:
        return {}
    reference = max(forward, key=lambda row: official_map(row) or 0.0)
    found = {}
    for row in measured:
        gain = None if row is reference else gain_over(results, row, reference)
        if gain is not None:
            found[row["feature"]] = gain
    return found


def gain_over(results: Results, row: Result, reference: Result) -> Difference | None:
    """Return the official mAP of a row minus that of another one, in the paired bootstrap.

    None where they cannot be compared on the same images.
    """
    figure, other = official_map(row), official_map(reference)
    try:
        if figure is None or other is None or not same_test(results, row, reference):
            return None
        draws = _map_draws(results, row) - _map_draws(results, reference)
    except DeepFishingError:  # the page says it where it would draw these scores
        return None
    return difference(figure - other, draws)


def official_map(row: Result) -> float | None:
    """Return the mAP by the data set's official definition; None if it was not measured."""
    figure: float | None = (row["map"] or {}).get(row["official_ap"])
    return figure


def is_plain_forward(feature: str) -> bool:
    """Whether a feature has no gradient and uses no unlabelled photos."""
    recipe = parse_recipe(feature)
    return (
        not recipe.is_gradient
        and not recipe.uses_pool
        and feature not in (AUTO, AUTO_FORWARD)
    )


def is_chosen(feature: str) -> bool:
    """Whether a feature is chosen by the labels, with its cost: `auto` and its like."""
    return parse_recipe(feature).is_chosen_later


def is_fixed_forward(feature: str) -> bool:
    """Whether a feature is forward, uses no unlabelled photos and was not chosen by the labels."""
    return is_plain_forward(feature) and not is_chosen(feature)


def same_test(results: Results, a: Result, b: Result) -> bool:
    """Whether two rows were measured on the same images, labels and classes."""
    (_, labels_a, ids_a), (_, labels_b, ids_b) = results.scores(a), results.scores(b)
    return (
        ids_a == ids_b
        and np.array_equal(labels_a, labels_b)
        and _columns(a) == _columns(b)
    )


def _columns(row: Result) -> list[int]:
    """The classes that have an AP."""
    ap = row["ap"][row["official_ap"]]
    return [
        column for column, name in enumerate(row["classes"]) if ap.get(name) is not None
    ]


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
    shown, groups = (labels[:, columns], scores[:, columns]), results.groups(row)
    draws = bootstrap(*shown, names, (method,), groups=groups).map(method)
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
