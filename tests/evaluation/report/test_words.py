"""The words say what the figures say, whichever way these fall."""

import re

import numpy as np
import pytest
from scipy.stats import ttest_rel

from deepfishing.core.statistics import Difference
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.tables import FIGURES, Comparison, Figure, Line
from deepfishing.evaluation.report.words import curve_words, plain, table_words

LOW_SHOT = {"protocol": "low-shot", "axes": ("positive images per class", "mAP, %")}


def said(points):
    return " ".join(map(plain, curve_words(points)))


def line(feature, official, gain=None):
    return Line(
        feature,
        gradient="dW" in feature,
        block=0,
        map={"area": official},
        printed=None,
        note="",
        figures={key: Figure() for key in FIGURES},
        gain=gain,
    )


@pytest.mark.parametrize(
    ("figures", "gain", "said"),
    [
        (
            (80.0, 82.3),
            (1.0, 3.6),
            "82.3 mAP, 2.3 points above the best forward feature, x7 (80.0).",
        ),
        (
            (80.0, 79.0),
            (-2.0, -0.1),
            "79.0 mAP, 1.0 point below the best forward feature, x7",
        ),
        (
            (80.0, 80.04),
            (-1.0, 1.0),
            "80.0 mAP, level with the best forward feature, x7",
        ),
    ],
)
def test_a_table_in_words(figures, gain, said):
    forward, gradient = figures
    known = Difference(gradient - forward, *gain, p=0.1)
    found = Comparison([], [line("x7", forward), line("dW8", gradient, known)])
    words = plain(table_words(found))
    assert said in words
    assert ("holds at 95 %" in words) == (gain[0] > 0 or gain[1] < 0)
    assert ("could be chance" in words) == (gain[0] <= 0 <= gain[1])


def points_of(add_points, folder, lines, xs=(1, 2)):
    """Points of lines, each a list of draws for each number of examples."""
    for name, draws in lines.items():
        for x, values in zip(xs, draws, strict=True):
            point = (name, x, float(np.mean(values)), None, None)
            rows = add_points(folder, [point], draws=list(values), **LOW_SHOT)
    return rows


def test_curves_in_words_are_the_mean_gain_over_the_same_draws(
    tmp_path, add_points, rng
):
    base = rng.normal(60, 5, size=(2, 5))
    gained = base + rng.normal(2, 0.1, size=(2, 5))
    rows = points_of(add_points, tmp_path, {"x7": base, "dW7": gained, "dW8": base - 1})
    words = said(rows)
    mean = float((gained - base).mean())
    test = ttest_rel(gained.mean(axis=0), base.mean(axis=0)).confidence_interval()
    ends = f"{test.low:+.1f} to {test.high:+.1f}"
    assert words.startswith(
        f"With 1 to 2 examples per class, dW7 is on average {mean:.1f} points above x7; over 5 "
        f"draws of the examples that holds at 95 %: its interval is {ends}."
    )
    assert (
        f"dW7 is the best line: {gained[0].mean():.1f}, x7 {base[0].mean():.1f}."
        in words
    )


def test_curves_in_which_the_gradient_loses_say_so(tmp_path, add_points):
    lines = {"x7": [[70.0, 71.0], [80.0, 81.0]], "dW7": [[70.5, 69.0], [80.5, 79.0]]}
    words = said(points_of(add_points, tmp_path, lines))
    assert "dW7 is on average 0.8 points below x7; over 2 draws" in words
    assert "could be chance" in words
    assert "best line" not in words


@pytest.mark.parametrize("lines", [{"x7": [[70.0], [71.0]]}, {"dW7": [[70.0], [71.0]]}])
def test_one_kind_of_line_alone_is_not_compared(tmp_path, add_points, lines):
    assert curve_words(points_of(add_points, tmp_path, lines)) == []


def test_the_page_has_the_words_and_the_curves_in_the_part_of_their_table(
    tmp_path, add_rows, add_points
):
    results = add_rows(tmp_path, features=("x7", "dW7"))
    same = {
        name: results.rows[0][name]
        for name in ("network", "weights_sha256", "difficult")
    }
    same["n_test"] = results.rows[0]["n_test"]
    for name, y in (("x7", 50.0), ("dW7", 51.5)):
        rows = add_points(tmp_path, [(name, 1, y, None, None)], **LOW_SHOT, **same)
    page = write_report(tmp_path).read_text()
    text = re.sub(r"<[^>]+>|\s+", " ", page)
    assert "With 1 example per class, ∂E/∂W 7 is 1.5 points above x 7 ." in re.sub(
        " +", " ", text
    )
    assert page.count('class="setting"') == 1
    assert (
        page.index("<h3>mAP by feature")
        < page.index("<h3>Few examples")
        < page.index("<h3>Cost")
    )
    assert said(rows) == "With 1 example per class, dW7 is 1.5 points above x7."
    # curves of another setting stand apart
    add_points(
        tmp_path, [("x7", 1, 50.0, None, None)], **LOW_SHOT, **{**same, "tau": 9.0}
    )
    assert write_report(tmp_path).read_text().count('class="setting"') == 2
