"""Few examples, and no machine at all: low-shot curves and nearest neighbours on VOC 2007.

    python benchmarks/few_shot.py --data VOCdevkit [--store FOLDER] [--features x7,dW8]

Features of the default network go to --store, and stay there for the next time.
"""

from __future__ import annotations

import argparse

from deepfishing.experiments.protocols import low_shot, nearest_neighbours
from deepfishing.features import needed_factors
from deepfishing.gradients.to_store import extract_to_store, store_settings
from deepfishing.images.voc import read_voc
from deepfishing.networks.load import load_network
from deepfishing.recipes import parse_recipes
from deepfishing.store import Store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--store", default="results/few_shot")
    parser.add_argument("--features", default="x7,dW8,pow(dW8,0.5)")
    chosen = parser.parse_args()
    data, network = read_voc(chosen.data, 2007), load_network()
    recipes = parse_recipes(chosen.features, network.layers)
    store = Store(chosen.store, store_settings(network, 2.0, "uniform"))
    factors = needed_factors(recipes)
    keys = []
    for split in (data.train, data.test):
        done = extract_to_store(network, split.paths, store, factors)
        keys.append([key for key in done.keys if key])
    for recipe in recipes:
        train, test = ({f: store.read(k, f) for f in recipe.factors} for k in keys)
        prepare = recipe.fit(train)
        sides = (prepare(train), data.train.labels, prepare(test), data.test.labels)
        for point in low_shot(*sides):
            print(recipe.name, point.as_row())
        found = nearest_neighbours(*sides, data.classes, k=20)
        print(recipe.name, found.as_row())
