"""What `growth.py` measures: each function is one stage for n images, in a process of its own.

Real features (dW7 of the default network: x6 of 320 numbers, delta7 of 1,280) are computed once.
Where n is larger than their number, images are drawn with replacement and every number is changed
by about a third (`Gradients.resample`).
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from stand_in import StandIn, run_stand_in, stand_in_key

from deepfishing.core.features import needed_factors, parse_feature, parse_features
from deepfishing.core.kernels import gram
from deepfishing.core.projections import fit_projection
from deepfishing.core.rank_one import Array, RankOne, l2_normalize
from deepfishing.evaluation.protocols.approximation import Gradients
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import SHARD_IMAGES, extract_to_store
from deepfishing.images.dataset import Dataset
from deepfishing.images.published import load_groceries
from deepfishing.images.voc import read_voc
from deepfishing.learn.linear import train_linear
from deepfishing.learn.svm import train_svm
from deepfishing.networks.reference import NetworkRef
from deepfishing.networks.zoo import DEFAULT, record
from deepfishing.search import Searcher
from deepfishing.search.index import FOLDER
from deepfishing.store import Store

FEATURE, FACTORS = "dW7", ("x6", "delta7")
KIND, NUMBERS = "principal", 512  # of the projection
BLOCK = 8192  # images that are read at a time
QUERIES, EXACT_QUERIES = 100, 3

Point = dict[str, Any]
_STATUS = Path("/proc/self/status")


@dataclass
class Clock:
    """Seconds, and the most bytes of memory beyond those at the beginning."""

    seconds: float = 0.0
    memory: int = 0
    processor: float = 0.0  # seconds of all cores


@contextmanager
def watched() -> Iterator[Clock]:
    """Time a block, and look at this process's own memory (files that are mapped left out)."""
    clock, ended, before = Clock(), threading.Event(), _own()

    def look() -> None:
        while not ended.wait(0.02):
            clock.memory = max(clock.memory, _own() - before)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    started, spent = time.perf_counter(), time.process_time()
    try:
        yield clock
    finally:
        clock.seconds = time.perf_counter() - started
        clock.processor = time.process_time() - spent
        ended.set()
        thread.join()


def _own() -> int:
    return 1024 * int(re.search(r"RssAnon:\s*(\d+)", _STATUS.read_text())[1])


def dataset(work: Path, data: str) -> Dataset:
    return read_voc(data, 2007) if data else load_groceries(work)


def make_material(work: Path, data: str) -> None:
    """Features and labels of real images, for all stages but extraction."""
    from deepfishing.extraction.extract import extract
    from deepfishing.networks.load import load_network

    train = dataset(work, data).train
    features = extract(load_network(), train.paths, FEATURE)[FEATURE]
    np.savez(
        work / "material.npz", x=features.x, delta=features.delta, labels=train.labels
    )


def material(work: Path) -> Gradients:
    with np.load(work / "material.npz") as found:
        g = RankOne(found["x"], found["delta"])
        return Gradients(g, found["labels"], g[:1])


def extract(work: Path, data: str, n: int) -> dict[str, Point]:
    """The whole way from JPEGs to a store; the network is loaded before the clock starts."""
    from deepfishing.networks.load import load_network

    found = dataset(work, data)
    real = [*found.train.paths, *found.test.paths]
    folder = work / f"images-{n}"
    folder.mkdir(exist_ok=True)
    paths = real[:n]
    for number in range(len(paths), n):
        # the same pictures with other bytes behind their end
        copy = folder / f"{number:07}.jpg"
        copy.write_bytes(real[number % len(real)].read_bytes() + str(number).encode())
        paths.append(copy)
    network = load_network()
    factors = needed_factors(parse_features("all", network.layers))
    store = _empty_store(folder / "store")
    with watched() as clock:
        given = {"settings": Settings.from_network(network), "network": network}
        extract_to_store(store, paths, factors, **given)
    size = _bytes(store.folder)
    shutil.rmtree(folder)
    return {"extract": _point(clock, disk=size)}


