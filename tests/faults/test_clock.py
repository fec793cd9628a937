"""What a changed clock or a time that was set by hand does: nothing, for contents decide."""

import json
import os

import pytest
from PIL import Image

from deepfishing.images.item import Item
from deepfishing.store import Store
from deepfishing.store.check import verify

FAR = 4_000_000_000 * 10**9  # in 2096


@pytest.fixture
def extract(deepfish, flat, pictures, tmp_path):
    def run():
        ran = deepfish("extract", pictures, "s", *flat, "--json")
        assert ran.code == 0, ran.err
        assert verify(Store.open(tmp_path / "s")) == []
        return json.loads(ran.out.splitlines()[-1])["computed"]

    return run


@pytest.mark.parametrize("time_ns", [1, FAR], ids=["1970", "2096"])
def test_new_content_is_seen_whatever_its_time(
    extract, pictures, draw, tmp_path, time_ns
):
    extract()
    path = draw(pictures / "a/0.png")
    os.utime(path, ns=(time_ns, time_ns))
    assert extract() == 1
    assert (
        Store.open(tmp_path / "s").rows()["a/0.png"].sha256 == Item("", path).sha256()
    )


def test_new_content_of_the_same_size_and_time_is_seen(extract, pictures, tmp_path):
    path = pictures / "a/plain.bmp"
    Image.new("RGB", (8, 8), "red").save(path)
    extract()
    before = path.stat()
    Image.new("RGB", (8, 8), "blue").save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert extract() == 1
    assert (
        Store.open(tmp_path / "s").rows()["a/plain.bmp"].sha256
        == Item("", path).sha256()
    )


def test_the_same_content_with_another_time_computes_nothing(extract, pictures):
    extract()
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        os.utime(path, ns=(FAR - number, number))
    assert extract() == 0
    assert extract() == 0


def test_a_store_from_the_future_is_gone_on_with(extract, pictures, draw, tmp_path):
    extract()
    for path in (tmp_path / "s").rglob("*"):
        os.utime(path, ns=(FAR, FAR))
    draw(pictures / "a/new.png")
    assert extract() == 1


def test_on_windows_the_time_of_a_change_is_not_the_time_of_making(
    pictures, draw, monkeypatch
):
    monkeypatch.setattr("deepfishing.images.item.STAMP", "st_mtime_ns")
    path = pictures / "a/0.png"
    before = Item("", path).signature()
    os.utime(path, ns=(1, 1))
    assert Item("", path).signature() == (before[0], 1)
