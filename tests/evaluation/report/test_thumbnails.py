import base64
import io
import os

import numpy as np
import pytest
from PIL import Image

from deepfishing.errors import StoreError
from deepfishing.evaluation.report.pictures import Album, match_ids
from deepfishing.evaluation.results import Results
from deepfishing.store.manifest import Row

IDS = ["000001", "000002", "000003"]


def pixels(uri):
    kind, code = uri.split(",", 1)
    assert kind == "data:image/jpeg;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(code))))


def thumbnails(folder, images=None, dataset="voc2007", ids=IDS):
    """The picture of each image, or why there is none."""
    album = Album(Results(folder), images)
    known = match_ids(album.rows, dataset, ids)
    places = [album.add(known.get(i)) for i in ids]
    return [
        place if isinstance(place, str) else album.pictures[place].uri
        for place in places
    ]


def test_a_thumbnail_shows_its_image(tmp_path, add_images):
    add_images(tmp_path / "results", tmp_path / "photos", IDS)
    for image_id, thumbnail in zip(IDS, thumbnails(tmp_path / "results"), strict=True):
        shown = pixels(thumbnail)
        assert shown.shape == (224, 224, 3)
        original = np.asarray(Image.open(tmp_path / "photos" / f"{image_id}.png"))
        assert abs(shown[112, 112].astype(int) - original[0, 0]).max() <= 6  # JPEG


@pytest.mark.parametrize("moved", ["images", "both"])
def test_images_that_moved_are_found_again(tmp_path, add_images, moved):
    folder = tmp_path / "results"
    add_images(folder, folder / "data" / "groceries", IDS)
    if moved == "both":
        # the pictures of the embedded data set lie in the folder itself
        folder = folder.rename(tmp_path / "elsewhere")
        found = thumbnails(folder, dataset="groceries")
    else:
        (folder / "data" / "groceries").rename(tmp_path / "pictures")
        assert set(thumbnails(folder, dataset="groceries")) == {"not found"}
        found = thumbnails(folder, tmp_path / "pictures", dataset="groceries")
    assert all(thumbnail.startswith("data:") for thumbnail in found)


def test_a_relative_path_counts_from_where_the_command_ran(
    tmp_path, add_images, monkeypatch
):
    work = tmp_path / "work"
    folder = work / "results" / "voc"
    place = lambda path: os.path.relpath(path, work)  # noqa: E731
    add_images(folder, tmp_path / "photos", IDS, path_of=place)
    monkeypatch.chdir("/")
    assert all(thumbnail.startswith("data:") for thumbnail in thumbnails(folder))


def test_a_file_with_another_content_is_not_the_image(tmp_path, add_images):
    add_images(tmp_path / "results", tmp_path / "photos", IDS)
    changed = tmp_path / "photos" / "000002.png"
    changed.write_bytes(changed.read_bytes() + b"!")
    other = tmp_path / "photos" / "000003.png"
    other.write_bytes(other.read_bytes()[:-1] + b"!")  # of the same size
    first, *others = thumbnails(tmp_path / "results")
    assert first.startswith("data:")
    assert others == ["not found", "not found"]


def test_a_pipe_or_a_folder_in_its_place_is_not_the_image(tmp_path, add_images):
    add_images(tmp_path / "results", tmp_path / "photos", IDS)
    for image_id, make in (("000001", os.mkfifo), ("000002", os.mkdir)):
        path = tmp_path / "photos" / f"{image_id}.png"
        path.unlink()
        make(path)
    *others, last = thumbnails(tmp_path / "results")
    assert others == ["not found", "not found"]
    assert last.startswith("data:")


def test_a_folder_without_features_knows_no_image(tmp_path):
    assert set(thumbnails(tmp_path)) == {"not in features/"}


def test_a_damaged_index_is_one_clear_error(tmp_path, add_images):
    add_images(tmp_path, tmp_path / "photos", IDS)
    [index] = tmp_path.glob("features/*/index.parquet")
    index.write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"index is damaged: .*index\.parquet"):
        _ = Album(Results(tmp_path)).rows


def test_data_sets_that_share_ids_are_told_apart_by_name(tmp_path, add_images):
    add_images(tmp_path, tmp_path / "VOC2007" / "JPEGImages", IDS)
    add_images(tmp_path, tmp_path / "groceries" / "JPEGImages", IDS, store="two")
    for dataset, name in (("voc2007", "VOC2007"), ("groceries", "groceries")):
        found = match_ids(Album(Results(tmp_path)).rows, dataset, IDS)
        assert [f"/{name}/" in found[i].path for i in IDS] == [True] * 3


def test_where_it_is_not_clear_which_image_an_id_means_there_is_none(
    tmp_path, add_images
):
    for store in ("one", "two"):
        add_images(tmp_path, tmp_path / store, IDS, store=store)
    assert match_ids(Album(Results(tmp_path)).rows, "voc2007", IDS) == {}


def test_the_same_images_in_two_stores_are_as_good_as_one(tmp_path, add_images):
    rows = add_images(tmp_path, tmp_path / "a", IDS)
    copies = [
        Row(f"b/{i}.png", f"b/{i}.png", row.sha256)
        for i, row in zip(IDS, rows, strict=True)
    ]
    assert list(match_ids([*rows, *copies], "folder", IDS)) == IDS


def test_ids_with_folders_and_suffixes_are_those_of_a_folder(tmp_path, add_images):
    names = ["test/cat/1", "test/dog/1"]
    add_images(tmp_path, tmp_path / "photos", names)
    ids = [f"{name}.png" for name in names]
    assert all(
        t.startswith("data:") for t in thumbnails(tmp_path, dataset="folder", ids=ids)
    )
