"""Two that write to one place at the same time: one of them waits, or is told."""

import fcntl
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from deepfishing.core.features import Factor
from deepfishing.errors import StoreError
from deepfishing.extraction.options import Resources
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import Local, extract_to_store
from deepfishing.images.sources import find_images
from deepfishing.learn.model import Model
from deepfishing.networks import load
from deepfishing.search import Searcher
from deepfishing.store import Store, manifest
from deepfishing.store.check import verify

FACTORS = (Factor("input", 8), Factor("delta", 8))

COMMAND = """
import sys
sys.path.insert(0, {root!r})
from fire.forks import load_script
present = load_script("tests/extraction/kill_points.py")
present.small_chunks()
import deepfishing.networks.load as load
load.load_network = lambda *_, **__: present.network()
from deepfishing.cli import main
main()
"""


@pytest.fixture
def deepfishes(tmp_path):
    """Commands in processes of their own, all started at once: exit codes and what they say."""
    from fire.forks import ROOT

    def run(*commands):
        started = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    COMMAND.format(root=str(ROOT)),
                    *map(str, command),
                ],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for command in commands
        ]
        return [(one.communicate()[1], one.returncode)[::-1] for one in started]

    return run


@pytest.mark.slow
def test_of_two_that_extract_into_one_store_both_end_well_or_one_is_told(
    deepfishes, deepfish, flat, pictures, tmp_path
):
    ends = deepfishes(*[("extract", pictures, "s", *flat)] * 2)
    assert 0 in [code for code, _ in ends]
    for code, said in ends:
        assert code == 0 or "another process works on s" in said
        assert "Traceback" not in said
    store = Store.open(tmp_path / "s")
    assert verify(store) == []
    assert len(store.rows()) == len(store.shards("x7")) == 10
    assert deepfish("extract", pictures, "reference", *flat).code == 0
    assert Store.open(tmp_path / "reference").rows() == store.rows()


@pytest.mark.slow
def test_adding_and_pruning_at_once_leaves_what_one_after_the_other_leaves(
    deepfishes, deepfish, flat, pictures, draw, tmp_path
):
    assert deepfish("extract", pictures, "s", *flat).code == 0
    for i in range(4):
        draw(tmp_path / "more" / f"{i}.png")
    (pictures / "a/0.png").unlink()
    add = ("extract", tmp_path / "more", "s", *flat)
    prune = ("extract", pictures, "s", *flat, "--prune")
    ends = deepfishes(add, prune)
    assert all("Traceback" not in said for _, said in ends)
    assert verify(Store.open(tmp_path / "s")) == []
    for command, (code, said) in zip((add, prune), ends, strict=True):
        if code:  # it came second
            assert "another process works on s" in said
            assert deepfish(*command).code == 0
    assert verify(Store.open(tmp_path / "s")) == []
    ids = set(Store.open(tmp_path / "s").rows())
    kept = {item.id for item in find_images(pictures)}
    # pruned last, or added last
    assert ids in (kept, kept | {f"{i}.png" for i in range(4)})


class Elsewhere(Local):
    """A place such as Ray: what it is asked to compute, it computes while others come."""

    def __init__(self, meanwhile):
        super().__init__()
        self.meanwhile = meanwhile

    def compute(self, store, start, keys, items):
        self.meanwhile()
        yield from super().compute(store, start, keys, items)


def test_a_local_run_and_one_on_workers_keep_each_other_out(
    deepfish, flat, pictures, tmp_path
):
    settings = Settings.from_network(load.load_network())
    store = Store(tmp_path / "s", settings.as_dict(), "float32")
    said = []

    def local():
        said.append(deepfish("extract", pictures, "s", *flat))

    options = {
        "settings": settings,
        "resources": Resources(batch_size=2, engine="torch"),
    }
    images = find_images(pictures)
    far = extract_to_store(store, images, FACTORS, on=Elsewhere(local), **options)
    assert far.computed == 10
    assert said[0].code == 1
    assert "another process works on s" in said[0].err
    with store.writing(), pytest.raises(StoreError, match="another process works on"):
        extract_to_store(
            Store.open(store.folder),
            images,
            FACTORS,
            settings=settings,
            on=Elsewhere(local),
        )
    assert verify(Store.open(tmp_path / "s")) == []


