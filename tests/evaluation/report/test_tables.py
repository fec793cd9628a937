from deepfishing.core.metrics import DEFINITIONS, Definition
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.tables import comparison, left_out, per_class
from deepfishing.evaluation.report.text import write_latex, write_markdown
from deepfishing.evaluation.report.words import plain, table_words


def test_table_1_has_the_measured_values_unrounded_and_the_official_one_first(
    tmp_path, add_rows
):
    rows = add_rows(tmp_path, official_ap="area").rows
    for line, row in zip(comparison(rows).lines, rows, strict=True):
        assert line.feature == row["feature"]
        assert line.map == row["map"]
        assert list(line.map) == ["area", "11point", "sklearn"]
        assert line.official == row["map"]["area"]


def test_printed_numbers_stand_beside_measured_ones(tmp_path, add_rows):
    rows = add_rows(tmp_path, features=("x7", "x6;x7", "dW7")).rows
    lines = comparison(rows).lines
    assert [line.printed for line in lines] == [79.4, 79.1, 80.9]  # the paper, Table 1
    assert [line.difference for line in lines] == [
        rows[0]["map"]["11point"] - 79.4,
        rows[1]["map"]["11point"] - 79.1,
        rows[2]["map"]["11point"] - 80.9,
    ]


def test_a_network_that_the_paper_does_not_have_has_no_printed_numbers(
    tmp_path, add_rows, groceries
):
    rows = add_rows(tmp_path, features=("x7", "dW7"), **groceries).rows
    assert [line.printed for line in comparison(rows).lines] == [None, None]
    assert [line.difference for line in comparison(rows).lines] == [None, None]
    assert {
        cell.printed for cells in per_class(rows, ["x7"]).values() for cell in cells
    } == {None}


def test_a_test_split_without_labels_has_a_note_instead_of_figures(tmp_path, add_rows):
    rows = add_rows(
        tmp_path,
        features=("x6;x7", "dW7"),
        labelled=False,
        dataset="voc2012",
        official_ap="area",
    ).rows
    found = comparison(rows)
    both, gradient = found.lines
    assert both.map == {"area": None, "11point": None, "sklearn": None}
    assert both.note == "no labels; submission files in submission/x6_x7"
    # the paper, Table 1 right
    assert (gradient.printed, gradient.difference) == (76.5, None)
    assert found.best is None


def test_per_class_values_are_those_of_the_rows(tmp_path, add_rows):
    rows = add_rows(tmp_path).rows
    row_of = {row["feature"]: row for row in rows}
    table = per_class(rows, ["x5", "dW7"])
    assert list(table) == rows[0]["classes"]
    for name, (x5, dw7) in table.items():
        assert x5.measured == row_of["x5"]["ap"]["11point"][name]
        assert dw7.measured == row_of["dW7"]["ap"]["11point"][name]
        assert x5.printed is None
    assert [table[name][1].printed for name in ("aeroplane", "tvmonitor")] == [
        96.6,
        73.5,
    ]


def test_a_class_that_was_left_out_says_why(tmp_path, add_rows):
    [row] = add_rows(
        tmp_path, features=("x7",), left_out={"cow": "no positive test example"}
    ).rows
    row["ap"]["11point"]["cow"] = None
    [cell] = per_class([row], ["x7"])["cow"]
    assert (cell.measured, cell.note) == (None, "no positive test example")
    assert left_out([row]) == {"cow": "no positive test example"}


def test_the_finding_compares_the_best_of_each_kind(tmp_path, add_rows):
    rows = add_rows(tmp_path).rows
    value = {row["feature"]: row["map"]["11point"] for row in rows}
    forward = max((f for f in value if "W" not in f), key=value.__getitem__)
    gradient = max((f for f in value if "W" in f), key=value.__getitem__)
    found = comparison(rows)
    assert (found.forward.feature, found.gradient.feature) == (forward, gradient)
    assert found.best.feature == max(value, key=value.__getitem__)
    points = value[gradient] - value[forward]
    side = "above" if points > 0 else "below"
    assert f"{abs(points):.1f} points {side} the best forward" in plain(
        table_words(found)
    )
    pairs = [("x5;x6", "dW6"), ("x6;x7", "dW7"), ("x7;y8", "dW8")]
    assert [(a.feature, b.feature) for a, b in found.layers] == pairs
    assert found.layers_won == sum(value[b] > value[a] for a, b in pairs)


def test_a_worse_gradient_is_found_worse(tmp_path, add_rows):
    rows = add_rows(
        tmp_path, features=("x7", "dW7"), strength={"x7": 3.0, "dW7": 0.5}
    ).rows
    found = comparison(rows)
    assert "below the best forward feature" in plain(table_words(found))
    assert found.best.feature == "x7"


def test_there_is_no_difference_with_one_kind_only(tmp_path, add_rows):
    found = comparison(add_rows(tmp_path, features=("dW7",)).rows)
    assert found.forward is None
    words = plain(table_words(found))
    assert words.endswith("No forward feature has been measured to compare it with.")
    assert "In the paper" not in words


def test_another_definition_of_ap_has_its_column_and_its_explanation(
    tmp_path, add_rows, monkeypatch
):
    first = Definition(
        "first", "first-score", "how pure the top is", lambda r: 100 * r.best[0]
    )
    monkeypatch.setitem(DEFINITIONS, "first", first)
    [row] = add_rows(
        tmp_path, features=("x7",), official_ap="first", intervals=True
    ).rows
    page = write_report(tmp_path).read_text()
    assert '<th scope="col" class="map official">first-score<small>official' in page
    assert "<dt>first-score AP</dt><dd>how pure the top is</dd>" in page
    for text in (
        page,
        write_markdown(tmp_path).read_text(),
        write_latex(tmp_path).read_text(),
    ):
        assert "first-score" in text
        assert f"{row['map']['first']:.1f}" in text
