"""Search through an index: recall against exact search, time of a query, memory, time to build.

    python benchmarks/search.py --features STORE --rows 1000000 [--by dW8] [--draw 0] [--work DIR]

Real features of a store are drawn with replacement and every number of both factors is changed by
about 30 %. Queries are 200 of these rows, and 200 images of the store that were kept apart, added
as they are: no row is a copy of one of those. The rows are written as a store into a temporary
folder, which is removed, or into DIR, which stays: a store, an index and the exact answers that
are there already are used again, and `--draw` draws other rows and queries. BLAS and FAISS use one
thread while queries are measured. The table is printed, and goes to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from deepfishing.core.kernels import gram
from deepfishing.core.rank_one import Array
from deepfishing.extraction.to_store import SHARD_IMAGES
from deepfishing.search import Searcher
from deepfishing.search.compare import choose_recipe
from deepfishing.store import Row, Store
from deepfishing.store.contents import Contents
from deepfishing.store.precision import DEFAULT as PRECISION

QUERIES, BLOCK, NOISE, K = 200, 8192, 0.3, 10
PROBES, CANDIDATES = (8, 16, 32), (1000, 1500, 2000, 3000)
HEAD = """# Search through an index

Made by `python benchmarks/search.py --features STORE --rows {rows} --by {by} --draw {draw}` on
{machine},
BLAS on threads: {blas}, load average {load:.1f} when the measuring began.

Features of PASCAL VOC 2007 resampled with 30 % noise on every number. Queries are {queries} of
these rows and {queries} new images, which no row is a copy of: their nearest are some of the
hundreds of copies of a few images, whose order is noise alone. Recall is the share of the 10
nearest images by exact search that is found. The time is that of `Searcher.search` by id, so
extraction is not in it; processor ms is the time of the thread that searches.

- index built in {build[0]:.0f} s, {build[1]:.0f} of the processor
- extended by {queries} images in {extended[0]:.0f} s, {extended[1]:.0f} of the processor
- opened in {opened[0]:.1f} s, {opened[1]:.1f} of the processor
- in memory {memory:.0f} bytes per image (growth of a new process that opens it and searches); index
  on disk {disk:.0f} bytes per image
- exact search, all queries at a time: {whole:.0f} ms of the processor per query

