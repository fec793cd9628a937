"""`deepfish curate choose` against the number of rows: time, memory, and what is covered.

    python benchmarks/curate.py --features STORE [--rows 1000,10000,100000] [-n 100] [--by RECIPE]

Real features of a store are drawn with replacement and every number is changed by about 30 %, as in
search.py, and written as a store into a temporary folder, which is removed. Each size runs in a
process of its own. On 5,000 real rows the choice by short vectors and a sample is compared with the
exact one. The table goes to CURATE.md.
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
from pathlib import Path

import numpy as np

from deepfishing.core.kernels import gram
from deepfishing.curate import choose_photos, choose_rows
from deepfishing.curate.selection import CLIENTS, EXACT_IMAGES, RECIPES, open_photos
from deepfishing.search.compare import choose_recipe
from deepfishing.store import Store
from deepfishing.store.contents import Contents
from search import write_store

OUT = Path(__file__).parent / "CURATE.md"
HEAD = """# Choosing photos: growth

Made by `python benchmarks/curate.py --features STORE --rows {rows} -n {n} --by "{by}"` on
{machine}, BLAS on {blas} thread, load average {load:.1f} when it began. Rows are features
of PASCAL VOC 2007 resampled with 30 % noise on every number. Peak memory is of a whole process.

On {real:,} real rows, short vectors with {clients:,} clients reach {share:.1%} of what the exact
choice covers ({near:.4f} of {exact:.4f}); {same} of {n} photos are the same.

| rows | way | seconds | processor seconds | peak memory, MB |
|---|---|---|---|---|
"""


def one(folder: str, n: int, by: str | None) -> None:
    """Choose in a store, and print what it took."""
    start, busy = time.perf_counter(), time.process_time()
    photos = open_photos(folder, by)
    found = list(choose_photos(photos, n))
    took = {
        "seconds": time.perf_counter() - start,
        "processor": time.process_time() - busy,
    }
    # of this process alone: rusage has the parent's peak, too
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    peak = int(status["VmHWM"].split()[0]) / 1000
    print(json.dumps({**took, "peak": peak, "chosen": len(found)}))


def share(store: Store, n: int, by: str) -> dict[str, float]:
    """What vectors and a sample reach of the exact choice's coverage, on 5,000 real rows."""
    photos = open_photos(store, by)
    features = photos.features.of(np.arange(min(5000, len(photos.features))))
    picked = [
        [s.number for s in choose_rows(features, n, exact=how)] for how in (True, False)
    ]
    # the mean similarity to the nearest of those chosen
    nearest = (
        gram(features, features[np.asarray(some)]).max(axis=1) for some in picked
    )
    exact, near = (float(np.maximum(each, 0).mean()) for each in nearest)
    same = len(set(picked[0]) & set(picked[1]))
    figures = {"exact": exact, "near": near, "share": near / exact, "same": same}
    return {**figures, "real": len(features), "clients": min(CLIENTS, len(features))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--rows", default="1000,10000,100000")
    parser.add_argument("-n", type=int, default=100)
    parser.add_argument("--by")
    parser.add_argument("--one", help="only choose in this store")
    asked = parser.parse_args()
    if asked.one:
        one(asked.one, asked.n, asked.by)
        return
    load = os.getloadavg()[0]
    source = Store.open(asked.features)
    recipe = choose_recipe(source, asked.by, RECIPES)
    contents = Contents.of(source, recipe.columns)
    real = contents.read(np.arange(len(contents)), recipe.columns)
    blas = os.environ.get("OPENBLAS_NUM_THREADS", "all")
    text = HEAD.format(
        rows=asked.rows,
        n=asked.n,
        machine=f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        by=recipe.name,
        blas=blas,
        load=load,
        **share(source, asked.n, recipe.name),
    )
    for rows in map(int, asked.rows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            write_store(folder, source, real, rows)
            command = [sys.executable, __file__, "--one", folder, "-n", str(asked.n)]
            command += ["--by", recipe.name]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
        took = json.loads(ran.stdout)
        way = "exact" if rows <= EXACT_IMAGES else "vectors and a sample"
        seconds = f"{took['seconds']:.0f} | {took['processor']:.0f}"
        text += f"| {rows:,} | {way} | {seconds} | {took['peak']:.0f} |\n"
        print(text.splitlines()[-1], flush=True)
    OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
