import re
import shutil

import numpy as np
import pytest

from deepfishing.store import Row, Store
from deepfishing.store.check import info, verify


@pytest.fixture
def store(tmp_path, rng):
    store = Store(tmp_path, {"network": "toy"})
    for keys in (["k1", "k2"], ["k3"]):
        n = len(keys)
        store.append(
            keys, {"x7": rng.normal(size=(n, 5)), "in:a@exact": np.ones((n, 2, 3))}
        )
    store.append([], {}, {"k9": "broken"})
    there = {"status": "ok", "factors": ("in:a@exact", "x7")}
    rows = [
        Row(f"{i}.jpg", f"p/{i}.jpg", f"k{i}", labels=("cat",), **there)
        for i in (1, 2, 3)
    ]
    twin = Row("twin.jpg", "p/twin.jpg", "k3", **there)
    store.write_rows(
        [*rows, twin, Row("9.jpg", "p/9.jpg", "k9", status="error", error="broken")]
    )
    return store


def test_info_counts_what_is_there(store):
    facts = info(Store.open(store.folder))
    assert (facts["images"], facts["contents"], facts["labels"]) == (5, 4, 1)
    assert (facts["ok"], facts["error"], facts["pending"]) == (4, 1, 0)
    assert facts["failures"] == {"9.jpg": "broken"}
    shapes = {name: factor["shape"] for name, factor in facts["factors"].items()}
    assert shapes == {"in:a@exact": [2, 3], "x7": [5]}
    on_disk = sum(path.stat().st_size for path in (store.folder / "x7").iterdir())
    assert facts["factors"]["x7"]["bytes"] == on_disk
    assert facts["settings"]["network"] == "toy"


def test_a_sound_store_has_no_problems(store):
    assert verify(Store.open(store.folder)) == []


def shard(store, name="x7", number=0):
    return sorted(store.shards_folder(name).glob("shard-*.parquet"))[number]


def flip(store):
    path = shard(store)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path.name, "checksum"


def cut(store):
    path = shard(store, number=1)
    path.write_bytes(path.read_bytes()[:-7])
    return path.name, "checksum"


def delete(store):
    path = shard(store)
    path.unlink()
    return "x7", "x7 of .* images is missing"


def swap(store):
    path = shard(store, "in:a@exact")
    path.rename(store.folder / "x7" / path.name)
    return path.name, "columns must be"


def stranger(store):
    (store.folder / "x7" / "notes.txt").write_text("")
    return "notes.txt", "does not belong"


def leftover(store):
    (store.folder / "x7" / ".shard-00.parquet.123").write_text("")
    return ".shard-00.parquet.123", "left over"


def twice(store):
    other = Store(store.folder.with_name("other"), {"network": "toy"})
    other.append(["k1"], {"x7": np.ones((1, 5))})
    shutil.copy(shard(other), store.folder / "x7")
    return "x7", "1 keys occur twice, first k1"


def other_width(store):
    store.append(["k9"], {"x7": np.ones((1, 6))})
    return "x7", "columns must be those of"


def orphan(store):
    store.append(["k77"], {"x7": np.ones((1, 5))})
    return "x7", "no image of the index needs it"


def index(store):
    path = store.folder / "index.parquet"
    path.write_bytes(path.read_bytes()[:-7])
    return "index.parquet", "damaged"


@pytest.mark.parametrize(
    "damage",
    [flip, cut, delete, swap, stranger, leftover, twice, other_width, orphan, index],
)
def test_what_is_wrong_is_named(store, damage):
    name, what = damage(store)
    problems = "\n".join(verify(Store.open(store.folder)))
    assert name in problems
    assert re.search(what, problems), problems


def test_a_leftover_is_named_once(store):
    name, _ = leftover(store)
    assert sum(name in problem for problem in verify(store)) == 1
