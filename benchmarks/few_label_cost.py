"""Time and memory of what few labels need: prototypes and neighbours of a collection.

    python benchmarks/few_label_cost.py [--photos 1000,10000,100000] [--cores 2]

The embeddings are synthetic: clusters of 1,280 numbers, of which some sixty vary freely. They are
written to a file in half precision, a block at a time, and read from there, as from a store. Each
number of photos runs in a process of its own, whose largest memory is that of the line. Prints a
table in Markdown:

- prototypes: four heads of 256 prototypes of the collection;
- gradients: delta of every photo, a block at a time;
- pool: `Neighbours.fit`, an index from 20,000 photos on; of more than 200,000 photos a sample, as
  in the studio (`train` takes at most 20,000);
- neighbours: the ten nearest of every photo of the pool;
- recall: of the true ten nearest of 500 photos, how many were found, in percent.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

NUMBERS = 1280
CLUSTERS = 2000
FREE = 40  # directions in which photos differ
BLOCK = 10_000
# photos that neighbours are looked for among; of more a sample is drawn
MAX_POOL = 200_000
NEIGHBOURS = 10
CHECKED = 500  # photos whose neighbours are compared with the true ones
STEPS = ("prototypes", "gradients", "pool", "neighbours")


class Memory:
    """The largest memory of this process, without the pages of files that are mapped."""

    def __init__(self) -> None:
        self.peak = 0
        self.running = True
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        """Look at the memory until `stop` is called."""
        import psutil

        process = psutil.Process()
        while self.running:
            used = process.memory_info()
            self.peak = max(self.peak, used.rss - used.shared)
            time.sleep(0.02)

    def stop(self) -> None:
        """End watching."""
        self.running = False
        self.thread.join()


def write_embeddings(path: Path, photos: int):
    """Write embeddings (photos, NUMBERS) in half precision and return them as a memory map."""
    import numpy as np

    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLUSTERS, FREE)).astype(np.float32)
    spread = rng.normal(size=(FREE, NUMBERS)).astype(np.float32)
    file = np.lib.format.open_memmap(path, "w+", np.float16, (photos, NUMBERS))
    for start in range(0, photos, BLOCK):
        n = min(BLOCK, photos - start)
        places = centres[rng.integers(0, CLUSTERS, n)]
        places = places + 1.0 * rng.normal(size=(n, FREE)).astype(np.float32)
        noise = 2.0 * rng.normal(size=(n, NUMBERS)).astype(np.float32)
        # as behind a ReLU
        file[start : start + n] = np.maximum(places @ spread + noise, 0)
    file.flush()
    del file
    return np.load(path, mmap_mode="r")


def true_neighbours(x, rows):
    """Return the ten nearest of some rows, themselves left out, by comparing with all."""
    import numpy as np

    from deepfishing.core.rank_one import l2_normalize

    queries = l2_normalize(x[rows].astype(np.float32))
    near = np.zeros((len(rows), 0), dtype=np.int64)
    similar = np.zeros((len(rows), 0), dtype=np.float32)
    for start in range(0, len(x), BLOCK):
        block = l2_normalize(x[start : start + BLOCK].astype(np.float32))
        numbers = np.broadcast_to(
            np.arange(start, start + len(block)), (len(rows), len(block))
        )
        near = np.concatenate([near, numbers], axis=1)
        similar = np.concatenate([similar, queries @ block.T], axis=1)
        similar[near == rows[:, None]] = -1
        best = np.argsort(-similar, axis=1)[:, :NEIGHBOURS]
        near = np.take_along_axis(near, best, axis=1)
        similar = np.take_along_axis(similar, best, axis=1)
    return near


def measure(photos: int, cores: int) -> None:
    """Print one line: the number of photos, seconds of each step, recall and memory."""
    import faiss
    import numpy as np
    from threadpoolctl import threadpool_limits

    from deepfishing.core.neighbours import Neighbours
    from deepfishing.core.prototypes import fit_prototypes

    faiss.omp_set_num_threads(cores)
    threadpool_limits(cores)
    seconds = []

    def timed(step: Callable):
        start, used = time.perf_counter(), time.process_time()
        value = step()
        seconds.append((time.perf_counter() - start, time.process_time() - used))
        return value

    with tempfile.TemporaryDirectory() as folder:
        x = write_embeddings(Path(folder, "x7.npy"), photos)
        memory = Memory()
        head = timed(lambda: fit_prototypes(x))
        blocks = [slice(start, start + BLOCK) for start in range(0, photos, BLOCK)]

        def gradients() -> None:
            for rows in blocks:
                head.deltas(x[rows])

        timed(gradients)
        chosen = np.random.default_rng(2).permutation(photos)[:MAX_POOL]
        chosen = np.sort(chosen)
        described = x if photos <= MAX_POOL else x[chosen]
        blocks = [slice(start, start + BLOCK) for start in range(0, len(chosen), BLOCK)]
        pool = timed(lambda: Neighbours.fit(described))
        parts = timed(
            lambda: [pool.find(described[rows], NEIGHBOURS)[0] for rows in blocks]
        )
        numbers = np.concatenate(parts)
        memory.stop()
        rows = np.random.default_rng(1).permutation(len(chosen))[:CHECKED]
        true = true_neighbours(described, rows)
        pairs = zip(numbers[rows].tolist(), true.tolist(), strict=True)
        hits = [len(set(found) & set(expected)) for found, expected in pairs]
        recall = 100 * np.mean(hits) / NEIGHBOURS
    cells = [f"{photos:,}"]
    cells += [f"{wall:.1f} ({used:.1f})" for wall, used in seconds]
    cells += [
        f"{sum(wall for wall, _ in seconds):.1f} ({sum(used for _, used in seconds):.1f})"
    ]
    cells += [f"{recall:.1f}", f"{memory.peak / 2**30:.2f}"]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", default="1000,10000,100000")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measure(given.one, given.cores)
        return
    head = ["photos", *STEPS, "together", "recall, %", "memory, GB"]
    print(
        f"seconds with {given.cores} cores (in brackets: processor time of all cores)\n"
    )
    print(f"| {' | '.join(head)} |\n|{'---:|' * len(head)}", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(given.cores)}
    for photos in given.photos.split(","):
        command = [
            sys.executable,
            __file__,
            "--one",
            photos,
            "--cores",
            str(given.cores),
        ]
        subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
