"""The pictures of the docs: the page, the report and a sheet of the embedded photographs.

`python scripts/pictures.py` measures what `make demo` measures, or takes `--results results/demo`,
and photographs the report and the page of it with Chromium: 1,280 and 390 pixels wide, light and
dark, as docs/assets/{page,report}{,-phone}{,-dark}.webp; search.webp is a sheet of hits,
twins.webp one of planted copies, map.webp the map of all photographs; duplicates, studio-map and
model are views of the studio, and photos, label and review those of a session in which 60
photographs were labelled, two of them wrongly: `--views` makes them alone. Needs the
extra `dev` and Chromium (the package chromium, or its path in CHROMIUM). About a minute on two
cores, without `--results` two.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Literal

from PIL import Image, ImageOps
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from deepfishing import (
    Store,
    extract_to,
    load_groceries,
    load_network,
    measure,
    write_report,
)
from deepfishing.cli.curate import draw_groups
from deepfishing.curate import find_twins, make_map, open_searcher
from deepfishing.curate.copies_review import find_copies
from deepfishing.curate.label_session import choose_next, learn
from deepfishing.curate.layout import make_layout
from deepfishing.curate.map_page import write_map
from deepfishing.learn.label_pool import make_label_pool
from deepfishing.learn.store_model import train_store_model
from deepfishing.search import Searcher
from deepfishing.search.hits import save_tiles
from deepfishing.store.label_log import Change, LabelLog
from deepfishing.store.manifest import find_store
from deepfishing.web.gallery import Gallery
from deepfishing.web.server import bind, make_server

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
QUALITY = 82  # of WebP; text stays sharp, and photographs keep their colours
QUERY = "Granny-Smith_26.jpg"  # whose hits the page shows
PAGE: dict[str, ViewportSize] = {
    "": {"width": 1280, "height": 860},
    "-phone": {"width": 390, "height": 844},
}
TWINS = ("Granny-Smith_26.jpg", "Watermelon_37.jpg", "Orange_30.jpg")  # that get copies
MAP: dict[str, ViewportSize] = {"": {"width": 1100, "height": 900}}
# photographs of the session, and which of them get a wrong label
LABELLED, WRONG = 60, (20, 40)
REPORT: dict[str, ViewportSize] = {
    "": {"width": 1280, "height": 2420},
    "-phone": {"width": 390, "height": 1400},
}


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument(
        "--results", type=Path, help="a folder of `deepfish reproduce groceries`"
    )
    parser.add_argument(
        "--views", action="store_true", help="only the views of the studio"
    )
    parsed = parser.parse_args()
    given = parsed.results
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        results = given or make_results(Path(folder))
        if parsed.views:
            sheet_of_twins(results, Path(folder))
            photograph_views(browser, results, Path(folder))
            return
        with served(results) as address:
            photograph(browser, "page", PAGE, address, show_hits)
        sheet_of_hits(results)
        sheet_of_twins(results, Path(folder))
        photograph_views(browser, results, Path(folder))
        photos = open_searcher(Store.open(find_store(results)))
        page = Path(folder, "map.html").absolute()
        write_map(page, make_map(photos), photos)
        photograph(
            browser, "map", MAP, page.as_uri(), lambda page: None, schemes=("light",)
        )
        report = write_report(results).absolute().as_uri()
        photograph(browser, "report", REPORT, report, lambda page: None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        raise SystemExit(
            "no Chromium: install the package chromium, or set CHROMIUM to its path"
        )
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def make_results(folder: Path) -> Path:
    """What `make demo` measures."""
    out = folder / "demo"
    command = "deepfish reproduce groceries --out results/demo"
    data, network = load_groceries(out / "data"), load_network()
    measure(
        data, network, out, ["table", "low-shot"], table="all,best", command=command
    )
    return out


@contextmanager
def served(results: Path) -> Iterator[str]:
    """The address of the page, with the hits of one photograph."""
    gallery = Gallery(results)
    ids = gallery.collection.table.column("id").to_pylist()
    query = next(i for i in ids if i.endswith(QUERY))
    with running(gallery) as url:
        yield f"{url}#id={query}"


@contextmanager
def running(gallery: Gallery) -> Iterator[str]:
    """The address of a server that ends with the block."""
    address = bind("127.0.0.1", 0)
    server = make_server(gallery, address)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [address.listening]}
    )
    thread.start()
    try:
        yield address.url
    finally:
        server.should_exit = True
        thread.join()


def photograph_views(browser: Browser, results: Path, folder: Path) -> None:
    """Write pictures of the views of the studio."""
    with running(Gallery(make_session(results, folder))) as url:
        for name, (where, wait) in VIEWS.items():
            photograph(browser, name, PAGE, f"{url}{where}", wait)
    twins, store = Store.open(folder / "twins"), Store.open(find_store(results))
    find_copies(twins)
    make_layout(store)
    train_store_model(store)
    views = {"duplicates": (twins, "duplicates"), "map": (store, "studio-map")}
    views |= {"model": (store, "model")}
    for view, (shown, name) in views.items():
        with served_view(shown.folder, view) as address:
            photograph(browser, name, PAGE, address, show_view)


@contextmanager
def served_view(store: Path, view: str) -> Iterator[str]:
    """The address of a view of a store."""
    with running(Gallery(store)) as url:
        yield f"{url}#view={view}"


def show_view(page: Page) -> None:
    """Wait for what a view shows."""
    page.wait_for_selector(
        "#copies-photos .shot.loaded, #map[data-passing], #model-classes tbody tr",
        state="attached",
    )
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2000)  # pictures fade in


def make_session(results: Path, folder: Path) -> Path:
    """A store of the photographs without labels, of which some were labelled in the studio."""
    store = Store.open(results)
    shutil.copytree(store.folder, folder / "my-photos")
    session = Store.open(folder / "my-photos")
    truth = {}
    rows = []
    for row in store.rows().values():
        variety = PurePosixPath(row.id).parent.name
        split = PurePosixPath(row.id).parents[1].name
        truth[str(row.sha256)] = variety
        name = f"{split}/{PurePosixPath(row.id).name}"
        rows.append(replace(row, id=name, labels=None))
    session.write_rows(rows)
    label_first(session, truth)
    return session.folder


def label_first(session: Store, truth: dict[str, str]) -> None:
    """Label what the studio asks for, two photographs of them wrongly."""
    pool = make_label_pool(session)
    keys = pool.keys.to_pylist()
    log = LabelLog.open(session.folder)
    paths = {str(row.sha256): row.path for row in session.rows().values()}
    done: list[int] = []
    names = sorted(set(truth.values()))
    while len(done) < LABELLED:
        answers = [(truth[keys[number]],) for number in done]
        learned = learn(pool.few, done, answers) if done else None
        for number in choose_next(pool.few, done, learned, n=5).tolist():
            name = truth[keys[number]]
            if len(done) in WRONG:
                name = names[(names.index(name) + 5) % len(names)]
            log.append(
                [Change(keys[number], paths[keys[number]], (name,))], origin="pictures"
            )
            done.append(number)


def show_photos(page: Page) -> None:
    """Wait for the grid."""
    page.wait_for_selector("#grid .shot.loaded")
    settle(page)


def show_label(page: Page) -> None:
    """Wait for a suggestion and the curve."""
    page.wait_for_selector("#photo.loaded")
    page.wait_for_selector("#suggestion:not([hidden])")
    page.wait_for_selector("#curve:not([hidden])")
    settle(page)


def show_review(page: Page) -> None:
    """Wait for a doubtful label and its neighbours."""
    page.wait_for_selector("#doubted.loaded")
    page.wait_for_selector("#gains .loaded")
    settle(page)


def settle(page: Page) -> None:
    """Let pictures fade in."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1500)


