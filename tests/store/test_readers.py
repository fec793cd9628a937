"""A store is one table for tools that know nothing of this package."""

import numpy as np
import pytest

from deepfishing.store import Row, Store
from deepfishing.store.export import compress


@pytest.fixture
def store(tmp_path, monkeypatch, rng):
    """Three images in two shards, a and b of the same content, c broken; run from its folder."""
    store = Store(tmp_path / "store", {"network": "toy"}, "float16")
    x7, delta8 = rng.normal(size=(2, 5)), rng.normal(size=(2, 3))
    store.append(["k1"], {"x7": x7[:1], "delta8": delta8[:1]}, {"k9": "broken"})
    store.append(["k2"], {"x7": x7[1:], "delta8": delta8[1:]})
    there = {"status": "ok", "factors": ("delta8", "x7")}
    rows = [
        Row("a", "a.jpg", "k1", labels=("cat",), **there),
        Row("b", "b.jpg", "k1", labels=("cat", "dog"), **there),
        Row("c", "c.jpg", "k9", status="error", error="broken"),
        Row("d", "d.jpg", "k2", **there),
    ]
    store.write_rows(rows)
    monkeypatch.chdir(tmp_path)
    return store


def check(store, ids, labels, x7, norms):
    order = np.argsort(ids)
    assert [ids[i] for i in order] == ["a", "b", "d"]
    assert [labels[i] for i in order] == [["cat"], ["cat", "dog"], None]
    values = (
        np.asarray(x7, dtype=np.float32) * np.asarray(norms, dtype=np.float32)[:, None]
    )
    np.testing.assert_array_equal(values[order], store.read(["k1", "k1", "k2"], "x7"))


def test_pandas_reads_it(store):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.read_parquet("store/index.parquet").merge(
        pd.read_parquet("store/x7"), on="sha256"
    )
    labels = [None if value is None else list(value) for value in table.labels]
    check(store, list(table.id), labels, np.stack(table.x7), table.x7_norm)


def test_polars_reads_it(store):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    x7 = pl.read_parquet("store/x7/*.parquet")
    table = pl.read_parquet("store/index.parquet").join(x7, on="sha256")
    values = table["x7"].to_numpy()
    check(
        store,
        table["id"].to_list(),
        table["labels"].to_list(),
        values,
        table["x7_norm"],
    )


def test_duckdb_reads_it(store):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    rows = duckdb.sql(
        "SELECT id, labels, x7, x7_norm, delta8 FROM 'store/index.parquet' "
        "JOIN 'store/x7/*.parquet' USING (sha256) JOIN 'store/delta8/*.parquet' USING (sha256)"
    ).fetchall()
    ids, labels, x7, norms, delta8 = zip(*rows, strict=True)
    check(store, ids, labels, x7, norms)
    assert {len(values) for values in delta8} == {3}


@pytest.fixture
def in_bytes(store, tmp_path):
    """The same store in int8."""
    return compress(store, tmp_path / "bytes", "int8")


def of_bytes(x7, scales):
    """What the docs say: codes are signed square roots."""
    q = np.frombuffer(b"".join(x7), np.int8).reshape(len(scales), -1).astype(np.float32)
    return q * abs(q), scales


def test_pandas_reads_bytes(in_bytes):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.read_parquet("bytes/index.parquet").merge(
        pd.read_parquet("bytes/x7"), on="sha256"
    )
    labels = [None if value is None else list(value) for value in table.labels]
    check(in_bytes, list(table.id), labels, *of_bytes(table.x7, table.x7_scale))


def test_polars_reads_bytes(in_bytes):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    x7 = pl.read_parquet("bytes/x7/*.parquet")
    table = pl.read_parquet("bytes/index.parquet").join(x7, on="sha256")
    values = of_bytes(table["x7"], table["x7_scale"])
    check(in_bytes, table["id"].to_list(), table["labels"].to_list(), *values)


def test_duckdb_reads_bytes(in_bytes):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    rows = duckdb.sql(
        "SELECT id, labels, x7, x7_scale FROM 'bytes/index.parquet' "
        "JOIN 'bytes/x7/*.parquet' USING (sha256)"
    ).fetchall()
    ids, labels, x7, scales = zip(*rows, strict=True)
    check(in_bytes, ids, labels, *of_bytes(x7, scales))


def test_pandas_reads_half_bytes(store, tmp_path):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    small = compress(store, tmp_path / "half", "int4")
    table = pd.read_parquet("half/x7")
    b = np.frombuffer(b"".join(table.x7), np.uint8).reshape(len(table), -1)
    q = (
        np.stack([b % 16, b // 16], axis=2)
        .reshape(len(b), -1)[:, :5]
        .astype(np.float32)
        - 8
    )
    values = q * abs(q) * table.x7_scale.to_numpy(dtype=np.float32)[:, None]
    np.testing.assert_array_equal(values, small.read(list(table.sha256), "x7"))
