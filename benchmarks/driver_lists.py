"""What the process that starts a run on Ray holds and does per image, beside its bookkeeping.

    python benchmarks/driver_lists.py [IMAGES ...]

The work list goes to Ray in chunks and answers come back, by the very calls of `deepfish extract
--on ray`; the workers read nothing and answer at once. So what is left is the driver's: its list of
chunks, Ray's copies of them, and answers. Each number of images in a process of its own; memory
and seconds per image come from the differences between them.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from deepfishing.extraction.distributed import (
    HASH_IMAGES,
    Chunk,
    OnRay,
    RayRows,
    _results,
    connect,
)
from deepfishing.images.item import Item


def answer(rows: RayRows) -> RayRows:
    """A hash for every image of some rows, without reading it."""
    return _results(rows, lambda chunk: [("0" * 64, None) for _ in chunk.items])


def measure(n: int) -> None:
    names = [f"photos/2026-11-18/IMG_{number:08d}.jpg" for number in range(n)]
    items = [Item(name, Path(name)) for name in names]
    with connect("ray") as place:
        assert isinstance(place, OnRay)
        # Ray's own start
        list(place._run([Chunk(tuple(items[:1]))], answer, {"num_cpus": 1}))
        before, started = resident(), time.perf_counter()
        chunks = [
            Chunk(tuple(items[i : i + HASH_IMAGES])) for i in range(0, n, HASH_IMAGES)
        ]
        answered = 0
        for found in place._run(chunks, answer, {"num_cpus": 1}, ordered=True):
            answered += len(found)
        seconds = time.perf_counter() - started
    assert answered == n
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps({"images": n, "bytes": peak - before, "seconds": round(seconds, 1)})
    )


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    counts = [int(text) for text in sys.argv[1:]] or [50_000, 200_000, 500_000]
    if os.environ.get("DRIVER_LISTS"):
        measure(counts[0])
        return
    found = []
    for n in counts:
        command = [sys.executable, __file__, str(n)]
        environment = {**os.environ, "DRIVER_LISTS": "1"}
        told = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        found.append(json.loads(told.stdout.splitlines()[-1]))
        print(json.dumps(found[-1]), flush=True)
    for a, b in itertools.pairwise(found):
        more = b["images"] - a["images"]
        rates = {name: (b[name] - a[name]) / more for name in ("bytes", "seconds")}
        text = (
            f"{rates['bytes']:,.0f} bytes and {1e6 * rates['seconds']:.0f} µs per image"
        )
        print(f"{a['images']:,} to {b['images']:,}: {text}")


if __name__ == "__main__":
    main()
