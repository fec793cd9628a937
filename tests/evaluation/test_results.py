"""Rows and points on disk: what a report would refuse is refused when it is written."""

import json

import pytest

from deepfishing.errors import OptionError, StoreError
from deepfishing.evaluation.experiment import Protocol
from deepfishing.evaluation.paper import printed_ap, printed_map
from deepfishing.evaluation.protocols.curves import measure_curves
from deepfishing.evaluation.protocols.table import reproduce
from deepfishing.evaluation.record import wrong_point, wrong_row
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.results import Curves, Results, row_key, safe_name


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
def test_a_row_that_no_report_could_read_is_not_written(
    dataset, network, tmp_path, name, value
):
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
        Curves(tmp_path).keep([broken])
    assert Curves(tmp_path).rows == points


def test_a_line_that_is_wrong_is_told_before_anything_is_measured(
    dataset, network, tmp_path
):
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
    with pytest.raises(
        OptionError, match="C of an experiment must be a positive number, got 'cv'"
    ):
        Protocol(C="cv")


def test_a_key_depends_on_all_parts_and_not_on_their_order():
    assert row_key(feature="dW7", tau=2.0) == row_key(tau=2.0, feature="dW7")
    assert row_key(feature="dW7", tau=2.0) != row_key(feature="x7", tau=2.0)


def test_a_feature_is_part_of_a_file_name():
    assert safe_name("pow(dW7,0.5)+x7;y8") == "pow_dW7_0.5_x7_y8"


def test_the_paper_prints_these_figures():
    assert printed_map("voc2007", "test", "vgg16", "dW7") == 90.0
    assert printed_map("voc2012", "test", "alexnet-caffe", "x7") == 75.0
    assert printed_map("photos", "test", "vgg16", "dW7") is None
    assert printed_ap("voc2012", "val", "alexnet-caffe", "x7")["cow"] == 63.6
