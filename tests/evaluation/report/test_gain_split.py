"""What unlabelled photos give and what gradients give, in every form of the report."""

import json
import re

import numpy as np
import pytest
from rich.console import Console

from deepfishing.core.statistics import compare
from deepfishing.evaluation.measure import measure
from deepfishing.evaluation.report.charts import panels
from deepfishing.evaluation.report.folder import open_points
from deepfishing.evaluation.report.gains import (
    FORWARD_NAME,
    GRADIENTS_GIVE,
    POOL_GIVES,
    WITH_POOL_NAME,
    chart_splits,
    gains,
    table_split,
)
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.sheets import curve_sheets, table_sheets
from deepfishing.evaluation.report.tables import comparison
from deepfishing.evaluation.report.text import terminal, write_latex, write_markdown
from deepfishing.evaluation.report.words import curve_words, plain

ROWS = {
    "x7": 1.0,
    "forward": 1.3,
    "smooth(x7)": 3.0,
    "auto-forward": 1.6,
    "dW7": 1.1,
    "auto": 2.2,
}
PHOTOS = "labelled photos per class"
LINES = {
    "x7": (50.0, 60.0),
    "rbf(x7,2)": (45.0, 64.0),
    "smooth(x7)": (90.0, 90.0),
    "auto-forward": (55.0, 66.0),
    "auto": (58.0, 65.0),
}


@pytest.fixture
def table(tmp_path, add_rows):
    results = add_rows(tmp_path, tuple(ROWS), strength=ROWS, intervals=True)
    return results, comparison(results.rows, gains(results, results.rows))


def low_shot_points(folder, add_points):
    points = []
    for number, (name, figures) in enumerate(LINES.items()):
        for x, y in zip((1, 4), figures, strict=True):
            draws = (
                y + np.array([-1.0, 0.5, 0.0, 0.25, 0.25]) * (1 + 0.1 * number)
            ).tolist()
            points.append((name, x, y, y - 1, y + 1, draws))
    for name, x, y, low, high, draws in points:
        add_points(
            folder,
            [(name, x, y, low, high)],
            "low-shot",
            axes=(PHOTOS, "mAP, %"),
            draws=draws,
        )
    return open_points(folder)


def test_the_three_rows_are_the_strongest_plain_forward_row_and_both_choices(table):
    results, lines = table
    split = table_split(results, lines)
    names = [figure.feature for _, figure in split.figures]
    assert names == ["forward", "auto-forward", "auto"]
    row_of = {row["feature"]: row for row in results.rows}
    scores = {name: results.scores(row_of[name])[0] for name in names}
    labels = results.scores(row_of["auto"])[1]
    for gain, lower, higher in (
        (split.of_pool, "forward", "auto-forward"),
        (split.of_gradients, "auto-forward", "auto"),
    ):
        expected = compare(labels, scores[higher], scores[lower], "11point")
        assert gain.mean == pytest.approx(expected.mean)
        assert gain.interval == pytest.approx((expected.low, expected.high))


def test_the_papers_table_has_only_rows_of_one_cost_and_the_other_table_the_three(
    table,
):
    results, lines = table
    paper, gained, *_ = table_sheets(lines, table_split(results, lines))
    first = [row[0].text for row in paper.rows]
    assert first == ["x7", "dW7", "smooth(x7)"]
    assert "gain: over x7," in " ".join(paper.notes)
    names = [row[0].text for row in gained.rows]
    assert names == [FORWARD_NAME, WITH_POOL_NAME, "auto", POOL_GIVES, GRADIENTS_GIVE]


def test_without_one_of_the_three_rows_there_is_no_split(tmp_path, add_rows):
    results = add_rows(tmp_path, ("x7", "dW7", "auto"), strength=ROWS)
    assert table_split(results, comparison(results.rows)) is None
    assert len(table_sheets(comparison(results.rows))) == 2


def test_each_number_of_labels_has_its_own_strongest_forward_line(tmp_path, add_points):
    points = low_shot_points(tmp_path, add_points)
    (panel,) = panels(points)
    (chart,) = panel.charts
    few, more = chart_splits(chart)
    assert (few.forward.feature, more.forward.feature) == ("x7", "rbf(x7,2)")
    assert few.of_pool.mean == pytest.approx(5.0)
    assert few.of_gradients.mean == pytest.approx(3.0)
    assert more.of_gradients.mean == pytest.approx(-1.0)
    low, high = few.of_pool.interval
    assert low < 5.0 < high < 6.0
    assert few.of_pool.holds
    words = " ".join(map(plain, curve_words(points)))
    assert "With 1 labelled photo per class, auto has 58.0 % mAP" in words
    assert "unlabelled photos give +5.0" in words
    assert "With 4 labelled photos per class, auto has 65.0 % mAP" in words


def test_every_form_of_the_report_has_the_rows_and_the_gains(
    tmp_path, add_rows, add_points
):
    add_rows(tmp_path, tuple(ROWS), strength=ROWS, intervals=True)
    points = low_shot_points(tmp_path, add_points)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    text = write_markdown(tmp_path).read_text(encoding="utf-8")
    tex = write_latex(tmp_path).read_text(encoding="utf-8")
    for found in (page, text, tex):
        for name in (FORWARD_NAME, WITH_POOL_NAME, POOL_GIVES, GRADIENTS_GIVE):
            assert found.count(name) >= 2, name  # of all labels, and of few
    assert "+5.0! (+4." in text
    (sheet,) = curve_sheets(points, medium="terminal")
    console = Console(width=80, record=True)
    console.print(terminal(sheet))
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"the pool gives +\+5.0! +\+2.0", shown)


def test_a_run_writes_the_gains_into_its_lines(dataset, network, tmp_path):
    features = "x7,auto"
    found = measure(
        dataset, network, tmp_path, ["table", "low-shot"], features=features
    )
    assert [row["feature"] for row in found.rows] == [
        "forward",
        "auto-forward",
        "x7",
        "auto",
    ]
    for name, kept in (("results", found.rows), ("curves", found.points["low-shot"])):
        text = (tmp_path / f"{name}.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["key"] for line in lines] == [line["key"] for line in kept]
        mine = [line for line in lines if line["feature"] == "auto"]
        assert mine
        for line in mine:
            for key in ("gain_of_pool", "gain_of_gradients"):
                assert set(line[key]) == {"over", "mean", "low", "high", "p"}
    row = next(row for row in found.rows if row["feature"] == "auto")
    assert row["gain_of_gradients"]["mean"] == pytest.approx(
        found.split.of_gradients.mean
    )
    assert any("unlabelled photos give" in words for words in found.words)
