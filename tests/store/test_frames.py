"""A default store, whose numbers are bytes, in the hands of other tools: decoded, in two lines."""

import sys

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest

from deepfishing.core.rank_one import RankOne
from deepfishing.errors import FeatureError, MissingDependencyError, StoreError
from deepfishing.store import Row, Store


@pytest.fixture
def store(tmp_path, rng):
    """Images in int8: a and b of the same content, c broken, d without delta8."""
    store = Store(tmp_path / "store", {"network": "toy", "layers": {"8": "fc"}}, "int8")
    store.append(
        ["k1"], {"x7": rng.normal(size=(1, 5)), "delta8": rng.normal(size=(1, 3))}
    )
    store.append(["k2"], {"x7": rng.normal(size=(1, 5))}, {"k9": "broken"})
    rows = [
        Row("a", "a.jpg", "k1", labels=("cat",), status="ok"),
        Row("b", "b.jpg", "k1", labels=("cat", "dog"), status="ok"),
        Row("c", "c.jpg", "k9", status="error", error="broken"),
        Row("d", "d.jpg", "k2", status="ok"),
    ]
    store.write_rows(rows)
    return store


@pytest.fixture
def x7(store):
    return store.read(["k1", "k1", "k2"], "x7")


def test_pandas_has_a_default_store_in_two_lines(store, x7):
    frame = Store.open(store.folder).to_pandas()
    assert list(frame.columns) == ["id", "path", "sha256", "labels", "delta8", "x7"]
    np.testing.assert_array_equal(np.stack(frame.x7), x7)
    assert list(frame.id) == ["a", "b", "d"]
    assert isinstance(frame, pd.DataFrame)


def test_polars_has_it_in_two_lines(store, x7):
    frame = Store.open(store.folder).to_polars("x7")
    np.testing.assert_array_equal(frame["x7"].to_numpy(), x7)
    assert frame["labels"].to_list() == [["cat"], ["cat", "dog"], None]
    assert frame.schema["x7"] == pl.Array(pl.Float32, 5)


def test_duckdb_has_it_in_two_lines(store, x7):
    photos = Store.open(store.folder).to_arrow()  # noqa: F841
    found = duckdb.sql("SELECT id, x7 FROM photos WHERE len(labels) = 2").fetchall()
    assert [(name, list(values)) for name, values in found] == [("b", x7[1].tolist())]


def test_duckdb_reads_batches_that_are_never_all_in_memory(store, x7):
    photos = store.to_batches("x7", rows=1)  # noqa: F841
    ((found,),) = duckdb.sql("SELECT sum(x7[1]) FROM photos").fetchall()
    assert found == pytest.approx(float(x7[:, 0].sum()), rel=1e-6)


def test_datasets_has_it_in_two_lines(store, x7):
    datasets = pytest.importorskip("datasets")
    photos = datasets.Dataset(Store.open(store.folder).to_arrow("x7")).with_format(
        "numpy"
    )
    np.testing.assert_array_equal(photos["x7"], x7)


def test_an_image_that_lacks_a_factor_has_null_there_and_its_neighbours_keep_theirs(
    store,
):
    delta8 = store.to_arrow()["delta8"].to_pylist()
    expected = store.read(["k1"], "delta8")[0].tolist()
    assert delta8 == [expected, expected, None]


def test_positions_are_lists_of_lists(store, rng):
    exact = rng.normal(size=(2, 4, 3))
    store.append(["k1", "k2"], {"x:conv@exact": exact})
    found = np.array(store.to_arrow(["x:conv@exact"])["x:conv@exact"].to_pylist())
    np.testing.assert_array_equal(found, store.read(["k1", "k1", "k2"], "x:conv@exact"))


def test_batches_make_the_table(store):
    whole, parts = store.to_arrow(), list(store.to_batches(rows=2))
    assert [len(part) for part in parts] == [2, 1]
    assert whole.equals(type(whole).from_batches(parts))


def test_arrow_has_the_decoded_numbers_themselves_and_no_copy(store, monkeypatch):
    decoded = []

    def read(self, keys, factor):
        decoded.append(real(self, keys, factor))
        return decoded[-1]

    real = Store.read
    monkeypatch.setattr(Store, "read", read)
    values = store.to_arrow("x7")["x7"].chunk(0).flatten().to_numpy()
    assert any(np.shares_memory(values, array) for array in decoded)


def test_numpy_gets_a_factor_and_features_are_those_of_extract(store, x7):
    np.testing.assert_array_equal(store.to_numpy("x7"), x7)
    norms = np.linalg.norm(store.feature("x7"), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=1e-6)
    store.append(["k2"], {"delta8": np.ones((1, 3))})
    found = store.feature("dW8")
    factors = RankOne(store.to_numpy("x7"), store.to_numpy("delta8")).normalize()
    np.testing.assert_array_equal(found.x, factors.x)
    np.testing.assert_array_equal(found.delta, factors.delta)


def test_rows_are_never_out_of_step(store):
    with pytest.raises(StoreError, match="delta8 of 1 images is not in"):
        store.to_numpy("delta8")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("dW8", FeatureError, "made of x7 and delta8; take one of them, or feature"),
        ("y8", StoreError, "lacks y8; it has delta8, x7"),
        ("x9", FeatureError, "got 'x9'"),
    ],
)
def test_a_name_that_is_no_factor_of_the_store_is_one_line(store, name, error, said):
    with pytest.raises(error, match=said):
        store.to_numpy(name)


def test_whitening_is_not_made_up_from_a_store(store):
    store.append(["k2"], {"delta8": np.ones((1, 3))})
    with pytest.raises(FeatureError, match="fitted on training images"):
        store.feature("whiten(dW8,0.5)")


def test_an_empty_store_is_an_empty_table(tmp_path):
    assert len(Store(tmp_path / "new", {"network": "toy"}).to_pandas()) == 0


def test_without_pandas_the_command_that_installs_it_is_said(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingDependencyError, match=r"needs the package pandas; run .*frames"
    ):
        store.to_pandas()
