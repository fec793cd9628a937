"""Make labelled pictures that differ from the photographs a network was trained on.

    python benchmarks/few_label_sets.py FOLDER

Writes FOLDER/NAME/train/CLASS/*.png and FOLDER/NAME/test/CLASS/*.png for six sets, without any
download:

- `digits`: scikit-learn's handwritten digits, enlarged; 10 classes.
- `textures`: patches of scikit-image's pictures, one class per picture; train and test patches do
  not overlap.
- `scans`: drawn slices of a head with a small lesion; the class is its kind.
- `leaves`: drawn leaves; the class is a disease that shows in small spots.
- `tiles`: drawn aerial pictures of seven kinds of land.
- `letters`: twelve letters in several fonts, turned, on paper.

Scans and leaves are the hard ones: most of a picture says nothing about its class, so pictures that
look alike are often of different classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from scipy.ndimage import gaussian_filter, zoom

SIZE = 224
PICTURES = 400  # in each half, of all classes together
Rng = np.random.Generator
Drawn = Iterator[tuple[str, Image.Image]]  # class and picture


def noise(rng: Rng, scale: float, size: int = SIZE) -> np.ndarray:
    """Return smooth noise (size, size) of mean 0 and standard deviation 1."""
    field = gaussian_filter(rng.normal(size=(size, size)), scale, mode="wrap")
    return field / field.std()


def to_image(values: np.ndarray) -> Image.Image:
    """Return a picture of values 0 to 255, grey (h, w) or colour (h, w, 3)."""
    pixels = np.clip(values, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels).convert("RGB")


def digits(rng: Rng, n: int) -> Drawn:
    """Handwritten digits of 8 x 8 pixels, enlarged."""
    from sklearn.datasets import load_digits

    data = load_digits()
    for digit in range(10):
        chosen = rng.permutation(np.flatnonzero(data.target == digit))[: 2 * n]
        for row in chosen:
            large = zoom(data.images[row], SIZE // 8, order=3)
            yield str(digit), to_image(255 - large * 255 / 16)


def textures(rng: Rng, n: int) -> Drawn:
    """Patches of 14 pictures, the first half of the rows for training, the second for testing."""
    from skimage import data

    names = [
        "brick",
        "grass",
        "gravel",
        "coffee",
        "astronaut",
        "chelsea",
        "coins",
        "moon",
        "page",
    ]
    names += ["retina", "immunohistochemistry", "hubble_deep_field", "rocket", "camera"]
    side = 96
    for name in names:
        whole = Image.fromarray(getattr(data, name)()).convert("RGB")
        if min(whole.size) < 2 * side + 20:
            whole = whole.resize((whole.width * 2, whole.height * 2))
        middle = whole.height // 2
        for half in range(2):
            for _ in range(n):
                left = int(rng.integers(whole.width - side))
                top = half * middle + int(rng.integers(middle - side))
                patch = whole.crop((left, top, left + side, top + side))
                patch = patch.rotate(90 * int(rng.integers(4)))
                yield name, patch.resize((SIZE, SIZE), Image.Resampling.BICUBIC)


def scans(rng: Rng, n: int) -> Drawn:
    """Slices of a head: none, a bright disc, a ring, or a dark disc with a bright border."""
    y, x = np.mgrid[:SIZE, :SIZE]
    for kind in ("none", "disc", "ring", "dark"):
        for _ in range(2 * n):
            a, b = rng.uniform(75, 95), rng.uniform(60, 80)  # half axes of the skull
            shift = rng.uniform(-8, 8, size=2)
            radius = np.hypot(
                (y - SIZE / 2 - shift[0]) / a, (x - SIZE / 2 - shift[1]) / b
            )
            picture = np.where(radius < 1, rng.uniform(70, 110), 8.0)
            picture += np.where((radius > 0.92) & (radius < 1), 110, 0)
            folds = noise(rng, rng.uniform(3, 5))
            picture += np.where(
                radius < 0.9, 22 * np.sign(folds) * (np.abs(folds) < 0.6), 0
            )
            picture += np.where(radius < 0.9, 14 * noise(rng, 20), 0)
            ventricle = np.hypot(
                (y - SIZE / 2) / (a / 4), (np.abs(x - SIZE / 2) - 9) / 6
            )
            picture -= np.where(ventricle < 1, 50, 0)
            angle, distance = rng.uniform(0, 2 * np.pi), rng.uniform(0.3, 0.6)
            cy = SIZE / 2 + distance * a * np.sin(angle)
            cx = SIZE / 2 + distance * b * np.cos(angle)
            size = rng.uniform(9, 15)
            far = np.hypot(y - cy, x - cx) / size + 0.15 * noise(rng, 6)
            if kind == "disc":
                picture += np.where(far < 1, 75, 0)
            if kind == "ring":
                picture += np.where((far > 0.6) & (far < 1.1), 75, 0)
            if kind == "dark":
                picture += np.where(far < 0.8, -60, 0) + np.where(
                    (far > 0.8) & (far < 1), 45, 0
                )
            picture = gaussian_filter(picture, rng.uniform(0.6, 1.6)) * rng.uniform(
                0.8, 1.2
            )
            yield (
                kind,
                to_image(picture + rng.normal(0, rng.uniform(3, 8), picture.shape)),
            )


def leaves(rng: Rng, n: int) -> Drawn:
    """Leaves on a ground: healthy, rust, blight, mildew, mosaic, holes."""
    y, x = np.mgrid[:SIZE, :SIZE]
    for kind in ("healthy", "rust", "blight", "mildew", "mosaic", "holes"):
        for _ in range(2 * n):
            ground = np.array([rng.uniform(90, 200)] * 3) + rng.normal(0, 12, 3)
            picture = ground + 10 * noise(rng, 8)[:, :, None]
            angle = rng.uniform(0, np.pi)
            along = (x - SIZE / 2) * np.cos(angle) + (y - SIZE / 2) * np.sin(angle)
            across = -(x - SIZE / 2) * np.sin(angle) + (y - SIZE / 2) * np.cos(angle)
            length, width = rng.uniform(85, 105), rng.uniform(35, 60)
            leaf = np.abs(across) < width * (1 - (along / length) ** 2)
            green = np.array(
                [rng.uniform(40, 90), rng.uniform(110, 160), rng.uniform(30, 70)]
            )
            blade = green + (9 * noise(rng, 5))[:, :, None]
            veins = (np.abs(across) < 2) | (
                np.abs(along % 22 - np.abs(across) * 0.6 % 22) < 1
            )
            blade = np.where(veins[:, :, None], blade + 25, blade)
            blade = _diseased(rng, blade, kind)
            holes = noise(rng, 4) > 1.9
            if kind == "holes":
                leaf &= ~holes
            picture = np.where(leaf[:, :, None], blade, picture) * rng.uniform(
                0.75, 1.2
            )
            yield kind, to_image(picture + rng.normal(0, 4, picture.shape))


def _diseased(rng: Rng, blade: np.ndarray, kind: str) -> np.ndarray:
    """Return a leaf's colours with the marks of a disease."""
    spots = noise(rng, rng.uniform(2.5, 4))
    if kind == "rust":
        return np.where((spots > 1.8)[:, :, None], [170, 90, 30], blade)
    if kind == "blight":
        patches = noise(rng, 12)
        return np.where((patches > 1.2)[:, :, None], [95, 75, 45], blade)
    if kind == "mildew":
        film = np.clip(noise(rng, 7) - 0.9, 0, 1)[:, :, None]
        return blade * (1 - 0.7 * film) + 220 * 0.7 * film
    if kind == "mosaic":
        return blade + 28 * np.sign(noise(rng, 4))[:, :, None] * [1, 1, 0]
    return blade


