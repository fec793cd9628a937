"""Stage 1, images: the embedded data set `scenes`, made in seconds and without a download.

Comes in: a folder and a seed. Goes out: `<folder>/scenes` in VOC layout, and its `Dataset`.
Each picture shows one to four of scikit-learn's real handwritten digits on a coloured,
textured ground between shapes and strokes; the ten classes are `zero` to `nine`. Train and
test show different handwriting: no digit sample is in both.
"""

from __future__ import annotations

import colorsys
import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from deepfishing.errors import DatasetError, OptionError
from deepfishing.images.dataset import Dataset, is_folder
from deepfishing.images.voc import read_voc_layout

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

# Raise it with every change that moves a pixel or a label: folders of another version are refused.
VERSION = 1

LONG, SHORT = 320, 240

# Heights in pixels where a picture shows one, two or three digits. With these, EfficientNet-Lite0
# reaches about 57 mAP: far from chance (17), and with room above.
HEIGHTS = ((130, 190), (100, 160), (80, 120))

# A digit is difficult if it is lower than this, or if less than this share of it is seen.
TINY, HIDDEN = 44, 0.75

Array = np.ndarray[Any, Any]


def load_scenes(
    folder: str | Path, n_train: int = 400, n_test: int = 400, seed: int = 0
) -> Dataset:
    """Read the data set from `<folder>/scenes`; make it there first if it is absent.

    Takes what `make_scenes` takes, and refuses what it refuses.
    """
    made = make_scenes(folder, n_train, n_test, seed)
    return read_voc_layout(made, "scenes", CLASSES)


