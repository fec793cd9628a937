import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from deepfishing.errors import DatasetError, OptionError
from deepfishing.images import scenes
from deepfishing.images.scenes import CLASSES, load_scenes, make_scenes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made once for all tests that only read it."""
    folder = tmp_path_factory.mktemp("data")
    load_scenes(folder, n_train=60, n_test=40)
    return folder


@pytest.fixture
def data(folder):
    return load_scenes(folder, n_train=60, n_test=40)


def contents(root):
    return {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_data_set_is_multi_label_with_difficult_ones(data):
    assert (data.name, data.classes, data.official_ap) == ("scenes", CLASSES, "area")
    assert (len(data.train), len(data.test)) == (60, 40)
    labels = np.concatenate([data.train.labels, data.test.labels])
    positives = (labels == 1).sum(axis=1)
    assert set(positives.tolist()) >= {1, 2}
    assert positives.max() <= 4
    assert (labels == 1).any(axis=0).all()
    assert 0.005 < (labels == 0).mean() < 0.08


def test_pictures_are_colour_jpegs_of_two_orientations(data):
    sizes = set()
    for path in data.train.paths + data.test.paths:
        with Image.open(path) as picture:
            assert (picture.format, picture.mode) == ("JPEG", "RGB")
            sizes.add(picture.size)
    assert sizes == {(320, 240), (240, 320)}


def test_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    made = [make_scenes(tmp_path / str(i), 3, 2, seed) for i, seed in enumerate((5, 5, 6))]
    first, again, other = map(contents, made)
    assert first == again
    assert all(first[p] != other[p] for p in first if p.suffix == ".jpg")


def test_train_and_test_show_different_samples(tmp_path, monkeypatch):
    seen = {"trainval": set(), "test": set()}
    glyph, scene = scenes._glyph, scenes._scene
    pools = []

    def spy_scene(pool, rng):
        if not any(pool is p for p in pools):
            pools.append(pool)
        return scene(pool, rng)

    def spy_glyph(sample, height, rng):
        seen[("trainval", "test")[len(pools) - 1]].add(sample.tobytes())
        return glyph(sample, height, rng)

    monkeypatch.setattr(scenes, "_scene", spy_scene)
    monkeypatch.setattr(scenes, "_glyph", spy_glyph)
    make_scenes(tmp_path, 60, 60)
    assert len(seen["trainval"]) > 60
    assert not seen["trainval"] & seen["test"]
    assert sum(len(pool) for half in pools for pool in half) == len(load_digits().target)


def test_labels_tell_what_was_drawn(monkeypatch):
    """Each class drawn from its own marked sample; then compare labels with what was used."""
    pools = [np.full((1, 8, 8), 200 + c, dtype=np.uint8) for c in range(10)]
    drawn = []
    glyph = scenes._glyph

    def spy(sample, height, rng):
        drawn.append((int(sample[0, 0]) - 200, height))
        return glyph(sample, height, rng)

    monkeypatch.setattr(scenes, "_glyph", spy)
    for seed in range(30):
        drawn.clear()
        _, labels = scenes._scene(pools, np.random.default_rng(seed))
        assert set(np.flatnonzero(labels >= 0)) == {c for c, _ in drawn}
        assert all(labels[c] == 0 for c, height in drawn if height < scenes.TINY)
        assert labels[drawn[-1][0]] == int(drawn[-1][1] >= scenes.TINY)  # nothing lies on the last


def test_digit_under_another_is_difficult(monkeypatch):
    pools = [np.full((1, 8, 8), 255, dtype=np.uint8) for _ in range(10)]
    monkeypatch.setattr(scenes, "_place", lambda owner, size, rng: (0, 0))
    monkeypatch.setattr(scenes, "HEIGHTS", ((100, 101),) * 3)
    difficult = 0
    for seed in range(20):
        _, labels = scenes._scene(pools, np.random.default_rng(seed))
        assert (labels == 1).sum() <= 1  # only the last of the large ones is seen
        difficult += (labels == 0).sum()
    assert difficult > 5


@pytest.mark.parametrize("seed", range(40))
def test_every_digit_fits_into_the_central_square(seed):
    rng = np.random.default_rng(seed)
    sample = rng.integers(0, 256, size=(8, 8), dtype=np.uint8)  # the hardest: ink in all corners
    sample[0, 0] = 255
    ink, rim = scenes._glyph(sample, scenes.HEIGHTS[0][1] - 1, rng)
    assert ink.size == rim.size
    x, y = scenes._place(np.full((240, 320), -1), ink.size, rng)
    assert 40 <= x <= x + ink.width <= 280
    assert 0 <= y <= y + ink.height <= 240


def test_second_call_reads_what_the_first_made(folder):
    before = {p: p.stat().st_mtime_ns for p in (folder / "scenes").rglob("*")}
    load_scenes(folder, n_train=60, n_test=40)
    assert {p: p.stat().st_mtime_ns for p in (folder / "scenes").rglob("*")} == before


def test_folder_of_another_recipe_or_version_is_refused_and_kept(folder, tmp_path):
    with pytest.raises(DatasetError, match=r'"seed": 1.* has .*"seed": 0.*delete that folder'):
        load_scenes(folder, n_train=60, n_test=40, seed=1)
    copy = shutil.copytree(folder, tmp_path / "copy")
    recipe = json.loads((copy / "scenes/scenes.json").read_text())
    for text in (json.dumps(recipe | {"version": 0}), "{", ""):
        (copy / "scenes/scenes.json").write_text(text)
        with pytest.raises(DatasetError, match="delete that folder"):
            load_scenes(copy, n_train=60, n_test=40)
    (copy / "scenes/scenes.json").unlink()
    with pytest.raises(DatasetError, match="null; delete that folder"):
        load_scenes(copy, n_train=60, n_test=40)
    assert len(list((copy / "scenes/JPEGImages").iterdir())) == 100


def test_two_runs_at_once_make_one_whole_data_set(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(load_scenes, tmp_path, 4, 3) for _ in range(4)]
        ids = {run.result().train.ids + run.result().test.ids for run in runs}
    assert len(ids) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["scenes"]
    assert contents(tmp_path / "scenes") == contents(make_scenes(tmp_path / "alone", 4, 3))


def test_crash_leaves_nothing_and_the_next_run_works(tmp_path, monkeypatch):
    scene = scenes._scene
    calls = []

    def crash_at_third(pools, rng):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return scene(pools, rng)

    monkeypatch.setattr(scenes, "_scene", crash_at_third)
    with pytest.raises(KeyboardInterrupt):
        make_scenes(tmp_path, 2, 2)
    assert list(tmp_path.iterdir()) == []
    assert len(load_scenes(tmp_path, 2, 2).train) == 2


def test_folder_that_cannot_be_made_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match=r"cannot be made in .*file"):
        make_scenes(tmp_path / "file", 1, 1)
    (tmp_path / "scenes").touch()
    with pytest.raises(DatasetError, match="delete that"):
        make_scenes(tmp_path, 1, 1)


@pytest.mark.parametrize("bad", [{"n_train": 0}, {"n_test": 0}, {"seed": -1}])
def test_numbers_out_of_range_are_refused(tmp_path, bad):
    with pytest.raises(OptionError, match=f"{next(iter(bad))} must be at least"):
        make_scenes(tmp_path, **bad)
    assert list(tmp_path.iterdir()) == []
