"""Stage 7, report: what a folder of results holds, checked, and grouped by what may be compared.

Comes in: a folder with `results.jsonl` or `curves.jsonl`. Goes out: rows and points in groups of
one setting each, rows in the order of the paper's Table 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepfishing.errors import StoreError, explained
from deepfishing.experiments.checks import POINT_SETTING, ROW_SETTING, UNSAID, Result
from deepfishing.experiments.results import Curves, Results
from deepfishing.files import replacing
from deepfishing.recipes import AUTO, Recipe, parse_recipe

OTHER = 99  # the block of rows that the paper's Table 1 does not have


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
    return json.dumps([said[name] for name in (*UNSAID, *names)])


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


def formulas(features: Iterable[str], rows: Iterable[Result] = ()) -> list[tuple[str, str]]:
    """Titles that are not the names of their features, and these; of `auto` what it has chosen."""
    found = [(title(name), name) for name in dict.fromkeys(features) if title(name) != name]
    return found + [(AUTO, choice_text(row["auto"])) for row in rows if row.get("auto")]


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
    return place, recipe.is_gradient, int(layer) if single else 0, single and letter == "x"
