"""Odd ones: photos that do not belong, planted among others, and how well each score tells them.

    python benchmarks/odd.py --data VOCdevkit --work /tmp/odd

Comes in: 2,000 photos of PASCAL VOC 2007, and sets of 200 that do not belong: fruit in shops (the
embedded photographs), made textures, made pages of text, and other VOC photos that failed: dark,
bright, blurred, noisy. Goes out: per score and set the AUROC, with 8, 40 or 200 of a set among the
photos, for they are each other's neighbours; mean of five draws. Network: EfficientNet-Lite0. What
is made is kept in --work.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont

PHOTOS, ODD, DRAWS = 2000, 200, 5
SHARES = (8, 40, 200)  # odd ones among the photos
RECIPES = ("x7", "pow(x7,0.5)", "dW8", "dW7", "pow(dW8,0.5)+pow(x7,0.5)")
NEAREST = (10, 50)
WORDS = (
    "the",
    "of",
    "and",
    "photo",
    "camera",
    "light",
    "store",
    "road",
    "house",
    "water",
)


def texture(rng: np.random.Generator) -> Image.Image:
    """Stripes, a checkerboard, a cloud or noise, in two colours."""
    y, x = np.mgrid[0:240, 0:320] / 240
    angle, scale = rng.uniform(0, np.pi), rng.uniform(4, 60)
    along = np.cos(angle) * x + np.sin(angle) * y
    across = np.cos(angle) * y - np.sin(angle) * x
    kind = rng.integers(4)
    if kind == 0:
        grey = np.sin(scale * along)
    elif kind == 1:
        grey = np.sign(np.sin(scale * along) * np.sin(scale * across))
    else:
        cells = rng.normal(size=(int(scale) + 2, int(scale) + 2))
        grey = np.asarray(Image.fromarray(cells).resize((320, 240), int(kind == 2) * 3))
    a, b = rng.integers(0, 256, (2, 3))
    t = np.clip((grey[..., None] + 1) / 2, 0, 1)
    return Image.fromarray((a * t + b * (1 - t)).astype(np.uint8))


def page(rng: np.random.Generator) -> Image.Image:
    """A page of text, or of a screen."""
    paper, ink = (
        ((255, 255, 255), (20, 20, 20))
        if rng.random() < 0.7
        else ((30, 30, 40), (220,) * 3)
    )
    image = Image.new("RGB", (320, 240), paper)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(int(rng.integers(8, 20)))
    for top in range(8, 230, int(rng.integers(12, 26))):
        draw.text((8, top), " ".join(rng.choice(WORDS, 9)), ink, font)
    return image


def failed(photo: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A photo that is too dark, too bright, out of focus or noisy."""
    kind = rng.integers(4)
    if kind < 2:
        return ImageEnhance.Brightness(photo).enhance(0.06 if kind else 6.0)
    if kind == 2:
        return photo.filter(ImageFilter.GaussianBlur(12))
    noise = rng.normal(0, 90, (photo.height, photo.width, 3))
    return Image.fromarray(np.clip(np.asarray(photo) + noise, 0, 255).astype(np.uint8))


def make_sets(data: Path, folder: Path) -> None:
    from deepfishing import load_groceries

    files = sorted((data / "VOC2007" / "JPEGImages").glob("*.jpg"))
    chosen = random.Random(1).sample(files, PHOTOS + ODD)
    rng = np.random.default_rng(0)
    for name in ("photos", "fruit", "textures", "pages", "failed"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for path in chosen[:PHOTOS]:
        (folder / "photos" / path.name).write_bytes(path.read_bytes())
    load_groceries(folder.parent / "groceries")
    fruit = sorted((folder.parent / "groceries").rglob("*.jpg"))
    for number, path in enumerate(random.Random(0).sample(fruit, ODD)):
        (folder / "fruit" / f"{number}.jpg").write_bytes(path.read_bytes())
    for number in range(ODD):
        texture(rng).save(folder / "textures" / f"{number}.jpg")
        page(rng).save(folder / "pages" / f"{number}.jpg")
        with Image.open(chosen[PHOTOS + number]) as photo:
            failed(photo.convert("RGB"), rng).save(folder / "failed" / f"{number}.jpg")


def auroc(odd: np.ndarray, rest: np.ndarray) -> float:
    """How often an odd one has the higher score, in percent."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([odd, rest]))[: len(odd)]
    return float(
        100 * (ranks.sum() - len(odd) * (len(odd) + 1) / 2) / (len(odd) * len(rest))
    )


def main() -> None:
    from deepfishing import extract_to
    from deepfishing.core.kernels import gram
    from deepfishing.curate.neighbours import open_searcher
    from deepfishing.curate.outliers import SCORES, oddness
    from deepfishing.store import Store

    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder VOCdevkit")
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    store = given.work / "odd-store"
    if not store.exists():
        make_sets(given.data, given.work / "odd-set")
        extract_to(store, given.work / "odd-set")
    opened = Store.open(store)
    searcher = open_searcher(opened, "x7")
    collection = searcher.collection
    sets = np.array(
        [collection[row].id.split("/")[0] for row in range(len(collection))]
    )
    names = {"photos": np.flatnonzero(sets == "photos")}
    names |= {
        name: np.flatnonzero(sets == name) for name in sorted(set(sets) - {"photos"})
    }
    content = collection.content
    given_scores = {n: oddness(searcher, n)[content] for n in SCORES if n != "knn"}
    # recipes without whitening: the kernel of a pair does not depend on who else is there
    rest = names.pop("photos")
    rows: dict[str, tuple[object, int]] = {n: (s, 0) for n, s in given_scores.items()}
    print(f"| score | odd ones | {' | '.join(names)} | mean |")
    print("|---" * (len(names) + 3) + "|")
    for recipe in (None, *RECIPES):
        kernel = None
        if recipe is not None:
            kernel = gram(open_searcher(opened, recipe).features.of(content))
            rows = {f"knn in {recipe}, k = {k}": (None, k) for k in NEAREST}
        for label, (score, k) in rows.items():
            for share in SHARES if k else (ODD,):
                found = [
                    measured(score, kernel, odd, rest, share, k)
                    for odd in names.values()
                ]
                cells = " | ".join(f"{one:.1f}" for one in (*found, np.mean(found)))
                print(f"| {label} | {share if k else 'any'} | {cells} |", flush=True)


def measured(
    score: object, kernel: object, odd: np.ndarray, rest: np.ndarray, share: int, k: int
) -> float:
    """Mean AUROC of some draws of the odd ones; by a score, or by the k-th nearest of all."""
    found = []
    for draw in range(DRAWS if share < len(odd) else 1):
        some = np.random.default_rng(draw).choice(odd, share, replace=False)
        rows = np.concatenate([some, rest])
        if k:
            near = np.asarray(kernel)[np.ix_(rows, rows)]
            np.fill_diagonal(near, -np.inf)
            values = -np.partition(near, -k, axis=1)[:, -k]
        else:
            values = np.asarray(score)[rows]
        found.append(auroc(values[:share], values[share:]))
    return float(np.mean(found))


if __name__ == "__main__":
    main()
