import json
import struct

import numpy as np
import pytest

from deepfishing.search import Searcher
from deepfishing.search import index as index_module
from deepfishing.search import searcher as searcher_module
from deepfishing.search.index import Embedding, _read_vectors
from deepfishing.store import Row, Store
from deepfishing.store.check import verify

N = 3000


@pytest.fixture(autouse=True)
def small_index(monkeypatch):
    """So few dimensions, candidates and lists that the index has to leave most images out."""
    monkeypatch.setattr(index_module, "DIMENSIONS", 32)
    monkeypatch.setattr(index_module, "LANDMARKS", 200)


def found(searcher, i, k=10, **options):
    options = {"candidates": 100, "probes": 3, **options}
    return [hit.id for hit in searcher.search(f"{i:05d}.jpg", k=k, **options)]


def files_of(store):
    return sorted(store.folder.glob(".index/*/*"))


def facts_of(store):
    (path,) = store.folder.glob(".index/*/index.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize("by", ["dW8", "x7", "pow(dW7,0.5)+x7", "whiten(dW8)*x6"])
def test_the_index_finds_what_exact_search_finds(make_store, by):
    store = make_store(N, "float16")
    exact, index = Searcher(store, by, "exact"), Searcher(store, by, "index")
    again = Searcher(store, by, "index")  # from disk
    assert len(index.index.candidates(index._query("00000.jpg", ()), 100)) == 100
    queries = range(0, N, 60)
    hits = [found(index, i) for i in queries]
    recall = [
        np.isin(found(exact, i), those).mean()
        for i, those in zip(queries, hits, strict=True)
    ]
    assert np.mean(recall) >= 0.95
    assert hits == [found(again, i) for i in queries]


# candidates of a plain recipe are chosen by cosines of factors, others by finer vectors
@pytest.mark.parametrize(
    ("by", "candidates"), [("dW8", 400), ("dW8+x7", 400), ("pow(dW8,0.5)", 100)]
)
def test_an_index_of_many_images_is_scanned_in_four_bits(
    make_store, monkeypatch, by, candidates
):
    for name, value in {
        "QUANTISED_IMAGES": N,
        "DIMENSIONS": 100,
        "LANDMARKS": 640,
    }.items():
        monkeypatch.setattr(index_module, name, value)
    store = make_store(N)
    exact, _, again = (Searcher(store, by, how) for how in ("exact", "index", "index"))
    vectors = again.index.vectors  # from disk
    assert again.index.is_coarse == again.features.is_quick == (candidates == 400)
    assert index_module._lists_of(vectors).code_size == (vectors.d // 2 + 1) // 2
    near = [
        np.isin(found(exact, i), found(again, i, candidates=candidates)).mean()
        for i in range(0, N, 60)
    ]
    assert np.mean(near) >= 0.95
    only = {"labels": ["third"], "path": "odd/*"}
    monkeypatch.setattr(searcher_module, "EXACT_FILTERED", 10)
    assert all(int(name[:5]) % 6 == 3 for name in found(again, 1, **only))


@pytest.mark.parametrize("by", ["dW8", "x6;x7", "dW8+x7", "(2*x6+1)*(dW7+3*x7)"])
@pytest.mark.parametrize("precision", ["int8", "int4", "float16"])
def test_scores_by_cosines_of_factors_are_those_of_the_recipe(
    make_store, by, precision
):
    searcher = Searcher(make_store(300, precision), by, "index")
    assert searcher.features.is_quick
    query = searcher._query(["00001.jpg", "00002.jpg"], ["00003.jpg"])
    numbers = np.array([5, 299, 0, *range(20, 100)])
    exact = query.scores(searcher.features.of(numbers))
    np.testing.assert_allclose(
        searcher.features.cosine_scores(numbers, query), exact, atol=1e-5
    )


@pytest.mark.parametrize("precision", ["int8", "int4", "float16", "float32"])
def test_rows_of_an_index_are_those_of_the_store(make_store, precision):
    store = make_store(300, precision)
    index, exact = (Searcher(store, "dW8", method) for method in ("index", "exact"))
    numbers = np.array([299, 7, 8, 9, 0])
    keys = [index.contents.keys[n].as_py() for n in numbers.tolist()]
    same = np.array([exact.contents.keys.index(key).as_py() for key in keys])
    ours, theirs = (
        index.contents.read(numbers, ["x7"]),
        exact.contents.read(same, ["x7"]),
    )
    assert list(ours) == ["x7"]
    np.testing.assert_array_equal(ours["x7"], theirs["x7"])
    assert index.contents.read(numbers[:0], ["x7"])["x7"].shape == (
        0,
        *ours["x7"].shape[1:],
    )


def test_a_searcher_goes_on_when_another_one_has_extended_the_index(make_store, grow):
    store = make_store(300)
    searcher = Searcher(store, "dW8", "index")
    before = found(searcher, 1)
    grow(store, 100, begin=300)
    Searcher(store, "dW8", "index")  # whose files replace those of the first
    assert found(searcher, 1) == before


def test_hits_of_the_index_have_the_exact_scores(make_store):
    store = make_store(N)
    exact, index = (Searcher(store, "dW8", method) for method in ("exact", "index"))
    scores = exact.similarities("00001.jpg")[2]
    for hit in index.search("00001.jpg", candidates=100):
        assert hit.score == pytest.approx(
            scores[exact.collection.row_of(hit.id)], abs=1e-6
        )


def test_negative_examples_and_filters_go_through_the_index_too(
    make_store, monkeypatch
):
    monkeypatch.setattr(searcher_module, "EXACT_FILTERED", 10)
    store = make_store(N)
    exact, index = (Searcher(store, "dW8", method) for method in ("exact", "index"))
    options = {"unlike": ["00009.jpg"], "labels": ["third"], "path": "odd/*"}
    ours, theirs = (found(s, 1, **options) for s in (index, exact))
    assert len(ours) == 10
    assert np.isin(theirs, ours).mean() >= 0.9
    assert all(int(name[:5]) % 6 == 3 for name in ours)


def test_a_filter_that_leaves_few_images_is_searched_exactly(make_store, monkeypatch):
    store = make_store(N)
    exact, index = (Searcher(store, "dW8", method) for method in ("exact", "index"))
    monkeypatch.setattr(index_module.Index, "candidates", None)  # not to be called
    assert found(index, 1, path="*/000[0-4]*") == found(exact, 1, path="*/000[0-4]*")


def test_auto_takes_the_index_beyond_the_documented_size(make_store, monkeypatch):
    store = make_store(200)
    assert Searcher(store, "x7").index is None
    monkeypatch.setattr(searcher_module, "EXACT_IMAGES", 199)
    assert Searcher(store, "x7").index is not None
    assert Searcher(store, "x7", "exact").index is None


def test_a_store_that_grew_extends_the_index_which_then_finds_what_a_new_one_finds(
    make_store, grow
):
    store = make_store(N)
    Searcher(store, "dW8", "index")
    grow(store, 500, begin=N)
    stages = []
    extended = Searcher(
        store, "dW8", "index", progress=lambda *told: stages.append(told)
    )
    assert stages[-1] == ("indexing", 500, 500)  # no training, and only the new ones
    assert facts_of(store)["images"] == N + 500
    assert facts_of(store)["made_for"] == N
    assert len(files_of(store)) == 3  # the old files are gone
    for path in files_of(store):
        path.unlink()
    rebuilt, exact = (Searcher(store, "dW8", method) for method in ("index", "exact"))
    for i in (0, 1000, N + 1, N + 400):
        options = {"candidates": 600, "probes": 99}
        assert (
            found(extended, i, **options)
            == found(rebuilt, i, **options)
            == found(exact, i)
        )


def test_an_index_on_disk_is_used_again_without_reading_the_images(
    make_store, monkeypatch
):
    store = make_store(N)
    Searcher(store, "dW8", "index")
    before = {path: path.stat().st_mtime_ns for path in files_of(store)}
    told = []
    Searcher(
        store, "dW8", "index", progress=lambda *t: told.append(t), notice=told.append
    )
    assert told == []
    assert {path: path.stat().st_mtime_ns for path in files_of(store)} == before


def test_a_store_that_grew_a_lot_makes_the_index_again(make_store, grow):
    store = make_store(300)
    Searcher(store, "x7", "index")
    grow(store, 1500, begin=300)
    told = []
    Searcher(store, "x7", "index", notice=told.append)
    assert "has grown from 300 to 1800 images" in told[0]
    assert facts_of(store)["made_for"] == 1800


def test_images_that_went_away_make_the_index_again(make_store):
    store = make_store(N)
    Searcher(store, "dW8", "index")
    rows = store.rows()
    gone = found(Searcher(store, "dW8", "exact"), 1, k=1)[0]
    kept = [row for row in rows.values() if row.id != gone]
    store.write_rows(kept)
    store.compact({row.sha256 for row in kept})
    told = []
    index = Searcher(store, "dW8", "index", notice=told.append)
    assert "no longer in the store" in told[0]
    assert gone not in found(index, 1)
    assert found(index, 1, candidates=600, probes=99) == found(
        Searcher(store, "dW8"), 1
    )


def test_each_recipe_has_an_index_of_its_own(make_store):
    store = make_store(300)
    for by in ("x7", "dW8", "pow(dW8,0.5)"):
        Searcher(store, by, "index")
    folders = {path.parent for path in files_of(store)}
    assert len(folders) == 3
    recipes = {json.loads((f / "index.json").read_text())["recipe"] for f in folders}
    assert recipes == {"x7", "dW8", "pow(dW8,0.5)"}


def test_an_index_that_says_another_recipe_or_other_settings_is_made_again(make_store):
    store = make_store(300)
    Searcher(store, "x7", "index")
    (path,) = store.folder.glob(".index/*/index.json")
    sound = path.read_text()
    for change in (
        {"recipe": "y8"},
        {"settings": {}},
        {"format": "deepfishing-index-0"},
    ):
        path.write_text(json.dumps({**json.loads(sound), **change}))
        told = []
        Searcher(store, "x7", "index", notice=told.append)
        assert f"its {next(iter(change))} is another one" in told[0]
        assert json.loads(path.read_text()) == json.loads(sound)


@pytest.mark.parametrize(
    "name", ["index.json", "vectors-*.faiss", "arrays-*.safetensors"]
)
@pytest.mark.parametrize("harm", ["cut", "changed", "gone"])
def test_a_damaged_index_is_made_again_with_one_line(make_store, name, harm):
    store = make_store(300)
    expected = found(Searcher(store, "dW8", "index"), 1)
    (path,) = store.folder.glob(f".index/*/{name}")
    content = path.read_bytes()
    middle = len(content) // 2
    if harm == "gone":
        path.unlink()
    else:
        end = content[middle + 1 :] if harm == "changed" else b""
        path.write_bytes(content[:middle] + b"\xff" * (harm == "changed") + end)
    told = []
    assert found(Searcher(store, "dW8", "index", notice=told.append), 1) == expected
    assert len(told) == (0 if (harm, name) == ("gone", "index.json") else 1)
    assert all("index is made again" in line and "\n" not in line for line in told)
    assert len(files_of(store)) == 3
    told.clear()
    Searcher(store, "dW8", "index", notice=told.append)
    assert told == []


def test_a_file_of_vectors_that_claims_to_be_huge_takes_no_memory(make_store):
    """Found by `make fuzz`, search-index: 5.5 GB for a file of 3 kB."""
    store = make_store(300)
    index = Searcher(store, "dW8", "index")
    (path,) = store.folder.glob(".index/*/vectors-*.faiss")
    sound = path.read_bytes()
    # numbers of the trained quantiser
    width = struct.pack("<Q", 2 * index.index.vectors.d)
    assert width in sound
    path.write_bytes(sound.replace(width, struct.pack("<Q", 1 << 30)))
    with pytest.raises(RuntimeError, match="limit"):
        _read_vectors(path)


def test_an_index_does_not_disturb_the_store(make_store):
    store = make_store(300)
    Searcher(store, "dW8", "index")
    factors = store.factors()
    assert verify(store) == []
    assert set(factors) == {"x6", "delta7", "x7", "delta8"}


def test_a_folder_that_cannot_be_written_still_gives_an_index(make_store):
    store = make_store(300)
    (store.folder / ".index").write_text("in the way")
    told = []
    index = Searcher(store, "dW8", "index", notice=told.append)
    assert "index cannot be written" in told[0]
    assert found(index, 1) == found(Searcher(store, "dW8", "exact"), 1)


def test_vectors_of_the_landmarks_themselves_have_their_kernel():
    phi = Embedding.fit(np.eye(2), m=2)
    np.testing.assert_allclose(phi(np.eye(2)) @ phi(np.eye(2)).T, np.eye(2), atol=1e-6)


def tight_clusters(folder, n=1500, clusters=2, d=16, spread=0.003):
    """Photos that are nearly the same, as the frames of a fixed camera are."""
    rng = np.random.default_rng(0)
    centres = np.abs(rng.normal(size=(clusters, d)))
    x7 = np.repeat(centres, n, axis=0) + spread * rng.normal(size=(clusters * n, d))
    store = Store(folder, {"network": "toy", "layers": {"8": "fc"}}, "float32")
    keys = [f"{number:064x}" for number in range(len(x7))]
    store.append(keys, {"x7": x7.astype(np.float32)})
    store.write_rows(
        Row(f"{number:05d}.jpg", key, key, status="ok", factors=("x7",))
        for number, key in enumerate(keys)
    )
    return store


@pytest.fixture
def few_candidates(monkeypatch):
    """Four bits, a tenth of a cluster as candidates."""
    monkeypatch.setattr(index_module, "QUANTISED_IMAGES", 1000)
    monkeypatch.setattr(searcher_module, "CANDIDATES", 50)


@pytest.mark.usefixtures("few_candidates")
def test_photos_that_are_nearly_the_same_are_found_as_by_exact_search(tmp_path):
    store = tight_clusters(tmp_path / "s")
    exact, index = Searcher(store, "x7", "exact"), Searcher(store, "x7", "index")
    shared = [
        np.isin([h.id for h in exact.search(q)], [h.id for h in index.search(q)]).mean()
        for q in (f"{number:05d}.jpg" for number in range(0, 3000, 200))
    ]
    assert np.mean(shared) >= 0.95


@pytest.mark.usefixtures("few_candidates")
def test_more_photos_than_are_compared_that_are_nearly_the_same_are_reported(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(searcher_module, "EXACT_IMAGES", 1000)
    store = tight_clusters(tmp_path / "s")
    notices = []
    Searcher(store, "x7", "index", notice=notices.append).search("00000.jpg")
    assert "more than 600 images are nearly the same" in notices[-1]


def test_an_index_that_tells_photos_apart_proposes_no_more_of_them(
    make_store, monkeypatch
):
    store = make_store(N, "float16")
    index = Searcher(store, "x7", "index")
    asked = []
    candidates = index_module.Index.candidates

    def count(self, query, n, *others):
        asked.append(n)
        return candidates(self, query, n, *others)

    monkeypatch.setattr(index_module.Index, "candidates", count)
    for number in range(0, N, 100):
        index.search(f"{number:05d}.jpg")
    assert set(asked) == {500}
