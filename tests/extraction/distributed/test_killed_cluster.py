"""Never lose work on Ray either: after kill -9 of everything, chunks are done once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deepfishing.extraction.to_store as to_store
from deepfishing.store import Store
from deepfishing.store.check import verify

COMMAND = """
import warnings
import deepfishing.extraction.distributed as cluster
import deepfishing.extraction.to_store as to_store
cluster.ATTEMPTS = 20
to_store.SHARD_IMAGES = 4
warnings.filterwarnings("ignore", "Ray did not start")
from deepfishing.cli import main
main()
"""
ARGUMENTS = (
    *("--weights", "random", "--features", "x7,dW8", "--engine", "torch"),
    *("--batch-size", "2", "--precision", "float32"),
)
SECONDS = 900  # by then a machine under load has a first shard


def children(root):
    """All processes that a process has started, and those that they have."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(
                stat.read_text().rpartition(")")[2].split()[1]
            )
        except OSError:  # it has ended
            continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def ended(pid):
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        )
    except OSError:
        return True


def kill_all(root):
    """Kill -9, and wait until nobody is left."""
    family = children(root)
    for pid in family:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    end = time.monotonic() + SECONDS
    while not all(map(ended, family)) and time.monotonic() < end:
        time.sleep(0.1)
    assert all(map(ended, family))


def shards(folder):
    found = (path for path in folder.rglob("shard-*") if path.parent.name != "errors")
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


@pytest.mark.slow
def test_after_the_death_of_everything_only_unfinished_chunks_are_computed(
    deepfish, rng, tmp_path, monkeypatch
):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i in range(41):
        pixels = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(pictures / f"{i:02d}.jpg")
    (pictures / "06.jpg").write_bytes(b"broken")
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    run = subprocess.Popen(
        [
            sys.executable,
            "-c",
            COMMAND,
            "extract",
            "pictures",
            "s",
            *ARGUMENTS,
            "--on",
            "ray",
        ],
        cwd=tmp_path,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    end = time.monotonic() + SECONDS
    while (
        run.poll() is None
        and time.monotonic() < end
        and not list(tmp_path.glob("s/delta8/sh*"))
    ):
        time.sleep(0.02)
    kill_all(run.pid)
    said = run.communicate()[0].decode()
    assert run.returncode == -signal.SIGKILL, said
    assert said == ""

    monkeypatch.setattr(to_store, "SHARD_IMAGES", 4)
    with Store.open(tmp_path / "s").writing():
        # what a journal promises is finished work, too
        finished = shards(tmp_path / "s")
        keys = Store.open(tmp_path / "s").shards("x7").keys()
    assert 0 < len(keys) < 40
    ran = deepfish("extract", "pictures", "s", *ARGUMENTS)
    assert f"41 images, {40 - len(keys)} computed now, 1 left out" in ran.out, ran.err
    assert finished.items() <= shards(tmp_path / "s").items()
    assert verify(Store.open(tmp_path / "s")) == []

    assert deepfish("extract", "pictures", "reference", *ARGUMENTS).code == 0
    names = [{p.name for p in shards(tmp_path / store)} for store in ("s", "reference")]
    assert names[0] == names[1]
    assert (
        Store.open(tmp_path / "s").rows() == Store.open(tmp_path / "reference").rows()
    )
