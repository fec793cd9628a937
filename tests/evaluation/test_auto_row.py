import pytest

from deepfishing.evaluation.protocols.curves import measure_curves
from deepfishing.evaluation.protocols.table import reproduce
from deepfishing.evaluation.report.tables import formulas


def test_auto_is_a_row_that_says_what_it_took_and_is_that_recipe_at_that_cost(
    dataset, network, tmp_path
):
    (row,) = reproduce(dataset, network, tmp_path, "auto")
    chosen = row["auto"]
    assert row["feature"] == "auto"
    assert formulas([row["feature"]], [row])[0][1].endswith(f"cost {chosen['cost']:g}")
    if chosen["tau"] is None:
        (same,) = reproduce(dataset, network, tmp_path, [chosen["recipe"]])
        assert chosen["cost"] != 1 or same["map"] == pytest.approx(row["map"])


def test_auto_is_a_line_of_few_examples(dataset, network, tmp_path):
    """With one example per class it is the rule's recipe, at a cost of 1."""
    points = measure_curves(
        "low-shot", dataset, network, tmp_path, "2*dW8+pow(dW8,0.5),auto"
    )
    lines = {
        series: [p["y"] for p in points if p["series"] == series]
        for series in ("2*dW8+pow(dW8,0.5)", "auto")
    }
    assert len(lines["auto"]) == len(lines["2*dW8+pow(dW8,0.5)"])
    assert lines["auto"][0] == pytest.approx(lines["2*dW8+pow(dW8,0.5)"][0])