def test_what_killed_workers_left_is_cleared_away_when_the_run_ends(
    flat, pictures, tmp_path
):
    settings = Settings.from_network(load.load_network())
    store = Store(tmp_path / "s", settings.as_dict(), "float32")

    def die():
        """As a worker does that is killed: before its journal, and between two files of it."""
        (store.folder / "x7").mkdir(exist_ok=True)
        (store.folder / "x7/.shard-0123456789abcdef.parquet.77").write_bytes(b"half")
        (store.folder / "x7/.shard-0123456789abcde0.parquet.78").write_bytes(b"half")
        todo = {"rename": {}, "remove": ["x7/.shard-0123456789abcde0.parquet.78"]}
        (store.folder / ".journal-78").write_text(json.dumps(todo))

    options = {
        "settings": settings,
        "resources": Resources(batch_size=2, engine="torch"),
    }
    images = find_images(pictures)
    extract_to_store(store, images, FACTORS, on=Elsewhere(die), **options)
    assert verify(Store.open(tmp_path / "s")) == []


def test_of_two_that_make_a_store_with_other_settings_the_second_is_refused(
    tmp_path, monkeypatch
):
    write = manifest.new_manifest

    def both(folder, settings):
        """Another process has made the store since this one looked."""
        monkeypatch.setattr(manifest, "new_manifest", write)
        Store(folder, {"network": "toy", "tau": 3.0})
        write(folder, settings)

    monkeypatch.setattr(manifest, "new_manifest", both)
    with pytest.raises(StoreError, match=r"made with tau = 3.0, now it is 2.0"):
        Store(tmp_path / "s", {"network": "toy", "tau": 2.0})
    assert json.loads((tmp_path / "s/store.json").read_text())["settings"]["tau"] == 3.0


def test_what_a_killed_process_left_beside_an_index_is_cleared_away(many):
    Searcher(many, "dW8", "index")
    (facts,) = many.folder.glob(".index/*/index.json")
    for name in (".vectors.77", ".index.json.77", ".arrays-0123.safetensors.77"):
        (facts.parent / name).write_bytes(b"half")
    facts.unlink()
    Searcher(many, "dW8", "index")
    assert len(list(many.folder.glob(".index/*/*"))) == 3


def test_one_that_makes_an_index_waits_for_another_that_writes_it(many):
    folder = many.folder / ".index"
    folder.mkdir()
    maker = threading.Thread(target=Searcher, args=(many.folder, "dW8", "index"))
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        maker.start()
        maker.join(timeout=1)
        assert list(folder.glob("*/*")) == []
    maker.join()
    assert len(list(folder.glob("*/*"))) == 3


def test_several_that_make_one_index_at_once_leave_one_that_is_whole(many):
    expected = [hit.id for hit in Searcher(many, "dW8", "exact").search("a/000.jpg")]

    def make(_):
        told = []
        searcher = Searcher(many.folder, "dW8", "index", notice=told.append)
        found = searcher.search("a/000.jpg", candidates=300, probes=99)
        return [hit.id for hit in found], [
            line for line in told if "cannot be kept" in line
        ]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(make, range(4))) == [(expected, [])] * 4
    told = []
    Searcher(many.folder, "dW8", "index", notice=told.append)
    assert told == []
    assert len(list(many.folder.glob(".index/*/*"))) == 3


def test_several_that_train_into_one_folder_leave_one_model_that_is_whole(
    deepfish, many, tmp_path
):
    assert deepfish("train", many.folder, "one", "--features", "x7").code == 0
    assert deepfish("train", many.folder, "two", "--features", "dW8").code == 0
    models = [Model.load(tmp_path / name) for name in ("one", "two")]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: models[n % 2].save(tmp_path / "model"), range(20)))
    assert Model.load(tmp_path / "model").recipe in ("x7", "dW8")
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == [".lock", "model.json", "model.safetensors"]


def test_a_model_whose_writer_was_killed_at_its_last_step_is_whole(
    deepfish, many, tmp_path
):
    assert deepfish("train", many.folder, "old", "--features", "x7").code == 0
    assert deepfish("train", many.folder, "new", "--features", "dW8").code == 0
    facts = json.loads((tmp_path / "new/model.json").read_text())
    digits = facts["sha256"]["model.safetensors"][:16]
    waiting = tmp_path / f"old/.model.safetensors-{digits}"
    (tmp_path / "new/model.safetensors").rename(waiting)
    assert Model.load(tmp_path / "old").recipe == "x7"  # killed before the facts
    (tmp_path / "new/model.json").replace(tmp_path / "old/model.json")
    assert Model.load(tmp_path / "old").recipe == "dW8"  # killed after them
    Model.load(tmp_path / "old").save(tmp_path / "old")
    names = sorted(path.name for path in (tmp_path / "old").iterdir())
    assert names == [".lock", "model.json", "model.safetensors"]
