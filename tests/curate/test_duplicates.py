import csv
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image, ImageFilter, ImageOps

from deepfishing.curate.duplicates import find_twins
from deepfishing.curate.neighbours import open_searcher
from deepfishing.store import Store


@pytest.fixture
def photos(picture, store_of, tmp_path):
    """An original and six twins of it, a look-alike whose features are the same, and another."""
    folder = tmp_path / "photos"
    folder.mkdir()
    one = picture(1, (400, 300))
    changed = {
        "original.png": one,
        "half.png": one.resize((200, 150)),
        "crop.png": one.crop((10, 20, 370, 290)),
        "mirrored.png": ImageOps.mirror(one).resize((300, 225)),
        "border.png": ImageOps.expand(one.resize((300, 225)), 15, "white"),
        "lookalike.png": picture(2, (400, 300)),
        "other.png": picture(3, (400, 300)),
    }
    for name, image in changed.items():
        image.save(folder / name)
    one.resize((320, 240)).save(folder / "quality.jpg", quality=50)
    shutil.copy(folder / "original.png", folder / "zcopy.png")
    os.utime(folder / "original.png", (1e9, 1e9))
    paths = sorted(folder.iterdir())
    return folder, store_of(
        paths, [2 if path.name == "other.png" else 1 for path in paths]
    )


LISTED = {"half.png", "quality.jpg", "zcopy.png"}
KINDS = {
    "half.png": "re-encoded or resized",
    "quality.jpg": "re-encoded or resized",
    "zcopy.png": "identical file",
    "crop.png": "cropped",
    "mirrored.png": "mirrored",
    "border.png": "border added",
}


def test_twins_are_found_and_look_alikes_are_not(deepfish, photos, tmp_path):
    folder, store = photos
    before = {path: path.read_bytes() for path in folder.iterdir()}
    ran = deepfish("curate", "twins", store, "--out", "all.csv", "--sheet", "twins.png")
    assert ran.code == 0, ran.err
    assert set(ran.out.splitlines()) == {str(folder / name) for name in LISTED}
    assert "1 picture more than once among 9 images; 3 photos listed" in ran.err
    assert f"keep {folder / 'original.png'} (oldest, 2001-09-09)" in ran.err.replace(
        "\n", " "
    )
    with (tmp_path / "all.csv").open() as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert rows["original.png"]["keep"] == "True"
    assert {name: rows[name]["kind"] for name in KINDS} == KINDS
    with Image.open(tmp_path / "twins.png") as sheet:
        assert sheet.width > 1000
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_mirrored_photo_is_never_on_the_list_in_python_either(photos):
    folder, store = photos
    twins = find_twins(open_searcher(store))
    assert set(twins.removable()) == {str(folder / name) for name in LISTED}
    everything = {Path(path).name for path in twins.removable(set(KINDS.values()))}
    assert everything == set(KINDS) - {"mirrored.png"}


def test_the_list_goes_through_xargs_and_one_of_each_is_left(
    deepfish, photos, tmp_path
):
    folder, store = photos
    ran = deepfish("curate", "twins", store, "-0", "--out", "list.txt")
    assert (ran.code, ran.out) == (0, "")
    (tmp_path / "twice").mkdir()
    with (tmp_path / "list.txt").open("rb") as listed:
        subprocess.run(
            ["xargs", "-0", "-I{}", "mv", "-n", "--", "{}", "twice/"],
            stdin=listed,
            check=True,
        )
    assert {path.name for path in folder.iterdir()} == {
        *("original.png", "lookalike.png", "other.png"),
        *("crop.png", "mirrored.png", "border.png"),
    }
    again = deepfish("curate", "twins", store)
    assert (again.code, again.out) == (0, "")
    assert "left out: 3 images not found as extracted, first half.png" in again.err


def test_photos_that_changed_or_share_a_file_are_never_listed(
    deepfish, photos, store_of
):
    folder, _ = photos
    (folder / "zcopy.png").unlink()
    (folder / "zcopy.png").symlink_to(folder / "original.png")
    paths = [folder / name for name in ("original.png", "half.png", "zcopy.png")]
    store = store_of(paths, [1, 1, 1], "linked")
    assert deepfish("curate", "twins", store).out == f"{folder / 'half.png'}\n"
    (folder / "original.png").write_bytes(b"another picture now")
    ran = deepfish("curate", "twins", store)
    assert (ran.code, ran.out) == (0, "")  # the only one left of the picture stays


def test_another_store_is_compared_and_its_photos_stay(
    deepfish, photos, store_of, tmp_path
):
    folder, _ = photos
    new = store_of(
        [folder / "half.png", folder / "other.png", folder / "zcopy.png"],
        [1, 2, 1],
        "n",
    )
    old = store_of([folder / "crop.png", folder / "original.png"], [1, 1], "old")
    ran = deepfish("curate", "twins", new, "--against", old, "--json")
    assert ran.code == 0, ran.err
    (group,) = json.loads(ran.out)["groups"]
    stays = {photo["id"]: photo["can_go"] for photo in group["others"]}
    assert group["keep"]["id"] == "original.png"
    assert stays == {"zcopy.png": True, "crop.png": False, "half.png": True}