def tiles(rng: Rng, n: int) -> Drawn:
    """Aerial pictures: fields, forest, water, town, industry, road, desert."""
    for kind in ("fields", "forest", "water", "town", "industry", "road", "desert"):
        for _ in range(2 * n):
            tint = rng.normal(0, 10, 3)
            if kind == "forest":
                base = np.array([45, 75, 45]) + 28 * noise(rng, 2)[:, :, None]
            elif kind == "water":
                base = np.array([40, 65, 95]) + 6 * noise(rng, 3)[:, :, None]
                shore = noise(rng, 40) > rng.uniform(0.8, 2)
                sand = np.array([120, 115, 85]) + 15 * noise(rng, 3)[:, :, None]
                base = np.where(shore[:, :, None], sand, base)
            elif kind == "desert":
                base = np.array([185, 160, 120]) + 12 * noise(rng, 9)[:, :, None]
                base = base + 5 * noise(rng, 1)[:, :, None]
            else:
                base = np.array([105, 115, 75]) + 12 * noise(rng, 5)[:, :, None]
            picture = to_image(base + tint)
            _draw_land(rng, picture, kind)
            picture = picture.rotate(
                float(rng.uniform(0, 360)), Image.Resampling.BILINEAR
            )
            middle = picture.crop((33, 33, SIZE - 33, SIZE - 33)).resize((SIZE, SIZE))
            yield (
                kind,
                middle.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 1.2)))),
            )


