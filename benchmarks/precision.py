"""What half precision on disk costs in mAP, on PASCAL VOC 2007.

    python benchmarks/precision.py --data VOCdevkit [--network N] [--weights F] [--features all]

The factors are extracted once, into a store in single precision, and written from there into one
in half precision. The same machines are trained on both. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from deepfishing.classify import train_svm
from deepfishing.features import needed_factors
from deepfishing.gradients.to_store import extract_to_store, store_settings
from deepfishing.images.dataset import Dataset
from deepfishing.images.voc import read_voc
from deepfishing.metrics import evaluate
from deepfishing.networks.load import load_network
from deepfishing.recipes import Recipe, parse_recipes
from deepfishing.store import Store

BLOCK = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--weights")
    parser.add_argument("--features", default="all,best")
    chosen = parser.parse_args()
    data = read_voc(chosen.data, 2007)
    network = load_network(chosen.network, chosen.weights)
    recipes = parse_recipes(chosen.features, network.layers)
    factors = needed_factors(recipes)
    with tempfile.TemporaryDirectory() as folder:
        settings = store_settings(network, 2.0, "uniform")
        single = Store(Path(folder, "single"), settings, "float32")
        paths = [*data.train.paths, *data.test.paths]
        keys = [str(key) for key in extract_to_store(network, paths, single, factors).keys]
        half = Store(Path(folder, "half"), settings, "float16")
        for start in range(0, len(keys), BLOCK):
            some = keys[start : start + BLOCK]
            half.append(some, {factor: single.read(some, factor) for factor in factors})
        for store in (single, half):
            size = sum(file.stat().st_size for file in store.folder.rglob("*.parquet"))
            print(f"{store.precision}: {size / len(keys):.0f} bytes an image")
        print("| feature | float32 | float16 | difference |\n|---|---|---|---|")
        for recipe in recipes:
            a, b = (mean_ap(store, keys, recipe, data) for store in (single, half))
            print(f"| {recipe.name} | {a:.3f} | {b:.3f} | {b - a:+.3f} |", flush=True)


def mean_ap(store: Store, keys: list[str], recipe: Recipe, data: Dataset) -> float:
    """11-point mAP in percent."""
    n = len(data.train.ids)
    train, test = (
        {factor: store.read(some, factor) for factor in recipe.factors}
        for some in (keys[:n], keys[n:])
    )
    prepare = recipe.fit(train)
    scores = train_svm(prepare(train), data.train.labels).decision_function(prepare(test))
    return evaluate(data.test.labels, scores, data.classes).map["11point"] or 0.0


if __name__ == "__main__":
    main()
