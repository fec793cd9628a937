import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import deepfishing.extraction.to_store as to_store
from deepfishing.core.features import Factor
from deepfishing.errors import FeatureError, StoreError
from deepfishing.extraction.batches import Batch
from deepfishing.extraction.options import Resources
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import extract_to_store, write_batches
from deepfishing.images.item import Item
from deepfishing.images.preprocess import Preprocess
from deepfishing.images.sources import find_images
from deepfishing.networks.network import Network
from deepfishing.store import Store
from deepfishing.store.check import verify
from deepfishing.store.manifest import count_rows

FACTORS = (Factor("input", 8), Factor("delta", 8))


@pytest.fixture
def network():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 5))
    preprocess = Preprocess(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3)
    return Network("flat", module, {8: "1"}, preprocess, "none")


@pytest.fixture
def draw(rng):
    def save(path):
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
        return path

    return save


@pytest.fixture
def paths(draw, tmp_path):
    return [draw(tmp_path / "pictures" / f"{i}.png") for i in range(10)]


@pytest.fixture
def open_store(network, tmp_path):
    return lambda name="s": Store(
        tmp_path / name, Settings.from_network(network).as_dict()
    )


@pytest.fixture
def run(network, open_store):
    def extract(images, factors=FACTORS, store=None, batch_size="auto", **more):
        given = {"settings": Settings.from_network(network), "network": network, **more}
        given["resources"] = Resources(batch_size=batch_size, engine="torch")
        return extract_to_store(store or open_store(), images, factors, **given)

    return extract


def test_a_second_run_computes_nothing_and_does_not_load_the_network(
    run, paths, open_store
):
    first = run(paths)

    index = open_store().folder / "index.parquet"
    written = index.stat().st_mtime_ns
    second = run(paths, network=None)  # which a module of one's own cannot be loaded as
    assert (first.computed, second.computed) == (10, 0)
    assert first.keys == second.keys
    assert index.stat().st_mtime_ns == written


def test_new_images_and_new_factors_are_all_that_is_computed(run, paths, open_store):
    run(paths[:6], FACTORS[:1])
    assert run(paths, FACTORS[:1]).computed == 4
    assert run(paths).computed == 10
    assert {row.factors for row in open_store().rows().values()} == {("delta8", "x7")}


def test_files_that_did_not_change_are_not_hashed_again(run, paths, monkeypatch):
    run(paths)
    hashed = []
    original = Item.sha256
    monkeypatch.setattr(
        Item, "sha256", lambda item: hashed.append(item.path) or original(item)
    )
    run(paths)
    assert hashed == []
    os.utime(paths[3], ns=(1, 1))
    assert run(paths).computed == 0  # touched, the same content
    assert hashed == [paths[3]]


def test_changed_images_replace_the_old_and_removed_ones_are_reported_or_dropped(
    run, paths, draw, open_store, tmp_path
):
    source = tmp_path / "pictures"
    first = run(find_images(source))
    draw(paths[4])
    paths[7].unlink()
    draw(source / "new.png")
    second = run(find_images(source))
    assert (second.computed, second.removed) == (2, ("7.png",))
    rows = open_store().rows()
    assert len(rows) == 11
    assert rows["4.png"].sha256 != first.keys[4]
    assert run(find_images(source)).removed == ("7.png",)  # until it is dropped
    assert first.keys[4] not in open_store().shards("x7")  # superseded
    assert first.keys[7] in open_store().shards("x7")
    assert run(find_images(source), prune=True).removed == ("7.png",)
    store = open_store()
    assert sorted(store.rows()) == sorted(
        [f"{i}.png" for i in range(10) if i != 7] + ["new.png"]
    )
    needed = {row.sha256 for row in store.rows().values()}
    assert (
        set(store.shards("x7").keys()) == set(store.shards("delta8").keys()) == needed
    )
    assert verify(store) == []


def test_an_interrupted_run_resumes_to_the_same_features(
    run, paths, open_store, monkeypatch
):
    whole = open_store("whole")
    keys = run(paths, store=whole, batch_size=2).keys
    monkeypatch.setattr(to_store, "SHARD_IMAGES", 4)

    def interrupt(stage, done, total):
        if stage == "images" and done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(paths, progress=interrupt, batch_size=2)
    status = [row.status for row in open_store().rows().values()]
    assert (status.count("ok"), status.count("pending")) == (6, 4)
    assert verify(open_store()) == []
    resumed = run(paths, batch_size=2)
    assert resumed.computed == 4
    for factor in FACTORS:
        np.testing.assert_array_equal(
            open_store().read(keys, factor.name),
            whole.read(keys, factor.name),
            strict=True,
        )