def fill(work: Path, data: str, n: int) -> dict[str, Point]:
    """All of an extraction but images and network: the store that it leaves, features drawn."""
    gradients, labels, spent = material(work), [], 0.0

    def values(start: int, stop: int) -> dict[str, Array]:
        nonlocal spent
        started = time.perf_counter()
        drawn = gradients.resample(stop - start, seed=start // SHARD_IMAGES)
        labels.append(drawn.labels)
        spent += time.perf_counter() - started
        return dict(zip(FACTORS, (drawn.train.x, drawn.train.delta), strict=True))

    folder = _store(work, n)
    shutil.rmtree(folder, ignore_errors=True)
    place = StandIn(values)
    store = _empty_store(folder)
    with watched() as clock:
        run_stand_in(store, place, n, parse_feature(FEATURE).factors)
    np.save(folder / ".labels.npy", np.concatenate(labels))
    size = sum(_bytes(store.shards_folder(factor)) for factor in FACTORS)
    kept = Clock(clock.seconds - place.seconds, clock.memory)
    written = Clock(place.seconds - spent, 0)
    return {
        "write": _point(written, disk=size),
        "bookkeeping": _point(kept, disk=(folder / "index.parquet").stat().st_size),
    }


def read(work: Path, data: str, n: int) -> dict[str, Point]:
    """All of a store as float32, a block at a time; the files are in the system's cache."""
    keys = [stand_in_key(number) for number in range(n)]
    store = Store.open(_store(work, n))
    with watched() as clock:
        for start in range(0, n, BLOCK):
            for factor in FACTORS:
                store.read(keys[start : start + BLOCK], factor)
    return {"read": _point(clock)}


def kernel(work: Path, data: str, n: int) -> dict[str, Point]:
    drawn = material(work).resample(n)
    with watched() as gram_clock:
        gram(drawn.train)
    with watched() as clock:
        train_svm(drawn.train, drawn.labels)
    return {"Gram matrix": _point(gram_clock), "kernel machines": _point(clock)}


def project(work: Path, data: str, n: int) -> dict[str, Point]:
    """Vectors for linear machines; neither reading the store nor fitting (once) is counted."""
    keys = [stand_in_key(number) for number in range(n)]
    store = Store.open(_store(work, n))
    path = _store(work, n) / ".vectors.npy"
    vectors = np.lib.format.open_memmap(path, "w+", np.float16, (n, NUMBERS))
    projection, whole = None, Clock()
    for start in range(0, n, BLOCK):
        rows = slice(start, start + BLOCK)
        g = RankOne(*(store.read(keys[rows], factor) for factor in FACTORS)).normalize()
        projection = projection or fit_projection(KIND, g, NUMBERS)
        with watched() as clock:
            found = l2_normalize(projection(g))
        vectors[rows, : found.shape[1]] = found
        whole.seconds += clock.seconds
        whole.processor += clock.processor
    vectors.flush()
    return {"projection": _point(whole, disk=path.stat().st_size)}


def linear(work: Path, data: str, n: int) -> dict[str, Point]:
    """Linear machines on these vectors, all classes."""
    vectors, labels = (
        np.load(_store(work, n) / name) for name in (".vectors.npy", ".labels.npy")
    )
    with watched() as clock:
        machines = train_linear(vectors, labels)
    return {"linear machines": {**_point(clock), "rounds": machines.rounds}}


def index(work: Path, data: str, n: int) -> dict[str, Point]:
    """An index over the store, and searches by id through it."""
    folder = _store(work, n)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    with watched() as clock:
        searcher = Searcher(folder, FEATURE, "index")
    size = sum(
        path.stat().st_size for path in (folder / FOLDER).rglob("*") if path.is_file()
    )
    query = Clock(_query(searcher, n, QUERIES))
    return {"index": _point(clock, disk=size), "query through the index": _point(query)}


def exact(work: Path, data: str, n: int) -> dict[str, Point]:
    """Searches that compare all images."""
    searcher = Searcher(_store(work, n), FEATURE, "exact")
    with watched() as clock:
        seconds = _query(searcher, n, EXACT_QUERIES)
    return {"query, all compared": _point(Clock(seconds, clock.memory))}


STAGES: dict[str, Callable[[Path, str, int], dict[str, Point]]] = {
    f.__name__: f for f in (extract, fill, read, kernel, project, linear, index, exact)
}


def _query(searcher: Searcher, n: int, count: int) -> float:
    """Median seconds of a search; the first one, which opens files, is left out."""
    rows = np.random.default_rng(1).choice(len(searcher.collection), count + 1)
    times = []
    for row in rows:
        id_ = searcher.collection[int(row)].id
        started = time.perf_counter()
        searcher.search(id_)
        times.append(time.perf_counter() - started)
    return float(np.median(times[1:]))


def _empty_store(folder: Path) -> Store:
    entry = record(DEFAULT)
    network = NetworkRef(
        name=entry.name,
        weights_sha256="of no matter here",
        layers=entry.layers,
        preprocess=entry.preprocess,
    )
    return Store(folder, Settings(network=network).as_dict())


def _store(work: Path, n: int) -> Path:
    return work / f"store-{n}"


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _point(clock: Clock, disk: int | None = None) -> Point:
    found: Point = {"seconds": clock.seconds}
    if clock.processor:
        found["processor"] = clock.processor
    if clock.memory:
        found["memory"] = clock.memory
    return found if disk is None else {**found, "disk": disk}
