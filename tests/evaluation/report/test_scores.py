import numpy as np
import pytest

from deepfishing.errors import StoreError
from deepfishing.evaluation.report.folder import curve, row_curves


def counted(truth, scores):
    """All points (recall, precision) of the curve, by counting."""
    points = set()
    for threshold in scores:
        above = truth[scores >= threshold]
        points.add(
            ((above == 1).sum() / (truth == 1).sum(), (above == 1).sum() / len(above))
        )
    return points


def test_every_point_drawn_is_a_point_of_the_curve(rng):
    truth, scores = rng.choice([-1, 1], size=500), rng.normal(size=500).round(2)
    drawn = curve(truth, scores, most=50)
    assert len(drawn) == 51
    assert set(drawn[1:]) <= counted(truth, scores)
    assert drawn[0] == (0.0, drawn[1][1])
    assert drawn[-1][0] == 1.0
    recall = [r for r, _ in drawn]
    assert recall == sorted(set(recall))


def test_a_short_curve_has_a_point_for_each_recall(rng):
    truth, scores = rng.choice([-1, 1], size=60), rng.normal(size=60)
    assert {r for r, _ in curve(truth, scores)[1:]} == {
        r for r, _ in counted(truth, scores) if r > 0
    }


def test_difficult_images_are_not_on_the_curve():
    truth, scores = np.array([0, 1, -1, 1]), np.array([4.0, 3.0, 2.0, 1.0])
    assert curve(truth, scores) == curve(truth[1:], scores[1:])


def test_row_curves_skip_classes_without_an_ap(tmp_path, add_rows):
    results = add_rows(tmp_path, features=("x7",))
    [row] = results.rows
    row["ap"]["11point"]["cow"] = None
    assert list(row_curves(results, row)) == [
        name for name in row["classes"] if name != "cow"
    ]


def test_scores_of_another_shape_are_refused(tmp_path, add_rows):
    results = add_rows(tmp_path, features=("x7",), n=30)
    [row] = results.rows
    row["n_test"] = 31
    with pytest.raises(StoreError, match=r"shape \(31, 20\), got \(30, 20\).*npz"):
        row_curves(results, row)
