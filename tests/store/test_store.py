import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from deepfishing.errors import StoreError
from deepfishing.store import Store

SETTINGS = {"network": "toy", "tau": 2.0, "preprocess": {"mean": [1.0, 2.0, 3.0]}}


def names(keys):
    return [f"{key}.jpg" for key in keys]


def test_what_is_read_is_what_was_written_in_any_order(tmp_path, rng):
    x = rng.normal(size=(6, 5)).astype(np.float32) * 1000
    store = Store(tmp_path / "s", SETTINGS, dtype="float32")
    store.append(list("abc"), names("abc"), {"x7": x[:3]})
    store.append(list("def"), names("def"), {"x7": x[3:]})
    for opened in (store, Store(tmp_path / "s", SETTINGS, dtype="float32")):
        got = opened.read(list("fabfc"), "x7")
        np.testing.assert_allclose(got, x[[5, 0, 1, 5, 2]], rtol=1e-6)


def test_half_precision_keeps_tiny_and_huge_factors(tmp_path, rng):
    # delta is about 1e-6 and pooled maps reach 1e5, beyond half precision's own range
    delta, x = rng.normal(size=(4, 50)) * 1e-6, rng.normal(size=(4, 50)) * 1e6
    store = Store(tmp_path, SETTINGS)
    store.append(list("abcd"), names("abcd"), {"delta7": delta, "x6": x})
    for name, value in (("delta7", delta), ("x6", x)):
        error = np.abs(store.read(list("abcd"), name) - value).max() / np.abs(value).max()
        assert error < 1e-3


def test_positions_keep_their_shape(tmp_path, rng):
    x = rng.normal(size=(2, 4, 3))
    store = Store(tmp_path, SETTINGS, dtype="float32")
    store.append(["a", "b"], names("ab"), {"x6@exact": x})
    np.testing.assert_allclose(
        Store(tmp_path, SETTINGS, "float32").read(["b"], "x6@exact")[0], x[1]
    )


def test_a_factor_may_come_later_than_the_image(tmp_path):
    store = Store(tmp_path, SETTINGS)
    store.append(["a", "b"], names("ab"), {"x7": np.ones((2, 3))})
    assert store.missing(["a", "b", "c", "c"], ["x7"]) == ["c"]
    assert store.missing(["a", "b"], ["x7", "y8"]) == ["a", "b"]
    store.append(["a"], ["a.jpg"], {"y8": np.ones((1, 2))})
    assert store.missing(["a", "b"], ["x7", "y8"]) == ["b"]
    with pytest.raises(StoreError, match="y8 of 1 images is not in"):
        store.read(["a", "b"], "y8")


def test_a_store_made_with_other_settings_is_refused_and_says_which(tmp_path):
    Store(tmp_path, SETTINGS)
    Store(tmp_path, json.loads(json.dumps(SETTINGS)))
    with pytest.raises(StoreError, match=r"made with tau = 2.0, now it is 4.0"):
        Store(tmp_path, {**SETTINGS, "tau": 4.0})
    with pytest.raises(StoreError, match="made with dtype = 'float16'"):
        Store(tmp_path, SETTINGS, dtype="float32")


def test_any_parquet_reader_can_read_it(tmp_path):
    Store(tmp_path, SETTINGS).append(["a"], ["a.jpg"], {"x7": np.array([[3.0, 4.0]])})
    (row,) = pq.read_table(tmp_path / "shard-000000.parquet").to_pylist()
    assert (row["sha256"], row["path"], row["x7_norm"]) == ("a", "a.jpg", 5.0)
    np.testing.assert_allclose(row["x7"], [0.6, 0.8], rtol=1e-3)


def test_a_damaged_shard_or_manifest_is_named(tmp_path):
    store = Store(tmp_path, SETTINGS)
    store.append(["a"], ["a.jpg"], {"x7": np.ones((1, 2))})
    shard = tmp_path / "shard-000000.parquet"
    shard.write_bytes(shard.read_bytes()[:-20])
    for use in (lambda: store.read(["a"], "x7"), lambda: Store(tmp_path, SETTINGS)):
        with pytest.raises(StoreError, match=r"shard is damaged: .*shard-000000\.parquet"):
            use()
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(StoreError, match=r"manifest cannot be read: .*store\.json"):
        Store(tmp_path, SETTINGS)


def test_nothing_half_written_is_left_behind(tmp_path, monkeypatch):
    store = Store(tmp_path, SETTINGS)

    def full(table, path, **options):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(StoreError, match="No space left"):
        store.append(["a"], ["a.jpg"], {"x7": np.ones((1, 2))})
    assert [p.name for p in tmp_path.iterdir()] == ["store.json"]


def test_values_that_are_not_finite_are_refused_with_the_image(tmp_path):
    with pytest.raises(StoreError, match=r"x7 must be finite.*b\.jpg"):
        Store(tmp_path, SETTINGS).append(
            ["a", "b"], names("ab"), {"x7": np.array([[1.0], [np.nan]])}
        )


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="store cannot be made"):
        Store(tmp_path / "file" / "store", SETTINGS)
