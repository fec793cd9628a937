"""How `deepfish curate twins` and `odd` grow with the collection.

    python benchmarks/curate_growth.py --work /tmp/growth

Comes in: nothing; a store is made for each size: features of the widths of EfficientNet-Lite0 (x7
1,280, delta8 1,000, int8), drawn around one centre per 50 photos, and pictures of 96 x 72 pixels,
one in twenty a smaller copy of another. Made features say nothing of what is found in real photos,
only what it takes. Goes out: a line per command and size: seconds, those of the processor (on a
machine that others use, too), and the peak of memory of a process of its own; beyond 10,000 rows
first, when an index is made, and again, when it is there.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

SIZES = (1_000, 10_000, 100_000)
WIDTHS = {"x7": 1280, "delta8": 1000}
BLOCK = 2_000


def make_store(folder: Path, n: int) -> None:
    from deepfishing.core.rank_one import l2_normalize
    from deepfishing.store import Row, Store

    photos = folder / "photos"
    photos.mkdir(parents=True)
    settings = {"network": "made", "layers": {"8": "fc"}, "head": "softmax", "tau": 2.0}
    store = Store(folder / "store", settings, precision="int8")
    rows = []
    for start in range(0, n, BLOCK):
        rng = np.random.default_rng([n, start])
        m = min(BLOCK, n - start)
        copied = np.arange(m) % 20 == 19  # of the one before
        centre = rng.integers(max(n // 50, 1), size=m)
        centre[copied] = centre[np.flatnonzero(copied) - 1]
        factors = {}
        for number, (name, d) in enumerate(WIDTHS.items()):
            middle = np.stack(
                [np.random.default_rng([number, c]).normal(size=d) for c in centre]
            )
            noise = rng.normal(size=(m, d))
            noise[copied] = noise[np.flatnonzero(copied) - 1] + 0.3 * rng.normal(
                size=(copied.sum(), d)
            )
            factors[name] = l2_normalize((middle + noise).astype(np.float32))
        keys = []
        for i in range(m):
            if not copied[i]:
                blots = Image.fromarray(
                    rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
                )
                picture = blots.resize((96, 72), Image.Resampling.BICUBIC)
            file = io.BytesIO()
            (picture.resize((64, 48)) if copied[i] else picture).save(
                file, "JPEG", quality=85
            )
            path = photos / f"{start + i:06d}.jpg"
            path.write_bytes(file.getvalue())
            keys.append(hashlib.sha256(file.getvalue()).hexdigest())
            rows.append(
                Row(path.name, str(path), keys[-1], status="ok", factors=tuple(WIDTHS))
            )
        store.append(keys, factors)
    store.write_rows(rows)


def run(task: str, folder: Path) -> None:
    """One command in this process."""
    from deepfishing.curate import find_twins, odd_photos, open_searcher
    from deepfishing.curate.outliers import RECIPES
    from deepfishing.store import Store

    start = time.perf_counter()
    store = Store.open(folder / "store")
    if task == "twins":
        found = len(find_twins(open_searcher(store)).groups)
    else:
        found = len(odd_photos(open_searcher(store, defaults=RECIPES)))
    seconds = round(time.perf_counter() - start, 1)
    used = resource.getrusage(resource.RUSAGE_SELF)
    facts = {"seconds": seconds, "cpu_seconds": round(used.ru_utime + used.ru_stime, 1)}
    print(json.dumps({"found": found, **facts, "peak_mb": used.ru_maxrss // 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--run", help="for the processes that are measured")
    given = parser.parse_args()
    if given.run:
        run(given.run, given.work)
        return
    for n in map(int, given.sizes.split(",")):
        folder = given.work / f"rows-{n}"
        if not folder.exists():
            make_store(folder, n)
        for task in ("odd", "twins"):
            for when in ("first", "again") if n > 10_000 else ("first",):
                command = [
                    sys.executable,
                    __file__,
                    "--work",
                    str(folder),
                    "--run",
                    task,
                ]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=True
                )
                facts = {"command": task, "rows": n, "when": when}
                print(json.dumps({**facts, **json.loads(done.stdout)}), flush=True)


if __name__ == "__main__":
    main()
