import os

import numpy as np
import pytest

import deepfishing.evaluation.report.gains as module
from deepfishing.core.statistics import compare
from deepfishing.evaluation.report.gains import gains


def test_a_gain_is_the_paired_bootstrap_against_the_best_forward_row(
    tmp_path, add_rows
):
    results = add_rows(tmp_path, features=("x6", "x7", "x6;x7", "dW7"))
    value = {row["feature"]: row["map"]["11point"] for row in results.rows}
    best = max(("x6", "x7", "x6;x7"), key=value.__getitem__)
    scores = {row["feature"]: results.scores(row) for row in results.rows}
    found = gains(results, results.rows)
    assert set(found) == set(value) - {best}
    for name, gain in found.items():
        expected = compare(scores[name][1], scores[name][0], scores[best][0], "11point")
        assert [gain.mean, gain.low, gain.high] == pytest.approx(
            [expected.mean, expected.low, expected.high], abs=1e-9
        )
        assert gain.holds == expected.holds


def test_a_recipe_with_a_gradient_is_never_the_forward_row(tmp_path, add_rows):
    strength = {"x7": 1.0, "pow(dW7,0.5)+x7": 3.0, "whiten(x7)": 1.5}
    results = add_rows(tmp_path, tuple(strength), strength=strength)
    assert set(gains(results, results.rows)) == {"x7", "pow(dW7,0.5)+x7"}


def test_classes_without_an_ap_are_not_compared(tmp_path, add_rows):
    results = add_rows(tmp_path, features=("x7", "dW7"))
    for row in results.rows:
        row["ap"]["11point"]["cow"] = None
    a, b = (results.scores(row) for row in results.rows)
    kept = [c for c, name in enumerate(results.rows[0]["classes"]) if name != "cow"]
    expected = compare(a[1][:, kept], b[0][:, kept], a[0][:, kept], "11point")
    got = gains(results, results.rows)["dW7"]
    assert got.high - got.low == pytest.approx(expected.high - expected.low)


def test_rows_that_cannot_be_compared_have_no_gain(tmp_path, add_rows):
    results = add_rows(tmp_path, features=("x7", "dW7"))
    results.scores_path(results.rows[1]).unlink()
    assert gains(results, results.rows) == {}
    other_labels = add_rows(tmp_path / "b", features=("x7",))
    other_labels = add_rows(tmp_path / "b", features=("dW7",))
    assert gains(other_labels, other_labels.rows) == {}
    left_out = add_rows(tmp_path / "c", features=("x7", "dW7"))
    left_out.rows[1]["ap"]["11point"]["cow"] = None
    assert gains(left_out, left_out.rows) == {}
    gradient = add_rows(tmp_path / "d", features=("dW7", "dW8"))
    assert gains(gradient, gradient.rows) == {}
    hidden = add_rows(tmp_path / "e", features=("x7", "dW7"), labelled=False)
    assert gains(hidden, hidden.rows) == {}


def test_draws_are_computed_once_and_again_for_new_scores(
    tmp_path, add_rows, monkeypatch
):
    results = add_rows(tmp_path, features=("x7", "dW7"))
    first = gains(results, results.rows)
    computed = []
    original = module.bootstrap

    def counting(*arguments, **options):
        computed.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(module, "bootstrap", counting)
    assert gains(results, results.rows) == first
    assert computed == []
    file = results.scores_path(results.rows[0])
    later = file.stat().st_mtime_ns + 10**10
    os.utime(file, ns=(later, later))
    assert gains(results, results.rows) == first
    assert len(computed) == 1


# a header that does not close
OPEN = b"\x93NUMPY\x01\0\x10\0" + b"{'descr': ('<f8" + b"\n"


@pytest.mark.parametrize(
    "content", [b"", b"text", b"PK\x03\x04zip", OPEN, "short", "whole numbers"]
)
def test_damaged_draws_are_made_again(tmp_path, add_rows, content):
    results = add_rows(tmp_path, features=("x7", "dW7"))
    first = gains(results, results.rows)
    for file in (tmp_path / "scores").glob("*.draws.npy"):
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            np.save(
                file, np.zeros(3) if content == "short" else np.zeros(1000, dtype=int)
            )
    assert gains(results, results.rows) == first
