"""What fuzzing found in the readers of images; each was a traceback, or an error of two lines."""

import struct
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from deepfishing.errors import DatasetError, DeepFishingError, ImageError
from deepfishing.images.folder import read_folder
from deepfishing.images.inside import read_tar
from deepfishing.images.item import RemoteFile, list_files
from deepfishing.images.preprocess import FORMATS, open_image, register_heic
from deepfishing.images.sources import find_images
from deepfishing.images.tables import read_table

BREAKS = ["a\nb", "a\rb", "a\x0bb", "a\x85b", "a\u2028b"]


@pytest.mark.parametrize("name", BREAKS)
def test_a_folder_with_a_line_break_in_its_name_is_told_in_one_line(tmp_path, name):
    (tmp_path / "photos" / name).mkdir(parents=True)
    with pytest.raises(DatasetError, match="got none in") as told:
        read_folder(tmp_path / "photos")
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("name", BREAKS)
def test_a_member_with_a_line_break_in_its_name_is_told_in_one_line(tmp_path, name):
    with tarfile.open(tmp_path / "p.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(f"{name}.png"))
    (item,) = read_tar(tmp_path / "p.tar")
    with pytest.raises(ImageError, match="Pillow can read") as told:
        open_image(item)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("name", BREAKS)
def test_a_column_with_a_line_break_in_its_name_is_told_in_one_line(tmp_path, name):
    (tmp_path / "t.csv").write_text(f'"{name}",label\na.jpg,cat\n', newline="")
    with pytest.raises(DatasetError, match="must have a column path") as told:
        read_table(tmp_path / "t.csv")
    assert len(str(told.value).splitlines()) == 1


def test_a_tiff_whose_pixels_begin_at_a_fraction_is_one_line(tmp_path):
    Image.new("RGB", (12, 9)).save(tmp_path / "a.tif")
    content = (tmp_path / "a.tif").read_bytes()
    offsets = struct.pack("<HH", 273, 4)  # of strips, as whole numbers
    assert content.count(offsets) == 1
    (tmp_path / "a.tif").write_bytes(
        content.replace(offsets, struct.pack("<HH", 273, 5))
    )
    with pytest.raises(ImageError, match=r"image cannot be decoded: .*a\.tif"):
        open_image(tmp_path / "a.tif")


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind in ("AVIF", "HEIF")])
def test_an_avif_or_heic_without_its_pixels_is_one_line(tmp_path, kind):
    register_heic()
    Image.new("RGB", (64, 48), (200, 9, 9)).save(tmp_path / "a", kind)
    content = (tmp_path / "a").read_bytes()
    at = content.index(b"mdat") + 4  # where the pixels are
    (tmp_path / "a").write_bytes(content[:at] + bytes(len(content) - at))
    with pytest.raises(ImageError, match=r"image cannot be decoded: .*a \("):
        open_image(tmp_path / "a")


def test_a_parquet_table_with_a_column_twice_is_one_line(tmp_path):
    table = pa.table([["a.jpg"], ["1"], ["2"]], names=["path", "id", "id"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DatasetError, match="table cannot be read"):
        read_table(tmp_path / "t.parquet")


def test_a_parquet_table_whose_text_is_no_text_is_one_line(tmp_path):
    raw = pa.array([b"\xf3\xff"], pa.binary())
    table = pa.table({"path": pa.Array.from_buffers(pa.string(), 1, raw.buffers())})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DatasetError, match="table cannot be read"):
        read_table(tmp_path / "t.parquet")


def test_a_parquet_table_with_a_time_beyond_all_years_is_one_line(tmp_path):
    table = pa.table(
        {"path": ["a.jpg"], "label": pa.array([1 << 60], pa.timestamp("ms"))}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DatasetError, match="table cannot be read"):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    "url",
    [
        "data://x",
        "memory://a/**b",
        "data://,*",
        "memory://a\nb",
        "ftp://[x",
        "github://a*",
        "zip://",
    ],
)
def test_an_address_that_fsspec_stumbles_over_is_one_line(url):
    pytest.importorskip(
        "fsspec", reason="fsspec is an extra: pip install deepfishing[remote]"
    )
    for read in (lambda: list_files(url), lambda: find_images(url)):
        with pytest.raises(DeepFishingError) as told:
            read()
        assert len(str(told.value).splitlines()) == 1


def test_a_data_address_without_data_cannot_be_read():
    pytest.importorskip(
        "fsspec", reason="fsspec is an extra: pip install deepfishing[remote]"
    )
    for read in (RemoteFile("data://x").open, RemoteFile("data://x").signature):
        with pytest.raises(OSError):  # which every reader of images expects
            read()
