"""The plots of docs/when.md are made of curves as `deepfish reproduce` leaves them."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from deepfishing.evaluation.results import Curves, row_key

ROOT = Path(__file__).parents[2]
PHOTOS = "labelled photos per class"
SETTING = {
    **{
        "train": "train",
        "test": "test",
        "weights_sha256": "ab" * 32,
        "views": "centre",
    },
    **{
        "tau": 2.0,
        "label": "uniform",
        "C": 1.0,
        "difficult": "ignore",
        "official_ap": "area",
    },
    **{
        "n_train": 100,
        "n_test": 100,
        "seconds": 1.0,
        "command": "",
        "version": "0",
        "note": "",
    },
}


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location(
        "plots", ROOT / "benchmarks" / "when_plots.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path, rng):
    """Curves of one data set, in both forms, up to 32 labels."""
    points = []
    for series, level in (("x7", 50.0), ("auto-forward", 55.0), ("auto", 57.0)):
        for form in (PHOTOS, "positive images per class"):
            for x in (1, 2, 32):
                draws = (level + x + rng.normal(size=5)).tolist()
                point = {"protocol": "low-shot", "feature": series, "series": series}
                point |= {"dataset": "scans", "network": "toy", "x_axis": form, "x": x}
                point |= {
                    "y_axis": "mAP, %",
                    "y": float(np.mean(draws)),
                    "draws": draws,
                }
                point |= {
                    "low": None,
                    "high": None,
                    "key": row_key(s=series, form=form, x=x),
                }
                points.append({**SETTING, **point})
    Curves(tmp_path / "scans").keep(points)
    return tmp_path


def test_lines_are_the_second_form_up_to_sixteen_labels(module, folder):
    lines = module.read_lines([folder / "scans"])
    (splits,) = lines.values()
    assert list(lines) == [("scans", "toy")]
    assert [split.labels for split in splits] == [1, 2]
    assert splits[0].of_pool.mean == pytest.approx(5, abs=2)
    text = module.table(lines)
    assert f"| scans, toy | gradients | {splits[0].of_gradients.text} |" in text


def test_the_plots_are_the_same_each_time(module, folder, tmp_path):
    lines = module.read_lines([folder / "scans"])
    written = []
    for name in ("a.svg", "b.svg"):
        module.draw(lines, "gain", "of_pool", tmp_path / name)
        written.append((tmp_path / name).read_text(encoding="utf-8"))
    assert re.search("labelled photos per class", written[0])
    assert written[0] == written[1]
