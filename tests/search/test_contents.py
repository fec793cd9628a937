import numpy as np
import pyarrow as pa
import pytest

from deepfishing.errors import StoreError
from deepfishing.store.contents import ELSEWHERE, Contents

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


def test_contents_come_back_from_their_arrays(make_store):
    store = make_store(700)
    contents = Contents.of(store, FACTORS)
    again = Contents.restored(store, FACTORS, contents.state())
    assert again.keys.equals(contents.keys)
    numbers = np.array([5, 699, 300])
    for factor in FACTORS:
        np.testing.assert_array_equal(
            again.read(numbers, FACTORS)[factor], contents.read(numbers, FACTORS)[factor]
        )


def test_places_that_no_shard_has_are_told(make_store):
    """Found by `make fuzz`, search-index: an error of the system, or of numpy."""
    store = make_store(50)
    state = Contents.of(store, FACTORS).state()
    with pytest.raises(ValueError, match="other places"):  # and the index is made again
        Contents.restored(store, FACTORS, {**state, "x7/offsets": state["x7/offsets"] * 0 - 5})
    last = np.iinfo(np.int64).max
    for offset, row in ((last, 0), (last, 1000), (ELSEWHERE, 1000)):
        places = {"x7/offsets": offset, "x7/row": row}
        changed = {name: np.full_like(state[name], value) for name, value in places.items()}
        contents = Contents.restored(store, FACTORS, {**state, **changed})
        with pytest.raises(StoreError, match=r"shard is damaged: .*shard-"):
            contents.read(np.arange(3), ["x7"])


def test_keys_come_back_however_many_they_are():
    n = 300_000  # more than one chunk of pyarrow's
    digits = np.array([f"{number:064x}" for number in range(n)], dtype="S64")
    keys = Contents.keys_of({"keys": digits.view(np.uint8).reshape(n, 64)})
    assert isinstance(keys, pa.StringArray)
    assert len(keys) == n
    assert keys[n - 1].as_py() == f"{n - 1:064x}"


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
