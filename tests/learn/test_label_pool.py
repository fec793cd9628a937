"""The vectors that turn labels into scores: kept beside the store, short, and as accurate."""

import sys

import numpy as np
import psutil
import pyarrow as pa
import pytest

from deepfishing.errors import StoreError
from deepfishing.learn import label_pool
from deepfishing.learn.few_labels import FewLabels
from deepfishing.learn.label_pool import (
    LabelPool,
    make_label_pool,
    open_label_pool,
    shortened,
)
from deepfishing.store import Store
from deepfishing.store.manifest import Row
from deepfishing.store.side_files import FOLDER


@pytest.fixture
def store(tmp_path, rng):
    """90 photos of three classes."""
    keys = [f"{number:064x}" for number in range(90)]
    x = np.eye(6)[np.arange(90) % 3] + 0.1 * rng.normal(size=(90, 6))
    store = Store(tmp_path / "store", {"network": "toy"}, "float32")
    store.append(keys, {"x7": x})
    store.write_rows(Row(key, f"{key}.jpg", key) for key in keys)
    return store


def test_a_pool_is_kept_and_opened_again_with_the_same_scores(store):
    assert open_label_pool(store) is None
    made = make_label_pool(store)
    opened = open_label_pool(store)
    keys = pa.array([f"{number:064x}" for number in (5, 3, 99, 4)])
    rows = opened.numbers_of(keys)
    assert (rows >= 0).tolist() == [True, True, False, True]
    assert (
        opened.keys.take(pa.array(rows[[0, 1, 3]])).to_pylist()
        == keys.take([0, 1, 3]).to_pylist()
    )
    labelled = opened.numbers_of(pa.array([f"{number:064x}" for number in range(6)]))
    classes = [0, 1, 2, 0, 1, 2]
    guess = opened.few.fit(labelled, classes)
    np.testing.assert_array_equal(guess.scores, made.few.fit(labelled, classes).scores)
    truth = np.array([int(key, 16) % 3 for key in opened.keys.to_pylist()])
    assert (guess.scores.argmax(axis=1) == truth).all()


def test_damaged_files_and_other_settings_are_no_pool(store):
    make_label_pool(store)
    other = Store(store.folder.parent / "other", {"network": "another"}, "float32")
    (store.folder / FOLDER).rename(other.folder / FOLDER)
    assert open_label_pool(other) is None
    (other.folder / FOLDER).rename(store.folder / FOLDER)
    assert open_label_pool(store) is not None
    for path in (store.folder / FOLDER).glob("*.npy"):
        path.write_bytes(path.read_bytes()[:60])
    assert open_label_pool(store) is None


def test_shortened_vectors_have_the_dot_products_of_the_long_ones(rng):
    low = rng.normal(size=(300, 20)) @ rng.normal(size=(20, 200))
    x = (low / np.linalg.norm(low, axis=1, keepdims=True)).astype(np.float32)
    short = shortened(x, 20).astype(np.float32)
    assert short.shape == (300, 20)
    np.testing.assert_allclose(short @ short.T, x @ x.T, atol=2e-3)


def test_of_very_many_photos_a_sample_is_described(store, monkeypatch):
    monkeypatch.setattr(label_pool, "MAX_CONTENTS", 30)
    assert len(make_label_pool(store)) == 30


def test_scores_of_blocks_are_those_of_all_at_once(rng):
    x = rng.normal(size=(5000, 8)).astype(np.float32)
    few = FewLabels(x / np.linalg.norm(x, axis=1, keepdims=True))
    scores = few.fit([0, 1, 2, 3], [0, 1, 0, 1]).scores
    alone = np.array(
        [
            FewLabels(few.vectors[[0, 1, 2, 3, n]])
            .fit([0, 1, 2, 3], [0, 1, 0, 1])
            .scores[4]
            for n in range(4090, 4110)
        ]
    )
    np.testing.assert_allclose(scores[4090:4110], alone, atol=1e-5)


def test_a_store_without_embeddings_says_what_to_do(tmp_path, rng):
    store = Store(tmp_path / "store", {"network": "toy"}, "float32")
    store.append([f"{0:064x}"], {"y8": rng.normal(size=(1, 3))})
    with pytest.raises(StoreError, match="suggestions need x7"):
        make_label_pool(store)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the pages of Linux")
def test_vectors_that_are_mapped_take_no_memory_once_they_were_used(tmp_path, rng):
    np.save(tmp_path / "v.npy", rng.normal(size=(20_000, 512)).astype(np.float16))
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    in_memory = np.array(mapped[:100])
    process = psutil.Process()
    before = process.memory_info().rss
    total = mapped.sum(dtype=np.float64)
    used = process.memory_info().rss
    LabelPool(pa.array([]), FewLabels(mapped)).release()
    after = process.memory_info().rss
    assert used - before > 15 * 2**20
    assert after - before < 5 * 2**20
    assert mapped.sum(dtype=np.float64) == total
    LabelPool(pa.array([]), FewLabels(in_memory)).release()  # which is in no file
    np.testing.assert_array_equal(in_memory, mapped[:100])
