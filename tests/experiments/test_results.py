"""Rows and points on disk: what a report would refuse is refused when it is written."""

import json

import pytest

from deepfishing.errors import OptionError, StoreError
from deepfishing.experiments.checks import wrong_point, wrong_row
from deepfishing.experiments.curves import measure_curves
from deepfishing.experiments.reproduce import Protocol, reproduce
from deepfishing.experiments.results import Curves, Results
from deepfishing.report.html import write_report


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ap_interval", {"area": {"red": [100.1, 100.0]}}),
        ("map_interval", {"area": [3.0, 2.0]}),
        ("map", {"area": 101.0}),
        ("ap", {"area": {"red": float("nan")}}),
        ("classes", None),
        ("C", "cv"),
    ],
)
def test_a_row_that_no_report_could_read_is_not_written(dataset, network, tmp_path, name, value):
    (row,) = reproduce(dataset, network, tmp_path, "x7")
    before = (tmp_path / "results.jsonl").read_text()
    broken = {**row, "key": "other", name: value}
    assert wrong_row(broken) == name
    with pytest.raises(StoreError, match=f"usable '{name}'.*left as it was"):
        Results(tmp_path).add(broken)
    assert (tmp_path / "results.jsonl").read_text() == before
    (tmp_path / "results.jsonl").write_text(before + json.dumps(broken) + "\n")
    with pytest.raises(StoreError, match=f"usable '{name}'.*line 2"):
        Results(tmp_path)


def test_a_point_that_no_report_could_read_is_not_written(dataset, network, tmp_path):
    points = measure_curves("knn", dataset, network, tmp_path, "x7")
    broken = {**points[0], "key": "other", "y": float("inf")}
    assert wrong_point(broken) == "y"
    with pytest.raises(StoreError, match=r"usable 'y'.*left as it was"):
        Curves(tmp_path).add([broken])
    assert Curves(tmp_path).rows == points


def test_a_line_that_is_wrong_is_told_before_anything_is_measured(dataset, network, tmp_path):
    (tmp_path / "results.jsonl").write_text('{"key": "k", "feature": "x7"}\n')
    with pytest.raises(StoreError, match=r"usable 'dataset'.*line 1"):
        reproduce(dataset, network, tmp_path, "x7")
    assert not (tmp_path / "features").exists()


def test_rows_of_older_versions_with_an_interval_a_hair_turned_around_are_read(
    dataset, network, tmp_path
):
    (row,) = reproduce(dataset, network, tmp_path, "x7")
    row["ap_interval"]["area"]["red"] = [100.00000000000001, 100.0]
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n")
    assert Results(tmp_path).rows == [row]
    assert write_report(tmp_path).is_file()


def test_a_cost_that_a_report_could_not_show_is_told_before_any_work():
    with pytest.raises(OptionError, match="C of an experiment must be a positive number, got 'cv'"):
        Protocol(C="cv")
