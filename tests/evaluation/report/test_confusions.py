"""Accuracy and confusions, in the page, the text tables and the terminal."""

import io
import json
import re

import pytest
from rich.console import Console

from deepfishing.errors import StoreError
from deepfishing.evaluation.report.confusions import confusions
from deepfishing.evaluation.report.folder import open_results
from deepfishing.evaluation.report.gains import gains
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.sheet import interval_text, one_decimal
from deepfishing.evaluation.report.sheets import table_sheets
from deepfishing.evaluation.report.tables import comparison
from deepfishing.evaluation.report.text import terminal, write_latex, write_markdown

FEATURES = {"x7": 1.5, "dW7": 2.5}
SCRIPTS = ("собака", "قطة", "כלב", "猫", "🐟", "<b>&$_{}~^\\", "a" * 70)


@pytest.fixture
def measured(tmp_path, add_rows):
    def add(classes, n=60, **options):
        changes = {
            "dataset": "photos",
            "network": "efficientnet-lite0",
            "official_ap": "area",
        }
        given = {"one_class": True, "intervals": True, **changes, **options}
        return add_rows(
            tmp_path, tuple(FEATURES), n, strength=FEATURES, classes=classes, **given
        )

    return add


def sheets(rows, known_gains=None):
    return table_sheets(comparison(rows, known_gains), medium="terminal")


def printed(*shown):
    out = io.StringIO()
    console = Console(file=out, width=80)
    for sheet in shown:
        console.print(terminal(sheet))
    return out.getvalue()


def test_the_matrix_is_that_of_the_best_row_and_the_pairs_count_both(measured):
    rows = measured(["ape", "bee", "cat"]).rows
    found = confusions(comparison(rows))
    best = max(rows, key=lambda row: row["map"]["area"])
    assert found.line.feature == best["feature"]
    for i, name in enumerate(found.classes):
        for j, other in enumerate(found.classes):
            assert found.counts[i][j] == best["confusion"][name].get(other, 0)
    for pair in found.pairs:
        assert pair.truth != pair.answer
        assert pair.of == 20
        assert pair.images == tuple(
            row["confusion"][pair.truth].get(pair.answer, 0) for row in rows
        )
    by_best = [pair.images[rows.index(best)] for pair in found.pairs]
    assert by_best == sorted(by_best, reverse=True)


def test_every_form_of_the_report_has_the_accuracies_with_their_intervals(
    measured, tmp_path
):
    results = measured(["ape", "bee", "cat"])
    rows = results.rows
    page = write_report(tmp_path).read_text()
    text = write_markdown(tmp_path).read_text()
    tex = write_latex(tmp_path).read_text()
    said = printed(*sheets(rows, gains(results, rows)))
    assert max(map(len, said.splitlines())) <= 80
    for row in rows:
        for name in ("accuracy", "balanced_accuracy"):
            figure = one_decimal(row[name])
            interval = interval_text(tuple(row[f"{name}_interval"]))
            cell = (
                rf'<td class="\w+">{figure}</td>\s*<td class="interval">{interval}</td>'
            )
            assert re.search(cell.replace(interval, interval.replace("-", "–")), page)
            assert f"| {figure} | {interval} |" in text
            assert f"& {figure} & {interval.replace('-', '--')} &" in tex
            assert figure in said
        assert interval_text(tuple(row["accuracy_interval"])) in said
    for name in ("ape", "bee", "cat"):
        assert re.search(rf"\d {name}(  +(\d+|·)){{3}}", said)
    assert "Confusions of dW7" in said


@pytest.mark.parametrize("n_classes", [2, 7, 20, 21, 100])
def test_any_number_of_classes_has_its_matrix_and_fits_the_terminal(
    measured, tmp_path, n_classes
):
    names = [f"class number {i}" for i in range(n_classes)]
    rows = measured(names, n=2 * n_classes, intervals=False).rows
    page = write_report(tmp_path).read_text()
    found = confusions(comparison(rows))
    cells = sum(n > 0 for counts in found.counts for n in counts)
    assert ("<svg class=" in page and 'class="heat"' in page) == (n_classes > 20)
    if n_classes > 20:
        assert page.count('width="1" height="1"') == cells
        assert "taken for class number" in page
    else:
        assert page.count("--share:") == cells
    text = printed(sheets(rows)[1])
    assert max(map(len, text.splitlines())) <= 80
    assert ("Most frequent" in text) == (n_classes > 14)
    assert "confusions of" in write_markdown(tmp_path).read_text() or n_classes <= 20


def test_names_in_any_script_are_shown_as_they_are_and_not_obeyed(measured, tmp_path):
    measured(list(SCRIPTS))
    page = write_report(tmp_path).read_text()
    assert page.count("<bdi>قطة</bdi>") >= 1
    assert "<b>&$" not in page
    for name in ("собака", "כלב", "猫", "🐟"):
        assert name in page
        assert name in write_markdown(tmp_path).read_text()


def test_rows_of_older_versions_have_no_accuracy_and_stand_beside_new_ones(
    measured, tmp_path
):
    rows = measured(["ape", "bee", "cat"]).rows
    for name in list(rows[0]):
        if "accuracy" in name or name == "confusion":
            del rows[0][name]
    (tmp_path / "results.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    assert open_results(tmp_path).rows == rows
    found = confusions(comparison(rows))
    assert [line.feature for line in found.compared] == ["dW7"]
    page = write_report(tmp_path).read_text()
    assert page.count("<td></td>") >= 2
    assert one_decimal(rows[1]["accuracy"]) in page
    assert "top-1" in printed(sheets(rows)[0])


def test_images_with_several_classes_have_neither(tmp_path, add_rows):
    rows = add_rows(tmp_path, features=("x7",)).rows
    assert confusions(comparison(rows)) is None
    assert len(sheets(rows)) == 1
    page = write_report(tmp_path).read_text()
    assert "top-1" not in page
    assert "taken for" not in page


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", 101.0),
        ("accuracy", "high"),
        ("accuracy_interval", [3.0, 2.0]),
        ("balanced_accuracy", float("nan")),
        ("balanced_accuracy_interval", [1.0]),
        ("confusion", [[1, 0], [0, 1]]),
        ("confusion", {"ape": {"elk": 1}}),
        ("confusion", {"ape": {"bee": -1}}),
        ("confusion", {"ape": {"bee": 0.5}}),
    ],
)
def test_a_malformed_accuracy_is_refused_by_reader_and_writer(
    measured, tmp_path, name, value
):
    results = measured(["ape", "bee"])
    row = {**results.rows[0], name: value}
    with pytest.raises(StoreError, match=f"usable '{name}'"):
        results.add(row)
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(StoreError, match=f"usable '{name}'.*line 1"):
        open_results(tmp_path)