def sheet_of_hits(results: Path) -> None:
    """What `deepfish search --sheet` draws, as docs/assets/search.webp."""
    searcher = Searcher(find_store(results))
    query = next(
        i
        for i in searcher.collection.table.column("id").to_pylist()
        if i.endswith(QUERY)
    )
    hits = searcher.search(query, k=9)
    (path,) = (results / "data").rglob(QUERY)
    with tempfile.TemporaryDirectory() as folder:
        sheet = Path(folder, "hits.png")
        found = [(Path(hit.path), f"{hit.score:.3f}", hit.caption) for hit in hits]
        save_tiles(sheet, [(path, "query", ""), *found])
        save(sheet.read_bytes(), "search.webp")


def sheet_of_twins(results: Path, folder: Path) -> None:
    """What `deepfish curate twins --sheet` draws, as docs/assets/twins.webp: copies are planted."""
    photos = folder / "photos"
    photos.mkdir()
    for name in TWINS:
        (path,) = (results / "data").rglob(name)
        with Image.open(path) as opened:
            one, stem = opened.convert("RGB"), path.stem
        wide, high = one.size
        one.save(photos / f"{stem}.jpg", quality=95)
        one.save(photos / f"{stem}-50.jpg", quality=50)
        one.resize((wide // 2, high // 2)).save(photos / f"{stem}-half.jpg")
        one.crop((0, 0, wide * 9 // 10, high * 9 // 10)).save(
            photos / f"{stem}-crop.jpg"
        )
        ImageOps.mirror(one).save(photos / f"{stem}-mirror.jpg", quality=90)
    extract_to(folder / "twins", photos, features="x7,dW8")
    drawn = folder / "twins.png"
    draw_groups(drawn, find_twins(open_searcher(Store.open(folder / "twins"))).groups)
    save(drawn.read_bytes(), "twins.webp")


VIEWS = {
    "photos": ("#order=label", show_photos),
    "label": ("#view=label", show_label),
    "review": ("#view=review", show_review),
}


def show_hits(page: Page) -> None:
    """Wait for hits, plot and pictures."""
    page.wait_for_selector("#forward .shot.loaded")
    page.wait_for_selector("#gradient .shot.loaded")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2000)  # pictures fade in


def photograph(
    browser: Browser,
    name: str,
    sizes: dict[str, ViewportSize],
    url: str,
    wait: Callable[[Page], None],
    schemes: Sequence[Literal["light", "dark"]] = ("light", "dark"),
) -> None:
    """Write a picture of each size and colour scheme."""
    for size, viewport in sizes.items():
        for scheme in schemes:
            context = browser.new_context(viewport=viewport, color_scheme=scheme)
            page = context.new_page()
            page.goto(url)
            wait(page)
            save(
                page.screenshot(),
                f"{name}{size}{'-dark' if scheme == 'dark' else ''}.webp",
            )
            context.close()


def save(png: bytes, name: str) -> None:
    """Write a picture as WebP."""
    ASSETS.mkdir(exist_ok=True)
    Image.open(io.BytesIO(png)).convert("RGB").save(
        ASSETS / name, quality=QUALITY, method=6
    )
    print(f"docs/assets/{name}: {(ASSETS / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
