import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from deepfishing import __version__, extract_to
from deepfishing.errors import StoreError
from deepfishing.store import Row, Store
from deepfishing.store.check import verify
from deepfishing.store.shards import ONE_PAGE

SETTINGS = {"network": "toy", "tau": 2.0, "preprocess": {"mean": [1.0, 2.0, 3.0]}}


def files(folder):
    return sorted(
        p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()
    )


def test_what_is_read_is_what_was_written_in_any_order(tmp_path, rng):
    x = rng.normal(size=(6, 5)).astype(np.float32) * 1000
    store = Store(tmp_path / "s", SETTINGS, precision="float32")
    store.append(list("abc"), {"x7": x[:3]})
    store.append(list("def"), {"x7": x[3:]})
    for opened in (store, Store.open(tmp_path / "s")):
        got = opened.read(list("fabfc"), "x7")
        np.testing.assert_allclose(got, x[[5, 0, 1, 5, 2]], rtol=1e-6)
        np.testing.assert_allclose(opened.read(list("abcdef"), "x7"), x, rtol=1e-6)


def test_half_precision_keeps_tiny_and_huge_factors(tmp_path, rng):
    # delta is about 1e-6 and pooled maps reach 1e5, beyond half precision's own range
    delta, x = rng.normal(size=(4, 50)) * 1e-6, rng.normal(size=(4, 50)) * 1e6
    store = Store(tmp_path, SETTINGS, "float16")
    store.append(list("abcd"), {"delta7": delta, "x6": x})
    for name, value in (("delta7", delta), ("x6", x)):
        error = (
            np.abs(store.read(list("abcd"), name) - value).max() / np.abs(value).max()
        )
        assert error < 1e-3


def test_positions_keep_their_shape_and_names_may_hold_anything(tmp_path, rng):
    x = rng.normal(size=(2, 4, 3))
    name = "in:blocks.0.a/b [1]@exact"
    Store(tmp_path, SETTINGS, precision="float32").append(["a", "b"], {name: x})
    store = Store.open(tmp_path)
    for stranger in ("%2e%2e", "%787", ".hidden"):
        (store.folder / stranger).mkdir()
    assert store.factors() == [name]
    np.testing.assert_allclose(store.read(["b"], name)[0], x[1], rtol=1e-6)


def test_a_factor_may_come_later_than_the_image(tmp_path):
    store = Store(tmp_path, SETTINGS)
    store.append(["a", "b"], {"x7": np.ones((2, 3))})
    assert store.missing(["a", "b", "c", "c"], ["x7"]) == ["c"]
    assert store.missing(["a", "b"], ["x7", "y8"]) == ["a", "b"]
    store.append(["a"], {"y8": np.ones((1, 2))})
    assert store.missing(["a", "b"], ["x7", "y8"]) == ["b"]
    with pytest.raises(StoreError, match="y8 of 1 images is not in"):
        store.read(["a", "b"], "y8")


