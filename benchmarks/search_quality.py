"""Precision of search: how many of the 10 nearest images share a class with the query.

    python benchmarks/search_quality.py --store STORE --data VOCdevkit [--queries test]

Every image of the split is a query against all others of PASCAL VOC 2007, train and test. Intervals
are percentiles of 1,000 bootstrap draws of the queries; differences are paired. The store is one of
`deepfish reproduce` or `deepfish extract` on the same images; an id ends with the image's name.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from deepfishing.core.features import expand_names
from deepfishing.core.kernels import gram
from deepfishing.core.rank_one import Array
from deepfishing.core.statistics import difference
from deepfishing.images.voc import read_voc
from deepfishing.search import Searcher
from deepfishing.store import Store

RECIPES = (
    "x7,dW8,dW7,pow(x7,0.5),pow(dW8,0.5),dW8+x7,pow(dW8,0.5)+pow(x7,0.5),"
    "whiten(pow(x7,0.5),0.5),whiten(pow(dW8,0.5),0.5)"
)
DRAWS, BLOCK = 1000, 512


def precision_at(
    searcher: Searcher, classes: dict[str, Array], queries: list[str], k: int
) -> Array:
    """Share of the k nearest images that have a class of the query, per query (q,)."""
    names = [
        Path(searcher.collection[row].id).stem
        for row in range(len(searcher.collection))
    ]
    row_of = {name: row for row, name in enumerate(names)}
    present = np.stack([classes[name] for name in names])
    content = searcher.collection.content
    everything = searcher.features.of(np.arange(len(searcher.contents)))
    rows = np.array([row_of[name] for name in queries])
    found = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK):
        some = rows[start : start + BLOCK]
        K = gram(everything[content[some]], everything)[:, content]
        K[np.arange(len(some)), some] = -np.inf  # not the query itself
        nearest = np.argpartition(-K, k, axis=1)[:, :k]
        shared = (present[nearest] & present[some][:, None]).any(axis=2)
        found[start : start + BLOCK] = shared.mean(axis=1)
    return found


def bootstrap_means(values: Array) -> Array:
    """The mean of each draw of queries; the same draws for every recipe."""
    random = np.random.default_rng(0)
    picks = (random.integers(len(values), size=len(values)) for _ in range(DRAWS))
    return np.array([values[pick].mean() for pick in picks])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="the VOC 2007 tree")
    parser.add_argument("--queries", default="test", choices=("trainval", "test"))
    parser.add_argument(
        "--by", default=RECIPES, help="recipes, separated by commas outside ()"
    )
    parser.add_argument("-k", type=int, default=10)
    given = parser.parse_args()
    data = read_voc(given.data, 2007)
    classes: dict[str, Array] = {}
    for split in (data.train, data.test):
        for name, labels in zip(split.ids, split.labels, strict=True):
            classes[Path(name).stem] = labels == 1
    split = data.train if given.queries == "trainval" else data.test
    # an image whose only objects are difficult has no class to share
    queries = [Path(name).stem for name in split.ids if classes[Path(name).stem].any()]
    store = Store.open(given.store)
    print(
        f"| recipe | precision@{given.k} | interval | minus x7 | interval |\n|---|---|---|---|---|"
    )
    base: tuple[float, Array] | None = None
    for by in expand_names(given.by, {}):
        values = precision_at(Searcher(store, by, "exact"), classes, queries, given.k)
        mean, draws = 100 * values.mean(), 100 * bootstrap_means(values)
        base = base or (mean, draws)
        gain = difference(mean - base[0], draws - base[1])
        low, high = np.quantile(draws, [0.025, 0.975])
        print(
            f"| {by} | {mean:.2f} | {low:.2f} to {high:.2f} | {gain.mean:+.2f} | "
            f"{gain.low:+.2f} to {gain.high:+.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
