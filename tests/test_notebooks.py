"""The notebooks run as they are, from top to bottom, and hold no output of somebody's machine."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the kernel's own libraries
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_as_it_is(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": tmp_path}}
    ).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert shown
    assert not [output for output in shown if output.get("name") == "stderr"]


def test_the_four_are_there():
    names = ["five_minutes", "paper_tables", "photos_to_classifier", "your_own_network"]
    assert [path.stem for path in NOTEBOOKS] == names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_kept_without_output_and_shown_in_the_docs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.get("outputs")]
    assert f"assets/notebook-{path.stem}.webp" in (DOCS / "notebook.md").read_text()
    assert (DOCS / "assets" / f"notebook-{path.stem}.webp").is_file()