def test_what_another_store_has_may_go_although_the_copy_there_is_newer(
    deepfish, photos, store_of
):
    folder, _ = photos
    new = store_of([folder / "original.png", folder / "other.png"], [1, 2], "new")
    # copied from original.png
    archive = store_of([folder / "zcopy.png"], [1], "archive")
    ran = deepfish("curate", "twins", new, "--against", archive)
    assert (ran.code, ran.out) == (0, f"{folder / 'original.png'}\n")
    assert f"keep {folder / 'zcopy.png'} ({archive} has it)" in ran.err.replace(
        "\n", " "
    )
    assert "1 picture more than once among 2 images; 1 photo listed" in ran.err


def test_stores_of_two_settings_are_refused(deepfish, photos, store_of):
    folder, store = photos
    other = store_of([folder / "half.png"], [1], "other", tau=3.0)
    ran = deepfish("curate", "twins", store, "--against", other)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "but tau is 2.0 in" in ran.err


def test_one_photo_and_the_same_photo_ten_times(
    deepfish, photos, store_of, picture, tmp_path
):
    folder, _ = photos
    single = store_of([folder / "original.png"], [1], "single")
    ran = deepfish("curate", "twins", single)
    assert (ran.code, ran.out) == (0, "")
    assert "0 pictures more than once among 1 image" in ran.err
    paths = [folder / f"same{n}.png" for n in range(10)]
    for path in paths:
        picture(9).save(path)
    assert (
        len(deepfish("curate", "twins", store_of(paths, [1] * 10, "ten")).out.split())
        == 9
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--kinds", "mirrored"],
            "pixels cannot tell which of two mirrored photos",
        ),
        (["--kinds", "rotated"], "--kinds must be one of"),
        (["--out", "x.png"], "--out must end in .csv or .json or .txt, got x.png"),
        (
            ["--out", "no/list.txt"],
            "--out must be in a folder that exists, got no/list.txt",
        ),
        (["--against", "gone"], "gone"),
    ],
)
def test_what_cannot_be_done_is_one_line(deepfish, photos, arguments, line):
    ran = deepfish("curate", "twins", photos[1], *arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert line in ran.err


def test_a_damaged_store_and_ctrl_c_are_one_line(deepfish, photos, monkeypatch):
    import deepfishing.curate.duplicates as module

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "nearest", interrupt)
    ran = deepfish("curate", "twins", photos[1], "--out", "list.txt")
    assert (ran.code, ran.out, ran.err.count("\n")) == (130, "", 1)
    assert not (photos[1].parent / "list.txt").exists()
    monkeypatch.undo()
    (shard,) = (photos[1] / "x7").glob("*.parquet")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    ran = deepfish("curate", "twins", photos[1])
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert str(shard) in ran.err


def test_the_index_finds_the_same_twins(photos, monkeypatch):
    import deepfishing.curate.neighbours as module

    exact = find_twins(open_searcher(Store.open(photos[1])))
    monkeypatch.setattr(module, "EXACT_CONTENTS", 0)
    searcher = open_searcher(Store.open(photos[1]))
    assert searcher.index is not None
    assert find_twins(searcher) == exact


def test_a_notebook_shows_what_is_kept_and_what_is_the_same(photos):
    found = find_twins(open_searcher(Store.open(photos[1])))
    assert "\n" not in repr(found)
    shown = sum(1 + len(group.others) for group in found.groups)
    assert found._repr_html_().count("<img") == shown


def test_an_enlarged_copy_is_never_kept(deepfish, store_of, tmp_path, rng):
    small = Image.fromarray(rng.integers(0, 256, (150, 200, 3), dtype="uint8"))
    small = small.resize((200, 150)).filter(ImageFilter.GaussianBlur(1))
    small.save(tmp_path / "original.png")
    small.resize((400, 300), Image.Resampling.BICUBIC).save(tmp_path / "enlarged.png")
    store = store_of([tmp_path / "original.png", tmp_path / "enlarged.png"], [1, 1])
    ran = deepfish("curate", "twins", store)
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'enlarged.png'}\n")


def test_frames_of_a_burst_are_a_burst_and_no_copies(
    deepfish, store_of, picture, tmp_path
):
    scene = picture(1, (400, 300))
    paths = [tmp_path / f"frame{n}.png" for n in range(2)]
    for n, path in enumerate(paths):
        frame = scene.copy()
        frame.paste("black", (100 + 40 * n, 100, 130 + 40 * n, 130))
        frame.save(path)
    store = store_of(paths, [1, 1])
    assert deepfish("curate", "twins", store).out == ""
    ran = deepfish("curate", "bursts", store)
    assert sorted(ran.out.splitlines()) == [f"1\t{path}" for path in paths]


