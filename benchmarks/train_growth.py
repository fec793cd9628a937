"""`deepfish train` on more and more images: seconds, memory, and mAP on images it never saw.

    python benchmarks/train_growth.py STORE VOCdevkit --rows 100000 [--work DIR]

STORE has all factors of VOC 2007. Rows are drawn from trainval with replacement, with every number
of every factor changed by about 30 %, and written as a store with labels, which stays in DIR. Then
the command as a user runs it (`auto`), in a process of its own, and the mAP of its model on the
test images of VOC 2007.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from deepfishing.core.metrics import evaluate
from deepfishing.core.recipes import parse_recipe
from deepfishing.extraction.to_store import SHARD_IMAGES
from deepfishing.images.voc import read_voc
from deepfishing.learn.model import Model
from deepfishing.store import Row, Store
from deepfishing.store.precision import DEFAULT as PRECISION

FACTORS = ("x6", "delta7", "x7", "delta8", "y8")
BLOCK, NOISE = 8 * SHARD_IMAGES, np.float32(0.3)
DEEPFISH = Path(sys.executable).with_name("deepfish")


def make_store(folder: Path, source: Store, ids: list[str], n: int) -> None:
    """Noisy copies of these images, with their labels."""
    known = source.rows()
    real = {name: source.read([known[i].sha256 for i in ids], name) for name in FACTORS}
    store = Store(folder, source.settings, PRECISION)
    rows = []
    for start in range(0, n, BLOCK):
        random = np.random.default_rng([0, start])
        drawn = random.integers(len(ids), size=min(BLOCK, n - start))
        keys = [f"{start + i:064x}" for i in range(len(drawn))]
        factors = {name: values[drawn] for name, values in real.items()}
        for values in factors.values():
            values *= 1 + NOISE * random.standard_normal(values.shape, dtype=np.float32)
        for first in range(0, len(keys), SHARD_IMAGES):
            # files as `deepfish extract` makes them
            some = slice(first, first + SHARD_IMAGES)
            store.append(
                keys[some], {name: values[some] for name, values in factors.items()}
            )
        rows += [
            Row(
                key, key, key, labels=known[ids[i]].labels, status="ok", factors=FACTORS
            )
            for key, i in zip(keys, drawn.tolist(), strict=True)
        ]
    store.write_rows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--work", type=Path, default=Path("train-growth"))
    given = parser.parse_args()
    source, voc = (
        Store.open(given.store),
        read_voc(given.data, 2007, "trainval", "test"),
    )
    folder, model = (
        given.work / f"store-{given.rows}",
        given.work / f"model-{given.rows}",
    )
    if not (folder / "index.parquet").exists():
        make_store(folder, source, list(voc.train.ids), given.rows)
    load, started = os.getloadavg()[0], time.perf_counter()
    told = subprocess.run(
        [DEEPFISH, "train", folder, model, "--json"], capture_output=True, text=True
    )
    seconds, used = (
        time.perf_counter() - started,
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    if told.returncode:
        sys.exit(told.stderr)
    trained = Model.load(model)
    known = source.rows()
    keys = [known[i].sha256 for i in voc.test.ids]
    scores = []
    for start in range(0, len(keys), 500):
        some = keys[start : start + 500]
        scores.append(
            trained.scores({name: source.read(some, name) for name in trained.columns})
        )
    order = [trained.classes.index(name) for name in voc.classes]
    found = evaluate(voc.test.labels, np.concatenate(scores)[:, order], voc.classes)
    line = {
        "images": given.rows,
        "seconds": round(seconds),
        "processor_seconds": round(used.ru_utime + used.ru_stime),
        "peak_gb": round(used.ru_maxrss / 1e6, 1),
        "vectors": trained.training.get("vectors"),
        "recipe": parse_recipe(trained.recipe).title,
        "cost": float(trained.svm.cost[0]),
        "map": round(100 * found.map["area"], 2)
        if found.map["area"] < 1
        else round(found.map["area"], 2),
        "load": round(load, 1),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
