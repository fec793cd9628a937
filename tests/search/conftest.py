"""Stores of made-up features, in clusters so that neighbours mean something."""

import hashlib
import shutil
from functools import cache

import numpy as np
import pytest

from deepfishing.store import Row, Store

SETTINGS = {
    "network": "efficientnet-lite0",
    "layers": {"7": "_conv_head", "8": "_fc"},
    "tau": 2.0,
}
WIDTHS = {"x6": 12, "delta7": 9, "x7": 9, "delta8": 7}


def key_of(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


def clustered(n, begin=0, spread=0.4):
    """Factors of n images: each is near one of twenty centres."""
    centres = np.random.default_rng(5)
    rng = np.random.default_rng([7, begin])
    which = rng.integers(20, size=n)
    return {
        name: (
            centres.normal(size=(20, d))[which] + spread * rng.normal(size=(n, d))
        ).astype("f4")
        for name, d in WIDTHS.items()
    }


def fill(store, n, begin=0, per_shard=300):
    """Add images `begin` to `begin + n`, and rows for all that are there."""
    factors = clustered(n, begin)
    for start in range(0, n, per_shard):
        keys = [key_of(begin + i) for i in range(start, min(start + per_shard, n))]
        store.append(
            keys, {f: v[start : start + per_shard] for f, v in factors.items()}
        )
    names = tuple(WIDTHS)
    store.write_rows(
        Row(
            f"{i:05d}.jpg",
            f"{'odd' if i % 2 else 'even'}/{i:05d}.jpg",
            key_of(i),
            labels=tuple(
                name for name, m in (("third", 3), ("fifth", 5)) if i % m == 0
            ),
            status="ok",
            factors=names,
        )
        for i in range(begin + n)
    )


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """The folder of a store of n images, made once."""

    @cache
    def make(n, dtype):
        store = Store(tmp_path_factory.mktemp("filled") / "store", SETTINGS, dtype)
        fill(store, n)
        return store.folder

    return make


@pytest.fixture
def make_store(tmp_path, filled):
    def make(n=120, dtype="float32", folder="store"):
        place = shutil.copytree(filled(n, dtype), tmp_path / folder, dirs_exist_ok=True)
        return Store.open(place)

    return make


@pytest.fixture
def grow():
    return fill


@pytest.fixture
def arrays_of():
    """All factors of the first n images, read the slow way."""

    def read(store, n):
        keys = [key_of(i) for i in range(n)]
        return {
            factor: store.read(keys, factor).astype(np.float64) for factor in WIDTHS
        }

    return read
