"""Plans against real runs that they were not fitted on: time, bytes, files and memory.

    python benchmarks/growth.py plan

For each case `deepfish plan` comes first; it measures for a few seconds on pictures of its own.
Then `deepfish extract` runs on other pictures, and what it took is put beside what was planned.
Both are the commands as a user runs them, each in a new process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deepfishing.images.groceries import load_groceries

CASES = (
    ("efficientnet-lite0", "published", "all", 600),
    ("alexnet-torchvision", "random", "dW8", 300),
    ("vgg16", "random", "x7,dW7", 60),
)
DEEPFISH = Path(sys.executable).with_name("deepfish")


def check(work: Path, done: list[dict]) -> Iterator[dict]:
    """A line for each case that is not done."""
    known = {(line["network"], line["features"], line["n"]) for line in done}
    for network, weights, features, n in CASES:
        if (network, features, n) in known:
            continue
        with tempfile.TemporaryDirectory(dir=work) as folder:
            yield one(Path(folder), network, weights, features, n)


def one(folder: Path, network: str, weights: str, features: str, n: int) -> dict:
    what = ["--network", network, "--features", features]
    what += ["--weights", "random"] if weights == "random" else []
    load = os.getloadavg()[0]
    planned, _ = run("plan", "--images", str(n), *what, "--json")
    plan = json.loads(planned)
    photos = load_groceries(folder)
    paths = [*photos.train.paths, *photos.test.paths][:n]
    listed = folder / "list.txt"
    listed.write_text("\n".join(map(str, paths)) + "\n")
    told, memory = run("extract", str(listed), str(folder / "store"), *what, "--json")
    end = json.loads(told.splitlines()[-1])
    files = [path for path in (folder / "store").rglob("*") if path.is_file()]
    line = {
        "network": network,
        "features": features,
        "n": n,
        "planned_seconds": plan["local"]["wall_seconds"],
        "seconds": end["seconds"],
        "planned_bytes": plan["bytes"],
        "bytes": sum(path.stat().st_size for path in files),
        "planned_shards": plan["shards"],
        "shards": sum(path.name.startswith("shard-") for path in files),
        "planned_memory": plan["local"]["worker_bytes"],
        "memory": memory,
        "load": round(load, 1),
    }
    print(json.dumps(line), flush=True)
    return line


def run(*arguments: str) -> tuple[str, int]:
    """What a command prints, and its peak memory in bytes."""
    process = subprocess.Popen([DEEPFISH, *arguments], stdout=subprocess.PIPE, text=True)
    told = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.stdout.close()
    if status:
        raise RuntimeError(f"deepfish {' '.join(arguments)} ended with {status}")
    process.returncode = 0
    return told, 1024 * used.ru_maxrss
