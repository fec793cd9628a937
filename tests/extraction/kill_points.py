"""Kill extractions at every write and at random times; print how each store ends up.

Run as a script by test_kill.py. Torch is loaded once: every run is a fork of this process.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

import deepfishing.extraction.extract  # noqa: F401 - here, not in every fork
import deepfishing.extraction.to_store as to_store
from deepfishing.core.features import Factor
from deepfishing.extraction.options import Resources
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import extract_to_store
from deepfishing.images.preprocess import Preprocess
from deepfishing.images.sources import find_images
from deepfishing.networks.network import Network
from deepfishing.networks.reference import Source
from deepfishing.store import Store
from deepfishing.store.check import verify

FACTORS = (Factor("input", 8), Factor("delta", 8))


def small_chunks():
    """Write every four images; not on import, since pytest imports this file too."""
    to_store.SHARD_IMAGES = 4


def network():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5))
    preprocess = Preprocess(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3)
    # by a name that is found, so that commands load it again, where `load_network` is replaced
    source = Source(kind="random")
    return Network(
        "efficientnet-lite0", module, {8: "1"}, preprocess, "random-0", source=source
    )


def draw(path, seed):
    rng = np.random.default_rng(seed)
    Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)


def extract(pictures, folder, prune):
    net = network()
    settings = Settings.from_network(net)
    extract_to_store(
        Store(folder, settings.as_dict(), "float32"),
        find_images(pictures),
        FACTORS,
        settings=settings,
        network=net,
        resources=Resources(batch_size=2, engine="torch"),
        prune=prune,
    )


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def count_writes(at=None):
    """Count the calls that change the disk; die before, half-way through or after number `at`."""
    calls = [0]

    def counted(function):
        def call(*arguments, **more):
            calls[0] += 1
            if at == (calls[0], "before"):
                die()
            if at == (calls[0], "half"):
                if function is write_bytes:
                    write_bytes(
                        arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2]
                    )
                die()
            result = function(*arguments, **more)
            if at == (calls[0], "after"):
                die()
            return result

        return call

    write_bytes = Path.write_bytes
    for name in ("write_bytes", "write_text", "replace", "unlink", "mkdir", "touch"):
        setattr(Path, name, counted(getattr(Path, name)))
    pq.write_table = counted(pq.write_table)
    return calls


def fork(work):
    """Run in a fork; give its process id at once."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child):
    """Exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fingerprint(folder):
    """All rows with the bits of their features, and what `verify` says."""
    store = Store.open(folder)
    rows = []
    for row in store.rows().values():
        bits = [
            hashlib.sha256(store.read([row.sha256], f).tobytes()).hexdigest()
            for f in row.factors
        ]
        rows.append([str(row), bits])
    features = {f: sorted(store.shards(f).keys()) for f in store.factors()}
    return {"rows": rows, "features": features, "problems": verify(store)}


def scenario(root, pictures, base, prune, at_writes, at_times):
    """Kill, go on, compare; a line per kill."""

    def fresh(name):
        shutil.rmtree(root / name, ignore_errors=True)
        if base is not None:
            shutil.copytree(base, root / name)
        return root / name

    def run(folder):
        return lambda: extract(pictures, folder, prune)

    def counting(folder):
        calls = count_writes()
        extract(pictures, folder, prune)
        (root / "calls").open("w").write(str(calls[0]))

    reference = fresh("reference")
    start = time.monotonic()
    if ended(fork(run(reference))):
        raise SystemExit("the uninterrupted run failed")
    seconds = time.monotonic() - start
    expected = fingerprint(reference)
    folder = fresh("counted")
    ended(fork(lambda: counting(folder)))
    writes = int((root / "calls").read_text())
    kills = [
        (n, when) for n in range(1, writes + 1) for when in ("before", "half", "after")
    ]
    kills = random.sample(kills, at_writes) + [
        random.uniform(0, seconds) for _ in range(at_times)
    ]
    for at in kills:
        folder = fresh("killed")
        if isinstance(at, tuple):
            child = fork(lambda at=at, folder=folder: (count_writes(at), run(folder)()))
        else:
            child = fork(run(folder))
            time.sleep(at)
            os.kill(child, signal.SIGKILL)
        died = ended(child)
        resumed = ended(fork(run(folder)))
        equal = resumed == 0 and fingerprint(folder) == expected
        line = {"at": at, "died": died, "resumed": resumed, "equal": equal}
        print(json.dumps({"prune": prune, "problems": expected["problems"], **line}))


def main(root):
    small_chunks()
    random.seed(0)
    torch.set_num_threads(1)
    pictures = root / "pictures"
    pictures.mkdir()
    for i in range(18):
        draw(pictures / f"{i:02d}.png", i)
    (pictures / "03.png").write_bytes(b"broken")
    (pictures / "12.png").write_bytes((pictures / "05.png").read_bytes())
    scenario(root, pictures, None, False, at_writes=20, at_times=6)
    base = root / "base"
    if ended(fork(lambda: extract(pictures, base, False))):
        raise SystemExit("the first run failed")
    for name in ("01.png", "02.png", "17.png"):  # gone; changed; mended; new
        (pictures / name).unlink()
    draw(pictures / "07.png", 100)
    draw(pictures / "03.png", 101)
    draw(pictures / "99.png", 102)
    scenario(root, pictures, base, True, at_writes=14, at_times=4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
