"""Twins: copies planted among photographs, found by `deepfish curate twins` and by its peers.

    python benchmarks/twins.py --data VOCdevkit --work /tmp/twins

Comes in: PASCAL VOC 2007. 2,000 photos are drawn, and each gets one copy: 400 at JPEG quality 50,
400 at half size, 400 cropped to 90 % of both sides anywhere, 400 mirrored, 400 with a border of 5 %
on each side, black or white. Goes out: pairs found, wrong pairs and seconds, one line per method:
`find_twins` on a store of EfficientNet-Lite0; its candidates with a threshold on the kernel instead
of pixels; ImageHash's pHash and imagededup's PHash and CNN, at the threshold where at most 1 % of
the pairs are wrong, and at their own. Peers (--peers): pip install ImageHash imagededup --no-deps,
PyWavelets. What is made is kept in --work.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageOps

PHOTOS = 2000
KINDS = ("quality 50", "half size", "crop of 90 %", "mirrored", "border of 5 %")
Pair = tuple[str, str]


def make_photos(data: Path, folder: Path) -> dict[Pair, str]:
    """The photos and their copies; which pairs are planted, and of which kind."""
    files = sorted((data / "VOC2007" / "JPEGImages").glob("*.jpg"))
    rng = random.Random(0)
    chosen = rng.sample(files, PHOTOS)
    planted = {}
    for name in ("photos", "copies"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(chosen):
        kind = KINDS[number % len(KINDS)]
        copy = folder / "copies" / f"copy-{path.name}"
        x, y, colour = rng.random(), rng.random(), rng.choice(("black", "white"))
        planted[(copy.name, path.name)] = kind
        if not copy.exists():
            (folder / "photos" / path.name).write_bytes(path.read_bytes())
            with Image.open(path) as photo:
                changed(photo, kind, x, y, colour).save(copy, quality=50 if "50" in kind else 90)
    return planted


def changed(photo: Image.Image, kind: str, x: float, y: float, colour: str) -> Image.Image:
    wide, high = photo.size
    if kind == "half size":
        return photo.resize((wide // 2, high // 2), Image.Resampling.LANCZOS)
    if kind == "crop of 90 %":
        w, h = round(0.9 * wide), round(0.9 * high)
        left, top = round(x * (wide - w)), round(y * (high - h))
        return photo.crop((left, top, left + w, top + h))
    if kind == "mirrored":
        return ImageOps.mirror(photo)
    if kind == "border of 5 %":
        return ImageOps.expand(photo, (round(0.05 * wide), round(0.05 * high)), colour)
    return photo


def by_pixels(store: Path) -> dict[Pair, float]:
    """What `deepfish curate twins` finds: pairs with the photo that is kept."""
    from deepfishing.curate.duplicates import find_twins
    from deepfishing.curate.neighbours import open_searcher
    from deepfishing.store import Store

    groups = find_twins(open_searcher(Store.open(store))).groups
    return {(one.id, g.keep.id): 1 - one.difference for g in groups for one in g.others}


def by_kernel(store: Path) -> dict[Pair, float]:
    """The same neighbours without a look at the pixels."""
    from deepfishing.curate.neighbours import nearest, open_searcher
    from deepfishing.store import Store

    searcher = open_searcher(Store.open(store))
    near, collection = nearest(searcher, 5), searcher.collection
    ids = [collection[int(collection.rows_of(n)[0])].id for n in range(len(searcher.contents))]
    found = {}
    for n, (others, kernels) in enumerate(zip(near.numbers, near.kernel, strict=True)):
        found |= {(ids[n], ids[m]): float(k) for m, k in zip(others, kernels, strict=True)}
    return found


def by_imagehash(photos: list[Path]) -> dict[Pair, float]:
    """ImageHash: distance of pHash, all pairs."""
    import imagehash
    import numpy as np

    bits = np.stack([imagehash.phash(Image.open(path)).hash.ravel() for path in photos])
    signs = bits.astype(np.float32) * 2 - 1
    distance = (64 - signs @ signs.T) / 2
    rows, columns = np.nonzero(np.triu(distance <= 16, 1))
    return {
        (photos[i].name, photos[j].name): -float(distance[i, j])
        for i, j in zip(rows, columns, strict=True)
    }


def by_imagededup(photos: list[Path], folder: Path, method: str) -> dict[Pair, float]:
    """imagededup: its PHash up to a distance of 16, or its CNN from a cosine of 0.7."""
    from deepfishing.networks.load import import_hub

    import_hub("torchvision")  # which imagededup imports, beside this torch
    from imagededup import methods

    for path in photos:  # it takes one folder
        link = folder / path.name
        link.parent.mkdir(exist_ok=True)
        if not link.exists():
            link.symlink_to(path.resolve())
    finder = getattr(methods, method)()
    options = (
        {"min_similarity_threshold": 0.7} if method == "CNN" else {"max_distance_threshold": 16}
    )
    found = finder.find_duplicates(image_dir=folder, scores=True, **options)
    sign = 1 if method == "CNN" else -1
    return {(a, b): sign * float(score) for a, close in found.items() for b, score in close}


def judge(found: dict[Pair, float], planted: dict[Pair, str], own: float) -> dict[str, object]:
    """Recall and wrong pairs at the method's own threshold, and at the one with 1 % wrong."""
    truth = {frozenset(pair): kind for pair, kind in planted.items()}
    scores: dict[frozenset[str], float] = {}
    for pair, score in found.items():
        key = frozenset(Path(name).name for name in pair)
        scores[key] = max(score, scores.get(key, score))
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    best, right, wrong = 0, 0, 0
    for place, (key, score) in enumerate(ranked):
        right, wrong = right + (key in truth), wrong + (key not in truth)
        is_last = place + 1 == len(ranked) or ranked[place + 1][1] < score  # of those with a score
        if is_last and wrong <= 0.01 * (right + wrong):
            best = max(best, right)
    taken = [key for key, score in ranked if score >= own]
    hits = [truth[key] for key in taken if key in truth]
    kinds = {kind: sum(k == kind for k in truth.values()) for kind in KINDS}
    return {
        "found": round(100 * len(hits) / len(truth), 1),
        "wrong": round(100 * (len(taken) - len(hits)) / max(len(taken), 1), 1),
        "found_at_1_percent_wrong": round(100 * best / len(truth), 1),
        **{kind: round(100 * hits.count(kind) / n, 1) for kind, n in kinds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="the folder VOCdevkit")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--peers", action="store_true", help="also ImageHash and imagededup")
    parser.add_argument("--only", default="", help="methods with this in their name")
    given = parser.parse_args()
    planted = make_photos(given.data, given.work / "set")
    photos = sorted((given.work / "set").rglob("*.jpg"))
    store = given.work / "store"
    if not store.exists():
        from deepfishing import extract_to

        extract_to(store, given.work / "set")
    methods: dict[str, tuple[Callable[[], dict[Pair, float]], float]] = {
        "deepfish curate twins": (lambda: by_pixels(store), 0.0),
        "the kernel alone, K >= 0.8": (lambda: by_kernel(store), 0.8),
    }
    if given.peers:
        flat = given.work / "flat"
        methods |= {
            "ImageHash pHash, distance <= 8": (lambda: by_imagehash(photos), -8),
            "imagededup PHash, distance <= 10": (
                lambda: by_imagededup(photos, flat, "PHash"),
                -10,
            ),
            "imagededup CNN, cosine >= 0.9": (lambda: by_imagededup(photos, flat, "CNN"), 0.9),
        }
    for name, (find, own) in methods.items():
        if given.only not in name:
            continue
        start = time.perf_counter()
        try:
            found = find()
        except Exception as error:
            print(json.dumps({"method": name, "error": f"{type(error).__name__}: {error}"[:200]}))
            continue
        seconds = round(time.perf_counter() - start, 1)
        print(json.dumps({"method": name, **judge(found, planted, own), "seconds": seconds}))


if __name__ == "__main__":
    main()
