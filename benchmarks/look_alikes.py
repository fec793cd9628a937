"""Generated pictures that look alike and are no copies: no two of a family are one picture.

Pages that differ in one digit, scans of pages, garments and shoes that differ in colour, print,
stripes, a button or folds, screenshots that differ in one icon, tiles of a map that overlap in
part, and frames of a burst, in which an object has moved. Used by `benchmarks/twins.py`.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Size = tuple[int, int]
Colour = tuple[int, int, int]
NUMBERS = (20231, 20237, 20281, 20239, 20234, 50231)
WORDS = (
    "invoice",
    "amount",
    "item",
    "total",
    "net",
    "street",
    "day",
    "order",
    "client",
    "weight",
)
SHOULDERS = ((42, 18), (30, 15), (10, 30), (20, 42), (28, 36))
HEM = ((28, 90), (72, 90))
OTHER_SHOULDER = ((72, 36), (80, 42), (90, 30), (70, 15), (58, 18))
OUTLINES = {  # corners in percent of width and height
    "t-shirt": (*SHOULDERS, *HEM, *OTHER_SHOULDER),
    "shorts": ((25, 20), (75, 20), (82, 80), (55, 80), (50, 45), (45, 80), (18, 80)),
    "shoe": (
        (10, 60),
        (15, 40),
        (30, 38),
        (45, 50),
        (75, 58),
        (90, 65),
        (90, 75),
        (10, 75),
    ),
    "dress": ((40, 10), (60, 10), (62, 30), (80, 92), (20, 92), (38, 30)),
}
BLUE: Colour = (40, 60, 90)
COLOURS = (
    BLUE,
    (40, 60, 115),
    (70, 50, 90),
    (120, 120, 120),
    (104, 104, 104),
    (225, 225, 235),
)


def encode(image: Image.Image, quality: int = 90) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def page(
    number: int, size: Size = (1240, 1754), points: int = 22, grey: int = 0
) -> Image.Image:
    """A page of text, the same for all numbers but for the number in its first line."""
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=points)
    rng = random.Random(5)
    ink = (grey, grey, grey)
    margin = size[0] // 12
    for line in range(40):
        text = " ".join(rng.choice(WORDS) for _ in range(10))
        draw.text(
            (margin, 1.5 * margin + line * points * 1.6), text, fill=ink, font=font
        )
    draw.text((0.65 * size[0], 0.6 * margin), f"No. {number}", fill=ink, font=font)
    return image


def scan(image: Image.Image, seed: int) -> Image.Image:
    """A page on greyish paper, with the noise of a scanner."""
    pixels = 0.9 * np.asarray(image, dtype=float) + 12
    pixels = (
        pixels
        + np.random.default_rng(seed).normal(size=pixels.shape[:2])[..., None] * 3
    )
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def garment(
    outline: Sequence[tuple[int, int]],
    colour: Colour = BLUE,
    *,
    size: Size = (480, 640),
    folds: int = 1,
    text: str = "",
    points: int = 48,
    ink: Colour = (255, 255, 255),
    stripe: int = 0,
    button: tuple[int, int] | None = None,
) -> Image.Image:
    """A product on a white ground: an outline in a colour with soft folds."""
    mask = Image.new("L", size, 0)
    corners = [(x * size[0] / 100, y * size[1] / 100) for x, y in outline]
    ImageDraw.Draw(mask).polygon(corners, fill=255)
    mask = mask.filter(ImageFilter.GaussianBlur(1))
    cloth = np.zeros((size[1], size[0], 3)) + np.array(colour, dtype=float)
    if stripe:
        is_dark = np.arange(size[1]) // stripe % 2 == 0
        cloth[is_dark] *= 0.8
    waves = (
        np.random.default_rng(folds).normal(scale=18, size=(24, 18)).astype(np.float32)
    )
    cloth += np.asarray(Image.fromarray(waves).resize(size, Image.Resampling.BICUBIC))[
        ..., None
    ]
    body = Image.fromarray(cloth.clip(0, 255).astype(np.uint8))
    image = Image.composite(body, Image.new("RGB", size, "white"), mask)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=points)
    draw.text((0.4 * size[0], 0.45 * size[1]), text, fill=ink, font=font)
    if button:
        x, y = button
        draw.ellipse((x, y, x + 7, y + 7), fill=(250, 250, 200))
    return image


def screenshot(icon: int) -> Image.Image:
    """A window with rows of icons; one of them depends on the number."""
    image = Image.new("RGB", (1280, 800), (240, 241, 243))
    draw = ImageDraw.Draw(image)
    rng = random.Random(3)
    font = ImageFont.load_default(size=12)
    for number in range(160):
        left, top = 30 + number % 16 * 76, 30 + number // 16 * 74
        shade = (rng.randrange(256), rng.randrange(256), rng.randrange(256))
        draw.rounded_rectangle((left, top, left + 32, top + 32), 6, fill=shade)
        draw.text((left, top + 38), f"file {number:03d}", fill="black", font=font)
    left, top = 30 + 5 * 76, 30 + 4 * 74
    draw.ellipse((left + 20, top + 20, left + 31, top + 31), fill="white")
    mark = "+-x!?"[icon]
    draw.text((left + 22, top + 18), mark, fill="black", font=font)
    return image


def tiles(seed: int) -> list[Image.Image]:
    """Tiles of one map; neighbours have a half to nine tenths of their area in common."""
    rng = np.random.default_rng(seed)
    fields = Image.fromarray(rng.integers(30, 200, (30, 30, 3), dtype=np.uint8))
    ground = fields.resize((900, 900), Image.Resampling.NEAREST)
    noise = rng.normal(scale=12, size=(900, 900, 1))
    pixels = (np.asarray(ground, dtype=float) + noise).clip(0, 255).astype(np.uint8)
    ground = Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(1))
    places = ((0, 0), (40, 0), (80, 0), (120, 60), (200, 200))
    return [ground.crop((x, y, x + 400, y + 400)) for x, y in places]


def burst(photo: Image.Image, seed: int) -> list[Image.Image]:
    """Three frames: a part of the photo moves by a few pixels, and each has its own noise."""
    rng = np.random.default_rng(seed)
    wide, high = photo.size
    box = (
        round(0.35 * wide),
        round(0.35 * high),
        round(0.6 * wide),
        round(0.65 * high),
    )
    part = photo.crop(box)
    mask = Image.new("L", part.size, 0)
    ImageDraw.Draw(mask).ellipse((2, 2, part.width - 3, part.height - 3), fill=255)
    mask = mask.filter(ImageFilter.GaussianBlur(1))
    frames = []
    for step in (0, 4, 9):
        frame = photo.copy()
        frame.paste(part, (box[0] + step, box[1] + step // 2), mask)
        pixels = np.asarray(frame, dtype=float)
        pixels = pixels + rng.normal(scale=2, size=pixels.shape)
        frames.append(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))
    return frames


def families(photos: Sequence[Path]) -> dict[str, list[Image.Image]]:
    """Families by name; `photos` are the first frames of bursts."""
    found: dict[str, list[Image.Image]] = {}
    pages = {"150 dpi": ((1240, 1754), 22, 0), "72 dpi": ((595, 842), 10, 0)}
    pages["grey letters"] = ((827, 1169), 12, 190)
    for name, (size, points, grey) in pages.items():
        found[f"pages, one digit, {name}"] = [
            page(n, size, points, grey) for n in NUMBERS
        ]
    found["scans, one digit"] = [scan(page(n), at) for at, n in enumerate(NUMBERS)]
    for name, outline in OUTLINES.items():
        # folds of another seed in every family, so that no picture is in two of them
        found[f"{name}, colour"] = [
            garment(outline, colour, folds=10) for colour in COLOURS
        ]
        found[f"{name}, folds"] = [garment(outline, folds=seed) for seed in range(6)]
        prints = ("AB", "A8", "AE", "XB", "", "AB.")
        found[f"{name}, print"] = [
            garment(outline, text=text, folds=11) for text in prints
        ]
        small = ("M", "N", "W", "", "X")
        found[f"{name}, small print"] = [
            garment(outline, text=text, points=14, folds=12) for text in small
        ]
        dark = {"ink": (55, 55, 55), "points": 40}
        texts = ("AB", "A8", "", "O")
        found[f"{name}, dark print"] = [
            garment(outline, (25, 25, 28), text=text, **dark) for text in texts
        ]
        faint = {"ink": (205, 205, 205), "points": 16}
        logos = ("nk", "ad", "pu", "")
        found[f"{name}, faint logo"] = [
            garment(outline, (230, 230, 228), text=text, **faint) for text in logos
        ]
        widths = (0, 6, 7, 10, 20)
        found[f"{name}, stripes"] = [
            garment(outline, stripe=one, folds=13) for one in widths
        ]
        places = ((200, 240), (206, 240), (240, 300), (200, 400))
        found[f"{name}, button"] = [
            garment(outline, button=place, folds=14) for place in places
        ]
    found["screenshots, one icon"] = [screenshot(icon) for icon in range(5)]
    for seed in range(3):
        found[f"tiles of a map {seed}"] = tiles(seed)
    for number, path in enumerate(photos):
        with Image.open(path) as photo:
            found[f"burst {number}"] = burst(photo.convert("RGB"), number)
    return found


def write_families(folder: Path, photos: Sequence[Path]) -> int:
    """Write every family into a folder of its own, at qualities as cameras and shops have them."""
    count = 0
    for name, images in families(photos).items():
        place = folder / name.replace(",", "").replace(" ", "-")
        place.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            count += 1
            quality = (92, 85, 90)[number % 3]
            (place / f"{place.name}-{number}.jpg").write_bytes(encode(image, quality))
    return count
