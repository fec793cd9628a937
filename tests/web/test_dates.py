"""Photos are sorted by the date at which they were taken, or else by that of their file."""

import datetime
import os

import numpy as np
import pytest
from PIL import ExifTags, Image
from starlette.testclient import TestClient

from deepfishing.web import orders
from deepfishing.web.app import make_app
from deepfishing.web.dates import UNKNOWN, Dates, date_of, find_file
from deepfishing.web.gallery import Gallery


def write_photo(path, taken=None, changed="2024-05-06 07:08:09"):
    image = Image.new("RGB", (8, 8), "red")
    exif = Image.Exif()
    if taken is not None:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = taken
    image.save(path, exif=exif.tobytes() if taken else b"")
    seconds = datetime.datetime.fromisoformat(changed).timestamp()
    os.utime(path, (seconds, seconds))
    return path


def shown(seconds):
    return str(datetime.datetime.fromtimestamp(seconds, datetime.UTC))[:19]


@pytest.mark.parametrize("ending", ["jpg", "webp", "png", "tiff"])
def test_the_date_is_that_of_the_camera(tmp_path, ending):
    photo = write_photo(tmp_path / f"a.{ending}", "2019:07:20 12:30:01")
    assert shown(date_of(photo)) == "2019-07-20 12:30:01"


@pytest.mark.parametrize(
    "taken", [None, "0000:00:00 00:00:00", "    :  :     :  :  ", ""]
)
def test_without_a_date_of_the_camera_it_is_that_of_the_file(tmp_path, taken):
    photo = write_photo(tmp_path / "a.jpg", taken)
    assert shown(date_of(photo)) == "2024-05-06 07:08:09"


def test_a_file_that_is_no_picture_has_its_own_date_and_one_that_is_gone_none(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(b"nothing")
    os.utime(path, (0, 0))
    assert shown(date_of(path))[:4] in ("1969", "1970")
    assert date_of(tmp_path / "gone.jpg") == UNKNOWN
    assert date_of(tmp_path) == UNKNOWN
    assert find_file(tmp_path / "store", "a.tar/inside/b.jpg") == path


@pytest.fixture
def dated(copied):
    """A gallery whose photos were taken a day after the other, in a random order."""
    days = np.random.default_rng(0).permutation(32)
    expected = []
    for day, row in zip(days.tolist(), copied.rows().values(), strict=True):
        taken = datetime.datetime(2020, 1, 1, 10) + datetime.timedelta(days=day)
        with Image.open(row.path) as photo:
            exif = photo.getexif()
            tags = exif.get_ifd(ExifTags.IFD.Exif)
            tags[ExifTags.Base.DateTimeOriginal] = f"{taken:%Y:%m:%d %H:%M:%S}"
            photo.save(row.path, "JPEG", exif=exif)
        expected.append((-day, row.id, f"{taken:%Y-%m}"))
    return Gallery(copied.folder), [(id_, month) for _, id_, month in sorted(expected)]


def test_photos_are_sorted_by_the_date_at_which_they_were_taken(dated, monkeypatch):
    gallery, expected = dated
    client = TestClient(make_app(gallery), base_url="http://127.0.0.1:8765")

    def ask():
        answer = client.get("/api/images", params={"order": "date", "limit": 500})
        return [(one["id"], one["group"]) for one in answer.json()["images"]]

    assert ask() == expected
    # files are read once: another server takes what is kept beside the store
    monkeypatch.setattr("deepfishing.web.dates.date_of", lambda path: 1 / 0)
    assert ask() == expected
    client = TestClient(
        make_app(Gallery(gallery.folder)), base_url="http://127.0.0.1:8765"
    )
    assert ask() == expected


def test_the_dates_of_many_photos_are_read_by_a_job(dated, monkeypatch):
    gallery, expected = dated
    monkeypatch.setattr(orders, "AT_ONCE", 3)
    client = TestClient(make_app(gallery), base_url="http://127.0.0.1:8765")
    while True:
        answer = client.get("/api/images", params={"order": "date", "limit": 500})
        if answer.status_code != 409:
            break
        assert "dates" in answer.json()["error"]
    assert [one["id"] for one in answer.json()["images"]] == [
        id_ for id_, _ in expected
    ]
    assert client.get("/api/jobs", params={"name": "dates"}).json()["state"] == "done"


def test_only_the_dates_of_new_photos_are_read(tmp_path, copied, monkeypatch):
    keys = Gallery(copied.folder).keys
    paths = [str(write_photo(tmp_path / f"{n}.jpg")) for n in range(len(keys))]
    Dates(copied.folder, keys[:20]).read(paths[:20])
    later = Dates(copied.folder, keys)
    assert later.seconds() is None
    assert later.missing() == 12
    asked = []
    monkeypatch.setattr(
        "deepfishing.web.dates.date_of", lambda path: asked.append(path) or 7
    )
    later.read(paths)
    assert [str(path) for path in asked] == paths[20:]
    assert (later.seconds()[20:] == 7).all()
    assert (later.seconds()[:20] > 7).all()
