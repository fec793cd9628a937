import math
import re

import numpy as np
import pytest
from rich.console import Console

from deepfishing.evaluation.protocols.approximation import SECONDS
from deepfishing.evaluation.report.charts import (
    Chart,
    Mark,
    Panel,
    Series,
    log_ticks,
    panels,
    round_ticks,
)
from deepfishing.evaluation.report.folder import open_points
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.sheets import curve_sheets
from deepfishing.evaluation.report.text import terminal, write_latex, write_markdown

FEATURES = [
    *(("x7", 2**i, 40.0 + 5 * i, 38.5 + 5 * i, 41.5 + 5 * i) for i in range(7)),
    *(
        ("pow(dW8,0.5)", 2**i, 41.0 + 6 * i, 40.0 + 6 * i, 42.0 + 6 * i)
        for i in range(7)
    ),
]
TIMES = [
    *(("principal, 2,048", n, n / 2000, None, None) for n in (1000, 10_000, 50_000)),
    *(("exact kernel", n, n * n / 1e6, None, None) for n in (1000, 10_000)),
    ("exact kernel", 50_000, None, None, None),
]
SHOTS = ("positive images per class", "11-point mAP, %")
IMAGES = ("training images", SECONDS)


@pytest.mark.parametrize("spread", [1e-4, 0.3, 1.0, 7.0, 99.0])
@pytest.mark.parametrize("low", [-3.7, 0.0, 61.3])
def test_ticks_are_few_even_and_around_the_range(low, spread):
    ticks = round_ticks(low, low + spread)
    assert ticks[0] <= low + 1e-9
    assert ticks[-1] >= low + spread - 1e-9
    assert 2 <= len(ticks) <= 8
    np.testing.assert_allclose(np.diff(ticks), ticks[1] - ticks[0])


@pytest.mark.parametrize(
    ("low", "high"), [(0.2, 0.2), (1.0, 10.0), (0.013, 0.9), (3e-3, 4e4)]
)
def test_logarithmic_ticks_are_few_and_around_the_range(low, high):
    ticks = log_ticks(low, high)
    assert ticks[0] <= low < ticks[-1]
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 12
    assert all(f"{tick:e}"[0] in "125" for tick in ticks)


def drawn(page):
    """Paths and circles of a page, chart by chart."""
    charts = re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL)
    number = r"(-?[\d.]+)"
    return [
        (
            [
                [
                    tuple(map(float, pair))
                    for pair in re.findall(rf"[ML]{number} {number}", path)
                ]
                for path in re.findall(r'<path d="([^"]*)"', chart)
            ],
            [
                tuple(map(float, pair))
                for pair in re.findall(rf'<circle cx="{number}%" cy="{number}%"', chart)
            ],
        )
        for chart in charts
    ]


def test_the_page_draws_every_point_where_its_figures_say(tmp_path, add_points):
    add_points(tmp_path, FEATURES, "low-shot", axes=SHOTS)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    ((paths, circles),) = drawn(page)
    (ticks,) = [
        list(map(float, re.findall(r'class="up"[^>]*>([\d.]+)<', chart)))
        for chart in re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL)
    ]
    expected = [
        (
            100 * math.log2(x) / 6,
            100 - 100 * (y - min(ticks)) / (max(ticks) - min(ticks)),
        )
        for _, x, y, _, _ in FEATURES
    ]
    np.testing.assert_allclose(circles, expected, atol=0.02)
    np.testing.assert_allclose(
        [point for path in paths for point in path], expected, atol=0.02
    )
    assert page.count('class="interval"') == len(FEATURES)
    assert "Few examples" in page
    assert "Nearest neighbours" not in page


@pytest.mark.parametrize(
    ("protocol", "says"),
    [
        ("low-shot", "19 negative ones"),
        ("knn", "vote for the classes"),
        ("curate", "wrong labels found"),
        ("search", "counter-example"),
        ("approximation", "against classifiers on the exact kernel"),
    ],
)
def test_every_protocol_has_its_own_explanation(tmp_path, add_points, protocol, says):
    add_points(tmp_path, FEATURES, protocol)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    texts = re.findall(
        r'<h3>.*?</h3>\s*<p class="soft">(.*?)</p>', page, flags=re.DOTALL
    )
    assert [says in text for text in texts] == [True]