def test_a_burst_has_of_each_picture_the_photo_that_twins_keeps(
    deepfish, store_of, picture, tmp_path
):
    kept, copies = [], []
    for n in range(2):
        frame = picture(1, (600, 450))
        frame.paste("black", (100 + 60 * n, 100, 150 + 60 * n, 150))
        kept.append(tmp_path / f"frame{n}.png")
        frame.save(kept[-1])
        copies += [tmp_path / f"half{n}.png", tmp_path / f"smaller{n}.png"]
        frame.resize((300, 225)).save(copies[-2])
        frame.resize((400, 300)).save(copies[-1])
    store = store_of([*copies, *kept], [1] * 6)
    listed = deepfish("curate", "twins", store).out.splitlines()
    assert sorted(listed) == sorted(map(str, copies))
    ran = deepfish("curate", "bursts", store)
    assert sorted(ran.out.splitlines()) == [f"1\t{path}" for path in kept]


def test_true_copies_are_listed_although_a_mirrored_photo_is_the_largest(
    deepfish, store_of, picture, tmp_path
):
    one = picture(1, (400, 300))
    ImageOps.mirror(picture(1, (600, 450))).save(tmp_path / "mirrored.png")
    one.save(tmp_path / "a.png")
    one.save(tmp_path / "b.jpg", quality=90)
    paths = [tmp_path / name for name in ("mirrored.png", "a.png", "b.jpg")]
    ran = deepfish("curate", "twins", store_of(paths, [1] * 3), "--json")
    (group,) = json.loads(ran.out)["groups"]
    kinds = {photo["id"]: photo["kind"] for photo in group["others"]}
    assert group["keep"]["id"] == "a.png"
    assert kinds == {"b.jpg": "re-encoded or resized", "mirrored.png": "mirrored"}


def test_two_copies_in_each_direction_are_two_groups(
    deepfish, store_of, picture, tmp_path
):
    paths = []
    for name, turn in (("left", lambda one: one), ("right", ImageOps.mirror)):
        for suffix, size in ((".png", (400, 300)), ("-small.png", (200, 150))):
            paths.append(tmp_path / f"{name}{suffix}")
            turn(picture(1, (400, 300)).resize(size)).save(paths[-1])
    ran = deepfish("curate", "twins", store_of(paths, [1] * 4))
    assert set(ran.out.splitlines()) == {
        str(tmp_path / "left-small.png"),
        str(tmp_path / "right-small.png"),
    }
    assert "2 pictures more than once" in ran.err


def test_a_copy_with_a_border_that_stands_out_is_found(
    deepfish, store_of, picture, tmp_path
):
    """The border is most of what its thumbnail shows, so it is compared without."""
    dark = picture(6, (320, 240)).point(lambda level: 20 + level // 5)
    dark.save(tmp_path / "dark.png")
    ImageOps.expand(dark, 16, "white").save(tmp_path / "border.png")
    store = store_of([tmp_path / "dark.png", tmp_path / "border.png"], [1, 1])
    ran = deepfish("curate", "twins", store, "--kinds", "border added")
    assert ran.out == f"{tmp_path / 'border.png'}\n"


def test_files_with_other_frames_or_transparent_places_are_no_copies(
    deepfish, store_of, picture, tmp_path
):
    """Their first frames, or what shows on white, are the same; their other contents are not."""
    first, second, third = (picture(seed, (320, 240)) for seed in (1, 2, 3))
    first.save(tmp_path / "a.tif", save_all=True, append_images=[second])
    first.save(tmp_path / "b.tif", save_all=True, append_images=[third])
    seen = Image.new("L", first.size, 255)
    seen.paste(0, (0, 0, 320, 40))
    for name, hidden in (("c.png", "red"), ("d.png", "blue")):
        painted = first.copy()
        painted.paste(hidden, (0, 0, 320, 40))
        painted.putalpha(seen)
        painted.save(tmp_path / name)
    paths = [tmp_path / name for name in ("a.tif", "b.tif", "c.png", "d.png")]
    shutil.copy(paths[0], tmp_path / "e.tif")
    ran = deepfish("curate", "twins", store_of([*paths, tmp_path / "e.tif"], [1] * 5))
    assert len(ran.out.splitlines()) == 1
    assert "identical file" in ran.err


def test_copies_in_other_modes_and_turned_by_their_header_are_found(
    deepfish, store_of, picture, tmp_path
):
    one = picture(1, (320, 240))
    one.save(tmp_path / "plain.png")
    one.convert("CMYK").save(tmp_path / "cmyk.tif")
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by 90 degrees
    one.rotate(90, expand=True).save(tmp_path / "turned.jpg", quality=90, exif=turned)
    one.convert("RGBA").save(tmp_path / "opaque.png")
    paths = sorted(path for path in tmp_path.iterdir() if path.is_file())
    ran = deepfish("curate", "twins", store_of(paths, [1] * len(paths)))
    assert len(ran.out.splitlines()) == len(paths) - 1, ran.err
