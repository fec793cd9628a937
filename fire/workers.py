"""Kill -9 of Ray's workers while they extract, and of whole clusters.

    python -m fire.workers FOLDER [--kills 300] [--clusters 10] [--seed 0]

One Ray stays up; job after job extracts the same images on it. A worker that begins to work throws
a die: it will be killed at a random moment of the next third of a second, or before, half-way
through or after one of its writes. Up to eight workers of a job die so; each death is a file, which
is what is counted. Ray starts others in their place, and the job must end with the store that an
extraction in one process makes, shard by shard. Then whole clusters are killed at a random moment
after their first shard, and the command goes on without Ray. One JSON line a job or cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepfishing.core.features import Factor
from deepfishing.extraction.distributed import NO_MESSAGES, connect
from deepfishing.extraction.options import Resources
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import extract_to_store
from deepfishing.images.sources import find_images
from deepfishing.networks.network import Network
from deepfishing.store import Store
from deepfishing.store.check import verify
from fire.forks import load_script

FACTORS = (Factor("input", 8), Factor("delta", 8))
CORES = 4  # that Ray is told of: so many workers at a time
DEATHS = 8  # in a job
SECONDS = 0.33
IMAGES = 42
WRITES = 8  # of a worker's first ones


@dataclass(frozen=True, kw_only=True)
class Doomed(Settings):
    """Settings that load the network in a worker, and with it the worker's fate."""

    deaths: Path
    most: int
    seed: int
    script: str

    def load_network(self, **where: Any) -> Network:
        """Load, and decide when to die."""
        present = load_script(self.script)
        chance = random.Random(f"{self.seed} {os.getpid()}")
        if chance.random() < 0.5:
            threading.Timer(chance.uniform(0, SECONDS), self.die).start()
        else:
            present.die = self.die
            present.count_writes((chance.randint(1, WRITES), chance.choice(WHEN)))
        network: Network = present.network()
        return network

    def die(self) -> None:
        """Count the death and die, unless enough have died."""
        for number in range(self.most):
            try:
                (self.deaths / str(number)).open("x").close()
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


WHEN = ("before", "half", "after")


def shards(folder: Path) -> list[str]:
    """Every file of features by its name, which is a hash of its bytes."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("shard-*"))


def worker_kills(root: Path, kills: int, seed: int) -> Any:
    """Jobs until so many workers have died; a line each."""
    os.environ |= NO_MESSAGES  # which Ray reads when it is imported
    import ray

    present = load_script("tests/extraction/kill_points.py")
    present.small_chunks()
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.cloudpickle.register_pickle_by_value(sys.modules["fire.forks"])
    pictures = root / "pictures"
    pictures.mkdir(parents=True)
    for i in range(IMAGES):
        present.draw(pictures / f"{i:02d}.png", i)
    (pictures / "03.png").write_bytes(b"broken")
    (pictures / "12.png").write_bytes((pictures / "05.png").read_bytes())
    images, network = find_images(pictures), present.network()

    def extract(folder: Path, **more: Any) -> Any:
        given = {"settings": Settings.from_network(network), "network": network, **more}
        store = Store(folder, given["settings"].as_dict(), "float32")
        resources = Resources(batch_size=2, engine="torch")
        return extract_to_store(store, images, FACTORS, resources=resources, **given)

    expected = extract(root / "reference")
    rows, files = Store.open(root / "reference").rows(), shards(root / "reference")
    died = job = 0
    quiet = {"include_dashboard": False, "logging_level": 40, "log_to_driver": False}
    ray.init("local", num_cpus=CORES, **quiet)
    with connect("ray") as place:
        while died < kills:
            deaths, folder = root / f"deaths-{job}", root / "store"
            deaths.mkdir()
            most = min(DEATHS, kills - died)
            doomed = Doomed(
                network=network.reference(),
                deaths=deaths,
                most=most,
                seed=seed + job,
                script="tests/extraction/kill_points.py",
            )
            done = extract(folder, settings=doomed, network=None, on=place)
            wrong = []
            if done != expected or Store.open(folder).rows() != rows:
                wrong.append("the rows are not those of an extraction in one process")
            if shards(folder) != files:
                wrong.append("the shards are not those of an extraction in one process")
            wrong += verify(Store.open(folder))
            now = len(list(deaths.iterdir()))
            died += now
            job += 1
            shutil.rmtree(folder)
            yield {"scene": "workers", "kills": now, "wrong": wrong}
    ray.shutdown()


def cluster_kills(root: Path, clusters: int, seed: int) -> Any:
    """Kill the command and all that it started, each time at another moment; a line each."""
    test = load_script("tests/extraction/distributed/test_killed_cluster.py")
    present = load_script("tests/extraction/kill_points.py")
    chance = random.Random(seed)
    pictures = root / "pictures"
    pictures.mkdir(parents=True)
    for i in range(IMAGES):
        present.draw(pictures / f"{i:02d}.png", i)
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-c", test.COMMAND, "extract", "pictures"]

    def finish(name: str) -> Path:
        subprocess.run(
            [*command, name, *test.ARGUMENTS],
            cwd=root,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return root / name

    reference = finish("reference")
    for number in range(clusters):
        name = f"store-{number}"
        run = subprocess.Popen(
            [*command, name, *test.ARGUMENTS, "--on", "ray"],
            cwd=root,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while run.poll() is None and not list(root.glob(f"{name}/delta8/sh*")):
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 2))
        alive = run.poll() is None
        test.kill_all(run.pid)
        run.wait()
        folder = finish(name)
        wrong = verify(Store.open(folder))
        if shards(folder) != shards(reference):
            wrong.append("the shards are not those of an extraction in one process")
        if Store.open(folder).rows() != Store.open(reference).rows():
            wrong.append("the rows are not those of an extraction in one process")
        yield {"scene": "clusters", "kills": int(alive), "wrong": wrong}


def main() -> None:
    """Kill workers, then clusters."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_intermixed_args()
    root = given.folder.resolve()
    for line in worker_kills(root / "workers", given.kills, given.seed):
        print(json.dumps(line), flush=True)
    for line in cluster_kills(root / "clusters", given.clusters, given.seed):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
