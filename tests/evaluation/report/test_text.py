import html
import re
import shutil
import subprocess

import pytest

from deepfishing.errors import StoreError
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.text import write_latex, write_markdown

EVIL = "a|b_c & <i>$x^2$ #1 100% {~} \\end"


def html_tables(folder):
    """Cells of the page's first two kinds of tables, tags and small print removed."""
    text = write_report(folder).read_text(encoding="utf-8")
    found = re.findall(r'<table class="(?:table-1|classes)">(.*?)</table>', text, re.S)
    return [
        [
            [_plain(cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.S)]
            for row in re.findall(r"<tr>(.*?)</tr>", table, re.S)
        ]
        for table in found
    ]


def _plain(cell):
    cell = re.sub(r"<small>.*?</small>", "", cell)
    return (
        html.unescape(re.sub(r"<.*?>", "", cell))
        .strip()
        .replace("−", "-")
        .replace("–", "-")
    )


def markdown_tables(folder):
    text = write_markdown(folder).read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    split = [
        [
            re.split(r"(?<!\\)\|", line)[1:-1]
            for line in table.splitlines()
            if "---" not in line
        ]
        for table in tables
    ]
    return [[[_unmarked(cell) for cell in row] for row in table] for table in split]


def _unmarked(cell):
    cell = re.sub(r"^\*\*(.*)\*\*$", r"\1", cell.strip())
    return html.unescape(re.sub(r"\\(.)", r"\1", cell))


def latex_tables(folder):
    """Cells of each tabular, from a reader that only knows `&`, two backslashes and rules."""
    text = write_latex(folder).read_text(encoding="utf-8")
    found = re.findall(
        r"\\begin\{tabular\}\{(l?r*)\}\n(.*?)\\end\{tabular\}", text, re.S
    )
    tables = []
    for columns, body in found:
        rows = [line for line in body.splitlines() if not line.endswith("rule")]
        assert all(row.endswith(r" \\") for row in rows)
        cells = [re.split(r"(?<!\\)&", row.removesuffix(r" \\")) for row in rows]
        assert {len(row) for row in cells} == {len(columns)}
        tables.append([[_untexed(cell) for cell in row] for row in cells])
    return tables


def _untexed(cell):
    cell = re.sub(r"\\textbf\{(.*)\}", r"\1", cell.strip())
    return cell.replace("$-$", "-").replace("--", "-")


@pytest.mark.parametrize("read", [markdown_tables, latex_tables])
@pytest.mark.parametrize("intervals", [False, True])
def test_the_tables_have_the_figures_of_the_page(
    tmp_path, add_rows, groceries, read, intervals
):
    add_rows(tmp_path, intervals=intervals)
    add_rows(tmp_path, features=("x7", "dW7"), **groceries)
    expected, found = html_tables(tmp_path), read(tmp_path)
    assert len(expected) == len(found) == 4
    for table, other in zip(expected, found, strict=True):
        # names of features are written in each format's own way
        assert [row[1:] for row in table[1:]] == [row[1:] for row in other[1:]]
        assert len(table[0]) == len(other[0])


def test_markdown_names_features_as_the_commands_do(tmp_path, add_rows):
    rows = add_rows(tmp_path).rows
    first, _ = markdown_tables(tmp_path)
    assert [row[0] for row in first[1:]] == [row["feature"] for row in rows]


def test_latex_names_features_in_the_papers_letters(tmp_path, add_rows):
    add_rows(tmp_path, features=("x6;x7", "dW7"))
    first, _ = latex_tables(tmp_path)
    assert [row[0] for row in first[1:]] == [
        r"$x_{6}$; $x_{7}$",
        r"$\partial E / \partial W_{7}$",
    ]


def test_the_best_is_bold_in_both(tmp_path, add_rows):
    rows = add_rows(tmp_path, features=("x7", "dW7")).rows
    best = f"{max(row['map']['11point'] for row in rows):.1f}"
    assert f"| **{best}** |" in write_markdown(tmp_path).read_text(encoding="utf-8")
    assert rf"\textbf{{{best}}}" in write_latex(tmp_path).read_text(encoding="utf-8")


def test_hostile_names_are_only_text(tmp_path, add_rows):
    add_rows(tmp_path, features=("x7", "dW7"), classes=["cat", EVIL], network=EVIL)
    _, classes = markdown_tables(tmp_path)
    assert classes[2][0] == EVIL
    assert "<i>" not in write_markdown(tmp_path).read_text(encoding="utf-8")
    _, classes = latex_tables(tmp_path)
    assert classes[2][0] == (
        r"a\textbar{}b\_c \& \textless{}i\textgreater{}\$x\textasciicircum{}2\$ \#1 100\% "
        r"\{\textasciitilde{}\} \textbackslash{}end"
    )


def test_a_split_without_labels_has_no_table_of_classes_and_says_why(
    tmp_path, add_rows
):
    add_rows(tmp_path, features=("x7", "dW7"), labelled=False, dataset="voc2012")
    text = write_markdown(tmp_path).read_text(encoding="utf-8")
    assert "no labels; submission files in submission/dW7" in text
    assert len(markdown_tables(tmp_path)) == 1


def test_tables_that_cannot_be_written_are_one_clear_error(tmp_path, add_rows):
    add_rows(tmp_path, features=("x7",))
    (tmp_path / "report.md").mkdir()
    with pytest.raises(StoreError, match=r"report cannot be written: .*report\.md"):
        write_markdown(tmp_path)


@pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="no pdflatex to compile with"
)
def test_latex_compiles(tmp_path, add_rows):
    add_rows(tmp_path, classes=["cat", EVIL])
    write_latex(tmp_path)
    paper = (
        r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{report}"
    )
    (tmp_path / "paper.tex").write_text(paper + r"\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=600)
