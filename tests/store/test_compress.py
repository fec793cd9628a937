import json
import shutil

import numpy as np
import pytest

from deepfishing.core.rank_one import l2_normalize
from deepfishing.errors import OptionError, StoreError
from deepfishing.search import Searcher
from deepfishing.store import Row, Store
from deepfishing.store.check import info, verify
from deepfishing.store.contents import Contents
from deepfishing.store.export import compress

SETTINGS = {"network": "toy", "layers": {"8": "fc"}, "tau": 2.0}
ALL = ("float16", "int8", "int4")
N = 400


def key(number):
    return f"{number:064x}"


KEYS = [key(i) for i in range(N)]


def fill(store, begin, end):
    """Images in clusters; more of them go on where others ended."""
    rng = np.random.default_rng(1)
    centres = {
        "x7": rng.normal(size=(20, 24)),
        "delta8": rng.normal(size=(20, 10)) ** 3 * 1e-6,
    }
    noise = {f: rng.normal(size=(2 * N, c.shape[1])) * 0.05 for f, c in centres.items()}
    cluster = np.arange(2 * N) % 20
    values = {f: c[cluster] * (1 + noise[f]) for f, c in centres.items()}
    for start in range(begin, end, 150):
        some = slice(start, min(start + 150, end))
        keys = [key(i) for i in range(some.start, some.stop)]
        store.append(
            keys, {f: v[some] for f, v in values.items()}, {"e" * 64: "broken"}
        )
    there = {"status": "ok", "factors": ("delta8", "x7")}
    rows = [
        Row(f"{i:04d}.jpg", f"{i}.jpg", key(i), labels=("a",), **there)
        for i in range(end)
    ]
    broken = Row("z.jpg", "z.jpg", "e" * 64, status="error", error="broken")
    store.write_rows([*rows, broken])


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store", SETTINGS, "float32")
    fill(store, 0, N)
    return store


