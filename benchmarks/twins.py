"""Copies that must be found and look-alikes that must not, in one run, beside other tools.

    python benchmarks/twins.py --data VOCdevkit --work WORK --peers

One collection: photos of PASCAL VOC 2007, copies of a part of them (JPEG quality 50, half size, a
crop of 90 % of both sides anywhere, mirrored, a border of 5 % in black or white), the embedded
photographs, and generated look-alikes (`benchmarks/look_alikes.py`). `deepfish curate twins` runs
on a store of EfficientNet-Lite0, as a user's would. Every other tool sees the same files.

A pair that is found is right if it was planted, or if it is judged a copy in
`benchmarks/twins_voc_judged.csv`, which has every pair found among the photos themselves; pairs
that are in no list are drawn into WORK/to_judge.png, and count as wrong. --photos is the number of
VOC's photos (0: all), --copies that of the photos that get a copy.

Peers: pip install --no-deps ImageHash imagededup PyWavelets
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from look_alikes import write_families
from PIL import Image, ImageOps

import deepfishing

KINDS = ("quality 50", "half size", "crop of 90 %", "mirrored", "border of 5 %")
JUDGED = Path(__file__).parent / "twins_voc_judged.csv"
BURSTS = 20
DRAWN = 60  # pairs to judge on one sheet
Pair = frozenset[str]  # two names of files
Found = dict[Pair, float]  # with their score, the higher the more alike


def make_set(data: Path, folder: Path, photos: int, copies: int) -> dict[Pair, str]:
    """Write the collection; return the pairs that are planted, with their kind."""
    files = sorted((data / "VOC2007" / "JPEGImages").glob("*.jpg"))
    rng = random.Random(2)
    chosen = rng.sample(files, photos or len(files))
    for name in ("voc", "copies"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    planted = {}
    for number, path in enumerate(chosen[:-BURSTS]):
        # the last ones are frames of bursts
        place = folder / "voc" / path.name
        if not place.exists():
            place.hardlink_to(path)
        if number >= copies:
            continue
        kind = KINDS[number % len(KINDS)]
        copy = folder / "copies" / f"copy-{path.name}"
        x, y, colour = rng.random(), rng.random(), rng.choice(("black", "white"))
        planted[frozenset((copy.name, path.name))] = kind
        with Image.open(path) as photo:
            changed(photo, kind, x, y, colour).save(
                copy, quality=50 if "50" in kind else 90
            )
    if not (folder / "groceries").exists():
        deepfishing.load_groceries(folder)
    write_families(folder / "generated", chosen[-BURSTS:])
    return planted


def changed(
    photo: Image.Image, kind: str, x: float, y: float, colour: str
) -> Image.Image:
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


def by_deepfishing(store: Path) -> Found:
    """Pairs of a photo that is kept and a copy of it, of any kind."""
    from deepfishing.curate.duplicates import find_twins
    from deepfishing.curate.neighbours import open_searcher

    found = {}
    for group in find_twins(open_searcher(store)).groups:
        keep = Path(group.keep.path).name
        for photo in group.others:
            found[frozenset((keep, Path(photo.path).name))] = 1 - photo.difference
    return found


def by_kernel(store: Path) -> Found:
    """The candidates of `curate twins` without a look at the pixels."""
    from deepfishing.curate.neighbours import nearest, open_searcher

    searcher = open_searcher(store)
    collection = searcher.collection
    near = nearest(searcher, 5)
    names = []
    for number in range(len(searcher.contents)):
        names.append(Path(collection[int(collection.rows_of(number)[0])].path).name)
    found = {}
    for number, (others, kernels) in enumerate(
        zip(near.numbers, near.kernel, strict=True)
    ):
        for other, kernel in zip(others.tolist(), kernels.tolist(), strict=True):
            found[frozenset((names[number], names[other]))] = kernel
    return found


def by_imagehash(photos: Sequence[Path], method: str) -> Found:
    """All pairs by the distance of a hash of ImageHash."""
    import imagehash

    hashes = []
    for path in photos:
        with Image.open(path) as photo:
            hashes.append(getattr(imagehash, method)(photo).hash.ravel())
    return near_pairs([path.name for path in photos], np.stack(hashes))


def by_imagededup(photos: Sequence[Path], method: str) -> Found:
    """All pairs by the distance of a hash of imagededup."""
    from deepfishing.networks.libraries.packages import import_package

    import_package("torchvision")  # which imagededup imports, beside this torch
    from imagededup import methods

    hasher = getattr(methods, method)(verbose=False)
    hashes = []
    for path in photos:
        text = hasher.encode_image(image_file=path)
        hashes.append([int(bit) for bit in f"{int(text, 16):0{4 * len(text)}b}"])
    return near_pairs([path.name for path in photos], np.array(hashes, dtype=bool))


def near_pairs(names: Sequence[str], bits: np.ndarray, most: int = 10) -> Found:
    """Pairs of which at most some bits differ."""
    signs = bits.astype(np.float32) * 2 - 1
    found = {}
    for start in range(0, len(names), 1024):
        distance = (bits.shape[1] - signs[start : start + 1024] @ signs.T) / 2
        rows, columns = np.nonzero(distance <= most)
        for row, column in zip((rows + start).tolist(), columns.tolist(), strict=True):
            if row < column:
                found[frozenset((names[row], names[column]))] = -float(
                    distance[row - start, column]
                )
    return found


def read_judged() -> dict[Pair, str]:
    """Pairs of photos that were looked at, with the verdict: copy, or no copy."""
    if not JUDGED.exists():
        return {}
    with JUDGED.open(newline="") as file:
        return {
            frozenset((row["a"], row["b"])): row["verdict"]
            for row in csv.DictReader(file)
        }


def judged_copies(pairs: Iterable[Pair]) -> set[Pair]:
    """Pairs that were judged copies, or planted copies of those."""
    judged = read_judged()
    copies = set()
    for pair in pairs:
        originals = frozenset(name.removeprefix("copy-") for name in pair)
        if judged.get(originals) == "copy":
            copies.add(pair)
    return copies


def judge(found: Found, planted: dict[Pair, str], least: float) -> dict[str, object]:
    """Shares of planted pairs that are found, and wrong pairs by where they come from."""
    taken = [pair for pair, score in found.items() if score >= least]
    figures: dict[str, object] = {}
    for kind in KINDS:
        pairs = [pair for pair, its in planted.items() if its == kind]
        hits = len(set(pairs) & set(taken))
        figures[kind] = round(100 * hits / max(len(pairs), 1), 1)
    copies = judged_copies(taken)
    wrong = {"generated": 0, "embedded": 0, "voc": 0}
    for pair in set(taken) - set(planted):
        if pair not in copies:
            wrong[source_of(pair)] += 1
    return figures | {"wrong pairs": sum(wrong.values())} | wrong


def source_of(pair: Pair) -> str:
    """Where the photos of a pair come from."""
    stems = [Path(name).stem.removeprefix("copy-") for name in pair]
    if all(stem.isdigit() for stem in stems):
        return "voc"
    return "embedded" if any("_" in stem for stem in stems) else "generated"


def draw_unjudged(
    found: Found, planted: dict[Pair, str], folder: Path, work: Path
) -> int:
    """Draw pairs that nobody has judged, side by side; return how many there are."""
    from deepfishing.search.hits import save_tiles

    known = set(planted) | set(read_judged()) | judged_copies(found)
    open_pairs = sorted(tuple(sorted(pair)) for pair in set(found) - known)
    places = {path.name: path for path in folder.rglob("*.jpg")}
    tiles = []
    for pair in open_pairs[:DRAWN]:
        print("to judge:", *pair, flush=True)
        for name in pair:
            tiles.append((places[name], name, ""))
    if tiles:
        save_tiles(work / "to_judge.png", tiles)
    return len(open_pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder VOCdevkit")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=0)
    parser.add_argument("--copies", type=int, default=2000)
    parser.add_argument(
        "--peers", action="store_true", help="also ImageHash and imagededup"
    )
    parser.add_argument("--only", default="", help="methods with this in their name")
    given = parser.parse_args()
    folder = given.work / "set"
    planted = make_set(given.data, folder, given.photos, given.copies)
    photos = sorted(folder.rglob("*.jpg"))
    print(
        f"{len(photos):,} photos, {len(planted):,} of them planted copies", flush=True
    )
    store = given.work / "store"
    processor = time.process_time()
    deepfishing.extract_to(store, folder)
    spent_on_features = round(time.process_time() - processor, 1)
    print(f"features: {spent_on_features} seconds of the processor", flush=True)
    # a method, and the limits at which it is judged
    methods: dict[str, tuple[Callable[[], Found], tuple[float, ...]]] = {
        "deepfish curate twins": (partial(by_deepfishing, store), (0.0,)),
        "the kernel alone, K": (partial(by_kernel, store), (0.9, 0.97)),
    }
    if given.peers:
        for method in ("phash", "dhash", "whash"):
            find = partial(by_imagehash, photos, method)
            methods[f"ImageHash {method}, distance"] = (find, (0, -4, -8))
        for method in ("PHash", "DHash", "WHash"):
            find = partial(by_imagededup, photos, method)
            methods[f"imagededup {method}, distance"] = (find, (0, -10))
    for name, (find, limits) in methods.items():
        if given.only not in name:
            continue
        start, processor = time.perf_counter(), time.process_time()
        found = find()
        spent = {
            "seconds": round(time.perf_counter() - start, 1),
            "processor_seconds": round(time.process_time() - processor, 1),
        }
        if name.startswith("deepfish"):
            spent["to_judge"] = draw_unjudged(found, planted, folder, given.work)
        for limit in limits:
            row = {
                "method": name,
                "limit": limit,
                **judge(found, planted, limit),
                **spent,
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
