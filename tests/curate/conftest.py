"""Pictures with something in them, and a store of made-up features over them."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from deepfishing.core.rank_one import l2_normalize
from deepfishing.store import Row, Store

LAYERS = {"network": "toy", "layers": {"8": "fc"}, "head": "softmax", "tau": 2.0}


@pytest.fixture
def picture():
    """A picture by its seed: soft blots, as photos have them at a thumbnail's size."""

    def make(seed, size=(160, 120)):
        rng = np.random.default_rng(seed)
        blots = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        return blots.resize(size, Image.Resampling.BICUBIC)

    return make


@pytest.fixture
def store_of(tmp_path):
    """A store over files; those with the same number in `like` have nearly the same features."""

    def make(paths, like, name="store", factors=None, **settings):
        rng = np.random.default_rng(3)
        centre = {number: rng.normal(size=(12)) for number in sorted(set(like))}
        x = np.stack([centre[number] for number in like]) + 0.05 * rng.normal(
            size=(len(like), 12)
        )
        delta = np.stack([centre[number][:6] for number in like])
        keys = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
        made = Store(tmp_path / name, {**LAYERS, **settings}, "float32")
        once = {key: row for row, key in enumerate(keys)}
        some = list(once.values())
        factors = factors or {"x7": l2_normalize(x), "delta8": l2_normalize(delta)}
        made.append(
            list(once), {name: values[some] for name, values in factors.items()}
        )
        made.write_rows(
            Row(path.name, str(path), key, status="ok", factors=tuple(factors))
            for path, key in zip(paths, keys, strict=True)
        )
        return made.folder

    return make
