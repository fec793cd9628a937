"""A small store of the embedded photographs by the embedded network, a model, a server."""

import shutil
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from deepfishing.core.features import needed_factors, parse_features
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import extract_to_store
from deepfishing.images.published import KINDS, load_groceries
from deepfishing.images.sources import find_images
from deepfishing.learn.training import train_model
from deepfishing.networks.load import load_network
from deepfishing.search import Searcher
from deepfishing.search.compare import DEFAULTS
from deepfishing.store import Store
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery
from deepfishing.web.server import bind, make_server


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory):
    """32 photographs with their kinds and varieties as labels, all features."""
    folder = tmp_path_factory.mktemp("web")
    load_groceries(folder, n_train=16, n_test=16)
    first = folder / "groceries" / "test" / "Anjou" / "Anjou_26.jpg"
    Image.open(first).resize((640, 640)).save(first)  # larger than a thumbnail
    images = []
    for item in find_images(folder / "groceries"):
        variety = PurePosixPath(item.id).parent.name
        images.append(
            replace(item, labels=tuple(dict.fromkeys((KINDS[variety], variety))))
        )
    network = load_network()
    settings = Settings.from_network(network)
    store = Store(folder / "store", settings.as_dict())
    factors = needed_factors(parse_features("all", network.layers))
    extract_to_store(store, images, factors, settings=settings, network=network)
    return store.folder


@pytest.fixture(scope="session")
def model_folder(store_folder):
    """Classifiers for the labels of the photographs."""
    searcher = Searcher(store_folder, "dW8")
    collection = searcher.collection
    classes = collection.labels()
    rows = [collection[i].labels for i in range(len(collection))]
    labels = np.array(
        [[1 if name in row else -1 for name in classes] for row in rows], np.int8
    )
    arrays = searcher.contents.read(collection.content, searcher.recipe.columns)
    settings = Settings.from_dict(searcher.store.settings)
    train_model("dW8", arrays, labels, classes, settings=settings).save(
        store_folder.parent / "model"
    )
    return store_folder.parent / "model"


@pytest.fixture(scope="session")
def gallery(store_folder, model_folder):
    return Gallery(store_folder, model=model_folder)


@pytest.fixture(scope="session")
def ids(gallery):
    return gallery.collection.table.column("id").to_pylist()


@pytest.fixture
def client(gallery):
    return TestClient(make_app(gallery), base_url="http://127.0.0.1:8765")


@pytest.fixture
def copied(store_folder, tmp_path):
    """A store whose images may be changed: the store and the folder of its images."""
    shutil.copytree(store_folder, tmp_path / "copy")
    store = Store.open(tmp_path / "copy")
    (tmp_path / "images").mkdir()
    rows = []
    for row in store.rows().values():
        place = tmp_path / "images" / Path(row.path).name
        shutil.copy(row.path, place)
        rows.append(replace(row, path=str(place)))
    store.write_rows(rows)
    return store


@contextmanager
def running(gallery, host="127.0.0.1"):
    """A real server on a free port; its address."""
    address = bind(host, 0)
    server = make_server(gallery, address)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [address.listening]}
    )
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield address
    finally:
        server.should_exit = True
        thread.join(timeout=300)
        with socket.socket() as probe:  # it is gone
            assert probe.connect_ex(("127.0.0.1", address.port)) != 0


@pytest.fixture(scope="module")
def live(gallery):
    with running(gallery) as address:
        yield address


@pytest.fixture
def serve():
    return running


WIDE = {"viewport": {"width": 1280, "height": 800}}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
}
SECONDS = 300_000  # milliseconds until something on the page must have come


class Visit:
    """A tab, and all that it complained about or asked other hosts for."""

    def __init__(self, browser, address, **options):
        self.address = address
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(SECONDS)
        self.complaints, self.hosts, self.expected = [], set(), ()
        self.page.on(
            "console",
            lambda m: m.type in ("error", "warning") and self.complain(m.text),
        )
        self.page.on("pageerror", lambda error: self.complain(str(error)))
        self.page.on(
            "request", lambda request: self.hosts.add(urlsplit(request.url).netloc)
        )

    def complain(self, text):
        if not any(part in text for part in self.expected):
            self.complaints.append(text)

    def open(self, hash_=""):
        self.page.goto(f"{self.address.url}{hash_}")
        return self.page

    def ids(self, side):
        """The hits of a side, when they are there."""
        self.page.wait_for_selector(f"#{side} .hits:not([aria-busy]) .card[data-id]")
        return self.page.eval_on_selector_all(
            f"#{side} .hits .card", "cards => cards.map(card => card.dataset.id)"
        )

    def asked(self):
        return parse_qs(urlsplit(self.page.url).fragment)

    def overflows(self):
        return self.page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )


@pytest.fixture
def visit(browser, live):
    visits = []

    def make(phone=False, address=live, **options):
        visits.append(Visit(browser, address, **(PHONE if phone else WIDE), **options))
        return visits[-1]

    yield make
    for one in visits:
        one.context.close()
        assert one.complaints == []
        assert one.hosts <= {f"127.0.0.1:{one.address.port}", ""}


@pytest.fixture(scope="module")
def searchers(store_folder):
    return {
        by: Searcher(store_folder, by) for by in ("x7", "x6", "dW8", "dW7", DEFAULTS[0])
    }


# What can be touched and has less than 44 pixels.
TARGETS = """() => [...document.querySelectorAll("a, button, select, input")]
  .map(e => [e, e.getBoundingClientRect()])
  .filter(([e, box]) => box.width && !e.matches(".skip"))
  .filter(([e, box]) => box.width < 44 || box.height < 44)
  .map(([e, box]) => `${e.className || e.id || e.tagName} ${box.width} x ${box.height}`)"""

# The contrast of each visible text with the first opaque colour behind it, as WCAG 2 defines it.
CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const shares = [0.2126, 0.7152, 0.0722];
  const light = (rgb) => shares.reduce((sum, share, i) => sum + share * linear(rgb[i] / 255), 0);
  const behind = (e) => {
    for (let at = e; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest(".signs, .stage, button:disabled")) continue;
    const both = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    if (ratio < 4.5) found.push(`${e.tagName}.${e.className} ${e.textContent}: ${ratio}`);
  }
  return found;
}"""

NAMELESS = """() => [...document.querySelectorAll("a, button, select, input, dialog, canvas")]
  .filter(e => !(e.ariaLabel || e.getAttribute("aria-labelledby") || e.textContent.trim()
    || e.labels?.length)).map(e => e.outerHTML.slice(0, 80))"""


@pytest.fixture
def checks():
    """Scripts that return what is wrong with a page: nothing, if it is well."""
    return SimpleNamespace(targets=TARGETS, contrast=CONTRAST, nameless=NAMELESS)
