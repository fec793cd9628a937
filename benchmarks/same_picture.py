"""Pairs of photos: copies that must be recognised, and look-alikes that must not be.

    python benchmarks/same_picture.py --data VOCdevkit --seed 7 --photos 200

Draws photos of PASCAL VOC 2007, makes one copy of each (the five kinds of `benchmarks/twins.py`),
and counts how many `compare_pictures` recognises, with which kind. Then it counts false pairs among
generated look-alikes (documents that differ in one digit, shirts that differ in colour, print or
folds), and among the embedded photographs, each with its five nearest neighbours by thumbnail.
The limits of `images/same_picture.py` were set on draws of seed 1; use any other seed.
"""

from __future__ import annotations

import argparse
import io
import random
import tempfile
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from twins import KINDS, changed

import deepfishing
from deepfishing.images.alignment import thumbnail
from deepfishing.images.same_picture import compare_pictures

SHIRT = [(30, 15), (10, 30), (20, 42), (28, 36), (28, 90), (72, 90), (72, 36), (80, 42), (90, 30)]
SHIRT += [(70, 15), (58, 18), (42, 18)]
WORDS = ("invoice", "amount", "item", "total", "net", "street", "day")


def encoded(image: Image.Image, quality: int = 90) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def document(number: str, size: tuple[int, int] = (1240, 1754), points: int = 22) -> Image.Image:
    page = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(size=points)
    rng = random.Random(5)
    for line in range(40):
        text = " ".join(rng.choice(WORDS) for _ in range(10))
        draw.text((100, 150 + line * 36), text, fill="black", font=font)
    draw.text((800, 100), f"No. {number}", fill="black", font=font)
    return page


def shirt(folds: int, colour: tuple[int, int, int], text: str) -> Image.Image:
    size = (480, 640)
    image = Image.new("RGB", size, "white")
    outline = [(x * size[0] / 100, y * size[1] / 100) for x, y in SHIRT]
    ImageDraw.Draw(image).polygon(outline, fill=colour)
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(1)), dtype=float)
    waves = np.random.default_rng(folds).normal(size=(24, 18)) * 20 + 128
    small = Image.fromarray(waves.clip(0, 255).astype(np.uint8))
    shade = np.asarray(small.resize(size, Image.Resampling.BICUBIC), dtype=float) - 128
    is_cloth = pixels.min(axis=2) < 245
    pixels = pixels + (is_cloth * shade)[..., None]
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    font = ImageFont.load_default(size=48)
    ImageDraw.Draw(image).text((190, 256), text, fill="white", font=font)
    return image


def report_copies(data: Path, seed: int, count: int) -> None:
    files = sorted((data / "VOC2007" / "JPEGImages").glob("*.jpg"))
    rng = random.Random(seed)
    named: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for number, path in enumerate(rng.sample(files, count)):
        kind = KINDS[number % len(KINDS)]
        photo = Image.open(path).convert("RGB")
        copy = changed(photo, kind, rng.random(), rng.random(), rng.choice(("black", "white")))
        likeness = compare_pictures(photo, encoded(copy, 50 if "50" in kind else 90))
        named[kind]["not found" if likeness is None else likeness.kind] += 1
    for kind, counts in named.items():
        print(f"{kind:16s}", dict(counts), flush=True)


def report_generated() -> None:
    documents = [document(str(number)) for number in (20231, 20237, 20281, 20239, 20234, 50231)]
    colours = [(20, 20, 60), (20, 20, 30), (60, 20, 20), (120, 120, 120), (100, 100, 100)]
    shirts = [shirt(1, colour, "AB") for colour in colours]
    shirts += [shirt(folds, (40, 60, 90), "AB") for folds in range(2, 8)]
    shirts += [shirt(1, (40, 60, 90), text) for text in ("A8", "AE", "XB", "")]
    for name, images in (("documents", documents), ("shirts", shirts)):
        pairs = list(combinations(images, 2))
        pairs += [(a.resize((a.width // 2, a.height // 2)), b) for a, b in pairs]
        false = [compare_pictures(encoded(a), encoded(b, 85)) for a, b in pairs]
        print(f"{name}: {sum(one is not None for one in false)} false of {len(pairs)} pairs")


def report_embedded() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = deepfishing.load_groceries(folder)
        paths = [*data.train.paths, *data.test.paths]
        images = [Image.open(path).convert("RGB") for path in paths]
    small = np.stack([thumbnail(image).ravel() for image in images])
    small = small - small.mean(axis=1, keepdims=True)
    small /= np.linalg.norm(small, axis=1, keepdims=True)
    alike = small @ small.T
    np.fill_diagonal(alike, -1)
    pairs = set()
    for row, nearest in enumerate(np.argsort(-alike, axis=1)[:, :5]):
        pairs |= {tuple(sorted((row, int(other)))) for other in nearest}
    for a, b in sorted(pairs):
        likeness = compare_pictures(images[a], images[b])
        if likeness is not None:
            print("  look at:", Path(paths[a]).name, Path(paths[b]).name, likeness)
    print(f"embedded photographs: {len(images)} photos, {len(pairs)} pairs compared")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--photos", type=int, default=200)
    options = parser.parse_args()
    if options.data:
        report_copies(options.data, options.seed, options.photos)
    report_generated()
    report_embedded()


if __name__ == "__main__":
    main()
