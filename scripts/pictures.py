"""The pictures of the README: the page and the report, made from the embedded data set.

`python scripts/pictures.py` writes docs/assets/page.png and docs/assets/report.png. It extracts
photographs, serves them and photographs the page with Chromium; for the report it runs
`deepfish reproduce groceries`, or takes `--results results/demo`. Needs the extra `dev` and
Chromium (the package chromium, or its path in CHROMIUM). About three minutes on two cores.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright

from deepfishing import load_groceries, load_network
from deepfishing.experiments.reproduce import reproduce
from deepfishing.features import needed_factors, parse_features
from deepfishing.gradients.to_store import extract_to_store, store_settings
from deepfishing.images.sources import find_images
from deepfishing.report.html import write_report
from deepfishing.store import Store
from deepfishing.web.gallery import Gallery
from deepfishing.web.server import bind, make_server

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
MOST = 300_000  # bytes of a picture
SIZE: ViewportSize = {"width": 1280, "height": 800}


def main() -> None:
    """Make both pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, help="a folder of `deepfish reproduce`")
    results = parser.parse_args().results
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page_picture(Path(folder), browser)
        report_picture(results or make_results(Path(folder)), browser)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        raise SystemExit("no Chromium: install the package chromium, or set CHROMIUM to its path")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def page_picture(folder: Path, browser: Browser) -> None:
    """The page with the hits of one photograph."""
    network = load_network()
    load_groceries(folder, n_train=200, n_test=100)
    store = Store(
        folder / "stores" / "groceries", store_settings(network, tau=2.0, label="uniform")
    )
    factors = needed_factors(parse_features("x7,dW8", network.layers))
    extract_to_store(network, find_images(folder / "groceries"), store, factors)
    gallery = Gallery(store.folder)
    address = bind("127.0.0.1", 0)
    server = make_server(gallery, address)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [address.listening]})
    thread.start()
    try:
        page = browser.new_page(viewport=SIZE)
        page.goto(f"{address.url}#id={gallery.collection[24].id}")
        page.wait_for_selector("#forward .bar")  # hits and plot are there
        page.wait_for_selector("#gradient .shot.loaded")
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(500)  # pictures fade in
        save(page.screenshot(), "page.png")
    finally:
        server.should_exit = True
        thread.join()


def make_results(folder: Path) -> Path:
    """What `deepfish reproduce groceries` measures."""
    out = folder / "results"
    reproduce(
        load_groceries(folder / "data"), load_network(), out, command="deepfish reproduce groceries"
    )
    return out


def report_picture(results: Path, browser: Browser) -> None:
    """The top of the report."""
    page = browser.new_page(viewport=SIZE)
    page.goto(write_report(results).absolute().as_uri())
    save(page.screenshot(), "report.png")


def save(png: bytes, name: str) -> None:
    """Write a picture with as many colours as fit into `MOST` bytes."""
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        file = io.BytesIO()
        whole.quantize(colours).save(file, "PNG", optimize=True)
        if file.tell() < MOST:
            break
    ASSETS.mkdir(exist_ok=True)
    (ASSETS / name).write_bytes(file.getvalue())
    print(f"docs/assets/{name}: {file.tell():,} bytes, {colours} colours")


if __name__ == "__main__":
    main()
