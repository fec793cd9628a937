"""Which index of FAISS proposes candidates soonest: lists with a fast scan, or a graph (HNSW).

    python benchmarks/faiss_kinds.py STORE [--by dW8] [--rows 100000]

Vectors are those of the index of a store (`Embedding`), 200 of them kept apart as queries. A kind
gives `CANDIDATES` candidates; recall is the share of the 10 nearest vectors among them. Seconds of
one core; the table for benchmarks/SEARCH.md is printed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import faiss
import numpy as np

from deepfishing.search import Searcher
from deepfishing.search.compare import sample

CANDIDATES, QUERIES, TRAIN, BLOCK = 1500, 200, 50_000, 4096
KINDS = {
    "IVF200,PQ384x4fsr": [{"nprobe": 16}, {"nprobe": 32}],
    "IVF200_HNSW32,PQ384x4fsr": [{"nprobe": 32}],
    "HNSW32_PQ96": [{"efSearch": CANDIDATES}],
    "HNSW32_SQ8": [{"efSearch": CANDIDATES}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--by", default="dW8")
    parser.add_argument("--rows", type=int, default=100_000)
    given = parser.parse_args()
    faiss.omp_set_num_threads(1)
    searcher = Searcher(given.store, by=given.by, method="index")
    rows = sample(len(searcher.contents), given.rows + QUERIES)
    blocks = np.array_split(rows, len(rows) // BLOCK + 1)
    phi, features = searcher.index.embedding, searcher.features
    vectors = np.concatenate([phi(features.of(block)) for block in blocks])
    np.random.default_rng(0).shuffle(vectors)
    queries, vectors = vectors[:QUERIES], vectors[QUERIES:]
    nearest = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    print(
        "| FAISS | looks into | recall@10 | median ms | 99 % | seconds to build | bytes |"
    )
    print("|---|---|---|---|---|---|---|")
    for kind, settings in KINDS.items():
        start = time.process_time()
        index = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors[:TRAIN])
        index.add(vectors)
        built = time.process_time() - start
        size = len(faiss.serialize_index(index)) / len(vectors)
        for setting in settings:
            for name, value in setting.items():
                faiss.ParameterSpace().set_index_parameter(index, name, value)
            took, found = [], []
            for query, wanted in zip(queries, nearest, strict=True):
                start = time.process_time()
                numbers = index.search(query[None], CANDIDATES)[1][0]
                took.append(1000 * (time.process_time() - start))
                found.append(np.isin(wanted, numbers).mean())
            where = ", ".join(f"{name} {value}" for name, value in setting.items())
            cells = f"{np.mean(found):.3f} | {np.median(took):.2f} | {np.quantile(took, 0.99):.2f}"
            print(
                f"| {kind} | {where} | {cells} | {built:.0f} | {size:.0f} |", flush=True
            )


if __name__ == "__main__":
    main()
