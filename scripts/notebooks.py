"""The notebooks of examples/ as pictures for the docs.

`python scripts/notebooks.py` runs each of them in a folder of its own and photographs it with
Chromium, 800 pixels wide, as docs/assets/notebook-NAME.webp. Names may be given, such as
`five_minutes`. Needs the extra `dev` and Chromium, as scripts/pictures.py does. Some minutes on two
cores.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from pictures import chromium, save  # beside this file

EXAMPLES = Path(__file__).parent.parent / "examples"
WIDTH = 800


def main() -> None:
    """Make the pictures of all notebooks, or of those that are named."""
    names = sys.argv[1:] or [path.stem for path in sorted(EXAMPLES.glob("*.ipynb"))]
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for name in names:
            page = browser.new_page(viewport={"width": WIDTH, "height": 600})
            html = Path(folder, f"{name}.html")
            html.write_text(run(EXAMPLES / f"{name}.ipynb"), encoding="utf-8")
            page.goto(html.as_uri())
            page.wait_for_timeout(1000)  # fonts and pictures
            save(page.screenshot(full_page=True), f"notebook-{name}.webp")
            page.close()


def run(path: Path) -> str:
    """A notebook after it ran, as one page of HTML."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=600, resources={"metadata": {"path": folder}}
        ).execute()
    exporter = HTMLExporter(require_js_url="", mathjax_url="")  # nothing from elsewhere
    html: str = exporter.from_notebook_node(notebook)[0]
    return html


if __name__ == "__main__":
    main()
