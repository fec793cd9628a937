"""A tiny network behind the command line, pictures for it, and the tools of `fire`."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deepfishing.extraction.to_store as to_store
import deepfishing.networks.load as load

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `fire` is a folder of the project, not of the package

from fire.forks import load_script  # noqa: E402
from fire.scenes import EXTRACT, make_store  # noqa: E402


@pytest.fixture
def flat(monkeypatch):
    """Every network is one layer on 8 x 8 pixels; shards of four images."""
    monkeypatch.setattr(to_store, "SHARD_IMAGES", 4)
    network = load_script("tests/extraction/kill_points.py").network
    monkeypatch.setattr(load, "load_network", lambda *_, **__: network())
    return EXTRACT


@pytest.fixture
def draw(rng):
    def save(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(
            path, "PNG"
        )
        return path

    return save


@pytest.fixture
def pictures(draw, tmp_path):
    """Two classes of five pictures."""
    for i in range(10):
        draw(tmp_path / "pictures" / "ab"[i % 2] / f"{i}.png")
    return tmp_path / "pictures"


@pytest.fixture
def many(tmp_path):
    """A store of 300 images with made-up features."""
    return make_store(tmp_path / "many", 300)
