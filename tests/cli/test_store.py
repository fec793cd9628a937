import json

import numpy as np
import pytest

from deepfishing.store import Row, Store


@pytest.fixture
def store(tmp_path, rng):
    store = Store(tmp_path / "s", {"network": "toy", "tau": 2.0})
    store.append(
        ["k1"],
        {"x7": rng.normal(size=(1, 5))},
        {"k2": "image cannot be decoded: b.jpg"},
    )
    good = Row("a.jpg", "a.jpg", "k1", labels=("cat",), status="ok", factors=("x7",))
    bad = Row(
        "b.jpg", "b.jpg", "k2", status="error", error="image cannot be decoded: b.jpg"
    )
    store.write_rows([good, bad])
    return store


def test_info_shows_what_is_inside_within_80_columns(deepfish, store):
    ran = deepfish("store", "info", "s")
    assert ran.code == 0, ran.err
    assert "2 (1 ok, 1 unusable), 2 different" in ran.out
    assert "unusable: image cannot be decoded: b.jpg" in ran.out
    assert "toy" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    facts = json.loads(deepfish("store", "info", "s", "--json").out)
    assert facts["factors"]["x7"]["shape"] == [5]
    assert facts["settings"] == {"dtype": "int8", "network": "toy", "tau": 2.0}


def test_verify_is_silent_about_a_sound_store_and_names_a_damaged_file(deepfish, store):
    ran = deepfish("store", "verify", "s")
    assert (ran.code, ran.out) == (0, "s: sound\n")
    (shard,) = (store.folder / "x7").iterdir()
    shard.write_bytes(shard.read_bytes()[:-1])
    ran = deepfish("store", "verify", "s")
    assert ran.code == 1
    assert shard.name in ran.err
    assert ran.err.count("\n") == 1
    found = json.loads(deepfish("store", "verify", "s", "--json").out)
    assert not found["sound"]
    assert shard.name in found["problems"][0]


def test_a_store_may_lie_beside_the_photos_themselves(deepfish, store, tmp_path):
    for name in ("cat", "features/x7"):
        (store.folder / name).mkdir(parents=True)
        (store.folder / name / "1.jpg").write_bytes(b"a photo")
    assert store.factors() == ["x7"]
    # nothing is called superfluous
    assert deepfish("store", "verify", "s").out == "s: sound\n"
    ran = deepfish("export", "s", "f.npz")
    assert ran.code == 0, ran.err
    assert "x7" in np.load(tmp_path / "f.npz")


@pytest.mark.parametrize("command", ["info", "verify"])
def test_what_is_no_store_is_one_line(deepfish, tmp_path, command):
    ran = deepfish("store", command, "nowhere")
    assert ran.code == 1
    assert "must hold store.json, got none in nowhere" in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()
    assert (
        f"Example: deepfish store {command}" in deepfish("store", command, "--help").out
    )


def test_a_store_of_nothing_has_no_problems(deepfish, tmp_path):
    Store(tmp_path / "s", {"network": "toy"}).append([], {"x7": np.ones((0, 2))})
    assert deepfish("store", "info", "s").code == 0
    assert deepfish("store", "verify", "s").code == 0