def _draw_land(rng: Rng, picture: Image.Image, kind: str) -> None:
    """Draw what people built onto a tile."""
    draw = ImageDraw.Draw(picture)
    if kind == "fields":
        edges = np.sort(rng.integers(0, SIZE, size=5))
        for left, right in zip([0, *edges], [*edges, SIZE], strict=True):
            top = 0
            while top < SIZE:
                bottom = top + int(rng.integers(40, 120))
                colour = tuple(
                    int(v) for v in rng.uniform((90, 100, 50), (190, 170, 110))
                )
                draw.rectangle((int(left), top, int(right), bottom), fill=colour)
                furrow = tuple(value - 12 for value in colour)
                for line in range(top, bottom, 6):
                    draw.line((int(left), line, int(right), line), fill=furrow)
                top = bottom
    if kind == "town":
        step = int(rng.integers(22, 30))
        for top in range(0, SIZE, step):
            draw.line((0, top, SIZE, top), fill=(120, 120, 120), width=4)
            for left in range(0, SIZE, step):
                shade = int(rng.integers(110, 220))
                size = int(rng.integers(8, 14))
                house = (left + 6, top + 7, left + 6 + size, top + 7 + size)
                draw.rectangle(house, fill=(shade, shade - 30, shade - 40))
    if kind == "industry":
        for _ in range(int(rng.integers(4, 8))):
            left, top = (int(v) for v in rng.integers(-20, SIZE, size=2))
            wide, high = (int(v) for v in rng.integers(40, 110, size=2))
            shade = int(rng.integers(150, 245))
            draw.rectangle(
                (left, top, left + wide, top + high), fill=(shade, shade, shade + 5)
            )
            for line in range(left, left + wide, 9):
                draw.line(
                    (line, top, line, top + high),
                    fill=(shade - 18, shade - 18, shade - 14),
                )
    if kind == "road":
        for _ in range(int(rng.integers(1, 3))):
            start, end = (int(v) for v in rng.integers(20, SIZE - 20, size=2))
            draw.line(
                (start, 0, end, SIZE),
                fill=(95, 95, 98),
                width=int(rng.integers(12, 22)),
            )
            draw.line((start, 0, end, SIZE), fill=(225, 225, 215), width=2)


def letters(rng: Rng, n: int) -> Drawn:
    """Twelve letters in the fonts of matplotlib."""
    import matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    fonts = [
        *sorted(folder.glob("DejaVu*.ttf")),
        *sorted(folder.glob("STIXGeneral*.ttf")),
    ]
    for letter in "ABCDEGHKMRSW":
        for _ in range(2 * n):
            paper = 215 + 10 * noise(rng, 10)
            picture = to_image(paper + 3 * noise(rng, 1))
            file = fonts[int(rng.integers(len(fonts)))]
            font = ImageFont.truetype(str(file), int(rng.integers(90, 170)))
            ink = tuple(int(v) for v in rng.uniform(0, 110, size=3))
            place = tuple(
                int(v) for v in rng.integers(SIZE // 2 - 20, SIZE // 2 + 20, size=2)
            )
            ImageDraw.Draw(picture).text(
                place, letter, fill=ink, font=font, anchor="mm"
            )
            angle = float(rng.uniform(-25, 25))
            grey = (215, 215, 215)
            turned = picture.rotate(angle, Image.Resampling.BILINEAR, fillcolor=grey)
            yield (
                letter,
                turned.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 2)))),
            )


# how each set is drawn, and its number of classes
SETS: dict[str, tuple[Callable[[Rng, int], Drawn], int]] = {
    "digits": (digits, 10),
    "textures": (textures, 14),
    "scans": (scans, 4),
    "leaves": (leaves, 6),
    "tiles": (tiles, 7),
    "letters": (letters, 12),
}


def write_set(name: str, folder: Path, seed: int = 0) -> int:
    """Write one set, of each class the first half for training; return its number of pictures."""
    make, classes = SETS[name]
    per_class = PICTURES // classes
    counts: dict[str, int] = {}
    for label, picture in make(np.random.default_rng(seed), per_class):
        number = counts[label] = counts.get(label, 0) + 1
        half = "train" if number <= per_class else "test"
        file = folder / name / half / label / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.save(file)
    return sum(counts.values())


def main(
    folder: Path, only: Annotated[list[str] | None, typer.Option()] = None
) -> None:
    """Write all sets, or the ones named with --only."""
    for name in only or SETS:
        print(f"{name}: {write_set(name, folder)} pictures")


if __name__ == "__main__":
    typer.run(main)
