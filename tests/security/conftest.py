"""A store whose rows say anything, the page of it, and a real server."""

import hashlib
import io
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from deepfishing.store import Row, Store
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery
from deepfishing.web.server import bind, make_server

SETTINGS = {"network": "toy", "layers": {"7": "fc7", "8": "fc8"}, "tau": 2.0}
FACTORS = ("x7", "delta8")


@pytest.fixture
def make_store(tmp_path, rng):
    """A store with these images: id, path, hash, labels; the features are made up."""

    def make(*images):
        store = Store(tmp_path / "store", SETTINGS)
        keys = list(dict.fromkeys(sha256 for _, _, sha256, _ in images))
        store.append(keys, {name: rng.normal(size=(len(keys), 5)) for name in FACTORS})
        store.write_rows(
            Row(id_, str(path), sha256, labels=labels, status="ok", factors=FACTORS)
            for id_, path, sha256, labels in images
        )
        return store

    return make


@pytest.fixture
def jpeg(rng):
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (80, 90, 3), dtype=np.uint8)).save(
        file, "JPEG"
    )
    return file.getvalue()


@pytest.fixture
def place(tmp_path):
    """Write a file; its path and hash."""

    def put(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path, hashlib.sha256(content).hexdigest()

    return put


@pytest.fixture
def client_of():
    def client(store):
        return TestClient(
            make_app(Gallery(store.folder)), base_url="http://127.0.0.1:8765"
        )

    return client


@contextmanager
def running(store):
    """The port of a server."""
    address = bind("127.0.0.1", 0)
    server = make_server(Gallery(store.folder), address)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [address.listening]}
    )
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield address.port
    finally:
        server.should_exit = True
        thread.join(timeout=300)


@pytest.fixture
def serve():
    return running


@pytest.fixture
def served(make_store, place, jpeg):
    """The port of a server with one image."""
    with running(make_store(("a.jpg", *place("a.jpg", jpeg), None))) as port:
        yield port
