"""Plots draw the numbers that the tables have, and return the axes that they drew on."""

import sys

import matplotlib as mpl
import numpy as np
import pytest

import deepfishing
from deepfishing import Searcher, extract_to, plot, read_folder
from deepfishing.core.metrics import precision_recall
from deepfishing.errors import MissingDependencyError, OptionError
from deepfishing.evaluation.measure import measure
from deepfishing.evaluation.report.folder import row_scores
from deepfishing.evaluation.results import Results

mpl.use("agg")


@pytest.fixture(scope="module")
def measured(tmp_path_factory, toy_network):
    from PIL import Image

    rng, root = np.random.default_rng(0), tmp_path_factory.mktemp("plot")
    for split in ("train", "test"):
        for number, name in enumerate(("dark", "light", "grey")):
            folder = root / "photos" / split / name
            folder.mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(
                    40 * number, 40 * number + 150, (20, 24, 3), dtype=np.uint8
                )
                Image.fromarray(pixels).save(folder / f"{i}.png")
    data, out = read_folder(root / "photos"), root / "out"
    return measure(data, toy_network, out, ["table", "low-shot"], features="x7,dW8")


@pytest.fixture(autouse=True)
def _closed():
    yield
    mpl.pyplot.close("all")


def test_rows_have_their_figures_and_intervals(measured):
    ax = plot.rows(measured)
    drawn = {text.get_text() for text in ax.get_yticklabels()}
    assert drawn == {"x7", "dW8"}
    bars, dots = ax.lines[0::2], ax.lines[1::2]
    for bar, dot in zip(bars, dots, strict=True):
        row = next(row for row in measured.rows if row["feature"] == dot.get_label())
        assert dot.get_xdata()[0] == row["map"][row["official_ap"]]
        assert list(bar.get_xdata()) == row["map_interval"][row["official_ap"]]


def test_precision_and_recall_of_a_class_are_those_of_its_scores(measured):
    ax = plot.precision_recall(measured, "dark", features=["dW8"])
    row = measured.rows[1]
    scores, labels = row_scores(Results(measured.page.parent), row)
    column = row["classes"].index("dark")
    precision, recall = precision_recall(labels[:, column], scores[:, column])
    x, y = ax.lines[0].get_data()
    for r, p in zip(x[1:], y[1:], strict=True):
        assert p in precision[np.isclose(recall, r)]


def test_the_mean_over_classes_falls_from_the_best_precision_at_each_recall(measured):
    ax = plot.precision_recall(measured)
    row = measured.rows[0]
    scores, labels = row_scores(Results(measured.page.parent), row)
    expected = []
    for column in range(3):
        precision, recall = precision_recall(labels[:, column], scores[:, column])
        expected.append([precision[recall >= r - 1e-9].max() for r in plot.RECALL])
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.mean(expected, axis=0))
    assert [line.get_label() for line in ax.lines] == ["x7", "dW8"]


def test_curves_have_their_points(measured):
    form = "labelled photos per class"
    ax = plot.curves(measured, figure="mAP, %", against=form)
    points = [
        p
        for p in measured.points["low-shot"]
        if (p["x_axis"], p["y_axis"]) == (form, "mAP, %")
    ]
    assert ax.get_xlabel() == form
    for line in ax.lines:
        mine = sorted(
            (p["x"], p["y"]) for p in points if p["series"] == line.get_label()
        )
        assert list(zip(*line.get_data(), strict=True)) == mine
    assert ax.get_xlabel() == points[0]["x_axis"]


def test_the_confusion_matrix_has_its_counts(measured):
    ax = plot.confusion(measured)
    found = measured.confusions
    places = [
        tuple(int(at) for at in reversed(text.get_position())) for text in ax.texts
    ]
    counts = {
        at: int(text.get_text()) for at, text in zip(places, ax.texts, strict=True)
    }
    assert counts == {
        (i, j): n for i, row in enumerate(found.counts) for j, n in enumerate(row) if n
    }


def test_a_folder_and_rows_are_drawn_as_what_was_measured(measured):
    folder = measured.page.parent
    assert (
        len(plot.rows(folder).lines) == len(plot.rows(list(measured.rows)).lines) == 4
    )
    assert len(plot.curves(str(folder)).lines) == len(plot.curves(measured).lines)


def test_a_sheet_of_hits_on_given_axes(shapes, toy_network, tmp_path):
    extract_to(tmp_path / "s", shapes, network=toy_network, features="x7")
    hits = Searcher(tmp_path / "s", by="x7").search("train/dark/0.jpg", k=3)
    _, ax = mpl.pyplot.subplots()
    assert deepfishing.evaluation.plot.sheet(hits, ax=ax) is ax
    assert ax.images[0].get_array().shape[2] == 3
    with pytest.raises(OptionError, match="must have hits"):
        plot.sheet(type(hits)([], "", hits.photo))


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (
            lambda m: plot.precision_recall(m, "cat"),
            "one of dark, grey, light, got 'cat'",
        ),
        (lambda m: plot.precision_recall(m, features=["y8"]), "of x7, dW8, got 'y8'"),
        (lambda m: plot.curves(m, "shots"), "protocol must be one of low-shot"),
        (lambda m: plot.curves(m, "knn"), "got 0"),
        (lambda m: plot.curves(m, figure="size"), "figure must be one of"),
        (
            lambda m: plot.rows([*m.rows, {**m.rows[0], "tau": 3.0}]),
            "one setting, got 2",
        ),
        (lambda m: plot.rows([]), "got 0"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(measured, draw, said):
    with pytest.raises(OptionError, match=said):
        draw(measured)


def test_without_matplotlib_the_command_that_installs_it_is_said(measured, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        MissingDependencyError, match=r"needs the package matplotlib; run .*plot"
    ):
        plot.rows(measured)