def test_the_same_content_under_two_names_is_computed_once(
    run, paths, open_store, tmp_path
):
    twin = tmp_path / "twin.png"
    twin.write_bytes(paths[0].read_bytes())
    extraction = run([*paths, twin])
    assert extraction.computed == 10
    assert extraction.keys[0] == extraction.keys[-1]
    rows = open_store().rows()
    assert rows[str(twin)].sha256 == rows[str(paths[0])].sha256
    assert rows[str(twin)].path == str(twin)


def test_an_image_that_is_given_twice_is_in_the_index_once(run, paths, open_store):
    done = run([paths[0], paths[0], paths[1]])
    assert done.keys[0] == done.keys[1]
    assert count_rows(open_store().folder) == len(open_store().rows()) == 2


def test_unreadable_files_are_recorded_and_wait_for_another_content(
    run, paths, draw, open_store, tmp_path
):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"\xff\xd8\xff")
    every = [tmp_path / "absent.jpg", *paths, bad]
    seen, told = [], []
    extraction = run(
        every, progress=lambda *e: seen.append(e), on_failure=lambda *f: told.append(f)
    )
    assert extraction.computed == 10
    assert extraction.keys[0] is extraction.keys[-1] is None
    assert list(extraction.failures) == [str(every[0]), str(bad)]
    assert [id_ for id_, _ in told] == [str(bad)]
    assert open_store().read(extraction.keys[1:-1], "x7").shape == (10, 192)
    assert open_store().rows()[str(bad)].status == "error"

    def todo(**more):
        events = []
        failures = run(every, progress=lambda *e: events.append(e), **more).failures
        return events[0][2], failures[str(bad)]

    assert todo() == (0, extraction.failures[str(bad)])
    assert todo(retry=True)[0] == 1
    assert todo()[0] == 0
    draw(bad)
    again = run(every)
    assert again.computed == 1
    assert list(again.failures) == [str(every[0])]
    assert verify(open_store()) == []


def test_features_that_are_not_finite_are_a_failure_of_that_image(
    run, paths, monkeypatch
):
    original = Preprocess.see

    def spoil(self, image, views):
        pixels = original(self, image, views)
        return pixels * np.nan if str(image).endswith("3.png") else pixels

    monkeypatch.setattr(Preprocess, "see", spoil)
    done = run(paths)
    assert done.computed == 9
    assert list(done.failures) == [str(paths[3])]
    assert "not finite" in done.failures[str(paths[3])]


def test_labels_are_kept_and_updated_without_computing(run, paths, open_store):
    items = [Item(path.name, path, ("cat",)) for path in paths]
    run(items)
    items[0] = Item(items[0].id, items[0].path, ("dog", "cat"))
    assert run(items).computed == 0
    rows = open_store().rows()
    assert rows["0.png"].labels == ("dog", "cat")
    assert rows["1.png"].labels == ("cat",)


def test_progress_counts_every_image_to_do(run, paths):
    seen = []
    run(paths, batch_size=4, progress=lambda *event: seen.append(event))
    assert seen[:2] == [("hashing", 0, 10), ("hashing", 10, 10)]
    assert seen[2:] == [("images", done, 10) for done in (0, 4, 8, 10)]


def test_the_progress_of_hashing_moves(paths):
    seen = []
    items = [Item(f"{copy}/{path.name}", path) for copy in range(15) for path in paths]
    to_store._list_rows(items, {}, lambda *event: seen.append(event), to_store.Local())
    assert seen == [("hashing", done, 150) for done in (0, 64, 128, 150)]


def test_a_full_disk_is_one_error_and_the_work_before_it_stays(
    run, paths, open_store, monkeypatch
):
    monkeypatch.setattr(to_store, "SHARD_IMAGES", 4)
    written = []
    append = Store.append

    def full(self, keys, *rest):
        written.append(len(keys))
        if len(written) == 2:
            raise StoreError("store cannot be written: s (No space left on device)")
        return append(self, keys, *rest)

    monkeypatch.setattr(Store, "append", full)
    with pytest.raises(StoreError, match="No space left"):
        run(paths, batch_size=2)
    monkeypatch.undo()
    assert verify(open_store()) == []
    assert run(paths, batch_size=2).computed == 6


def test_looking_for_work_does_not_load_torch():
    code = "import sys, deepfishing.extraction.to_store; print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"


def test_a_batch_without_a_row_per_image_is_not_stored(paths):
    written = []
    batch = Batch([0, 1], {"x7": np.ones((2, 4)), "x:windows": np.ones((32, 4))}, {})
    items = [Item(str(path), path) for path in paths[:2]]
    work = write_batches([batch], ["a", "b"], items, lambda *what: written.append(what))
    with pytest.raises(
        FeatureError, match=r"x:windows must have a row per image, got 32 rows fo"
    ):
        list(work)
    assert written == [([], {}, {})]
