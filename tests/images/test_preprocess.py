import dataclasses
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from deepfishing.errors import ImageError
from deepfishing.images.preprocess import (
    VIEWS,
    Preprocess,
    View,
    open_image,
    resize_and_crop,
)

PLAIN = Preprocess(size=32, short_side=32, mean=(0, 0, 0), std=(1, 1, 1))


@pytest.fixture
def photo(rng):
    """A smooth colour picture, 90 x 60."""
    small = Image.fromarray(rng.integers(0, 256, (6, 9, 3), dtype=np.uint8))
    return small.resize((90, 60), Image.Resampling.BICUBIC)


def save(image, path, **options):
    image.save(path, **options)
    return path


@pytest.mark.parametrize("shape", [(90, 60), (60, 91), (61, 61), (33, 500), (20, 10)])
@pytest.mark.parametrize("short_side", [32, 40])
@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_the_crop_is_that_of_resizing_first_and_cropping_then(
    photo, shape, short_side, resample
):
    photo = photo.resize(shape)
    ours = np.asarray(resize_and_crop(photo, short_side, 32, resample), dtype=float)
    scale = short_side / min(shape)
    wide, high = round(shape[0] * scale), round(shape[1] * scale)
    left, top = (wide - 32) // 2, (high - 32) // 2
    resized = photo.resize((wide, high), getattr(Image.Resampling, resample.upper()))
    slow = np.asarray(resized.crop((left, top, left + 32, top + 32)), dtype=float)
    # grey levels: Pillow rounds between its two passes, and bicubic's negative lobes add to that
    assert np.abs(ours - slow).max() <= {"bilinear": 1, "bicubic": 2}[resample]


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("shape", [(95, 60), (60, 95), (33, 500), (32, 32), (20, 10)])
def test_views_are_those_of_resizing_cropping_and_mirroring_one_after_the_other(
    photo, name, shape
):
    photo = photo.resize(shape)
    bgr = dataclasses.replace(PLAIN, order="BGR", scale=0.5)
    seen = bgr.see(photo, VIEWS[name])
    assert seen.dtype == np.float32
    assert seen.shape == (len(VIEWS[name]), 3, 32, 32)
    assert seen.flags.c_contiguous
    for view, ours in zip(VIEWS[name], seen, strict=True):
        short = round(32 * view.scale)
        wide, high = (round(side * short / min(shape)) for side in shape)
        resized = np.asarray(
            photo.resize((wide, high), Image.Resampling.BILINEAR), dtype=float
        )
        left = {0: 0, 0.5: (wide - 32) // 2, 1: wide - 32}[view.x]
        top = {0: 0, 0.5: (high - 32) // 2, 1: high - 32}[view.y]
        slow = resized[top : top + 32, left : left + 32]
        if view.mirrored:
            slow = np.fliplr(slow)
        difference = ours - 0.5 * slow[:, :, ::-1].transpose(2, 0, 1)
        # at most two grey levels, halved: Pillow rounds between its two passes
        assert np.abs(difference).max() <= 1
        assert np.abs(difference).mean() < 0.2


def test_the_names_of_views_say_what_is_in_them():
    assert VIEWS["centre"] == (View(1.0, 0.5, 0.5, mirrored=False),)
    assert VIEWS["flip"][0] == VIEWS["scales"][0] == View()
    for name in ("flip", "scales", "crops"):
        views = VIEWS[name]
        assert len(set(views)) == len(views)
        assert {dataclasses.replace(v, mirrored=not v.mirrored) for v in views} == set(
            views
        )
    assert {(v.x, v.y) for v in VIEWS["crops"]} == {
        (0.5, 0.5),
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    }
    assert all(v.scale >= 1 for views in VIEWS.values() for v in views)


def test_a_file_is_opened_once_for_all_views(photo, tmp_path):
    path = save(photo, tmp_path / "a.png")
    opened = []

    class Counted:
        def open(self, mode):
            opened.append(mode)
            return path.open(mode)

    np.testing.assert_array_equal(
        PLAIN.see(Counted(), VIEWS["crops"]), PLAIN.see(photo, VIEWS["crops"])
    )
    assert opened == ["rb"]


def test_draft_decoding_suits_the_largest_view(rng, tmp_path):
    noise = Image.fromarray(rng.integers(0, 256, (264, 300, 3), dtype=np.uint8))
    path = save(noise, tmp_path / "n.jpg", quality=95)
    assert min(open_image(path, draft=128).size) == 132  # enough for the smallest view
    for scale in (1.25, 1.5):
        largest = Preprocess(32, round(32 * scale), PLAIN.mean, PLAIN.std)
        both = PLAIN.see(path, [View(), View(scale)])
        np.testing.assert_array_equal(both[1], largest(path))


def test_values_are_scaled_shifted_and_ordered(photo):
    plain = PLAIN(photo)
    other = Preprocess(
        32, 32, mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 8.0), scale=0.5, order="BGR"
    )(photo)
    for channel, (mean, std) in enumerate([(1, 2), (2, 4), (3, 8)]):
        np.testing.assert_allclose(
            other[channel],
            (plain[2 - channel] * 0.5 - mean) / std,
            rtol=1e-5,
            atol=1e-5,
        )
    assert plain.dtype == np.float32
    assert plain.shape == (3, 32, 32)


@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_looked_up_values_are_those_of_the_formula_to_the_last_bit(photo, order):
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    scaled = Preprocess(32, 32, tuple(mean), tuple(std), scale=1 / 255, order=order)
    pixels = PLAIN(photo)[:: 1 if order == "RGB" else -1]
    expected = (pixels * np.float32(1 / 255) - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_array_equal(scaled(photo), expected)


def test_what_is_opened_may_be_changed_without_changing_what_was_given(photo):
    open_image(photo).thumbnail((8, 8))
    assert photo.size != (8, 8)


def test_a_path_an_image_and_an_array_give_the_same(photo, tmp_path):
    from_path = PLAIN(save(photo, tmp_path / "a.png"))
    np.testing.assert_array_equal(from_path, PLAIN(photo))
    np.testing.assert_array_equal(from_path, PLAIN(np.asarray(photo)))
    np.testing.assert_array_equal(from_path, PLAIN(str(tmp_path / "a.png")))


def test_a_jpeg_of_up_to_eight_times_the_size_is_the_same_as_a_path_and_as_an_image(
    rng, tmp_path
):
    large = Image.fromarray(rng.integers(0, 256, (255, 300, 3), dtype=np.uint8))
    path = save(large, tmp_path / "a.jpg", quality=95)
    with Image.open(path) as image:
        np.testing.assert_array_equal(PLAIN(path), PLAIN(image))
        np.testing.assert_array_equal(PLAIN(path), PLAIN(np.asarray(image)))


def test_a_larger_jpeg_is_decoded_reduced_unless_it_must_not_be(tmp_path):
    slope = np.linspace(0, 255, 600)[:, None, None] * np.ones((600, 640, 3))
    path = save(Image.fromarray(slope.astype(np.uint8)), tmp_path / "a.jpg", quality=95)
    whole = dataclasses.replace(PLAIN, oversampling=0)
    with Image.open(path) as image:
        assert np.abs(PLAIN(path) - PLAIN(image)).max() < 3
        np.testing.assert_array_equal(whole(path), PLAIN(image))
    assert min(open_image(path, draft=4 * 32).size) == 150


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_exif_rotated_photo_is_seen_upright(photo, tmp_path, orientation):
    upright = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(photo, tmp_path / "r.png", exif=exif)
    expected = photo if upright is None else photo.transpose(upright)
    np.testing.assert_array_equal(
        np.asarray(open_image(tmp_path / "r.png")), np.asarray(expected)
    )


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_does_not_matter(photo, tmp_path):
    path = save(
        photo, tmp_path / "e.jpg", exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\xff\x01\x02"
    )
    assert open_image(path).size == (90, 60)


def test_grey_palette_cmyk_and_bilevel_images_become_rgb(photo, tmp_path):
    grey = photo.convert("L")
    for mode, name in [
        ("L", "a.png"),
        ("P", "b.png"),
        ("CMYK", "c.tif"),
        ("1", "d.png"),
    ]:
        image = open_image(save(photo.convert(mode), tmp_path / name))
        assert image.mode == "RGB"
        assert image.size == photo.size
    rgb = np.asarray(open_image(save(grey, tmp_path / "g.png")))
    np.testing.assert_array_equal(
        rgb, np.repeat(np.asarray(grey)[:, :, None], 3, axis=2)
    )
    cmyk = np.asarray(open_image(tmp_path / "c.tif"), float)
    assert np.abs(cmyk - np.asarray(photo, float)).max() <= 2


def test_transparency_is_laid_over_white(photo, tmp_path):
    rgba = photo.convert("RGBA")
    rgba.putalpha(0)
    assert np.asarray(open_image(save(rgba, tmp_path / "t.png"))).min() == 255
    rgba.putalpha(255)
    opaque = open_image(save(rgba, tmp_path / "o.png"))
    np.testing.assert_array_equal(np.asarray(opaque), np.asarray(photo))
    palette = photo.convert("P")
    index = palette.getpixel((0, 0))
    shown = open_image(save(palette, tmp_path / "p.png", transparency=index))
    assert shown.getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bit_grey_is_scaled_to_eight(tmp_path):
    values = np.array([[0, 257, 65535], [32768, 1000, 256]], dtype=np.uint16)
    save(Image.fromarray(values), tmp_path / "16.png")
    got = np.asarray(open_image(tmp_path / "16.png"))[:, :, 0]
    np.testing.assert_array_equal(got, np.round(values / 257))


def test_float_images_are_scaled_from_minimum_to_maximum(tmp_path):
    path = save(
        Image.fromarray(np.array([[-1.0, 0.0, 1.0]], dtype=np.float32)),
        tmp_path / "f.tif",
    )
    assert np.asarray(open_image(path))[0, :, 0].tolist() == [0, 128, 255]
    with pytest.raises(ImageError, match="finite"):
        open_image(Image.fromarray(np.array([[np.nan, 1.0]], dtype=np.float32)))


def test_a_one_by_one_image_is_an_image(tmp_path):
    path = save(Image.new("RGB", (1, 1), (10, 20, 30)), tmp_path / "dot.png")
    out = PLAIN(path)
    assert [float(out[c].min()) for c in range(3)] == [10, 20, 30]
    assert [float(out[c].max()) for c in range(3)] == [10, 20, 30]


def test_of_an_animation_the_first_frame_is_taken(photo, tmp_path):
    frames = [Image.new("RGB", (5, 5), c) for c in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert open_image(tmp_path / "a.gif").getpixel((2, 2)) == (255, 0, 0)


def test_draft_decoding_keeps_the_picture(rng, tmp_path):
    small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    big = small.resize((1600, 1200), Image.Resampling.BICUBIC)
    save(big, tmp_path / "big.jpg", quality=95)
    reduced = open_image(tmp_path / "big.jpg", draft=64)
    assert 64 <= min(reduced.size) < 1200
    difference = PLAIN(tmp_path / "big.jpg") - PLAIN(big)
    assert np.abs(difference).mean() < 2


@pytest.mark.parametrize("keep", [0, 4, 200, 0.5, 0.97])
def test_a_truncated_jpeg_is_an_error_that_names_the_file(rng, tmp_path, keep):
    noise = Image.fromarray(rng.integers(0, 256, (60, 90, 3), dtype=np.uint8))
    path = save(noise, tmp_path / "cut.jpg")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if keep < 1 else keep])
    with pytest.raises(ImageError, match=r"cut\.jpg"):
        open_image(path)


def test_missing_and_foreign_files_are_errors_that_name_the_file(tmp_path):
    with pytest.raises(ImageError, match=r"not found: .*none\.jpg"):
        open_image(tmp_path / "none.jpg")
    (tmp_path / "text.jpg").write_text("hello")
    with pytest.raises(ImageError, match=r"Pillow can read: .*text\.jpg"):
        open_image(tmp_path / "text.jpg")
    with pytest.raises(ImageError, match="decoded"):
        open_image(tmp_path)


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path):
    header = io.BytesIO()
    Image.new("1", (8, 8)).save(header, "PNG")
    data = bytearray(header.getvalue())
    data[16:24] = struct.pack(">II", 60000, 60000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    (tmp_path / "bomb.png").write_bytes(data)
    with pytest.raises(ImageError, match="pixels"):
        open_image(tmp_path / "bomb.png")


@pytest.mark.parametrize(
    "array",
    [
        -np.ones((4, 4, 3)),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((0, 4), np.uint8),
        np.zeros(3),
    ],
    ids=["negative", "two channels", "empty", "1-d"],
)
def test_an_array_that_is_no_picture_is_refused(array):
    with pytest.raises(ImageError, match=r"must be \(H, W\), .* got .* of shape"):
        open_image(array)
