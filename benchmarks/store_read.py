"""Reading features back: a store of 10,000 images x 8,192 values against one array on disk.

    python benchmarks/store_read.py [--quick]

Warm cache. `np.load` of the same values, with the same conversion to float32, is as fast as a
copy of this kind can be. A process hashes a shard when it first reads it: that is a row of its own.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from timing import Ratio, ratio

from deepfishing.store import Store, shards

WIDTH, SHARD = 8192, 512


def run(quick: bool = False) -> list[Ratio]:
    images, repetitions = (2_000, 3) if quick else (10_000, 7)
    keys = [f"{i:064d}" for i in range(images)]
    shuffled = [keys[i] for i in np.random.default_rng(0).permutation(images)]
    rows = []
    for dtype in ("int8", "float16", "float32"):
        with tempfile.TemporaryDirectory() as folder:
            store, array = _write(Path(folder), keys, dtype)
            ways = {
                "in order, first time": (keys, True),
                "in order": (keys, False),
                "shuffled": (shuffled, False),
            }
            for name, (order, is_first) in ways.items():
                measured = ratio(
                    f"store, {images} x {WIDTH} {dtype}, {name}",
                    partial(_read, store, order, is_first),
                    "np.load as float32",
                    lambda array=array: np.load(array).astype(np.float32),
                    repetitions,
                )
                size = images * WIDTH
                disk = size * np.dtype(dtype).itemsize / measured.seconds / 1e9
                print(
                    f"{measured.name}: {disk:.2f} GB/s off the disk, as float32 "
                    f"{size * 4 / measured.seconds / 1e9:.2f} GB/s"
                )
                rows.append(measured)
    return rows


def _read(store: Store, order: list[str], is_first: bool) -> None:
    if is_first:
        shards._digits.cache_clear()
    store.read(order, "x7")


def _write(folder: Path, keys: list[str], dtype: str) -> tuple[Store, Path]:
    store = Store(folder / "store", {"network": "random"}, dtype)
    random = np.random.default_rng(0)
    parts = []
    for start in range(0, len(keys), SHARD):
        some = keys[start : start + SHARD]
        values = random.standard_normal((len(some), WIDTH), dtype=np.float32)
        store.append(some, {"x7": values})
        parts.append(values.astype(dtype))
    np.save(folder / "array.npy", np.concatenate(parts))
    return Store.open(folder / "store"), folder / "array.npy"


if __name__ == "__main__":
    for row in run(quick="--quick" in sys.argv):
        print(row)
