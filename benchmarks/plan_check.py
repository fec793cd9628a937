"""Plans against real runs that they were not fitted on: time, bytes, files and memory.

    python benchmarks/growth.py plan
    python benchmarks/plan_check.py PHOTOS [IMAGES]     on Ray, on this machine

For each case `deepfish plan` comes first; it measures for a few seconds on pictures of its own.
Then `deepfish extract` runs on other pictures, and what it took is put beside what was planned.
Both are the commands as a user runs them, each in a new process. On Ray one worker per core takes
chunks of 512; what passes until the first of them is begun (Ray starts) and until it is done
(workers load the network) is told apart from the rest, and so is Ray alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from deepfishing.images.published import load_groceries

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


RAY = "import ray; ray.init(logging_level='ERROR', include_dashboard=False); ray.shutdown()"


def on_ray(photos: Path, n: int) -> dict:
    """A plan for Ray and a run of it on this machine: seconds of each part, driver's memory."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    paths = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".png"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listed = folder / "list.txt"
        listed.write_text("\n".join(map(str, paths[:n])) + "\n")
        features = ["--features", "x7,dW8"]
        sizes = ["--on", "ray", "--workers", str(cores), "--cores", "1"]
        planned, _ = run(
            "plan", "--images", str(n), "--sample", str(photos), *features, *sizes, "--json"
        )
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", RAY], check=True, capture_output=True)
        alone = time.perf_counter() - started
        command = [
            DEEPFISH,
            "extract",
            listed,
            folder / "store",
            *features,
            "--on",
            "ray",
            "--json",
        ]
        started, seen = time.perf_counter(), {}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            event = json.loads(line)
            what = event["event"]
            if event.get("stage") == "images" and event["done"]:
                what = "chunk"
                seen.setdefault("images", event["done"])
            seen.setdefault(what, time.perf_counter() - started)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = status
    if status:
        raise RuntimeError(f"deepfish extract on Ray ended with {status}")
    plan = json.loads(planned)
    left = n - seen["images"]
    return {
        "images": n,
        "workers": cores,
        "load": round(load, 1),
        "planned_seconds": round(plan["ray"]["wall_seconds"], 1),
        "planned_images_per_second": round(plan["ray"]["images_per_second"], 1),
        "seconds": round(seen["end"], 1),
        "ray_alone": round(alone, 1),
        "until_begun": round(seen["start"], 1),
        "until_first_chunk": round(seen["chunk"], 1),
        "images_per_second_after": round(left / (seen["end"] - seen["chunk"]), 1) if left else None,
        "driver_bytes": 1024 * used.ru_maxrss,
    }


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


if __name__ == "__main__":
    print(json.dumps(on_ray(Path(sys.argv[1]), int((*sys.argv, 2048)[2])), indent=1))
