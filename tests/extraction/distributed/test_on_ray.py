"""Extraction on a small Ray of this machine, compared with extraction in this process."""

import contextlib
import gc
import os
import signal
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import deepfishing.extraction.to_store as to_store
from deepfishing.core.features import Factor
from deepfishing.errors import NetworkError
from deepfishing.extraction.distributed import connect, start
from deepfishing.extraction.options import Resources
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import extract_to_store
from deepfishing.images.item import Item
from deepfishing.images.preprocess import Preprocess
from deepfishing.images.sources import find_images
from deepfishing.networks.network import Network
from deepfishing.store import Store
from deepfishing.store.check import verify

FACTORS = (Factor("input", 8), Factor("delta", 8))
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning"
    ),  # Ray leaves files of its own open
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


@pytest.fixture(scope="module")
def place():
    import ray

    # workers cannot import a test; what is defined here goes to them with the work
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # that it is tried again
        start("", attempts=20, num_cpus=1)  # one worker at a time: each loads torch
    with connect("ray") as ours:
        yield ours
    ray.shutdown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what Ray leaves open is told here, not in a test of another file


@pytest.fixture
def pictures(rng, tmp_path, monkeypatch):
    """18 names, 17 contents, one of them no image; in chunks of 4 and batches of 2."""
    monkeypatch.setattr(to_store, "SHARD_IMAGES", 4)
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(18):
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    (folder / "03.png").write_bytes(b"broken")
    (folder / "12.png").write_bytes((folder / "05.png").read_bytes())
    return folder


def flat():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5))
    preprocess = Preprocess(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3)
    return Network("flat", module, {8: "1"}, preprocess, "none")


@pytest.fixture
def run(tmp_path):
    def extract(name, images, factors=FACTORS, precision="float32", **more):
        store = Store(
            tmp_path / name, Settings.from_network(flat()).as_dict(), precision
        )
        given = {"settings": Settings.from_network(flat()), "network": flat(), **more}
        given["resources"] = Resources(batch_size=2, engine="torch")
        return extract_to_store(store, images, factors, **given)

    return extract


def stored(folder):
    """Every file of features by its name, which is a hash of its bytes, and all rows."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("shard-*")}
    return sorted(files), Store.open(folder).rows()


def test_the_store_equals_that_of_a_local_run_to_the_last_bit(
    run, pictures, place, tmp_path
):
    seen, told = [], []
    images = find_images(pictures)
    local = run("local", images)
    watch = {
        "progress": lambda *e: seen.append(e),
        "on_failure": lambda *f: told.append(f),
    }
    far = run("ray", images, on=place, **watch)
    assert far == local
    assert far.computed == 16
    assert stored(tmp_path / "ray") == stored(tmp_path / "local")
    assert verify(Store.open(tmp_path / "ray")) == []
    assert told == [("03.png", local.failures["03.png"])]
    assert seen[:3] == [("hashing", 0, 18), ("hashing", 18, 18), ("images", 0, 17)]
    assert [event[1] for event in seen[3:]][-1] == 17
    assert len(seen) == 3 + 5  # chunks
    again = run("ray", images, on=place, network=None)  # which is not needed
    assert (again.computed, again.keys) == (0, far.keys)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_in_fewer_bits_it_equals_that_of_a_local_run_too(
    run, pictures, place, tmp_path, precision
):
    images = find_images(pictures)
    run("local", images, precision=precision)
    run("ray", images, precision=precision, on=place)
    assert stored(tmp_path / "ray") == stored(tmp_path / "local")


@pytest.mark.slow
def test_only_factors_that_are_missing_are_written(run, pictures, place, tmp_path):
    images = find_images(pictures)
    run("local", images)
    run("ray", images[:6], factors=FACTORS[:1])
    before = {path: path.stat().st_ino for path in (tmp_path / "ray/x7").iterdir()}
    done = run("ray", images, on=place)
    assert done.computed == 16
    after = {path: path.stat().st_ino for path in (tmp_path / "ray/x7").iterdir()}
    assert before.items() < after.items()
    for factor in FACTORS:
        keys = [key for key in done.keys if key]
        values = [
            Store.open(tmp_path / name).read(keys, factor.name)
            for name in ("ray", "local")
        ]
        np.testing.assert_allclose(*values, rtol=1e-5)
    assert verify(Store.open(tmp_path / "ray")) == []


class Deadly(Item):
    """An image that kills the process which hashes it, and the one that decodes it, once."""

    def die_once(self, where):
        marker = self.path.with_name(f"killed-{where}")
        with contextlib.suppress(FileExistsError):
            marker.open("x").close()
            os.kill(os.getpid(), signal.SIGKILL)

    def sha256(self):
        self.die_once("hashing")
        return Item(self.id, self.path).sha256()

    def open(self, mode="rb"):
        self.die_once("extracting")
        return super().open(mode)


@pytest.mark.slow
def test_work_of_killed_processes_is_done_by_others(run, pictures, place, tmp_path):
    images = find_images(pictures)
    local = run("local", images)
    deadly = [Deadly(i.id, i.path) if i.id == "09.png" else i for i in images]
    far = run("ray", deadly, on=place)
    killed = sorted(path.name for path in pictures.glob("killed-*"))
    assert killed == ["killed-extracting", "killed-hashing"]
    assert far == local
    assert stored(tmp_path / "ray") == stored(tmp_path / "local")


def test_an_error_of_a_worker_is_the_error_of_the_run_and_finished_work_stays(
    run, pictures, place, tmp_path
):
    class Nowhere(Settings):
        def load_network(self, **where):
            raise NetworkError("no such network here")

    absent = {"settings": Nowhere(network=flat().reference()), "network": None}
    with pytest.raises(NetworkError, match=r"^no such network here$"):
        run("ray", find_images(pictures), on=place, **absent)
    rows = Store.open(tmp_path / "ray").rows()
    assert {row.status for row in rows.values()} == {"pending"}
    assert run("ray", find_images(pictures)).computed == 16


def test_images_behind_urls_and_relative_paths_are_read_by_workers(
    run, pictures, place, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    names = [f"pictures/{i:02d}.png" for i in range(18)]
    names[4:9] = [f"file://{tmp_path}/{name}" for name in names[4:9]]
    (tmp_path / "list.txt").write_text("\n".join(names))
    far, near = (
        run(s, find_images("list.txt"), on=on)
        for s, on in (("ray", place), ("not", None))
    )
    assert far == near
    assert far.computed == 16
    assert stored(tmp_path / "ray") == stored(tmp_path / "not")
