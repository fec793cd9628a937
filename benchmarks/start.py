"""How long `deepfish extract` takes to find that there is nothing to do.

    python benchmarks/start.py [--quick]

Comes in: a folder of 100,000 small files, and a store that has features for all of them. Goes
out: the time of the whole command, against a script that starts Python, lists the files and asks
for the size and date of each, which is the least that has to be done.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from timing import Ratio, ratio

from deepfishing.extraction.settings import Settings
from deepfishing.images.sources import find_images
from deepfishing.networks.reference import PUBLISHED, NetworkRef, Source, sha256_of
from deepfishing.networks.zoo import RECORDS, find_weights
from deepfishing.store import Row, Store
from deepfishing.store.manifest import OK

NETWORK, FACTOR, BLOCK = "efficientnet-lite0", "x7", 4096
LISTING = (
    "import os, sys; [e.stat() for f in os.scandir(sys.argv[1]) for e in os.scandir(f)]"
)


def run(quick: bool = False) -> list[Ratio]:
    images, repetitions = (10_000, 3) if quick else (100_000, 7)
    command = Path(sys.executable).with_name("deepfish")
    with tempfile.TemporaryDirectory() as folder:
        photos, store = Path(folder, "photos"), Path(folder, "store")
        fill(photos, store, images)

        def extract() -> None:
            told = subprocess.run(
                [command, "extract", photos, store, "--features", FACTOR],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            if f"{images} images, 0 computed now" not in told:
                raise RuntimeError(f"expected a complete store, got: {told}")

        def listing() -> None:
            subprocess.run([sys.executable, "-c", LISTING, photos], check=True)

        return [
            ratio(
                f"extract, complete store of {images} images",
                extract,
                "a script that stats the files",
                listing,
                repetitions,
            )
        ]


def fill(photos: Path, folder: Path, images: int) -> None:
    """Files that differ, and a store as extraction would have left it."""
    for number in range(images):
        path = photos / f"{number // 1000:03}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not decoded: %d" % number)
    entry = RECORDS[NETWORK]
    network = NetworkRef(
        name=entry.name,
        weights_sha256=sha256_of(find_weights(entry)),
        layers=entry.layers,
        preprocess=entry.preprocess,
        source=Source(kind=PUBLISHED),
    )
    store = Store(folder, Settings(network=network).as_dict())
    rows = []
    for item in find_images(str(photos)):
        size, stamp = item.signature()
        rows.append(
            Row(
                item.id,
                str(item),
                item.sha256(),
                size,
                stamp,
                item.labels,
                OK,
                None,
                (FACTOR,),
            )
        )
    random = np.random.default_rng(0)
    for start in range(0, images, BLOCK):
        keys = [str(row.sha256) for row in rows[start : start + BLOCK]]
        store.append(
            keys, {FACTOR: random.standard_normal((len(keys), 1280), dtype=np.float32)}
        )
    store.write_rows(rows)


if __name__ == "__main__":
    for row in run(quick="--quick" in sys.argv):
        print(row)