def test_a_store_opens_by_its_folder_and_is_used_as_a_data_frame(
    toy_network, rng, tmp_path
):
    images = rng.integers(0, 256, (3, 20, 20, 3), dtype=np.uint8)
    extract_to(tmp_path / "s", images, network=toy_network, features="dW8")
    store = Store(tmp_path / "s")
    assert len(store) == 3
    assert list(store) == ["delta8", "x7"]
    assert "x7" in store
    np.testing.assert_array_equal(store["x7"], store.feature("x7"))
    assert store["dW8"].delta.shape == (3, 4)
    with pytest.raises(StoreError, match=r"must hold store.json, got none in .*absent"):
        Store(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    assert Store(tmp_path / "empty", {"network": "toy"})


def test_what_is_there_is_not_written_twice(tmp_path):
    store = Store(tmp_path, SETTINGS)
    store.append(["a", "b"], {"x7": np.eye(2)})
    store.append(
        ["b", "c"], {"x7": np.ones((2, 2)), "y8": np.ones((2, 1))}, {"z": "broken"}
    )
    store.append([], {}, {"z": "broken again"})
    store = Store.open(tmp_path)
    np.testing.assert_allclose(store.read(["b"], "x7"), [[0, 1]])  # the first stays
    assert [len(store.shards(name)) for name in ("x7", "y8", "errors")] == [3, 2, 1]
    assert store.errors() == {"z": "broken"}


def test_a_store_made_with_other_settings_is_refused_and_says_which(tmp_path):
    Store(tmp_path, SETTINGS)
    Store(tmp_path, json.loads(json.dumps(SETTINGS)))
    with pytest.raises(StoreError, match=r"made with tau = 2.0, now it is 4.0"):
        Store(tmp_path, {**SETTINGS, "tau": 4.0})
    with pytest.raises(StoreError, match="made with dtype = 'int8'"):
        Store(tmp_path, SETTINGS, precision="float32")
    facts = json.loads((tmp_path / "store.json").read_text())
    assert facts["version"] == __version__
    assert facts["created"].endswith("+00:00")


def test_a_damaged_shard_or_manifest_is_named(tmp_path):
    store = Store(tmp_path, SETTINGS)
    store.append(["a"], {"x7": np.ones((1, 2))})
    (shard,) = (tmp_path / "x7").iterdir()
    shard.write_bytes(shard.read_bytes()[:-20])
    for use in (store, Store.open(tmp_path)):
        with pytest.raises(StoreError, match=r"shard is damaged: .*shard-\w+\.parquet"):
            use.read(["a"], "x7")
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(StoreError, match=r"manifest cannot be read: .*store\.json"):
        Store(tmp_path, SETTINGS)
    with pytest.raises(StoreError, match=r"must hold store\.json.*deepfish extract"):
        Store.open(tmp_path / "nowhere")


def test_a_full_disk_leaves_all_of_a_change_or_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path, SETTINGS)
    store.append(["a"], {"x7": np.ones((1, 2)), "y8": np.ones((1, 2))})
    before = files(tmp_path)
    write_bytes = Path.write_bytes

    def full(path, content):
        write_bytes(path, bytes(content)[:10])
        if path.parent.name == "y8":  # the second of two files
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        StoreError, match=r"No space left on device.*what is in it stays"
    ):
        store.append(["b"], {"x7": np.ones((1, 2)), "y8": np.ones((1, 2))})
    assert files(tmp_path) == before
    monkeypatch.undo()
    assert store.missing(["a", "b"], ["x7"]) == ["b"]
    store.append(["b"], {"x7": np.ones((1, 2)), "y8": np.ones((1, 2))})
    assert store.missing(["a", "b"], ["x7", "y8"]) == []


def test_a_change_that_was_interrupted_half_way_is_finished_by_the_next_writer(
    tmp_path, monkeypatch
):
    store = Store(tmp_path, SETTINGS)
    replace, done = Path.replace, []

    def interrupt(path, target):
        done.append(path)
        if len(done) == 3:  # the journal, the first file, then
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.append(["a"], {"x7": np.ones((1, 2)), "y8": np.ones((1, 2))})
    monkeypatch.undo()
    assert Store.open(tmp_path).missing(["a"], ["x7", "y8"]) == ["a"]
    with store.writing():
        assert store.missing(["a"], ["x7", "y8"]) == []
    assert not list(tmp_path.rglob(".*.*")), files(tmp_path)


