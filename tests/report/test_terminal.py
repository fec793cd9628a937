import io
import re

from rich.console import Console

from deepfishing.report.terminal import table_1


def printed(rows, **options):
    out = io.StringIO()
    Console(file=out, width=80, **options).print(table_1(rows))
    return out.getvalue()


def test_the_table_shows_every_figure_within_80_columns(tmp_path, add_rows):
    rows = add_rows(tmp_path).rows
    text = printed(rows)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    for row in rows:
        [line] = [line.split() for line in lines if line.split()[:1] == [row["feature"]]]
        figures = [f"{row['map'][method]:.1f}" for method in ("11point", "area", "sklearn")]
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


def test_columns_of_the_paper_are_left_out_where_it_has_no_figures(tmp_path, add_rows, scenes):
    rows = add_rows(tmp_path, features=("x7", "dW7"), **scenes).rows
    assert [column.header for column in table_1(rows).columns] == [
        *("feature", "area*", "11-point", "sklearn"),
    ]


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
    Console(file=out, width=80).print(table_1(add_rows(tmp_path).rows))
