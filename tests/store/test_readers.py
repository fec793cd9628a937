"""A store is one table for tools that know nothing of this package."""

import numpy as np
import pytest

from deepfishing.store import Row, Store


@pytest.fixture
def store(tmp_path, monkeypatch, rng):
    """Three images in two shards, a and b of the same content, c broken; run from its folder."""
    store = Store(tmp_path / "store", {"network": "toy"})
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
    values = np.asarray(x7, dtype=np.float32) * np.asarray(norms, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(values[order], store.read(["k1", "k1", "k2"], "x7"))


def test_pandas_reads_it(store):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.read_parquet("store/index.parquet").merge(pd.read_parquet("store/x7"), on="sha256")
    labels = [None if value is None else list(value) for value in table.labels]
    check(store, list(table.id), labels, np.stack(table.x7), table.x7_norm)


def test_polars_reads_it(store):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    x7 = pl.read_parquet("store/x7/*.parquet")
    table = pl.read_parquet("store/index.parquet").join(x7, on="sha256")
    values = table["x7"].to_numpy()
    check(store, table["id"].to_list(), table["labels"].to_list(), values, table["x7_norm"])


def test_duckdb_reads_it(store):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    rows = duckdb.sql(
        "SELECT id, labels, x7, x7_norm, delta8 FROM 'store/index.parquet' "
        "JOIN 'store/x7/*.parquet' USING (sha256) JOIN 'store/delta8/*.parquet' USING (sha256)"
    ).fetchall()
    ids, labels, x7, norms, delta8 = zip(*rows, strict=True)
    check(store, ids, labels, x7, norms)
    assert {len(values) for values in delta8} == {3}
