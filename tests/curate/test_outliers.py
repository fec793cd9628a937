import csv
import json

import numpy as np
import pytest
from PIL import Image

from deepfishing.curate.neighbours import open_searcher
from deepfishing.curate.outliers import oddness
from deepfishing.errors import StoreError
from deepfishing.store import Row, Store


@pytest.fixture
def made(picture, store_of, tmp_path):
    """Forty photos, the last two unlike all others, with factors of one softmax layer."""
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{n:02d}.png" for n in range(40)]
    for n, path in enumerate(paths):
        picture(n, (32, 24)).save(path)
    x = 5 + rng.normal(size=(40, 12))
    x[38:] = rng.normal(size=(2, 12)) * 3
    y = rng.normal(size=(40, 6)) * np.linspace(4, 0.1, 40)[:, None]

    def sigma(tau):
        powers = np.exp(y / tau)
        return powers / powers.sum(axis=1, keepdims=True)

    factors = {"x7": x, "y8": y, "x8": sigma(1), "delta8": (sigma(2) - 1 / 6) / 2}
    return factors, lambda *names: store_of(
        paths, [0] * 40, "-".join(names), {name: factors[name] for name in names}
    )


def test_odd_prints_those_unlike_the_rest(deepfish, made, tmp_path):
    store = made[1]("x7", "delta8")
    ran = deepfish(
        "curate", "odd", store, "-n", "2", "--out", "odd.csv", "--sheet", "odd.png"
    )
    assert ran.code == 0, ran.err
    assert set(ran.out.splitlines()) == {
        str(tmp_path / "38.png"),
        str(tmp_path / "39.png"),
    }
    assert "the 2 oddest of 40 images by knn in x7" in ran.err
    with (tmp_path / "odd.csv").open() as file:
        scores = [float(row["score"]) for row in csv.DictReader(file)]
    assert len(scores) == 40
    assert scores == sorted(scores, reverse=True)
    with Image.open(tmp_path / "odd.png") as sheet:
        assert sheet.width > 400


@pytest.mark.parametrize("also", ["x8", "delta8"])
def test_scores_that_are_not_y8_are_refused(made, also):
    """A scale behind layer 8: the softmax of y8 is not what the network says."""
    factors, store_of_names = made
    factors["y8"] = factors["y8"] / 5
    photos = open_searcher(store_of_names("x7", "y8", also), "x7")
    with pytest.raises(
        StoreError, match=r"energy needs the scores .* other scores than y8"
    ):
        oddness(photos, "energy")
    if also == "x8":
        expected = 1 - factors["x8"].max(axis=1)
        np.testing.assert_allclose(
            np.sort(oddness(photos, "msp")), np.sort(expected), atol=0.02
        )
    else:
        with pytest.raises(StoreError, match="msp needs x8"):
            oddness(photos, "msp")


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_scores_are_those_of_the_literature(made, tmp_path, precision):
    """By their formulas, of vectors with the lengths that they had before they were stored."""
    factors, _ = made
    store = Store(
        tmp_path / precision,
        {"network": "t", "layers": {"8": "f"}, "tau": 2.0},
        precision,
    )
    keys = [f"{n:064x}" for n in range(40)]
    store.append(keys, factors)
    store.write_rows(
        Row(key, key, key, status="ok", factors=tuple(factors)) for key in keys
    )
    photos = open_searcher(store, "x7")
    place = [keys.index(key) for key in photos.contents.keys.to_pylist()]
    x, y, p, delta = (factors[name][place] for name in ("x7", "y8", "x8", "delta8"))
    gradient = np.einsum("nd,ne->nde", x, delta)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    far = np.sort(np.linalg.norm(unit[:, None] - unit, axis=2), axis=1)
    wanted = {
        "msp": 1 - p.max(axis=1),
        "energy": -np.log(np.exp(y).sum(axis=1)),
        "delta": -np.linalg.norm(delta, axis=1),
        "gradnorm": -np.abs(gradient).sum(axis=(1, 2)),
        "knn": far[:, 3],
    }
    tolerance = 1e-4 if precision == "float32" else 0.03
    for name, values in wanted.items():
        found = oddness(photos, name, k=3)
        np.testing.assert_allclose(found, values, atol=tolerance * np.abs(values).max())


def test_msp_is_made_of_what_there_is(made):
    factors, make = made
    of_y = oddness(open_searcher(Store.open(make("x7", "y8"))), "msp")
    of_x8 = oddness(open_searcher(Store.open(make("x7", "x8"))), "msp")
    np.testing.assert_allclose(of_y, of_x8, atol=1e-2)
    at_tau = oddness(open_searcher(Store.open(make("x7", "delta8"))), "msp")
    doubt = 1 - (2 * factors["delta8"] + 1 / 6).max(axis=1)
    np.testing.assert_allclose(np.sort(at_tau), np.sort(doubt), atol=1e-2)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--score", "energy"], "energy needs y8 of a softmax"),
        (["--score", "gradnorm"], "--features dW8`"),
        (["--score", "mps"], "did you mean msp?"),
        (["--features", "dW8"], "must hold x7, delta8 for dW8"),
        (["--out", "x.txt"], "--out must end in .csv or .json"),
        (["-n", "0"], "-n must be at least 1 photo, got 0"),
        (["-n", "-3"], "-n must be at least 1 photo, got -3"),
    ],
)
def test_what_cannot_be_computed_is_one_line(deepfish, made, arguments, line):
    ran = deepfish("curate", "odd", made[1]("x7"), *arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert line in ran.err


def test_one_photo_photos_that_are_the_same_and_photos_that_are_gone(
    deepfish, store_of, picture, tmp_path
):
    paths = [tmp_path / f"{n}.png" for n in range(3)]
    for path in paths:
        picture(1).save(path)
    for some in (paths[:1], paths):
        store = store_of(some, [1] * len(some), f"s{len(some)}")
        for path in some:
            path.unlink(missing_ok=True)
        ran = deepfish("curate", "odd", store, "--json", "--sheet", "s.png")
        assert ran.code == 0, ran.err
        found = json.loads(ran.out)["photos"]
        assert [photo["score"] for photo in found] == [0.0] * len(some)
        picture(1).save(paths[0])
        picture(1).save(paths[1])
        picture(1).save(paths[2])


@pytest.mark.parametrize("command", [["odd"], ["odd", "--score", "delta"], ["map"]])
def test_a_damaged_store_and_ctrl_c_are_one_line(deepfish, made, monkeypatch, command):
    import deepfishing.curate.neighbours as module

    store = made[1]("x7", "delta8")
    with monkeypatch.context() as patch:
        patch.setattr(
            module,
            "count_rows",
            lambda folder: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        ran = deepfish("curate", *command, store)
    assert (ran.code, ran.out, ran.err.count("\n")) == (130, "", 1)
    for shard in store.glob("*/*.parquet"):
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    ran = deepfish("curate", *command, store)
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "parquet" in ran.err
