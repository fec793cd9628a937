import numpy as np
import pytest
from PIL import Image

from deepfishing.errors import ImageError, pip_install
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
    pytest.importorskip("pillow_heif", reason=f"no HEIC: {pip_install(extra='heic')}")
    preprocess.learn_heic()
    picture.save(tmp_path / "IMG_1.HEIC", "HEIF", quality=90)
    (item,) = find_images(tmp_path)
    assert np.abs(np.asarray(open_image(item), int) - np.asarray(picture)).mean() < 3


def test_without_the_extra_a_photo_in_heic_is_told_the_pip_command(tmp_path, monkeypatch):
    monkeypatch.setattr(preprocess, "HAS_HEIC", False)
    (tmp_path / "IMG_1.heic").write_bytes(b"....ftypheic")
    with pytest.raises(ImageError) as raised:
        open_image(tmp_path / "IMG_1.heic")
    command = pip_install(extra="heic")
    assert str(raised.value).endswith(f"IMG_1.heic; to read HEIC run `{command}`")
    told = passed_over_text({".txt": 90, ".heic": 12})
    assert told == f"12 .heic (to read them: {command}), 90 .txt"


def test_endings_are_in_small_letters():
    assert {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"} <= EXTENSIONS
    assert all(ending == ending.lower() and ending.startswith(".") for ending in EXTENSIONS)
