"""`best` is called best in every form of the report, and its formula stands once below."""

import io
from itertools import pairwise

import pytest
from rich.console import Console

from deepfishing.core.recipes.language import best_recipe
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.sheets import curve_sheets, table_sheets
from deepfishing.evaluation.report.tables import comparison
from deepfishing.evaluation.report.text import terminal, write_latex, write_markdown

BEST = best_recipe({7: "_conv_head", 8: "_fc"})
LONG = f"3*{BEST}+whiten(pow(x:features.12.block.conv,0.5))"
STRENGTH = {"x7": 1.6, "dW7": 1.5, BEST: 1.9}


@pytest.fixture
def folder(tmp_path, add_rows, add_points, groceries):
    add_rows(tmp_path, tuple(STRENGTH), strength=STRENGTH, intervals=True, **groceries)
    add_points(tmp_path, [("x7", 1, 80.0, 79.0, 81.0), (BEST, 1, 83.0, 82.0, 84.0)])
    return tmp_path


def test_rows_keep_the_formula(folder):
    assert BEST in (folder / "results.jsonl").read_text()


def test_the_terminal_calls_it_best(tmp_path, add_rows, add_points, groceries):
    rows = add_rows(tmp_path, tuple(STRENGTH), strength=STRENGTH, **groceries).rows
    points = add_points(
        tmp_path, [("x7", 1, 80.0, 79.0, 81.0), (BEST, 1, 83.0, 82.0, 84.0)]
    )
    first, *_ = table_sheets(comparison(rows), medium="terminal")
    for sheet in (first, *curve_sheets(points, medium="terminal")):
        out = io.StringIO()
        Console(file=out, width=80).print(terminal(sheet))
        lines = out.getvalue().splitlines()
        starts = [line.split()[0] for line in lines if line.strip()]
        assert starts.count("best") == 2  # its row and the footnote
        assert out.getvalue().count(BEST) == 1


@pytest.mark.parametrize("write", [write_markdown, write_latex])
def test_pasted_tables_call_it_best_and_each_has_the_formula_once(folder, write):
    text = write(folder).read_text().replace("\\", "")
    tables = text.count("best = ")
    assert tables == 3  # mAP, classes, curve
    assert text.count(BEST) == tables


def test_the_page_calls_it_best_and_has_the_formula_once_per_part(folder):
    text = write_report(folder).read_text()
    formula = "(2*<wbr>x<sub>6</sub>+<wbr>1)*<wbr>(whiten("
    assert text.count(formula) == 2  # the table's part and that of the curves
    assert text.count("whiten(") == 4
    assert '<span class="name gradient">best</span>' in text


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", [BEST, LONG])
def test_no_recipe_makes_the_page_wider_than_the_screen(
    tmp_path, add_rows, add_points, groceries, browser, width, name
):
    strength = {"x7": 1.6, "dW7": 1.5, name: 1.9}
    add_rows(tmp_path, tuple(strength), strength=strength, intervals=True, **groceries)
    add_points(tmp_path, [("x7", 1, 80.0, 79.0, 81.0), (name, 1, 83.0, 82.0, 84.0)])
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(300_000)
    page.goto(write_report(tmp_path).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert width == 390 or max(page.evaluate(wide)) == 0
    # the lines of the grid go from the first label to the last without a gap
    rows = page.evaluate(
        "[...document.querySelectorAll('.dots svg')].map(e => e.getBoundingClientRect())"
        ".map(r => [r.top, r.bottom])"
    )
    assert len(rows) == 4
    for (_, end), (start, _) in pairwise(rows):
        assert abs(start - end) < 1
