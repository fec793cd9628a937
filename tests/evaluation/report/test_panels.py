import json

import pytest

from deepfishing.errors import StoreError
from deepfishing.evaluation.report.charts import panels
from deepfishing.evaluation.report.folder import group_points, open_points

SOME = [
    ("x7", 1, 60.0, 58.0, 62.0),
    ("x7", 5, 70.0, 69.0, 71.0),
    ("dW7", 1, 61.0, 59.0, 63.0),
]


def test_points_become_lines_of_the_charts_of_a_panel(tmp_path, add_points):
    add_points(tmp_path, SOME)
    add_points(tmp_path, SOME[:1], axes=("neighbours k", "accuracy, %"))
    (panel,) = panels(open_points(tmp_path))
    assert (panel.protocol, panel.feature, panel.names) == ("knn", None, ("x7", "dW7"))
    first, second = panel.charts
    assert (first.y_axis, first.xs) == ("mAP, %", (1, 5))
    assert (second.y_axis, second.xs) == ("accuracy, %", (1,))
    line, other = first.series
    assert [(x, mark.y, mark.interval) for x, mark in line.marks.items()] == [
        (1, 60.0, (58.0, 62.0)),
        (5, 70.0, (69.0, 71.0)),
    ]
    assert other.at(1).y == 61.0
    assert other.at(5) is None


def test_points_come_in_order_and_the_last_measurement_counts(tmp_path, add_points):
    add_points(tmp_path, SOME[1::-1], version="0.1.0")
    points = add_points(tmp_path, [("x7", 5, 75.0, None, None)], version="0.2.0")
    ((chart,),) = (panel.charts for panel in panels(points))
    assert [(x, mark.y) for x, mark in chart.series[0].marks.items()] == [
        (1, 60.0),
        (5, 75.0),
    ]


def test_a_projection_belongs_to_its_feature_and_a_level_to_every_x(
    tmp_path, add_points
):
    lines = [
        ("exact kernel", None, 82.4, None, None),
        ("product", 1024, 80.0, None, None),
    ]
    axes = ("numbers per vector", "mAP, %")
    for feature in ("dW7", "dW8"):
        points = add_points(tmp_path, lines, "approximation", feature, axes)
        points = [{**p, "key": p["feature"] + p["key"]} for p in points]
        (tmp_path / "curves.jsonl").write_text(
            "".join(json.dumps(p) + "\n" for p in points)
        )
    both = panels(open_points(tmp_path))
    assert [panel.feature for panel in both] == ["dW7", "dW8"]
    level, line = both[1].charts[0].series
    assert level.at(1024).y == 82.4
    assert line.level is None


def test_protocols_and_settings_are_kept_apart(tmp_path, add_points):
    add_points(tmp_path, SOME)
    add_points(tmp_path, SOME, "low-shot", axes=("positive images per class", "mAP, %"))
    points = add_points(tmp_path, SOME, tau=4.0)
    first, second = group_points(points)
    assert [panel.protocol for panel in panels(first)] == ["low-shot", "knn"]
    assert {point["tau"] for point in second} == {4.0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("protocol", "other"),
        ("series", None),
        ("x", 0),
        ("x", "1"),
        ("y", float("nan")),
        pytest.param("y", 10**400, id="y-endless"),  # found by `make fuzz`, results
        ("low", None),
        ("tau", "2"),
        ("note", None),
    ],
)
def test_a_malformed_point_is_named_with_its_line(tmp_path, add_points, key, value):
    good, bad = add_points(tmp_path, SOME)[:2]
    bad[key] = value
    (tmp_path / "curves.jsonl").write_text(
        json.dumps(good) + "\n" + json.dumps(bad) + "\n"
    )
    with pytest.raises(
        StoreError, match=rf"usable '{key}', got .*curves\.jsonl line 2"
    ):
        open_points(tmp_path)


def test_a_folder_without_curves_has_no_points(tmp_path):
    assert open_points(tmp_path) == []
    assert not (tmp_path / "curves.jsonl").exists()
