import numpy as np
import pyarrow.parquet as pq
import pytest

from deepfishing.errors import OptionError, StoreError
from deepfishing.store import Store
from deepfishing.store.check import verify
from deepfishing.store.precision import CODECS

SETTINGS = {"network": "toy"}


def nearest(value, peak, top):
    """The code whose root is nearest to the root of the value, by trying all of them."""
    root = np.sign(value) * np.sqrt(abs(value) / peak)
    return min(range(-top, top + 1), key=lambda q: abs(q / top - root))


def halves(codes):
    """The codes in the lower and the upper half of each byte."""
    return (
        np.stack([codes % 16, codes // 16], axis=2).reshape(len(codes), -1).astype(int)
        - 8
    )


@pytest.mark.parametrize(("name", "top"), [("int8", 127), ("int4", 7)])
def test_a_code_is_the_nearest_of_all_codes(rng, name, top):
    values = rng.normal(size=(5, 41)) ** 3 * 1e-4
    codes, scale = CODECS[name].encode(values, np.ones(5))
    codes = codes if top == 127 else halves(codes)[:, :41]
    peaks = np.abs(values).max(axis=1)
    rows = zip(values, peaks, strict=True)
    np.testing.assert_array_equal(
        codes, [[nearest(v, p, top) for v in row] for row, p in rows]
    )
    np.testing.assert_allclose(scale * top**2, peaks)


def test_bytes_keep_small_numbers_beside_large_ones(tmp_path, rng):
    # a confident prediction: one class near 1, a thousand others near 1e-4
    delta = np.full((3, 1000), -1e-4)
    delta[:, 7] = 0.9
    store = Store(tmp_path, SETTINGS, "int8")
    store.append(list("abc"), {"delta8": delta})
    got = store.read(list("abc"), "delta8")
    np.testing.assert_allclose(got[:, 7], 0.9, rtol=1e-6)
    np.testing.assert_allclose(np.delete(got, 7, axis=1), -1e-4, rtol=0.5)


@pytest.mark.parametrize(("dtype", "top"), [("int8", 127), ("int4", 7)])
def test_errors_are_below_half_a_step_of_the_root(tmp_path, rng, dtype, top):
    x = (rng.normal(size=(50, 63)) * 10.0 ** rng.integers(-9, 9, (50, 1))).astype(
        np.float32
    )
    x[3] = 0
    keys = [str(i) for i in range(50)]
    store = Store(tmp_path, SETTINGS, dtype)
    store.append(keys, {"x7": x})
    got = Store.open(tmp_path).read(keys, "x7")
    peak = np.abs(x).max(axis=1, keepdims=True)
    relative = [np.sqrt(np.abs(v) / np.where(peak > 0, peak, 1)) for v in (got, x)]
    assert np.abs(relative[0] - relative[1]).max() < 0.5 / top + 1e-6
    assert (np.sign(got)[got != 0] == np.sign(x)[got != 0]).all()
    assert not got[3].any()


@pytest.mark.parametrize(
    ("dtype", "size"), [("int4", 0.5), ("int8", 1), ("float16", 2), ("float32", 4)]
)
def test_a_number_takes_the_bytes_that_its_precision_says(tmp_path, rng, dtype, size):
    n, d = 600, 1280
    store = Store(tmp_path, SETTINGS, dtype)
    store.append([f"{i:064d}" for i in range(n)], {"x7": rng.normal(size=(n, d))})
    (shard,) = store.shards("x7").files
    # the key, the scale, the footer
    assert size * d < shard.stat().st_size / n < size * d + 100


def test_shards_of_bytes_are_views_of_the_file_and_as_pyarrow_reads_them(tmp_path, rng):
    from deepfishing.store.shards import decoded, stored

    x = rng.normal(size=(20, 4, 33))
    keys = [f"{i:02d}" for i in range(20)]
    store = Store(tmp_path, SETTINGS, "int8")
    store.append(keys, {"in:a@exact": x})
    (shard,) = store.shards("in:a@exact").files
    codes, _, shape = stored(shard, "in:a@exact", store.codec)
    assert isinstance(codes, np.memmap)
    assert (codes.dtype, codes.shape, shape) == (np.int8, (20, 132), (4, 33))
    np.testing.assert_array_equal(codes, decoded(shard))
    # and of another writer
    table = pq.read_table(shard).replace_schema_metadata(None)
    expected = store.read(keys[::-1], "in:a@exact")
    pq.write_table(table, shard.with_name("shard-other.parquet"), compression="zstd")
    shard.unlink()
    np.testing.assert_array_equal(
        Store.open(tmp_path).read(keys[::-1], "in:a@exact"), expected
    )


def test_values_that_are_not_finite_are_refused_as_bytes_too(tmp_path):
    store = Store(tmp_path, SETTINGS, "int8")
    with pytest.raises(StoreError, match=r"x7 must be finite.* for b"):
        store.append(["a", "b"], {"x7": np.array([[1.0, 2.0], [np.nan, 1.0]])})


@pytest.mark.parametrize("made", ["int4", "int8", "float16", "float32"])
def test_a_store_keeps_its_precision_when_none_is_given_and_refuses_another(
    tmp_path, made
):
    Store(tmp_path, SETTINGS, made).append(["a"], {"x7": np.ones((1, 3))})
    again = Store(tmp_path, SETTINGS)
    again.append(["b"], {"x7": np.ones((1, 3))})
    assert again.precision == Store.open(tmp_path).precision == made
    assert not [problem for problem in verify(again) if "no image" not in problem]
    for other in {"int4", "int8", "float16", "float32"} - {made}:
        with pytest.raises(
            StoreError, match=f"made with dtype = '{made}', now it is '{other}'"
        ):
            Store(tmp_path, SETTINGS, other)


def test_an_unknown_precision_makes_and_opens_no_store(tmp_path):
    with pytest.raises(OptionError, match=r"must be one of int8.*got 'pq4'"):
        Store(tmp_path / "s", SETTINGS, "pq4")
    assert not (tmp_path / "s").exists()
    (tmp_path / "store.json").write_text('{"format": 2, "settings": {"dtype": "pq4"}}')
    with pytest.raises(OptionError, match=r"must be one of int8.*got 'pq4'"):
        Store.open(tmp_path)


@pytest.mark.parametrize("dtype", ["float8", 5, ["int8"], ""])
def test_an_unknown_precision_is_told(tmp_path, dtype):
    if dtype:
        with pytest.raises(OptionError, match="int8, int4, float16, float32"):
            Store(tmp_path / "s", SETTINGS, dtype)
    (tmp_path / "store.json").write_text(
        f'{{"format": 2, "settings": {{"dtype": {dtype!r}}}}}'.replace("'", '"')
    )
    with pytest.raises(OptionError, match="int8, int4, float16, float32"):
        Store.open(tmp_path)
