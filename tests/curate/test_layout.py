"""Places on a map: kept, extended without moving any, sampled where photos are many."""

import numpy as np
import pytest

from deepfishing.curate import layout
from deepfishing.curate.layout import find_groups, make_layout, open_layout
from deepfishing.store import Store
from deepfishing.store.manifest import Row

KINDS = 3


@pytest.fixture(params=[layout.OPEN_TSNE, layout.SKLEARN])
def by(request, monkeypatch):
    """One package or the other, with few steps."""
    if request.param == layout.OPEN_TSNE:
        pytest.importorskip(
            "openTSNE", reason="no openTSNE: pip install deepfishing[map]"
        )
    monkeypatch.setattr(layout, "package", lambda: request.param)
    monkeypatch.setattr(layout, "STEPS", (50, 50))
    return request.param


def vectors(numbers, rng):
    kinds = np.eye(8)[numbers % KINDS]
    return kinds + 0.05 * rng.normal(size=(len(numbers), 8))


def make_store(folder, n, rng):
    store = Store(folder, {"network": "toy", "layers": {"8": "fc"}}, "float32")
    add(store, np.arange(n), rng)
    return store


def add(store, numbers, rng):
    keys = [f"{number:064x}" for number in numbers]
    store.append(keys, {"x7": vectors(numbers, rng)})
    known = [*store.rows()] if (store.folder / "index.parquet").exists() else []
    store.write_rows(Row(key, f"{key}.jpg", key) for key in sorted({*known, *keys}))


def purity(found):
    """Share of photos whose nearest other one on the map is of the same kind."""
    kind = np.array([int(key, 16) % KINDS for key in found.keys.to_pylist()])
    gap = np.linalg.norm(found.places[:, None] - found.places[None], axis=2)
    np.fill_diagonal(gap, np.inf)
    return (kind[gap.argmin(axis=1)] == kind).mean()


def test_a_layout_is_kept_and_new_photos_are_placed_without_moving_the_others(
    tmp_path, rng, by
):
    store = make_store(tmp_path / "store", 60, rng)
    assert open_layout(store) is None
    made = make_layout(store)
    assert purity(made) > 0.95
    assert (made.places.min(), made.places.max()) == (0, 1)
    kept = open_layout(store)
    np.testing.assert_array_equal(kept.places, made.places.astype(np.float32))
    assert (kept.by, kept.laid_out, kept.recipe) == (by, 60, made.recipe)
    add(store, np.arange(60, 75), rng)
    store = Store.open(store.folder)
    grown = make_layout(store)
    assert len(grown.keys) == 75
    np.testing.assert_array_equal(grown.places_of(kept.keys), np.asarray(kept.places))
    assert purity(grown) > 0.95
    assert make_layout(store).places.tolist() == open_layout(store).places.tolist()


def test_of_many_photos_a_sample_is_laid_out_and_the_others_join_it(
    tmp_path, rng, by, monkeypatch
):
    monkeypatch.setattr(layout, "MAX_EXACT", 50)
    monkeypatch.setattr(layout, "MAX_SAMPLE", dict.fromkeys(layout.MAX_SAMPLE, 60))
    store = make_store(tmp_path / "store", 300, rng)
    made = make_layout(store)
    assert made.laid_out == 60
    assert made.places.shape == (300, 2)
    assert purity(made) > 0.95
    assert len(np.unique(made.places, axis=0)) > 290  # few lie below another


def test_what_is_damaged_or_from_elsewhere_is_no_layout(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(layout, "package", lambda: layout.SKLEARN)
    store = make_store(tmp_path / "store", 20, rng)
    make_layout(store)
    (path,) = (store.folder / ".studio").glob("map-places-*.npy")
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-4])
    assert open_layout(store) is None
    np.save(path, np.full((20, 2), np.nan, np.float32))
    assert open_layout(store) is None
    assert len(make_layout(store).keys) == 20  # made again
    assert open_layout(store) is not None


def test_groups_are_numbered_by_their_size(rng):
    sizes = (50, 30, 10)
    centres = np.repeat([[0.1, 0.1], [0.9, 0.1], [0.5, 0.9]], sizes, axis=0)
    group = find_groups(centres + 0.001 * rng.normal(size=centres.shape), 3)
    assert np.bincount(group).tolist() == [50, 30, 10]
