"""Gains over several folders of results: the figures are those of each folder's own report."""

import numpy as np
import pytest

from deepfishing.core.statistics import mean_interval
from deepfishing.errors import StoreError
from deepfishing.evaluation.report.gains import gains, table_split
from deepfishing.evaluation.report.overview import (
    find_folders,
    overview,
    write_overview,
)
from deepfishing.evaluation.report.sheet import one_decimal
from deepfishing.evaluation.report.tables import comparison
from deepfishing.evaluation.results import Results

AXES = ("positive images per class", "mAP, %")
DRAWS = {"x7": [40.0, 42.0, 41.0], "x6": [30.0, 31.0, 32.0], "dW8": [44.0, 43.0, 45.0]}


@pytest.fixture
def folders(tmp_path, add_rows, add_points):
    """Two data sets, of which the second has curves."""
    add_rows(tmp_path / "r" / "voc", features=("x7", "x6", "dW7", "dW8"))
    add_rows(tmp_path / "r" / "photos", features=("x7", "dW8"), dataset="photos", n=40)
    for series, draws in DRAWS.items():
        for x in (1, 2):
            y = float(np.mean(draws)) + x
            add_points(
                tmp_path / "r" / "photos",
                [(series, x, y, y - 1, y + 1)],
                "low-shot",
                axes=AXES,
                dataset="photos",
                draws=[d + x for d in draws],
            )
    return [tmp_path / "r" / "voc", tmp_path / "r" / "photos"]


def test_every_gain_is_that_of_the_folders_own_report(folders):
    parts = {part.feature: part for part in overview(folders)}
    assert list(parts) == ["dW8", "dW7"]
    assert [gain.setting for gain in parts["dW8"].gains] == [
        "voc2007, alexnet-torchvision",
        "photos, alexnet-torchvision",
    ]
    for number, folder in enumerate(folders):
        results = Results(folder)
        assert (
            parts["dW8"].gains[number].difference == gains(results, results.rows)["dW8"]
        )


def test_gains_with_few_examples_are_paired_over_the_draws(folders):
    (part,) = [part for part in overview(folders) if part.feature == "dW8"]
    (panel,) = part.panels
    (chart,) = panel.charts
    (series,) = chart.series
    paired = np.array(DRAWS["dW8"]) - DRAWS["x7"]  # the best forward line, not x6
    for x in (1, 2):
        assert series.marks[x].y == pytest.approx(paired.mean())
        assert series.marks[x].interval == pytest.approx(mean_interval(paired.tolist()))


def test_data_sets_with_other_definitions_of_ap_are_lines_of_one_chart(
    folders, add_points
):
    for series, draws in DRAWS.items():
        y = float(np.mean(draws))
        axes = AXES[0], "11-point mAP, %"
        add_points(
            folders[0], [(series, 4, y, y, y)], "low-shot", axes=axes, draws=draws
        )
    (part,) = [part for part in overview(folders) if part.feature == "dW8"]
    (panel,) = part.panels
    assert [len(series.marks) for series in panel.charts[0].series] == [1, 2]
    assert panel.charts[0].xs == (1, 2, 4)
    write_overview(folders, folders[0] / "gains.html")


def test_settings_of_one_data_set_are_told_apart_by_what_differs(tmp_path, add_rows):
    for tau in (1.0, 2.0):
        add_rows(tmp_path / "r", features=("x7", "dW8"), tau=tau)
    (part,) = overview([tmp_path / "r"])
    names = [gain.setting for gain in part.gains]
    assert names == [f"voc2007, alexnet-torchvision, tau {tau}" for tau in (1.0, 2.0)]


@pytest.mark.parametrize(
    ("given", "where"),
    [(("r",), "r/gains.html"), (("r/voc", "r/photos"), "gains.html")],
)
def test_the_command_writes_a_page_of_all_folders(
    folders, deepfish, tmp_path, given, where
):
    ran = deepfish("report", *given)
    assert (ran.code, ran.out.strip(), ran.err) == (0, where, "")
    page = (tmp_path / where).read_text(encoding="utf-8")
    results = Results(folders[1])
    shown = one_decimal(gains(results, results.rows)["dW8"].mean, sign=True).replace(
        "-", "−"
    )
    assert f"{shown}<b>" in page
    assert "photos, alexnet-torchvision" in page
    assert "<script" not in page
    assert "Few examples" in page


def test_markdown_has_a_line_per_data_set(folders, deepfish):
    ran = deepfish("report", "r", "--format", "markdown")
    assert ran.out.strip() == "r/gains.md"
    text = (folders[0].parent / "gains.md").read_text(encoding="utf-8")
    assert "| data set, network | best forward |" in text
    assert " to " in next(ln for ln in text.splitlines() if ln.startswith("| voc2007"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("r", "--format", "latex"), "drawn as html or markdown"),
        (("r", "nowhere"), "results must be a folder, got nowhere"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(folders, deepfish, arguments, says):
    ran = deepfish("report", *arguments)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert says in ran.err


def test_a_folder_without_results_is_refused(tmp_path, folders):
    (tmp_path / "empty").mkdir()
    assert find_folders([tmp_path / "r"]) == sorted(folders)
    with pytest.raises(StoreError, match=r"must hold results\.jsonl"):
        find_folders([tmp_path / "empty"])


def test_forward_features_alone_have_no_gain(tmp_path, add_rows):
    add_rows(tmp_path / "r", features=("x7", "x6"))
    with pytest.raises(StoreError, match="must have a gradient and a forward feature"):
        write_overview([tmp_path / "r"], tmp_path / "gains.html")


def test_the_three_rows_are_split_into_what_the_pool_and_gradients_give(
    tmp_path, add_rows
):
    strength = {"x7": 1.0, "forward": 1.3, "auto-forward": 1.6, "dW7": 1.1, "auto": 2.2}
    results = add_rows(tmp_path / "a", tuple(strength), strength=strength)
    split = table_split(results, comparison(results.rows))
    parts = {part.feature: part for part in overview([tmp_path / "a"])}
    assert list(parts) == ["auto", "auto-forward", "dW7"]
    (of_pool,), (of_gradients,) = parts["auto-forward"].gains, parts["auto"].gains
    assert of_pool.difference.mean == pytest.approx(split.of_pool.mean)
    assert of_gradients.difference.mean == pytest.approx(split.of_gradients.mean)
    text = write_overview([tmp_path / "a"], tmp_path / "gains.md").read_text()
    assert "| the pool gives | gradients give |" in text
    assert f"| {split.of_pool.text} | {split.of_gradients.text} |" in text
    page = write_overview([tmp_path / "a"], tmp_path / "gains.html").read_text()
    assert "what gradients give" in page
