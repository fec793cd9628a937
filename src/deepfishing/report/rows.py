"""Stage 7, report: the rows of a results folder, checked, and grouped by what may be compared.

Comes in: a folder with `results.jsonl`. Goes out: rows that the tables can rely on, in groups of
one setting each and in the order of the paper's Table 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from deepfishing.errors import StoreError
from deepfishing.experiments.checks import ROW_SETTING, Row
from deepfishing.experiments.results import Curves, Results

OTHER = 99  # the block of rows that the paper's Table 1 does not have


def open_results(folder: Path) -> Results:
    """The results of a folder, each row whole; at least one, unless the folder has curves.

    Raises
    ------
    StoreError
        If the folder or its results are missing, empty or malformed.
    """
    if not folder.is_dir():
        raise StoreError(
            f"results must be a folder, got {folder}, which is none; run `deepfish reproduce` first"
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


def group_rows(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that may be compared, together and in the paper's order; groups as they first came.

    Where a feature was measured more than once under the same setting, by two versions of the
    package say, the last one counts.

    Examples
    --------
    >>> setting = dict.fromkeys(ROW_SETTING, "")
    >>> rows = [{**setting, "feature": f} for f in ("dW7", "x8", "x6;x7", "y8")]
    >>> rows += [{**setting, "feature": "x7", "tau": 4}]
    >>> [[row["feature"] for row in group] for group in group_rows(rows)]
    [['y8', 'x8', 'x6;x7', 'dW7'], ['x7']]
    """
    groups: dict[str, dict[str, Row]] = {}
    for row in rows:
        views = row.get("views", "centre")  # rows of older versions saw nothing else
        setting = json.dumps([views, *(row[name] for name in ROW_SETTING)])
        groups.setdefault(setting, {})[row["feature"]] = row
    return [sorted(group.values(), key=paper_order) for group in groups.values()]


def is_gradient(feature: str) -> bool:
    """Whether a feature is the gradient of a layer's weights, or a recipe that has one in it.

    Examples
    --------
    >>> is_gradient("dW7@exact"), is_gradient("x6;x7")
    (True, False)
    >>> is_gradient("pow(x7,0.5)+whiten(dW7)"), is_gradient("whiten(x7)")
    (True, False)
    """
    return any(part.startswith("dW") for part in re.split(r"[+*(),;\s]+", feature))


def block(feature: str) -> int:
    """The part of Table 1 that a feature stands in.

    0 is for a single layer's output, k for the concatenation around layer k and its gradient.

    Examples
    --------
    >>> [block(f) for f in ("x7", "x6;x7", "dW7", "x7;y8", "x:features.3")]
    [0, 7, 7, 8, 99]
    """
    gradient = re.fullmatch(r"dW(\d+)(@exact)?", feature)
    if gradient:
        return int(gradient[1])
    both = re.fullmatch(r"x(\d+);[xy](\d+)", feature)
    if both and int(both[1]) + 1 == int(both[2]):
        return int(both[2])
    return 0 if re.fullmatch(r"[xy]\d+", feature) else OTHER


def feature_parts(feature: str) -> list[tuple[str, str, bool] | str]:
    """A feature's name as (letter, layer, exact) for each layer, and what stands between them.

    Examples
    --------
    >>> feature_parts("x6;dW7@exact")
    [('x', '6', False), ';', ('dW', '7', True)]
    >>> feature_parts("pow(x:head,0.5)")
    ['pow', '(', ('x', 'head', False), ',', '0.5', ')']
    """
    return [_part(part) for part in re.split(r"([+*(),;])", feature) if part]


def _part(part: str) -> tuple[str, str, bool] | str:
    match = re.fullmatch(r"(x|y|dW):?(.+?)(@exact)?", part)
    return (match[1], match[2], match[3] is not None) if match else part


def paper_order(row: Row) -> tuple[int, bool, int, bool]:
    """Single layers from below (y8 before x8), then layer by layer, the gradient last."""
    feature = row["feature"]
    single = re.fullmatch(r"([xy])(\d+)", feature)
    layer, is_x = (int(single[2]), single[1] == "x") if single else (0, False)
    return block(feature), is_gradient(feature), layer, is_x
