"""Peak memory of extraction for few and for many images; it must not grow with their number.

    python benchmarks/memory.py [--data VOCdevkit] [--images 1000,20000]

Each size runs in a process of its own, all rows of the default network, into a new store. Where a
data set has too few images they are used again, each with some bytes behind its end: another
content for the store, the same picture.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from deepfishing.core.features import needed_factors, parse_features
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import extract_to_store
from deepfishing.images.published import load_groceries
from deepfishing.images.voc import read_voc
from deepfishing.networks.load import load_network
from deepfishing.store import Store


def extract(data: str, images: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = read_voc(data, 2007) if data else load_groceries(folder)
        paths: list[Path] = [*dataset.train.paths, *dataset.test.paths][:images]
        for number in range(len(paths), images):
            source = paths[number % len(dataset.train.paths)]
            copy = Path(folder, f"{number:06}{source.suffix}")
            copy.write_bytes(source.read_bytes() + str(number).encode())
            paths.append(copy)
        network = load_network()
        settings = Settings.from_network(network)
        store = Store(Path(folder) / "store", settings.as_dict())
        factors = needed_factors(parse_features("all", network.layers))
        given = {"settings": settings, "network": network}
        done = extract_to_store(store, paths, factors, **given).computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(paths)} images, {done} computed, peak memory {peak:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="")
    parser.add_argument("--images", default="1000,4000")
    sizes = [int(n) for n in parser.parse_args().images.split(",")]
    arguments = parser.parse_args()
    if len(sizes) == 1:
        extract(arguments.data, sizes[0])
    else:
        for size in sizes:
            command = [
                sys.executable,
                __file__,
                "--data",
                arguments.data,
                "--images",
                str(size),
            ]
            subprocess.run(command, check=True)