def test_several_writers_at_a_time_write_what_one_would_write(tmp_path, rng):
    x = rng.normal(size=(40, 5))
    parts = [[f"k{i}", f"k{i + 1}"] for i in range(0, 40, 2)]
    one, several = (
        Store(tmp_path / "one", SETTINGS),
        Store(tmp_path / "several", SETTINGS),
    )

    def write(number):
        Store.open(several.folder).append(*work(number), known={})

    def work(number):
        values = x[2 * number : 2 * number + 2]
        errors = {f"e{number}": "broken"} if number % 7 == 0 else {}
        return parts[number], {"x7": values, "y8": values}, errors

    for number in range(20):
        one.append(*work(number))
    with several.writing(), ThreadPoolExecutor(8) as pool:
        # every part twice, as when a writer died after its work was done
        list(pool.map(write, [*range(20), *range(20)]))
    names = [
        [name for name in files(s.folder) if "shard" in name] for s in (one, several)
    ]
    assert names[0] == names[1]
    # nothing is left over
    assert not any("killed" in problem for problem in verify(several))


def test_a_part_whose_writer_died_half_way_is_finished_by_the_next_writer(
    tmp_path, monkeypatch
):
    store = Store(tmp_path, SETTINGS)
    replace, done = Path.replace, []

    def interrupt(path, target):
        done.append(path)
        if len(done) == 2:  # the journal, then
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.append(["a"], {"x7": np.ones((1, 2)), "y8": np.ones((1, 2))}, known={})
    monkeypatch.undo()
    store.append(["b"], {"x7": np.ones((1, 2))}, known={})  # leaves the other one alone
    assert Store.open(tmp_path).missing(["a", "b"], ["x7"]) == ["a"]
    with store.writing():
        assert store.missing(["a"], ["x7", "y8"]) == []
    assert not list(tmp_path.rglob(".*.*")), files(tmp_path)


def test_a_journal_that_points_elsewhere_is_refused(tmp_path):
    store = Store(tmp_path / "s", SETTINGS)
    (tmp_path / "precious").write_text("keep")
    (tmp_path / "s/.journal").write_text('{"rename": {}, "remove": ["../precious"]}')
    with pytest.raises(StoreError, match="journal is damaged"), store.writing():
        pass
    assert (tmp_path / "precious").exists()


