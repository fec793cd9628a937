import numpy as np
import pytest
from PIL import Image

from deepfishing.errors import ImageError
from deepfishing.images import preprocess
from deepfishing.images.preprocess import EXTENSIONS, open_image, passed_over_text
from deepfishing.images.sources import find_images


@pytest.fixture
def picture():
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:, :32] = 200, 60, 20
    return Image.fromarray(pixels)


def test_a_photo_in_avif_is_read(tmp_path, picture):
    picture.save(tmp_path / "a.AVIF", quality=90)
    (item,) = find_images(tmp_path)
    assert np.abs(np.asarray(open_image(item), int) - np.asarray(picture)).mean() < 3


def test_a_photo_in_heic_is_read(tmp_path, picture):
    preprocess.register_heic()
    picture.save(tmp_path / "IMG_1.HEIC", "HEIF", quality=90)
    (item,) = find_images(tmp_path)
    assert np.abs(np.asarray(open_image(item), int) - np.asarray(picture)).mean() < 3


def test_a_damaged_heic_is_one_line(tmp_path):
    (tmp_path / "IMG_1.heic").write_bytes(b"....ftypheic")
    with pytest.raises(
        ImageError, match=r"IMG_1.heic; it must be a JPEG, .* or HEIF file$"
    ):
        open_image(tmp_path / "IMG_1.heic")


def test_files_that_are_no_pictures_are_counted_by_their_endings():
    assert passed_over_text({".txt": 90, "": 12}) == "90 .txt, 12 without an ending"


def test_endings_are_in_small_letters():
    assert {
        ".jpg",
        ".jpeg",
        ".png",
        ".webp",
        ".gif",
        ".bmp",
        ".tif",
        ".tiff",
    } <= EXTENSIONS
    assert all(
        ending == ending.lower() and ending.startswith(".") for ending in EXTENSIONS
    )
