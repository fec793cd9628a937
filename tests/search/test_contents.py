from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from deepfishing.core.rank_one import l2_normalize
from deepfishing.errors import StoreError
from deepfishing.store import Store
from deepfishing.store.contents import Contents

FACTORS = ("x7", "delta8")


def test_rows_read_in_any_order_are_those_of_the_store(make_store, rng):
    store = make_store(1000, "float16")
    contents = Contents.of(store, FACTORS)
    for numbers in (
        np.arange(1000),
        rng.permutation(1000),
        rng.integers(1000, size=300),  # some of them twice
        np.array([999]),
    ):
        keys = [contents.keys[int(n)].as_py() for n in numbers]
        found = contents.read(numbers, FACTORS)
        for factor in FACTORS:
            values = store.read(keys, factor)
            unit = values / np.linalg.norm(values, axis=1, keepdims=True)
            np.testing.assert_allclose(found[factor], unit, atol=1e-3)


def test_no_numbers_give_no_rows(make_store):
    contents = Contents.of(make_store(10), FACTORS)
    assert contents.read(np.array([], dtype=np.int64), ["x7"])["x7"].shape == (0, 9)


def test_known_keys_keep_their_numbers_when_others_come(make_store, grow):
    store = make_store(400)
    before = Contents.of(store, FACTORS)
    grow(store, 100, begin=400)
    after = Contents.of(store, FACTORS, first=before.keys)
    assert len(after) == 500
    assert after.keys[:400].equals(before.keys)


def test_a_factor_without_shards_is_told(make_store):
    with pytest.raises(StoreError, match=r"y8 must be in .*, got no shard"):
        Contents.of(make_store(10), ["y8"])


def test_mapped_rows_are_those_of_the_store_whoever_wrote_the_shards(make_store, rng):
    store = make_store(1000, "int8")
    path = min(store.shards_folder("x7").glob("*"))
    table = pq.read_table(path)
    path.unlink()
    pq.write_table(
        table.replace_schema_metadata(), path.with_name("shard-other.parquet")
    )
    contents = Contents.of(store, FACTORS)
    numbers = rng.permutation(1000)[:300]
    mapped = contents.mapped()
    for found in path.parent.iterdir():
        found.unlink()  # the files are mapped already
    read = mapped.read(numbers, ["x7"])["x7"]
    keys = [contents.keys[int(n)].as_py() for n in numbers]
    values = Store.open(make_store(1000, "int8", "again").folder).read(keys, "x7")
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    np.testing.assert_allclose(l2_normalize(read), unit, atol=1e-6)


def test_rows_are_read_again_after_their_pages_were_let_go(make_store):
    store = make_store(1000, "int8")
    path = min(store.shards_folder("x7").glob("*"))
    table = pq.read_table(path)
    path.unlink()
    pq.write_table(
        table.replace_schema_metadata(), path.with_name("shard-other.parquet")
    )
    mapped = Contents.of(store, FACTORS).mapped()
    before = mapped.read(np.arange(1000), FACTORS)
    mapped.release()
    again = mapped.read(np.arange(1000), FACTORS)
    for factor in FACTORS:
        np.testing.assert_array_equal(again[factor], before[factor])


def test_a_file_is_mapped_once_as_long_as_it_stays_as_it_is(make_store):
    store = make_store(100)
    first = Contents.of(store, ["x7"]).mapped().columns["x7"]
    second = Contents.of(store, ["x7"]).mapped().columns["x7"]
    assert second._shards[0] is first._shards[0]
    path = first._shards[0].path
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    third = Contents.of(store, ["x7"]).mapped().columns["x7"]
    assert third._shards[0] is not first._shards[0]


def test_rows_that_a_file_does_not_have_are_refused(make_store):
    column = Contents.of(make_store(100), ["x7"]).mapped().columns["x7"]
    for row in (-1, 1 << 20):
        with pytest.raises(ValueError, match="rows of x7 must be in their files"):
            replace(column, row=np.full(100, row, dtype=np.int32))