def test_a_second_writer_is_told_at_once_and_a_reader_is_not_kept_out(tmp_path):
    store = Store(tmp_path, SETTINGS)
    store.append(["a"], {"x7": np.ones((1, 2))})
    with store.writing():
        with (
            pytest.raises(StoreError, match="another process works on"),
            store.writing(),
        ):
            pass
        assert Store.open(tmp_path).read(["a"], "x7").shape == (1, 2)
    with store.writing():
        pass


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="store cannot be made"):
        Store(tmp_path / "file" / "store", SETTINGS)
    store = Store(tmp_path / "s", SETTINGS)

    def read_only(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(
        StoreError, match=r"cannot be written: .*Read-only file system.*choose"
    ):
        store.writing().__enter__()


def test_values_that_are_not_finite_are_refused(tmp_path):
    with pytest.raises(StoreError, match=r"x7 must be finite.* for b"):
        Store(tmp_path, SETTINGS).append(
            ["a", "b"], {"x7": np.array([[1.0], [np.nan]])}
        )


def test_only_what_is_kept_survives_a_compaction(tmp_path, rng):
    x = rng.normal(size=(6, 3)).astype(np.float32)
    store = Store(tmp_path, SETTINGS, "float32")
    store.append(list("abcd"), {"x7": x[:4], "delta8@exact": x[:4, None]}, {"y": "bad"})
    store.append(list("ef"), {"x7": x[4:]}, {"z": "bad"})
    store.compact({"b", "c", "z"})
    for opened in (store, Store.open(tmp_path)):
        assert set(opened.shards("x7").keys()) == {"b", "c"}
        assert opened.errors() == {"z": "bad"}
        np.testing.assert_allclose(opened.read(["c", "b"], "x7"), x[[2, 1]], rtol=1e-6)
        assert opened.read(["b"], "delta8@exact").shape == (1, 1, 3)
    assert len(files(tmp_path / "x7")) == 1


def test_many_large_rows_are_cut_into_shards_and_read_as_pyarrow_reads_them(
    tmp_path, rng, monkeypatch
):
    import deepfishing.store.store as module
    from deepfishing.store.shards import decoded, stored

    monkeypatch.setattr(module, "MAX_ROWS", 7)
    x = rng.normal(size=(20, 33))
    keys = [f"{i:02d}" for i in range(20)]
    for dtype in ("float16", "float32"):
        store = Store(tmp_path / dtype, SETTINGS, dtype)
        store.append(keys, {"x:features.7": x})
        shards = store.shards("x:features.7").files
        assert len(shards) == 3
        for path in shards:
            unit, _, shape = stored(path, "x:features.7", store.codec)
            assert isinstance(unit.base, np.memmap) or isinstance(unit, np.memmap)
            assert (unit.dtype, shape) == (np.dtype(dtype), (33,))
            np.testing.assert_array_equal(unit, decoded(path))
        np.testing.assert_allclose(store.read(keys, "x:features.7"), x, atol=1e-2)


def test_a_shard_of_another_writer_is_read_too(tmp_path, rng):

    x = rng.normal(size=(4000, 30)).astype(np.float32)
    keys = [str(i) for i in range(4000)]
    store = Store(tmp_path, SETTINGS, "float32")
    store.append(keys, {"x7": x})
    (shard,) = store.shards("x7").files
    table = pq.read_table(shard).replace_schema_metadata(None)
    pq.write_table(table, shard.with_name("shard-other.parquet"), compression="zstd")
    shard.unlink()
    np.testing.assert_allclose(
        Store.open(tmp_path).read(keys[::-1], "x7"), x[::-1], rtol=1e-6
    )


def test_factors_that_an_earlier_version_projected_are_not_mixed_with_new_ones(
    tmp_path, rng
):
    store = Store(tmp_path, SETTINGS, "float32")
    store.append(
        ["k1"], {"dW7@4x4": rng.normal(size=(1, 16)), "x7": rng.normal(size=(1, 3))}
    )
    assert Store.open(tmp_path).read(["k1"], "dW7@4x4").shape == (1, 16)
    (path,) = (tmp_path / "dW7@4x4").glob("*.parquet")
    # as it was
    pq.write_table(pq.read_table(path).replace_schema_metadata(ONE_PAGE), path)
    again = Store.open(tmp_path)
    assert again.read(["k1"], "x7").shape == (1, 3)
    for use in (
        lambda: again.read(["k1"], "dW7@4x4"),
        lambda: again.missing(["k2"], ["dW7@4x4"]),
        lambda: again.append(["k2"], {"dW7@4x4": rng.normal(size=(1, 16))}),
    ):
        with pytest.raises(
            StoreError, match=r"dW7@4x4 was projected by an earlier .*delete"
        ):
            use()
    path.unlink()
    assert again.missing(["k1"], ["dW7@4x4"]) == ["k1"]


def test_rows_of_the_index_come_back_as_they_were(tmp_path):
    rows = [
        Row("b", "p/b.jpg", "k", 5, 7, ("cat", "dog"), "ok", None, ("x7",)),
        Row("a", "p/a.jpg", None, labels=(), status="error", error="gone"),
    ]
    store = Store(tmp_path, SETTINGS)
    assert store.rows() == {}
    store.write_rows(rows)
    assert store.rows() == {"a": rows[1], "b": rows[0]}
    index = tmp_path / "index.parquet"
    content = bytearray(index.read_bytes())
    content[30] ^= 0xFF
    index.write_bytes(content)
    with pytest.raises(StoreError, match=r"index is damaged: .*delete it"):
        store.rows()


def test_reading_nothing_is_told_in_one_line(tmp_path):
    store = Store(tmp_path / "s", {"network": "toy"})
    store.append(["k1"], {"x7": np.ones((1, 3))})
    with pytest.raises(StoreError, match="nothing to read: no keys were given"):
        store.read([], "x7")
