import csv
import json
import sys

import numpy as np
import pytest

from deepfishing.curate import layout
from deepfishing.curate.map_page import _apart, make_map
from deepfishing.curate.neighbours import open_searcher
from deepfishing.store import Store

pytest.importorskip("openTSNE", reason="no openTSNE: pip install deepfishing[map]")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(layout, "STEPS", (50, 50))


@pytest.fixture
def made(picture, store_of, tmp_path):
    """Thirty photos of three kinds, each a class of its own to the network."""
    paths = [tmp_path / f"{n:02d}.png" for n in range(30)]
    for n, path in enumerate(paths):
        picture(n, (32, 24)).save(path)
    rng = np.random.default_rng(0)
    kind = np.arange(30) % 3
    x = np.eye(12)[kind] + 0.05 * rng.normal(size=(30, 12))
    p = np.full((30, 5), 0.05)
    p[np.arange(30), kind] = 0.8
    return store_of(paths, kind, factors={"x7": x, "x8": p, "delta8": (p - 0.2) / 2})


def test_a_map_has_the_kinds_as_groups_with_the_classes_that_are_seen_there(made):
    photos = open_searcher(Store.open(made), "x7")
    found = make_map(photos, 3)
    assert found.places.min() == 0
    assert found.places.max() == 1
    kind = [int(photos.collection[row].id[:2]) % 3 for row in range(30)]
    pairs = set(
        zip(kind, found.cluster[photos.collection.content].tolist(), strict=True)
    )
    assert len(pairs) == 3
    for cluster, (one, number) in zip(
        found.clusters, sorted(pairs, key=lambda p: p[1]), strict=True
    ):
        assert cluster.name.startswith(f"class {one},")
        assert cluster.photos == 10
        assert found.cluster[cluster.typical] == number


def test_one_group_is_named_by_what_is_seen_most(picture, store_of, tmp_path):
    picture(0, (32, 24)).save(tmp_path / "0.png")
    factors = {"x7": np.ones((1, 12)), "x8": np.array([[0.1, 0.2, 0.6, 0.05, 0.05]])}
    store = store_of([tmp_path / "0.png"], [0], factors=factors)
    (only,) = make_map(open_searcher(Store.open(store), "x7")).clusters
    assert only.name == "class 2, class 1"


def test_map_writes_a_page_without_scripts_and_a_table(deepfish, made, tmp_path):
    for out in ("map.html", "points.csv"):
        ran = deepfish("curate", "map", made, "--clusters", "3", "--out", out)
        assert ran.code == 0, ran.err
        assert len(ran.out.splitlines()) == 3
    assert "next: open" not in ran.err  # of a table
    page = (tmp_path / "map.html").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    # three photos, on the map and in the list
    assert page.count("data:image/jpeg") == 6
    with (tmp_path / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert {row["group"] for row in rows} == {"1", "2", "3"}


def test_photos_that_are_gone_are_counted_in_a_line(deepfish, made, tmp_path):
    for path in tmp_path.glob("*.png"):
        path.unlink()
    ran = deepfish("curate", "map", made, "--clusters", "2")
    assert ran.code == 0
    assert "left out: 2 typical photos are not where they were" in ran.err
    assert "data:image/jpeg" not in (tmp_path / "map.html").read_text()


@pytest.mark.parametrize("n", [1, 2, 8])
def test_one_photo_and_photos_that_are_the_same_to_the_network(
    deepfish, picture, store_of, tmp_path, n
):
    paths = [tmp_path / f"{m}.png" for m in range(n)]
    for m, path in enumerate(paths):
        picture(m).save(path)
    store = store_of(paths, [0] * n, factors={"x7": np.ones((n, 4))})
    ran = deepfish("curate", "map", store, "--json")
    assert ran.code == 0, ran.err
    groups = json.loads(ran.out)["groups"]
    assert sum(group["photos"] for group in groups) == n
    assert groups[0]["name"] == "group 1"


def test_without_the_extra_the_map_is_made_by_scikit_learn(
    deepfish, made, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    table = tmp_path / "points.json"
    ran = deepfish("curate", "map", made, "--out", table, "--json")
    assert ran.code == 0, ran.err
    points = sorted(json.loads(table.read_text()), key=lambda point: point["path"])
    places = np.array([[point["x"], point["y"]] for point in points])
    gap = np.linalg.norm(places[:, None] - places[None], axis=2) + 9 * np.eye(
        len(places)
    )
    kind = np.arange(len(places)) % 3
    assert (kind[gap.argmin(axis=1)] == kind).all()  # what is alike lies close
    assert deepfish("curate", "map", made, "--clusters", "0").err.count("\n") == 1


def test_photos_on_the_map_are_moved_apart(rng):
    places = _apart(0.4 + 0.1 * rng.random((8, 2)))
    gap = np.abs(places[:, None] - places[None])
    covered = (gap < [0.11, 0.14]).all(axis=2)
    assert covered.sum() == 8  # itself alone
