"""SECURITY.md says nothing that no test shows, and every test of this folder is on it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def functions_of(path):
    tree = ast.parse(path.read_bytes())
    return {
        n.name
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and n.name[:5] == "test_"
    }


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_on_the_page_is_there(file):
    named = {name for other, name in NAMED if other == file}
    assert named - functions_of(ROOT / file) == set()


def test_every_test_of_this_folder_is_on_the_page():
    here = Path(__file__).parent
    for path in sorted(here.glob("test_*.py")):
        named = {
            name for file, name in NAMED if file == path.relative_to(ROOT).as_posix()
        }
        assert functions_of(path) - named == set(), path.name


def test_every_line_of_the_tables_names_a_test():
    rows = [
        line
        for line in PAGE.splitlines()
        if line.startswith("| ") and "---" not in line
    ]
    bare = [
        row for row in rows if "::test_" not in row and not row.endswith("| test |")
    ]
    assert rows
    assert bare == []
