"""Targets: what `deepfish report` reads: rows, points and scores."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.evaluation.report.confusions import confusions
from deepfishing.evaluation.report.folder import (
    group_points,
    group_rows,
    open_points,
    open_results,
)
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.sheets import curve_sheets
from deepfishing.evaluation.report.tables import comparison, left_out
from deepfishing.evaluation.report.text import latex, markdown, write_markdown
from deepfishing.evaluation.results import Results, row_key
from fuzz.parts import join, split
from fuzz.rule import obey
from fuzz.target import Run, Target, one_of, put

_FILES = ("results.jsonl", "curves.jsonl")
_SHARED: dict[str, Any] = {
    **{"dataset": "voc2007", "train": "trainval", "test": "test", "network": "vgg16"},
    **{
        "weights_sha256": "ab",
        "tau": 2.0,
        "label": "uniform",
        "views": "centre",
        "C": 1.0,
    },
    **{"difficult": "negative", "official_ap": "area", "n_train": 3, "n_test": 2},
    **{"seconds": 1.5, "command": "deepfish", "version": "0.1.0"},
}


def _row(feature: str) -> dict[str, Any]:
    figures = dict.fromkeys(("11point", "area", "sklearn"), 50.0)
    row = {
        **_SHARED,
        **{
            "feature": feature,
            "classes": ["cat", "dog"],
            "left_out": {"dog": "no image"},
        },
        **{"unreadable": [], "map": figures, "map_interval": {"area": [40.0, 60.0]}},
        "ap": {method: {"cat": 50.0, "dog": None} for method in figures},
        "ap_interval": {"area": {"cat": [40.0, 60.0], "dog": None}},
        **{
            "accuracy": 50.0,
            "accuracy_interval": [40.0, 60.0],
            "balanced_accuracy": 50.0,
        },
        **{
            "balanced_accuracy_interval": [40.0, 60.0],
            "confusion": {"cat": {"cat": 1, "dog": 1}},
        },
    }
    return {**row, "key": row_key(feature=feature)}


def _point(series: str, x: int | None) -> dict[str, Any]:
    point = {
        **_SHARED,
        **{
            "protocol": "knn",
            "feature": "x7",
            "series": series,
            "x_axis": "k",
            "y_axis": "mAP, %",
        },
        **{"x": x, "y": 50.0, "low": 40.0, "high": 60.0, "note": ""},
    }
    return {**point, "key": row_key(series=series, x=x)}


def _seeds() -> list[bytes]:
    rows = [json.dumps(_row(feature)) for feature in ("x7", "dW7")]
    points = [json.dumps(_point(*one)) for one in (("x7", 1), ("x7", 5), ("dW7", None))]
    return [join(["\n".join(rows).encode(), "\n".join(points).encode()])]


def _results(folder: Path) -> Run:
    def run(data: bytes) -> None:
        for name, content in zip(_FILES, split(data, 2), strict=True):
            put(folder / name, content)
        obey(lambda: _tables(folder))
        if one_of(data, 50) == 0:  # slow, and little of it looks at the rows
            obey(lambda: write_report(folder))
            obey(lambda: write_markdown(folder))

    return run


def _tables(folder: Path) -> None:
    results, points = open_results(folder), open_points(folder)
    for rows in group_rows(results.rows):
        table = comparison(rows)
        left_out(rows)
        confusions(table)
    for group in group_points(points):
        for sheet in curve_sheets(group):
            markdown(sheet)
            latex(sheet)


def _scores(folder: Path) -> Run:
    row = _row("x7")
    put(folder / _FILES[0], json.dumps(row).encode())
    results = Results(folder)
    path = results.scores_path(row)
    path.parent.mkdir()

    def run(data: bytes) -> None:
        put(path, data)
        obey(lambda: results.scores(row))

    return run


def _saved(compress: bool) -> bytes:
    out = io.BytesIO()
    save = np.savez_compressed if compress else np.savez
    labels = np.array([[1, -1], [0, 1]], np.int8)
    save(out, scores=np.eye(2), labels=labels, ids=np.array(["a", "b"]))
    return out.getvalue()


TARGETS = {
    "results": Target(
        "results.jsonl and curves.jsonl, to tables and a page",
        _results,
        _seeds,
        parts=2,
        tokens=(
            b'"key"',
            b'"map"',
            b'"ap"',
            b'"x"',
            b'"y"',
            b"null",
            b"NaN",
            b"Infinity",
            b"\n",
        ),
    ),
    "scores": Target(
        "scores beside a row, .npz",
        _scores,
        lambda: [_saved(False), _saved(True)],
        tokens=(
            b"PK\x03\x04",
            b"PK\x01\x02",
            b"'descr'",
            b"'O'",
            b"'<U9'",
            b"'shape': (",
            b"True",
        ),
    ),
}