@pytest.mark.parametrize("precision", ALL)
def test_a_copy_has_the_same_images_in_fewer_bytes_and_is_sound(
    store, tmp_path, precision
):
    compress(store, tmp_path / "small", precision)
    small = Store.open(tmp_path / "small")
    assert small.precision == precision
    assert small.rows() == store.rows()
    assert small.errors() == store.errors()
    assert verify(small) == []
    facts, before = info(small), info(store)
    assert facts["factors"]["x7"]["shape"] == [24]
    for factor in ("x7", "delta8"):
        assert facts["factors"][factor]["bytes"] < before["factors"][factor]["bytes"]
        a, b = (s.read(KEYS[::-1], factor).astype(np.float64) for s in (store, small))
        cosine = (
            (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        )
        assert cosine.min() > 0.97
        np.testing.assert_allclose(
            np.linalg.norm(b, axis=1), np.linalg.norm(a, axis=1), rtol=0.1
        )


@pytest.mark.parametrize("precision", ALL)
def test_search_reads_what_the_store_reads(store, tmp_path, precision, rng):
    small = compress(store, tmp_path / "small", precision)
    contents = Contents.of(small, ("x7", "delta8"))
    numbers = rng.permutation(N)[:50]
    keys = [contents.keys[int(n)].as_py() for n in numbers]
    again = contents.mapped()
    for factor in ("x7", "delta8"):
        values = small.read(keys, factor).astype(np.float64)
        unit = values / np.linalg.norm(values, axis=1, keepdims=True)
        for read in (contents, again):
            found = l2_normalize(read.read(numbers, [factor])[factor])
            np.testing.assert_allclose(found, unit, atol=2e-3)


@pytest.mark.parametrize("precision", ALL)
def test_nearest_images_are_of_the_same_cluster_exactly_and_by_index(
    store, tmp_path, precision
):
    small = compress(store, tmp_path / "small", precision)
    made, read = (Searcher(small, "dW8", "index") for _ in range(2))
    vectors = [s.index.embedding(s.features.of(np.arange(5))) for s in (made, read)]
    np.testing.assert_allclose(*vectors, atol=1e-3)
    for searcher in (made, read, Searcher(small, "dW8", "exact")):
        hits = searcher.search("0007.jpg", k=5)
        assert all(int(hit.id[:4]) % 20 == 7 for hit in hits)
        assert hits[0].score > 0.9


def test_new_images_are_added_to_a_compressed_store_in_its_precision(store, tmp_path):
    compress(store, tmp_path / "small", "int4")
    fill(store, N, 2 * N)
    new = [key(i) for i in range(N, 2 * N)]
    values = {factor: store.read(new, factor) for factor in ("x7", "delta8")}
    small = Store(tmp_path / "small", SETTINGS)  # as `deepfish extract` opens it
    with small.writing():
        small.append(new, values)
    got = Store.open(tmp_path / "small").read(new, "x7")
    assert np.abs(got - values["x7"]).mean() < 0.2 * np.abs(values["x7"]).mean()
    # the same as compressing again
    shutil.rmtree(tmp_path / "small")
    compress(store, tmp_path / "other", "int4")
    assert len(Store.open(tmp_path / "other").rows()) == 2 * N + 1


def test_compressing_again_takes_what_is_new_and_only_that(store, tmp_path):
    small = compress(store, tmp_path / "small", "int4")
    before = {path: path.read_bytes() for path in small.folder.rglob("*.parquet")}
    fill(store, N, N + 60)
    told = []
    small = compress(
        store, tmp_path / "small", "int4", lambda *facts: told.append(facts)
    )
    assert told[-1] == ("copying", 120, 120)  # two factors
    assert {stage for stage, _, _ in told} == {"copying"}
    kept = [path for path in before if path.name != "index.parquet"]
    assert all(path.read_bytes() == before[path] for path in kept)
    assert small.rows() == store.rows()
    assert verify(small) == []


def test_a_copy_that_was_interrupted_goes_on(store, tmp_path, monkeypatch):
    def stop(stage, done, total):
        if stage == "copying":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress(store, tmp_path / "small", "int4", stop)
    small = compress(store, tmp_path / "small", "int4")
    whole = compress(store, tmp_path / "whole", "int4")
    for factor in ("x7", "delta8"):
        np.testing.assert_array_equal(
            small.read(KEYS, factor), whole.read(KEYS, factor)
        )
    assert verify(small) == []


def test_what_cannot_be_compressed_is_told(store, tmp_path):
    with pytest.raises(OptionError, match="must be another folder"):
        compress(store, store.folder, "int8")
    with pytest.raises(
        OptionError, match=r"another precision than .*, got float32 for both"
    ):
        compress(store, tmp_path / "small", "float32")
    with pytest.raises(OptionError, match="precision of a store must be"):
        compress(store, tmp_path / "small", "pq3")
    assert not (tmp_path / "small").exists()
    compress(store, tmp_path / "small", "int8")
    with pytest.raises(StoreError, match="made with dtype = 'int8', now it is 'int4'"):
        compress(store, tmp_path / "small", "int4")


def test_the_command_says_what_it_saved_and_its_errors_are_one_line(
    deepfish, store, tmp_path
):
    ran = deepfish("store", "compress", "store", "small", "--precision", "int4")
    assert ran.code == 0, ran.err
    assert "small: 401 images, " in ran.out
    assert "per image instead of" in ran.out
    assert deepfish("store", "compress", "store", "8").code == 0
    facts, before = (
        json.loads(deepfish("store", "info", name, "--json").out)
        for name in ("8", "store")
    )
    assert facts["settings"]["dtype"] == "int8"
    assert facts["bytes_per_image"] < before["bytes_per_image"]
    assert deepfish("store", "verify", "small").code == 0
    for arguments in (
        ["store", "store"],
        ["nowhere", "x"],
        ["store", "x", "--precision", "pq5"],
    ):
        ran = deepfish("store", "compress", *arguments)
        assert ran.code == 1
        assert ran.err.count("\n") == 1
