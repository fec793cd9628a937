"""One call from images to a page."""

import pytest

import deepfishing
from deepfishing.errors import OptionError


def test_one_call_measures_a_table_and_curves_and_says_what_was_seen(
    dataset, network, tmp_path
):
    found = deepfishing.measure(
        dataset, network, tmp_path / "o", ["table", "low-shot"], table="x8,dW8"
    )
    assert [row["feature"] for row in found.rows] == ["x8", "dW8"]
    assert set(found.gains) == {"dW8"}
    assert {point["feature"] for point in found.points["low-shot"]} >= {
        "x7",
        "auto-forward",
        "auto",
    }
    assert found.page.read_text().count("<h2") == 1
    positives, photos, table = found.words
    assert table.startswith(
        "At one cost for all, as in the paper, the best gradient feature, dW8"
    )
    assert positives.startswith("With 1 positive image per class, auto has ")
    assert photos.startswith("With 1 labelled photo per class, auto has ")


def test_an_unknown_protocol_is_told_before_any_work(dataset, network, tmp_path):
    with pytest.raises(OptionError, match="did you mean low-shot"):
        deepfishing.measure(dataset, network, tmp_path / "o", ["table", "lowshot"])
    assert not (tmp_path / "o").exists()