def make_scenes(folder: str | Path, n_train: int = 400, n_test: int = 400, seed: int = 0) -> Path:
    """Write the pictures, splits and class lists to `<folder>/scenes`, unless they stand there.

    The same arguments give the same pixels. The folder is written beside and renamed when it
    is complete, so a crash or a second run at the same time leaves no half data set.

    Parameters
    ----------
    folder : path
        Made if absent.
    n_train, n_test : int
        Pictures in the splits `trainval` and `test`.
    seed : int
        0 or more.

    Returns
    -------
    path : Path
        `<folder>/scenes`.

    Raises
    ------
    DatasetError
        If `<folder>/scenes` is something else, or was made with other arguments.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = make_scenes(folder, n_train=2, n_test=1)
    ...     sorted(path.name for path in (made / "JPEGImages").iterdir())
    ['000001.jpg', '000002.jpg', '000003.jpg']
    """
    for name, value, least in (("n_train", n_train, 1), ("n_test", n_test, 1), ("seed", seed, 0)):
        if value < least:
            raise OptionError(f"{name} must be at least {least}, got {value}")
    recipe = {"version": VERSION, "n_train": n_train, "n_test": n_test, "seed": seed}
    target = Path(folder) / "scenes"
    beside = target.with_name(f".scenes-{uuid.uuid4().hex}")
    try:
        if not target.exists():
            _write(beside, recipe)
            beside.rename(target)
    except OSError as error:
        if not is_folder(target):  # else another run was faster, and what it made is as good
            raise DatasetError(f"data set scenes cannot be made in {target}: {error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    found = _read_recipe(target / "scenes.json")
    if found != recipe:
        raise DatasetError(
            f"{target} must have been made with {json.dumps(recipe)}, its scenes.json has "
            f"{json.dumps(found)}; delete that folder or choose another one"
        )
    return target


def _read_recipe(path: Path) -> object:
    """Return what a folder was made with, or None where that cannot be read."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # whatever stands there, it was not made here
        return None
    return found


def _digits() -> tuple[Array, Array]:
    """Handwritten digits (1797, 8, 8) of 0..255, and which digit each is."""
    from sklearn.datasets import load_digits  # here, for it takes a second that readers can save

    bundled = load_digits()
    return (bundled.images * (255 / 16)).astype(np.uint8), bundled.target


def _write(folder: Path, recipe: dict[str, int]) -> None:
    """Write the whole data set into a folder that does not exist yet."""
    lists, pictures = folder / "ImageSets" / "Main", folder / "JPEGImages"
    lists.mkdir(parents=True)
    pictures.mkdir()
    digits, which = _digits()
    order = np.random.default_rng(recipe["seed"]).permutation(len(digits))
    n_train, n = recipe["n_train"], recipe["n_train"] + recipe["n_test"]
    for split, samples, numbers in (
        ("trainval", order[::2], range(1, n_train + 1)),
        ("test", order[1::2], range(n_train + 1, n + 1)),
    ):
        pools = [digits[samples[which[samples] == c]] for c in range(10)]
        ids = [f"{number:06d}" for number in numbers]
        labels = []
        for number, image_id in zip(numbers, ids, strict=True):
            picture, label = _scene(pools, np.random.default_rng([recipe["seed"], number]))
            picture.save(pictures / f"{image_id}.jpg", quality=85)
            labels.append(label)
        _write_list(lists / f"{split}.txt", ids)
        for name, column in zip(CLASSES, np.stack(labels, axis=1), strict=True):
            rows = [f"{i} {label:2d}" for i, label in zip(ids, column, strict=True)]
            _write_list(lists / f"{name}_{split}.txt", rows)
    _write_list(folder / "scenes.json", [json.dumps(recipe)])


def _write_list(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _scene(pools: list[Array], rng: np.random.Generator) -> tuple[Image.Image, Array]:
    """One picture and its labels (10,): 1 present, 0 only hard to see, -1 absent."""
    size = (LONG, SHORT) if rng.random() < 0.75 else (SHORT, LONG)
    hue, light = rng.random(), rng.uniform(0.25, 0.85)
    picture = _ground(size, hue, light, rng)
    count = int(rng.choice(3, p=(0.5, 0.36, 0.14))) + 1
    heights = rng.integers(*HEIGHTS[count - 1], size=count).tolist()
    if rng.random() < 0.25:
        heights.append(int(rng.integers(24, TINY)))
    owner = np.full((size[1], size[0]), -1)  # which digit is seen at each pixel
    drawn = []
    for i, (c, height) in enumerate(zip(rng.permutation(10), heights, strict=False)):
        ink, rim = _glyph(rng.choice(pools[c]), height, rng)
        x, y = _place(owner, ink.size, rng)
        _stick(picture, ink, rim, (x, y), hue, rng)
        inked, covered = np.asarray(ink) > 127, np.asarray(rim) > 127
        patch = owner[y : y + ink.height, x : x + ink.width]
        patch[covered] = -1
        patch[inked] = i
        drawn.append((c, height, inked.sum()))
    labels = np.full(10, -1, dtype=np.int8)
    for i, (c, height, area) in enumerate(drawn):
        labels[c] = height >= TINY and (owner == i).sum() >= HIDDEN * area
    return picture, labels


def _colour(hue: float, saturation: float, value: float) -> tuple[int, int, int]:
    """RGB of 0..255; the hue wraps around, the value is clipped."""
    r, g, b = colorsys.hsv_to_rgb(hue % 1.0, saturation, min(max(value, 0.0), 1.0))
    return round(255 * r), round(255 * g), round(255 * b)


def _ground(
    size: tuple[int, int], hue: float, light: float, rng: np.random.Generator
) -> Image.Image:
    """Clouds of two related colours with grain, and clutter on them."""

    def related(spread: float) -> tuple[int, int, int]:
        return _colour(
            hue + rng.normal(0, spread), rng.uniform(0.2, 0.7), light + rng.normal(0, spread)
        )

    half = (size[0] // 2, size[1] // 2)
    clouds = np.zeros((half[1], half[0], 1))
    for cells, weight in ((3, 0.7), (12, 0.3)):
        field = Image.fromarray(rng.random((cells, cells), dtype=np.float32))
        clouds[:, :, 0] += weight * np.asarray(field.resize(half, Image.Resampling.BICUBIC))
    one, other = np.array(related(0.0)), np.array(related(0.1))
    pixels = one + (other - one) * clouds + rng.normal(0, rng.uniform(2, 12), clouds.shape)
    canvas = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    canvas = canvas.resize(size, Image.Resampling.BILINEAR)
    # clutter is drawn at twice the size and halved, for smooth edges
    canvas = canvas.resize((2 * size[0], 2 * size[1]), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(canvas)
    for _ in range(rng.integers(2, 7)):
        fill = related(0.12)
        x, y, r, turn = rng.integers((0, 0, 12, 0), (*canvas.size, 112, 360)).tolist()
        box, width = (x - r, y - r, x + r, y + r), int(rng.integers(4, 16))
        shape = rng.integers(5)
        if shape == 0:
            draw.ellipse((x - r, y - r // 2, x + r, y + r // 2), fill=fill)
        elif shape == 1:
            draw.regular_polygon((x, y, r), 3 + turn % 4, turn, fill=fill)
        elif shape == 2:
            draw.ellipse(box, outline=fill, width=width)
        elif shape == 3:
            draw.arc(box, turn, turn + 200, fill=fill, width=width)
        else:
            steps = np.vstack([(x, y), rng.normal(0, 60, size=(3, 2))])
            draw.line(steps.cumsum(axis=0).ravel().tolist(), fill=fill, width=width, joint="curve")
    return canvas.reduce(2)


def _glyph(sample: Array, height: int, rng: np.random.Generator) -> tuple[Image.Image, Image.Image]:
    """Masks of the ink, and of the ink with a rim, from 8x8 grey values: turned and enlarged."""
    angle, shear = np.deg2rad(rng.uniform(-10, 10)), rng.uniform(-0.08, 0.08)
    step = 8 / height  # samples per pixel
    side = round(10 / step)  # a sample of margin on each side leaves room to turn
    turn = np.array([[np.cos(angle), np.sin(angle) + shear], [-np.sin(angle), np.cos(angle)]])
    shift = 5 - step * turn @ (side / 2, side / 2)  # centre to centre
    grey = Image.fromarray(np.pad(sample, 1)).transform(
        (side, side),
        Image.Transform.AFFINE,
        np.column_stack([step * turn, shift]).ravel().tolist(),
        Image.Resampling.BICUBIC,
    )
    # a steep ramp from paper to ink, about two pixels wide at any size
    pen, level = rng.uniform(0.46, 0.56), np.arange(256) / 255
    ramps = [((level - cut) / (0.6 * step) + 0.5).clip(0, 1) for cut in (pen, pen - 0.25)]
    tables = [(255 * ramp).astype(np.uint8) for ramp in ramps]
    ink, rim = (Image.fromarray(table[np.asarray(grey)]) for table in tables)
    box = rim.getbbox()
    return ink.crop(box), rim.crop(box)


def _place(owner: Array, size: tuple[int, int], rng: np.random.Generator) -> tuple[int, int]:
    """Upper left corner in the central square, all that networks see: the freest of a few."""
    left, top = (owner.shape[1] - SHORT) // 2, (owner.shape[0] - SHORT) // 2
    last = (left + SHORT - size[0], top + SHORT - size[1])
    shape = (int(rng.integers(2, 10)), 2)
    tries = rng.integers((left, top), last, size=shape, endpoint=True).tolist()
    taken = [(owner[y : y + size[1], x : x + size[0]] >= 0).sum() for x, y in tries]
    x, y = tries[int(np.argmin(taken))]
    return x, y


def _stick(
    picture: Image.Image,
    ink: Image.Image,
    rim: Image.Image,
    place: tuple[int, int],
    hue: float,
    rng: np.random.Generator,
) -> None:
    """Paint a digit in a colour that stands out: plain, with a rim, or with a shadow."""
    x, y = place
    under = picture.crop((x, y, x + ink.width, y + ink.height)).convert("L")
    dark = np.asarray(under).mean() < 128
    value = rng.uniform(0.85, 1.0) if dark else rng.uniform(0.1, 0.4)
    style = rng.choice(["plain", "rim", "rim", "shadow"])
    if style == "rim":
        picture.paste((15, 15, 25) if dark else (245, 245, 235), place, rim)
    elif style == "shadow":
        picture.paste((10, 10, 20), (x + 3, y + 4), rim.point([level // 2 for level in range(256)]))
    other_hue = hue + rng.uniform(0.15, 0.85)
    picture.paste(_colour(other_hue, rng.uniform(0.3, 0.9), value), place, ink)
