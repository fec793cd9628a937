"""Copies are found, and what differs in one place is no copy."""

import io
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont, ImageOps

import deepfishing.images
from deepfishing.images.same_picture import compare_pictures, has_real_detail


def encoded(image, quality=90):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def shirt(
    colour=(40, 60, 120), text="AB", size=(360, 480), ink="white", points=50, stripe=0
):
    """A garment on white, with a print and perhaps with stripes."""
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    draw.polygon([(100, 60), (40, 150), (90, 190), (90, 430), (270, 430), (270, 190), (320, 150),
                  (260, 60)], fill=colour)  # fmt: skip
    folds = np.random.default_rng(0).normal(scale=10, size=(24, 18))
    folds = np.asarray(Image.fromarray(folds.astype(np.float32)).resize(size))
    pixels = np.asarray(image, dtype=float)
    is_cloth = pixels.min(axis=2, keepdims=True) < 250
    pixels += folds[..., None] * is_cloth
    if stripe:
        is_dark = np.arange(size[1]) // stripe % 2 == 0
        pixels[is_dark] *= np.where(is_cloth[is_dark], 0.8, 1)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    ImageDraw.Draw(image).text(
        (140, 200), text, ink, font=ImageFont.load_default(size=points)
    )
    return image


def faint(text):
    """A light garment with a small print that is little darker."""
    return shirt((230, 230, 228), text, ink=(205, 205, 205), points=16)


def invoice(number, ink="black"):
    image = Image.new("RGB", (900, 1200), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=18)
    for line in range(30):
        draw.text(
            (80, 120 + 34 * line), f"item {line} amount {line * 37} net", ink, font=font
        )
    draw.text((600, 60), f"No. {number}", ink, font=font)
    return image


def tile(left):
    """A tile of a map, 400 pixels wide, that begins at a column."""
    ground = np.random.default_rng(2).integers(30, 200, (20, 30, 3), dtype=np.uint8)
    whole = Image.fromarray(ground).resize((600, 400), Image.Resampling.BICUBIC)
    return whole.crop((left, 0, left + 400, 400))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda one: encoded(one, 50), "re-encoded or resized"),
        (lambda one: one.resize((180, 240)), "re-encoded or resized"),
        (lambda one: one.crop((10, 20, 334, 452)), "cropped"),
        (lambda one: ImageOps.expand(one, 20, "black"), "border added"),
    ],
)
def test_copies_are_found_with_their_kind(change, kind):
    noise = np.random.default_rng(1).integers(0, 256, (24, 18, 3), dtype=np.uint8)
    one = Image.fromarray(noise).resize((360, 480), Image.Resampling.BICUBIC)
    assert compare_pictures(one, encoded(change(one), 80)).kind == kind


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (shirt(), shirt(colour=(40, 60, 90))),
        (shirt(), shirt(text="A8")),
        (invoice(20261), invoice(20281)),
        (invoice(20261), invoice(20281).resize((450, 600))),
        (shirt(stripe=6), shirt(stripe=7)),
        (shirt(stripe=6), shirt(stripe=10).resize((180, 240))),
        (faint("nk"), encoded(faint("pu"), 50)),
        (faint("nk"), faint("pu").resize((180, 240))),
        (invoice(20261, "silver"), invoice(20281, "silver").resize((450, 600))),
        (tile(0), tile(60)),  # neither shows all of the other
        (
            shirt().resize((60, 80)),
            encoded(shirt().resize((60, 80))),
        ),  # too small to decide
        (
            Image.new("RGB", (300, 300), "white"),
            Image.new("RGB", (300, 300), (254, 254, 254)),
        ),
    ],
)
def test_what_differs_in_one_place_or_cannot_be_decided_is_no_copy(one, other):
    assert compare_pictures(encoded(one), encoded(other, 85)) is None


