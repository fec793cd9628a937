import io
import re

from rich.console import Console

from deepfishing.evaluation.report.gains import gains
from deepfishing.evaluation.report.sheet import one_decimal
from deepfishing.evaluation.report.sheets import table_sheets
from deepfishing.evaluation.report.tables import comparison
from deepfishing.evaluation.report.text import terminal

STRENGTH = dict.fromkeys(("x5", "x6", "x7", "y8", "x8", "x5;x6", "dW6", "x6;x7"), 1.6)
STRENGTH |= dict.fromkeys(("dW7", "x7;y8", "dW8"), 1.7)


def table_1(rows, known_gains=None):
    return terminal(table_sheets(comparison(rows, known_gains), medium="terminal")[0])


def printed(rows, known_gains=None, **options):
    out = io.StringIO()
    Console(file=out, width=80, **options).print(table_1(rows, known_gains))
    return out.getvalue()


def test_the_table_shows_every_figure_within_80_columns(tmp_path, add_rows):
    rows = add_rows(tmp_path).rows
    text = printed(rows)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    for row in rows:
        [line] = [
            line.split() for line in lines if line.split()[:1] == [row["feature"]]
        ]
        figures = [
            f"{row['map'][method]:.1f}" for method in ("11point", "area", "sklearn")
        ]
        assert line[1:4] == figures
        assert f"{row['map']['11point'] - float(line[4]):+.1f}" == line[5]
    assert "11-point*" in text
    assert "trainval (61 images) to test (60)" in text


def test_blocks_are_set_apart_as_in_the_paper(tmp_path, add_rows):
    body = printed(add_rows(tmp_path).rows[::-1]).splitlines()
    start = next(i for i, line in enumerate(body) if line.split()[:1] == ["x5"])
    names = [(line.split() or [""])[0] for line in body[start : start + 14]]
    assert names == [
        *("x5", "x6", "x7", "y8", "x8", ""),
        *("x5;x6", "dW6", "", "x6;x7", "dW7", "", "x7;y8", "dW8"),
    ]


def test_only_the_best_official_figure_is_bold(tmp_path, add_rows):
    rows = add_rows(tmp_path).rows
    text = printed(rows, force_terminal=True, color_system="standard")
    bold = re.findall(r"\x1b\[1(?:;\d+)*m\s*([\d.]+)\s*\x1b", text)
    assert bold == [f"{max(row['map']['11point'] for row in rows):.1f}"]


def test_columns_of_the_paper_are_left_out_where_it_has_no_figures(
    tmp_path, add_rows, groceries
):
    rows = add_rows(tmp_path, features=("x7", "dW7"), **groceries).rows
    assert [str(column.header) for column in table_1(rows).columns] == [
        *("feature", "area*", "11-point", "sklearn"),
    ]


def test_intervals_and_gains_fit_80_columns_and_only_what_holds_is_marked(
    tmp_path, add_rows
):
    results = add_rows(tmp_path, intervals=True, strength={**STRENGTH, "dW7": 4.0})
    rows, known = results.rows, gains(results, results.rows)
    text = printed(rows, known)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    marked = set()
    for row in rows:
        name = row["feature"]
        [line] = [line for line in text.splitlines() if line.split()[:1] == [name]]
        figure, interval = line.split()[1:3]
        assert figure == f"{row['map']['11point']:.1f}"
        assert interval == "-".join(f"{v:.1f}" for v in row["map_interval"]["11point"])
        if name in known:
            assert line.split()[3] == one_decimal(known[name].mean, sign=True)
        if "!" in line:
            marked.add(name)
    assert marked == {name for name, gain in known.items() if gain.holds}
    assert "dW7" in marked
    [best] = {row["feature"] for row in rows} - set(known)
    assert f"gain: over {best}, the best forward feature" in text


def test_long_recipes_fold_and_their_figures_do_not(tmp_path, add_rows):
    name = "whiten(pow(dW7,0.5),0.1)+whiten(pow(x7,0.5),0.1)"
    strength = {"x7": 1.0, "dW7": 1.0, name: 1.2}
    results = add_rows(tmp_path, tuple(strength), strength=strength, intervals=True)
    text = printed(results.rows, gains(results, results.rows))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    value = next(r["map"]["11point"] for r in results.rows if r["feature"] == name)
    assert f"{value:.1f}" in text
    joined = "".join(line.split()[0] for line in text.splitlines() if line.split())
    assert name in joined


def test_missing_figures_are_explained_below(tmp_path, add_rows):
    rows = add_rows(tmp_path, features=("dW7",), labelled=False, dataset="voc2012").rows
    assert "dW7: no labels; submission files in submission/dW7." in printed(rows)
    left_out = {"cow": "no positive test example"}
    rows = add_rows(tmp_path / "b", features=("x7",), left_out=left_out).rows
    assert "Left out of the mean: cow (no positive test example)." in printed(rows)


def test_markup_in_names_is_printed_as_it_is(tmp_path, add_rows):
    rows = add_rows(tmp_path, features=("x7",), dataset="[red]", network="[/]").rows
    text = printed(rows)
    assert "mAP in percent on [red] test" in text
    assert "[/], trainval" in text


def test_the_table_needs_no_more_than_ascii_from_its_figures(tmp_path, add_rows):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    results = add_rows(tmp_path, intervals=True)
    known = gains(results, results.rows)
    Console(file=out, width=80).print(table_1(results.rows, known))
