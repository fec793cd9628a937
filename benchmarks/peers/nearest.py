"""Peers: the nearest images by FAISS on forward features, and by deepfishing's search on gradients.

Rows are made as in benchmarks/search.py: features of real images (a store), or of the embedded
photographs, drawn with replacement, every number changed by about 30 %. Queries are 200 images
that were kept apart. Recall is counted against the exact ranking by the trace kernel of dW8: what
FAISS finds by x7 is another ranking, and its recall says how far the two are apart, not which one
is right.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from page import interval, lines_of, number, table

import search
from deepfishing.core.features import parse_feature
from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import extract_to_store
from deepfishing.images.published import load_groceries
from deepfishing.networks.load import load_network
from deepfishing.search import Searcher
from deepfishing.search.compare import choose_recipe
from deepfishing.store import Store
from deepfishing.store.contents import Contents

BY, FORWARD, K = "dW8", "x7", search.K


def flat(vectors: Array) -> Any:
    """What a user writes for FAISS; then `index.search(queries, k)`."""
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def hnsw(vectors: Array) -> Any:
    """The same with a graph of neighbours."""
    import faiss

    index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = 64
    index.add(vectors)
    return index


def ours(store: Store, method: str) -> Searcher:
    """What a user writes for deepfishing; then `searcher.search(id, k)`."""
    from deepfishing.search import Searcher

    return Searcher(store, "dW8", method)


def run(options: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        if options.store:
            source = Store.open(options.store)
        else:
            source = photographs(Path(folder), options.quick)
        store, ids = filled(Path(folder), source, options.rows)
        exact = ours(store, "exact")
        truth = search.exact(exact, ids)
        on_disk = {
            factor: size(store.shards_folder(factor)) / len(exact.collection)
            for factor in exact.recipe.columns
        }
        factors = sum(on_disk.values())
        rows = []
        for title, make in (("FAISS flat, x7", flat), ("FAISS HNSW, x7", hnsw)):
            find, build, stored = by_faiss(exact, make)
            rows.append(row(title, find, ids, truth, build, stored, lines_of(make)))
        for method in ("exact", "index"):
            started = time.perf_counter()
            searcher = ours(store, method)
            searcher.search(ids[0], K)
            build = time.perf_counter() - started
            stored = factors + (size(store.folder / ".index") / options.rows) * (
                method == "index"
            )
            rows.append(
                row(
                    f"ours, {BY}, {method}",
                    by_id(searcher),
                    ids,
                    truth,
                    build,
                    stored,
                    lines_of(ours),
                )
            )
    columns = (
        f"{options.rows:,} images",
        "ms per query: median (5 % to 95 %)",
        f"recall@{K} of the {BY} ranking",
        "s to build or open, with the first query",
        "bytes stored per image",
        "lines",
    )
    data = "a store of real images" if options.store else "the embedded photographs"
    return (
        f"{table(columns, rows)}\n"
        f"Features of {data}, resampled with 30 % noise, {len(ids)} queries one after the other. "
        "The factors of ours are in the store in any case; the bytes of FAISS are its index alone. "
        "A query of ours also tells the forward and the backward half of each hit and its classes."
    )


def row(
    title: str,
    find: Callable[[str], list[str]],
    ids: list[str],
    truth: list[set[str]],
    build: float,
    stored: float,
    lines: int,
) -> tuple[object, ...]:
    times, recall = [], []
    for id_, nearest in zip(ids, truth, strict=True):
        started = time.perf_counter()
        found = find(id_)
        times.append(1000 * (time.perf_counter() - started))
        recall.append(len(nearest.intersection(found)) / K)
    low, middle, high = np.quantile(times, [0.05, 0.5, 0.95])
    return (
        title,
        interval(middle, low, high),
        f"{np.mean(recall):.3f}",
        number(build),
        f"{stored:,.0f}",
        lines,
    )


def by_id(searcher: Searcher) -> Callable[[str], list[str]]:
    return lambda id_: [hit.id for hit in searcher.search(id_, K)]


def by_faiss(
    searcher: Searcher, make: Callable[[Array], Any]
) -> tuple[Callable[[str], list[str]], float, float]:
    """A search by id, the seconds to build, and bytes of the index per image."""
    pictures, contents = searcher.collection, searcher.contents
    everything = np.arange(len(contents))
    vectors = l2_normalize(
        contents.read(everything, [FORWARD])[FORWARD].astype(np.float32)
    )
    names = [pictures[int(pictures.rows_of(n)[0])].id for n in everything]
    started = time.perf_counter()
    index = make(vectors)
    build = time.perf_counter() - started
    stored = faiss.serialize_index(index).nbytes / len(vectors)
    number_of = {name: n for n, name in enumerate(names)}

    def find(id_: str) -> list[str]:
        own = number_of[id_]
        # the query itself is found, too
        _, found = index.search(vectors[own : own + 1], K + 1)
        return [names[n] for n in found[0] if n != own][:K]

    return find, build, stored


def photographs(folder: Path, quick: bool) -> Store:
    """A store of the embedded data set."""
    data = load_groceries(folder / "data")
    paths = data.train.paths if quick else data.train.paths + data.test.paths
    network = load_network()
    settings = Settings.from_network(network)
    store = Store(folder / "source", settings.as_dict())
    factors = parse_feature("dW8").factors
    extract_to_store(store, paths, factors, settings=settings, network=network)
    return store


def filled(folder: Path, source: Store, rows: int) -> tuple[Store, list[str]]:
    """A store of so many rows and the queries, which are in it, and the queries' ids."""
    recipe = choose_recipe(source, BY)
    contents = Contents.of(source, recipe.columns)
    order = np.random.default_rng(0).permutation(len(contents))
    held = contents.read(np.sort(order[: search.QUERIES]), recipe.columns)
    real = contents.read(np.sort(order[search.QUERIES :]), recipe.columns)
    store = search.write_store(str(folder / "rows"), source, real, rows)
    return store, search.add_queries(store, held, rows)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
