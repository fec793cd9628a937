"""What figures, ticks, names and captions look like, part by part."""

import numpy as np

from deepfishing.core.recipes import parse_recipe
from deepfishing.evaluation.record import BIAS, SECONDS
from deepfishing.evaluation.report import charts, sheet, tables
from deepfishing.evaluation.report.folder import curve
from deepfishing.evaluation.report.html import feature_label
from deepfishing.evaluation.report.pictures import Tile, match_ids, strips
from deepfishing.evaluation.report.sheet import Cell, Sheet
from deepfishing.evaluation.report.tables import block, title
from deepfishing.evaluation.report.text import latex, markdown
from deepfishing.evaluation.report.words import Named, _above_or_below, plain
from deepfishing.store import Row

LATEX = r"""\begin{table}
\centering
\caption{50 \%}
\begin{tabular}{lr}
\toprule
feature & gain \\
\midrule
$\partial E / \partial W_{7}$*$x_{6}$; $x_{7}$ & \textbf{$-$0.4} \\
\bottomrule
\end{tabular}
\end{table}
"""


def test_figures_have_the_digits_that_tell_something():
    shown = (80.94, False), (0.26, True), (-0.01, True)
    assert [sheet.one_decimal(*one) for one in shown] == ["80.9", "+0.3", "0.0"]
    ticks = [charts.tick_text(value) for value in (1024, 16_000, 0.002, 70.0)]
    assert ticks == ["1,024", "16k", "0.002", "70"]
    assert charts.figure_text("accuracy, %", 71.26) == "71.3"
    assert charts.figure_text("mAP, %", 82.424, exact=True) == "82.42"
    seconds = [charts.figure_text(SECONDS, value) for value in (0.4132, 147.2, None)]
    assert seconds == ["0.41", "147", ""]
    assert charts.figure_text(BIAS, -0.00041) == "-0.0004"


def test_ticks_are_round_numbers_around_a_range():
    assert charts.round_ticks(41.2, 78.0) == (40.0, 50.0, 60.0, 70.0, 80.0)
    assert charts.round_ticks(-0.0062, -0.0023) == tuple(
        -i / 1000 for i in range(7, 1, -1)
    )
    assert charts.log_ticks(0.3, 7.0) == (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    assert charts.log_ticks(0.3, 2000.0) == (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
    assert charts.Axis((1, 10, 100), logarithmic=True).place(10) == 50.0
    assert charts.Axis((0, 5, 10)).place(2.5) == 25.0


def test_lines_of_one_projection_have_one_colour_and_other_dashes():
    names = ("exact kernel", "product, 2,048", "product, 8,192", "nystroem")
    chart = charts.Chart(
        "seconds", (), tuple(charts.Series(name, {}) for name in names)
    )
    styles = charts.Panel(
        "approximation", "dW8", "training images", (chart,)
    ).styles.values()
    assert [(one.hue, one.dash) for one in styles] == [
        (None, 1),
        (206, 0),
        (206, 1),
        (20, 0),
    ]


def test_features_have_titles_blocks_and_the_papers_letters():
    assert title("(2*x7+1)*(whiten(dW8,0.5)+pow(dW8,0.5)+x7)") == "best"
    assert title("pow(dW8,0.5)+x7") == "pow(dW8,0.5)+x7"
    names = ("x7", "x6;x7", "dW7", "x7;y8", "x:features.3", "pow(x7,0.5)", "dW8@64x64")
    assert [block(parse_recipe(name)) for name in names] == [0, 7, 7, 8, 99, 99, 8]
    assert feature_label("x6;x7") == "x<sub>6</sub>;&thinsp;x<sub>7</sub>"
    assert feature_label("dW7") == "∂E/∂W<sub>7</sub>"
    assert feature_label("dW:head.<b>@exact") == "∂E/∂W<sub>head.&lt;b&gt;</sub> exact"
    assert (
        feature_label("pow(dW7,0.5)+x7")
        == "pow(∂E/∂W<sub>7</sub>,0.5)+<wbr>x<sub>7</sub>"
    )


def test_a_line_has_the_official_figure_first_and_the_printed_one_beside_it():
    row = {
        "dataset": "voc2007",
        "test": "test",
        "network": "vgg16",
        "official_ap": "area",
    }
    row |= {"feature": "dW7", "map": {"11point": 88.25, "area": 91.5, "sklearn": 91.0}}
    [line] = tables.comparison([row]).lines
    assert list(line.map.items()) == [
        ("area", 91.5),
        ("11point", 88.25),
        ("sklearn", 91.0),
    ]
    assert (line.printed, line.difference, line.block) == (90.0, 1.5, 7)


def test_labels_and_absent_classes_are_said_in_words():
    said = [tables.label_text({"label": label}) for label in ("uniform", 3, [0.5] * 2)]
    words = [
        "uniform label",
        "one-hot label of class 3",
        "given label vector of 2 entries",
    ]
    assert said == words
    absent = [{"left_out": {"cat": "no image", "dog": "no image", "cow": "no label"}}]
    assert (
        tables.left_out_text(absent, 1) == "cat and 1 more (no image), cow (no label)"
    )
    places = [_above_or_below(difference) for difference in (1.94, -1.0, 0.04)]
    assert places == ["1.9 points above", "1.0 point below", "level with"]
    assert plain(("The best is ", Named("dW7", True), ".")) == "The best is dW7."


def test_a_curve_begins_at_recall_0_and_has_its_true_points():
    found = curve(np.array([1, -1, -1, 1]), np.array([0.9, 0.8, 0.7, 0.6]))
    assert found == [(0.0, 1.0), (0.5, 1.0), (1.0, 0.5)]


def test_strips_have_the_first_the_last_and_those_that_two_kernels_rank_differently():
    truth, ids = np.array([1, -1, 1, 0]), ["a", "b", "c", "d"]
    found = strips(
        truth, np.array([3.0, 2.0, 1.0, 9.0]), np.array([1.0, 3.0, 2.0, 9.0]), ids
    )
    assert [tile.id for tile in found.first] == ["a", "b", "c"]
    assert [tile.id for tile in found.last] == ["c", "a"]
    assert found.higher == (Tile(id="a", shows=True, rank=1, other=3),)


def test_ids_are_matched_in_the_folder_of_the_data_set():
    rows = [
        Row(path, path)
        for path in ("VOC2007/a.jpg", "VOC2007/b.jpg", "groceries/a.jpg")
    ]
    found = match_ids(rows, "voc2007", ["b", "a"]).values()
    assert [row.path for row in found] == ["VOC2007/b.jpg", "VOC2007/a.jpg"]
    assert match_ids(rows, "voc2007", ["a", "c"]) == {}


def test_a_sheet_in_markdown_and_in_latex():
    cells = [Cell("x7"), Cell("80.9", bold=True)]
    table = Sheet("mAP", [Cell("feature"), Cell("a|b")], [[cells]])
    assert (
        markdown(table) == "mAP\n\n| feature | a\\|b |\n|---|---:|\n| x7 | **80.9** |\n"
    )
    cells = [Cell("dW7*x6;x7", name="gradient"), Cell("-0.4", bold=True)]
    assert latex(Sheet("50 %", [Cell("feature"), Cell("gain")], [[cells]])) == LATEX
