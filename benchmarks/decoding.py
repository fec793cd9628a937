"""Decoding and resizing of original photos against the network's own time, in seconds of one core.

Photos are the embedded ones, made 500 x 375 and 4000 x 3000 (12 megapixels) with grain, so that
they have about as many bytes as those of a camera. A repetition is one photo. The memory in
brackets is by how much a new process grows at most while it decodes the first.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from timing import Ratio, _row

from deepfishing.core.features import needed_factors, parse_features
from deepfishing.extraction.extract import Extractor
from deepfishing.extraction.options import Resources
from deepfishing.images.preprocess import Preprocess, resize_and_crop
from deepfishing.images.published import load_groceries
from deepfishing.networks.load import load_network
from deepfishing.networks.zoo import DEFAULT, record

SIZES = {"500 x 375": (500, 375), "12 megapixels": (4000, 3000)}
PHOTOS, NETWORK_IMAGES = 12, 64
GRAIN = 6  # grey levels


def spent(work: Callable[[], object]) -> float:
    """Seconds of this thread, the least of three."""
    times = []
    for _ in range(3):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return min(times)


def status(name: str) -> int:
    """Bytes of this process, as the system knows them."""
    found = re.search(rf"{name}:\s*(\d+)", Path("/proc/self/status").read_text())
    return 1024 * int(found[1])


def before(path: Path, pixels: Preprocess) -> np.ndarray:
    """As it was: two copies of all pixels, and arithmetic on every one of them."""
    with Image.open(path) as opened:
        width, height = opened.size
        shrink = pixels.oversampling * pixels.short_side / min(width, height)
        opened.draft("RGB", (int(width * shrink) + 1, int(height * shrink) + 1))
        opened.load()
        rgb = ImageOps.exif_transpose(opened).copy()
    square = resize_and_crop(rgb, pixels.short_side, pixels.size, pixels.resample)
    values = np.asarray(square, dtype=np.float32) * np.float32(pixels.scale)
    normal = (values - np.float32(pixels.mean)) / np.float32(pixels.std)
    return np.ascontiguousarray(normal.transpose(2, 0, 1))


def make_photos(folder: Path, size: tuple[int, int], n: int) -> list[Path]:
    random, made = np.random.default_rng(0), []
    for number, path in enumerate(
        load_groceries(folder, n_train=n, n_test=1).train.paths[:n]
    ):
        with Image.open(path) as photo:
            whole = np.asarray(photo.convert("RGB").resize(size), dtype=np.float32)
        whole = whole + random.normal(0, GRAIN, (size[1], size[0], 1)).astype(
            np.float32
        )
        made.append(folder / f"{size[0]}-{number}.jpg")
        Image.fromarray(whole.clip(0, 255).astype(np.uint8)).save(made[-1], quality=90)
    return made


def run(quick: bool = False) -> list[Ratio]:
    network = load_network()
    factors = needed_factors(parse_features("x7,dW8", network.layers))
    extractor = Extractor(network, factors, resources=Resources(engine="auto"))
    square = [np.random.default_rng(0).integers(0, 256, (224, 224, 3)).astype(np.uint8)]
    list(extractor(square * 16))
    started = time.process_time()
    list(extractor(square * NETWORK_IMAGES))
    pixels = network.preprocess
    own = (time.process_time() - started) / NETWORK_IMAGES - spent(
        lambda: pixels(square[0])
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            photos = make_photos(Path(folder), size, 3 if quick else PHOTOS)
            for way, work in ways(pixels).items():
                if "oversampling" in way and size[0] < 1000:
                    continue  # it is decoded in full in any case
                times = [
                    spent(lambda path=path, work=work: work(path)) for path in photos
                ]
                title = f"{name}, decoding to pixels: {way} ({megabytes(way, photos[0]):.0f} MB)"
                rows.append(
                    _row(title, "the network's own time", times, [own] * len(times))
                )
    return rows


def ways(pixels: Preprocess) -> dict[str, Callable[[Path], object]]:
    fewer = {f"now, oversampling {n}": replace(pixels, oversampling=n) for n in (2, 1)}
    return {"as it was": lambda path: before(path, pixels), "now": pixels, **fewer}


def megabytes(way: str, photo: Path) -> float:
    """By how much a new process grows while it decodes a photo."""
    told = subprocess.run(
        [sys.executable, __file__, way, photo], capture_output=True, text=True
    )
    return float(told.stdout)


if __name__ == "__main__":
    work = ways(record(DEFAULT).preprocess)[sys.argv[1]]
    small = Path(sys.argv[2]).with_suffix(".small.jpg")
    Image.new("RGB", (300, 300)).save(small)
    work(small)  # what every first picture takes
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    begin = status("VmRSS")
    work(Path(sys.argv[2]))
    print((status("VmHWM") - begin) / 1e6)
