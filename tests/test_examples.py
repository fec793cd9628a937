"""The examples run as they are, and say what their docstrings promise."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all of them, so that the photographs are unpacked once."""
    return tmp_path_factory.mktemp("examples")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_classifies_far_better_than_chance(
    path, folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    runpy.run_path(str(path), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    found = [
        float(line.split()[-1]) for line in lines if "mean average precision" in line
    ]
    assert found
    assert min(found) > 30  # 14 classes: 7 % by chance


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_says_how_it_is_run(path):
    assert f"\n    python examples/{path.name}\n" in path.read_text(encoding="utf-8")