def leaves(size=(300, 200)):
    """Leaves before a wall: fine details in one part, hardly any in another."""
    rng = np.random.default_rng(4)
    ground = Image.fromarray(rng.integers(120, 150, (8, 12, 3), dtype=np.uint8))
    picture = ground.resize((600, 400), Image.Resampling.BICUBIC)
    fine = Image.fromarray(rng.integers(0, 256, (200, 130, 3), dtype=np.uint8))
    picture.paste(fine.resize((260, 400), Image.Resampling.BICUBIC), (340, 0))
    coarse = Image.fromarray(rng.integers(60, 200, (20, 15, 3), dtype=np.uint8))
    picture.paste(coarse.resize((300, 400), Image.Resampling.BICUBIC), (20, 0))
    return picture.resize(size, Image.Resampling.LANCZOS)


def wall(seed):
    """A smooth ground with the noise of a sensor, and in its middle something with details."""
    y, x = np.mgrid[0:240, 0:320] / 40
    light = 120 + 20 * np.sin(x) + 15 * np.cos(y)
    noise = np.random.default_rng(seed).normal(scale=1.5, size=light.shape)
    picture = Image.fromarray((light + noise).astype(np.uint8)).convert("RGB")
    picture.paste(leaves((120, 80)), (100, 80))
    return picture


@pytest.mark.parametrize("filter_", ["BOX", "BILINEAR", "BICUBIC", "LANCZOS"])
def test_a_reduced_copy_is_found_whatever_filter_made_it(filter_):
    package = Path(deepfishing.images.__file__).parent
    with ZipFile(package / "groceries.zip") as photos:
        (name,) = [one for one in photos.namelist() if "Watermelon_26" in one]
        photo = Image.open(io.BytesIO(photos.read(name))).convert("RGB")
    half = encoded(photo.resize((112, 112), Image.Resampling[filter_]))
    assert compare_pictures(photo, half).kind == "re-encoded or resized"


def test_a_copy_may_be_smaller_than_a_photo_that_can_be_compared():
    large, small = leaves((240, 160)), leaves((120, 80))
    assert compare_pictures(large, encoded(small)) is not None
    assert compare_pictures(small, encoded(small)) is None
    assert compare_pictures(large, encoded(leaves((105, 70)))) is None


def test_two_photographs_of_a_scene_in_which_nothing_moved_differ_in_their_noise():
    one, other = (encoded(wall(seed), 95) for seed in (1, 2))
    assert compare_pictures(one, encoded(one, 90)) is not None
    assert compare_pictures(one, other) is None


def test_one_surface_in_another_tint_is_no_copy():
    """As of wood in two colours: a few levels, everywhere, and the same grain."""
    grain = np.asarray(leaves(), dtype=float)
    tinted = (grain + np.array([-3, 3, 7])).clip(0, 255).astype(np.uint8)
    one = Image.fromarray(grain.astype(np.uint8))
    assert compare_pictures(encoded(one), encoded(one, 70)) is not None
    assert compare_pictures(encoded(one), encoded(Image.fromarray(tinted))) is None


def test_a_crop_that_leaves_out_a_whole_object_is_no_copy():
    """Neither U and an umlaut, nor a garment and the same one with a label beside it."""
    cap = Image.new("RGB", (360, 520), "white")
    cap.paste(shirt(), (0, 40))
    plain = encoded(cap.crop((0, 40, 360, 520)))
    assert compare_pictures(encoded(cap), plain).kind == "cropped"
    ImageDraw.Draw(cap).ellipse((150, 8, 190, 32), fill="black")
    assert compare_pictures(encoded(cap), plain) is None
    assert compare_pictures(ImageOps.mirror(encoded(cap)), plain) is None


def test_equal_pixels_of_any_size_are_identical():
    assert compare_pictures(
        Image.new("RGB", (8, 8)), Image.new("RGB", (8, 8))
    ).kind == ("identical pixels")


def test_an_enlarged_photo_has_no_real_detail():
    one = shirt()
    large = one.resize((720, 960), Image.Resampling.BICUBIC)
    assert not has_real_detail(large, one.size)
    assert has_real_detail(one, (180, 240))
