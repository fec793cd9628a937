"""Image bombs: little files that would fill the memory, in a folder, in a tar and as an upload."""

import io
import os
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zlib
from functools import partial

import numpy as np
import pytest
from PIL import (
    GifImagePlugin,
    Image,
    ImageFile,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from deepfishing.errors import ImageError
from deepfishing.images.inside import read_tar
from deepfishing.images.preprocess import FORMATS, open_image, register_heic
from deepfishing.web.photos import check_photo


def saved(kind, size=(8, 8), mode="RGB", **options):
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return bytearray(file.getvalue())


def chunk(kind, data):
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png():
    data = saved("PNG")
    data[8:33] = chunk(b"IHDR", struct.pack(">II", 60_000, 60_000) + data[24:29])
    return bytes(data)


def jpeg():
    data = saved("JPEG")
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 65_000, 65_000)
    return bytes(data)


def gif():
    data = saved("GIF")
    data[6:10] = struct.pack("<HH", 65_000, 65_000)
    return bytes(data)


def gif_frame():
    """A small screen, and on it a frame that is not."""
    data = saved("GIF")
    at = data.index(b"\x2c\0\0\0\0") + 5
    data[at : at + 4] = struct.pack("<HH", 65_000, 65_000)
    return bytes(data)


def bmp():
    data = saved("BMP")
    data[18:26] = struct.pack("<ii", 60_000, 60_000)
    return bytes(data)


def tiff():
    data = saved("TIFF")
    at = struct.unpack_from("<I", data, 4)[0]
    for number in range(struct.unpack_from("<H", data, at)[0]):
        entry = at + 2 + 12 * number
        if struct.unpack_from("<H", data, entry)[0] in (256, 257):  # width and height
            data[entry + 2 : entry + 12] = struct.pack("<HII", 4, 1, 60_000)
    return bytes(data)


def webp():
    data = saved("WEBP", lossless=True)
    at = data.index(b"VP8L") + 9
    data[at : at + 4] = struct.pack("<I", 16_382 | 16_382 << 14)
    return bytes(data)


def avif(kind="AVIF"):
    data = saved(kind, (64, 64))
    at = data.index(b"ispe") + 8  # how large the picture says to be
    data[at : at + 8] = struct.pack(">II", 60_000, 60_000)
    return bytes(data)


def heif():
    register_heic()
    return avif("HEIF")


@pytest.fixture
def never_decoded(monkeypatch):
    decoded = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: decoded.append(self))
    yield
    assert decoded == []


@pytest.mark.parametrize(
    "make", [png, jpeg, gif, gif_frame, bmp, tiff, webp, avif, heif]
)
@pytest.mark.parametrize("way", ["folder", "tar", "upload"])
def test_a_picture_that_says_to_be_huge_is_refused_undecoded(
    make, way, tmp_path, never_decoded
):
    content = make()
    path = tmp_path / f"a.{make.__name__}"
    path.write_bytes(content)
    image = path
    if way == "tar":
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            tar.add(path, "a.jpg")
        (image,) = read_tar(tmp_path / "a.tar")
    with pytest.raises(
        ImageError, match=r"too many pixels|at most|cannot be decoded|must be a"
    ):
        check_photo(content) if way == "upload" else open_image(image)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_that_is_read_has_its_bomb(kind):
    assert kind.lower() in {"png", "jpeg", "gif", "bmp", "tiff", "webp", "avif", "heif"}


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_of_many_frames_only_the_first_is_looked_at(kind, tmp_path, monkeypatch):
    frames = [
        Image.new("RGB", (32, 32), (n % 256, n, 255 - n % 256)) for n in range(100)
    ]
    frames[0].save(
        tmp_path / "a", kind, save_all=True, append_images=frames[1:], duration=10
    )
    for plugin, name in (
        (GifImagePlugin, "GifImageFile"),
        (TiffImagePlugin, "TiffImageFile"),
        (WebPImagePlugin, "WebPImageFile"),
        (PngImagePlugin, "PngImageFile"),
    ):
        monkeypatch.setattr(getattr(plugin, name), "seek", None)
    assert (
        np.abs(np.asarray(open_image(tmp_path / "a")) - np.uint8([0, 0, 255])).max() < 9
    )


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_text_that_unpacks_without_end_is_cut_off(kind, tmp_path):
    packed = zlib.compress(bytes(1 << 27), 9)
    before = {b"zTXt": b"a\0\0", b"iTXt": b"a\0\1\0\0\0", b"iCCP": b"a\0\0"}[kind]
    data = bytes(saved("PNG"))
    (tmp_path / "a.png").write_bytes(
        data[:33] + chunk(kind, before + packed) + data[33:]
    )
    tracemalloc.start()
    try:
        open_image(tmp_path / "a.png")
    except ImageError:
        pass  # as good: the picture is refused
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 25


MEASURE = """
import resource, sys
from deepfishing.images.preprocess import open_image
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
open_image(sys.argv[1])
before = peak()
open_image(sys.argv[2])
print(peak() - before)
"""


def test_sixteen_bit_grey_takes_little_more_memory_than_colour(tmp_path):
    side = 5000
    Image.new("I;16", (8, 8), 7).save(tmp_path / "small.png")
    Image.new("I;16", (side, side), 40_000).save(tmp_path / "large.png")
    command = [
        sys.executable,
        "-c",
        MEASURE,
        tmp_path / "small.png",
        tmp_path / "large.png",
    ]
    used = int(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    assert used < 15 * side * side  # in float64 it is 24 bytes a pixel and more


def test_the_parts_of_sixteen_bit_grey_are_put_together_again(rng):
    values = rng.integers(0, 65536, (1100, 1000), dtype=np.uint16)
    expected = np.round(values / 65535 * 255).astype(np.uint8)
    found = np.asarray(open_image(Image.fromarray(values)))
    np.testing.assert_array_equal(found, np.stack([expected] * 3, axis=2))
    floats = rng.normal(size=(1100, 1000)).astype(np.float32)
    low, high = float(floats.min()), float(floats.max())
    expected = np.round((floats.astype(float) - low) / (high - low) * 255).astype(
        np.uint8
    )
    np.testing.assert_array_equal(
        np.asarray(open_image(Image.fromarray(floats)))[:, :, 0], expected
    )


def test_no_picture_starts_another_program(tmp_path, monkeypatch):
    """Pillow would give an EPS to Ghostscript, whatever its file is called."""
    for name in ("gs", "gswin64c", "djpeg"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    eps = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    photo = tmp_path / "photo.jpg"
    photo.write_text(eps)
    for refuse in (partial(open_image, photo), partial(check_photo, eps.encode())):
        with pytest.raises(ImageError):
            refuse()
    assert not (tmp_path / "started").exists()