| lists | candidates | recall@10, rows | recall@10, new | median ms | 99 % | processor ms | 99 % |
|---|---|---|---|---|---|---|---|
"""


def resampled(
    real: dict[str, Array], rows: int, draw: int
) -> Iterator[tuple[list[str], dict[str, Array]]]:
    """Keys and factors of noisy copies, block by block."""
    n = len(next(iter(real.values())))
    for start in range(0, rows, BLOCK):
        random = np.random.default_rng([draw, start])
        m = min(BLOCK, rows - start)
        chosen = random.integers(n, size=m)
        factors = {}
        for name, values in real.items():
            noise = random.standard_normal((m, values.shape[1]), dtype=np.float32)
            noise *= NOISE
            noise += 1
            noise *= values[chosen]
            factors[name] = noise
        yield [f"{start + i:064x}" for i in range(m)], factors


def write_store(
    folder: Path, source: Store, real: dict[str, Array], rows: int, draw: int = 0
) -> Store:
    store = Store(folder, source.settings, PRECISION)
    for keys, factors in resampled(real, rows, draw):
        for start in range(0, len(keys), SHARD_IMAGES):
            # files as `deepfish extract` makes them
            some = slice(start, start + SHARD_IMAGES)
            store.append(
                keys[some], {name: values[some] for name, values in factors.items()}
            )
    _name(store, rows, tuple(real))
    return store


def add_queries(store: Store, held: dict[str, Array], rows: int) -> list[str]:
    """Put the queries into the store too, so that a query by id needs no extraction; their ids."""
    n = len(next(iter(held.values())))
    store.append([f"{number:064x}" for number in range(rows, rows + n)], held)
    _name(store, rows + n, tuple(held))
    return [_id(number) for number in range(rows, rows + n)]


def _name(store: Store, rows: int, factors: tuple[str, ...]) -> None:
    ids = ((_id(number), f"{number:064x}") for number in range(rows))
    store.write_rows(
        Row(id_, id_, key, status="ok", factors=factors) for id_, key in ids
    )


def _id(number: int) -> str:
    return f"images/{number:08d}.jpg"


def exact(searcher: Searcher, ids: list[str]) -> list[set[str]]:
    """Ids of the K nearest images of every query, all images compared."""
    rows = np.array([searcher.collection.row_of(id_) for id_ in ids])
    own = searcher.collection.content[rows]
    examples = searcher.features.of(own)
    best = np.full((K, len(ids)), -np.inf)
    numbers = np.zeros((K, len(ids)), dtype=np.int64)
    start = 0
    for block in searcher.features.blocks():
        scores = np.concatenate([best, gram(block, examples)])
        known = np.broadcast_to(
            np.arange(start, start + len(block))[:, None], scores[K:].shape
        )
        known = np.concatenate([numbers, known])
        scores[known == own] = -np.inf
        keep = np.argpartition(-scores, K, axis=0)[:K]
        best = np.take_along_axis(scores, keep, axis=0)
        numbers = np.take_along_axis(known, keep, axis=0)
        start += len(block)
    picture = searcher.collection
    return [
        {picture[int(picture.rows_of(n)[0])].id for n in column} for column in numbers.T
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--features", type=Path, required=True, help="a store with real features"
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--by", default="dW8")
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = run(given, given.work or Path(folder) / "store")
    if given.out:
        given.out.write_text(text)
    print(text)


def run(given: argparse.Namespace, folder: Path) -> str:
    source = Store.open(given.features)
    recipe = choose_recipe(source, given.by)
    known = folder / "index.parquet"
    facts = {
        "by": recipe.name,
        "draw": given.draw,
        "queries": QUERIES,
        "rows": given.rows,
    }
    build = extended = (float("nan"), float("nan"))
    if known.exists():
        store = Store.open(folder)
    else:
        contents = Contents.of(source, recipe.columns)
        order = np.random.default_rng(given.draw).permutation(len(contents))
        held = contents.read(np.sort(order[:QUERIES]), recipe.columns)
        real = contents.read(np.sort(order[QUERIES:]), recipe.columns)
        store = write_store(folder, source, real, given.rows, given.draw)
        print(f"{given.rows} rows written", flush=True)
        _, *build = timed(
            lambda: Searcher(store, recipe.name, "index", progress=_say())
        )
        add_queries(store, held, given.rows)
        _, *extended = timed(
            lambda: Searcher(store, recipe.name, "index", progress=_say())
        )
    if not list(folder.glob(".index/*/index.json")):
        _, *build = timed(
            lambda: Searcher(store, recipe.name, "index", progress=_say())
        )
    searcher, *opened = timed(lambda: Searcher(store, recipe.name, "index"))
    rows = len(searcher.collection) - QUERIES
    drawn = np.random.default_rng(1).choice(rows, QUERIES, replace=False)
    ids = [*map(_id, drawn), *map(_id, range(rows, rows + QUERIES))]
    answers = folder.with_name(f"{folder.name}-exact.json")
    whole = float("nan")
    if not answers.exists():
        truth, _, whole = timed(lambda: exact(searcher, ids))
        answers.write_text(json.dumps([sorted(found) for found in truth]))
    truth = [set(found) for found in json.loads(answers.read_text())]
    disk = sum(path.stat().st_size for path in folder.glob(".index/*/*")) / len(
        searcher.collection
    )
    text = HEAD.format(
        **facts,
        machine=f"{os.cpu_count()} cores, {platform.machine()}, FAISS {faiss.__version__}",
        blas=os.environ.get("OPENBLAS_NUM_THREADS", "all"),
        load=os.getloadavg()[0],
        build=build,
        extended=extended,
        opened=opened,
        memory=memory_of(store, recipe.name) / len(searcher.collection),
        disk=disk,
        whole=1000 * whole / len(ids),
    )
    with threadpool_limits(1):
        faiss.omp_set_num_threads(1)
        return text + "".join(measure(searcher, ids, truth))


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a call gives, its seconds, and those of the processor."""
    started, spent = time.perf_counter(), time.process_time()
    given = call()
    return given, time.perf_counter() - started, time.process_time() - spent


def measure(searcher: Searcher, ids: list[str], truth: list[set[str]]) -> Iterator[str]:
    """A line of the table for each setting; the default is one of them."""
    for probes in PROBES:
        for candidates in CANDIDATES:
            times, processor, recall = [], [], []
            for id_, nearest in zip(ids, truth, strict=True):
                started, spent = time.perf_counter(), time.thread_time()
                hits = searcher.search(id_, K, candidates=candidates, probes=probes)
                times.append(time.perf_counter() - started)
                processor.append(time.thread_time() - spent)
                recall.append(len(nearest.intersection(hit.id for hit in hits)) / K)
            known, unknown = np.reshape(recall, (2, -1)).mean(axis=1)
            spans = (
                np.quantile([times, processor], [0.5, 0.99], axis=1).T.ravel() * 1000
            )
            shown = " | ".join(f"{span:.1f}" for span in spans)
            line = (
                f"| {probes} | {candidates} | {known:.3f} | {unknown:.3f} | {shown} |\n"
            )
            print(line, end="", flush=True)
            yield line


OPEN = """
import faiss, re, sys
from pathlib import Path
from deepfishing.search import Searcher

def own():  # bytes of this process that are its own, without files that are mapped
    return 1024 * int(re.search(r"RssAnon:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

before = own()
searcher = Searcher(sys.argv[1], sys.argv[2], "index")
searcher.search(searcher.collection[0].id)
print(own() - before)
"""


def memory_of(store: Store, by: str) -> int:
    """By how many bytes a fresh process grows when it opens the index and searches once."""
    command = [sys.executable, "-c", OPEN, str(store.folder), by]
    return int(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )


def _say():
    last = [0.0]

    def say(stage: str, done: int, total: int) -> None:
        if time.monotonic() - last[0] > 10:
            last[0] = time.monotonic()
            print(f"{stage} {done}/{total}", flush=True)

    return say


if __name__ == "__main__":
    main()