def test_times_are_drawn_on_logarithmic_axes_and_a_missing_one_is_told(
    tmp_path, add_points
):
    add_points(tmp_path, TIMES, "approximation", "dW8", IMAGES)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    (((line, exact), circles),) = drawn(page)
    assert (len(line), len(exact), len(circles)) == (3, 2, 5)
    # on two logarithmic axes a power is a straight line, its exponent the slope
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in (line[:2], exact)]
    assert slopes[1] / slopes[0] == pytest.approx(2, rel=0.01)
    assert "Not measured: no room." in page
    assert "(logarithmic)" in page


def test_a_level_is_a_line_across(tmp_path, add_points):
    points = [
        ("exact kernel", None, 82.4, None, None),
        ("product", 1024, 80.0, None, None),
    ]
    rows = add_points(
        tmp_path, points, "approximation", "dW8", ("numbers per vector", "mAP, %")
    )
    ((chart,),) = (panel.charts for panel in panels(rows))
    (left, right) = chart.path(chart.series[0])
    assert (left[0], right[0]) == (0, 100)
    assert left[1] == right[1] < chart.path(chart.series[1])[0][1]


def test_a_chart_without_any_figure_can_be_drawn():
    empty = Chart(SECONDS, (5,), (Series("a", {5: Mark(None, None, "no room")}, None),))
    assert empty.path(empty.series[0]) == []
    assert empty.across.place(5) == 50.0
    assert empty.up.ticks
    assert Panel("knn", None, "k", (empty,)).text(empty, empty.series[0].at(5)) == (
        "",
        "",
    )


def test_a_page_has_tables_and_curves_together_and_neither_without_points(
    tmp_path, add_rows, add_points
):
    add_rows(tmp_path, features=("x7", "dW7"))
    without = write_report(tmp_path).read_text(encoding="utf-8")
    assert 'class="charts"' not in without
    add_points(tmp_path, FEATURES, "low-shot", axes=SHOTS)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "mAP by feature" in page
    assert page.count('<div class="charts">') == 1
    assert page.count("deepfish reproduce voc2007 --protocol low-shot") == 1
    assert 'href="#curves-1"' in page


def test_names_of_lines_are_only_text(tmp_path, add_points):
    add_points(tmp_path, [("x:<script>", 1, 5.0, None, None)])
    add_points(
        tmp_path, [("<script>", 1, 5.0, None, None)], "approximation", "dW:<script>"
    )
    assert "<script>" not in write_report(tmp_path).read_text(encoding="utf-8")


def test_markdown_and_latex_have_the_figures_of_the_curves(tmp_path, add_points):
    add_points(tmp_path, FEATURES, "low-shot", axes=SHOTS)
    add_points(tmp_path, TIMES, "approximation", "dW8", IMAGES)
    text = write_markdown(tmp_path).read_text(encoding="utf-8")
    assert "| positive images per class | 1 | 2 | 4 | 8 | 16 | 32 | 64 |" in text
    assert "| x7 | 40.0 (38.5–41.5) | 45.0 (43.5–46.5) |" in text
    assert "| principal, 2,048 | 0.50 | 5.0 | 25.0 |" in text
    assert "| exact kernel | 1.0 | 100 |  |" in text
    assert "Not measured: no room." in text
    latex = write_latex(tmp_path).read_text(encoding="utf-8")
    assert r"pow($\partial E / \partial W_{8}$,0.5) & 41.0 (40.0–42.0) &" in latex


def test_the_terminal_tables_fit_80_columns(tmp_path, add_points):
    long = "(2*x6+1)*(whiten(dW7,0.5)+whiten(dW8,0.5)+pow(dW8,0.5)+x7)"
    more = [(long, 2**i, 41.0, 40.0, 42.5) for i in range(10)]
    add_points(tmp_path, FEATURES + more, "low-shot", axes=SHOTS)
    add_points(tmp_path, TIMES, "approximation", "dW8", IMAGES)
    console = Console(width=80, record=True, quiet=False)
    with console.capture() as captured:
        console.print(
            *map(terminal, curve_sheets(open_points(tmp_path), medium="terminal"))
        )
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:3] == ["x7", "40.0", "45.0"] for line in lines)
    assert any("±1.5" in line for line in lines)
    assert "Not measured: no room." in captured.get()
    assert "…" not in captured.get()
