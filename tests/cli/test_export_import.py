"""A store as one file for other tools, and vectors made elsewhere as a store."""

import csv
import json
import shutil

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from deepfishing import Searcher, Store
from deepfishing.extraction.imported import settings_of
from deepfishing.extraction.vector_files import read_vectors
from deepfishing.store import Row
from deepfishing.store import store as store_module

ENDINGS = ("parquet", "csv", "npz", "h5")


@pytest.fixture
def store(tmp_path, rng, monkeypatch):
    """Nine images in int8, a batch of four at a time; the last one lacks delta8."""
    monkeypatch.setattr(store_module, "BATCH_VALUES", 4 * 9)
    store = Store(tmp_path / "store", settings_of(["x7", "delta8"], "toy"), "int8")
    keys = [f"{i:064x}" for i in range(9)]
    store.append(keys, {"x7": rng.normal(size=(9, 5))})
    store.append(keys[:8], {"delta8": rng.normal(size=(8, 4))})
    labels = [("cat",), ("dog", "cow"), None]
    there = {"status": "ok", "factors": ("delta8", "x7")}
    store.write_rows(
        Row(f"{i}.jpg", f"photos/{i}.jpg", key, labels=labels[i % 3], **there)
        for i, key in enumerate(keys)
    )
    return store


def values_of(path):
    """Ids, labels, x7 and delta8 of an exported file, by the tool that it is for."""
    if path.suffix == ".parquet":
        frame = pd.read_parquet(path)
        labels = [None if v is None else ";".join(v) for v in frame.labels]
        delta8 = np.stack(
            [np.full(4, np.nan) if v is None else v for v in frame.delta8]
        )
        return list(frame.id), labels, np.stack(frame.x7), delta8
    if path.suffix == ".csv":
        with path.open() as file:
            head, *rows = csv.reader(file)
        place = {name: i for i, name in enumerate(head)}
        numbers = [
            np.array(
                [[float(r[place[f"{n}_{i}"]] or "nan") for i in range(d)] for r in rows]
            )
            for n, d in (("x7", 5), ("delta8", 4))
        ]
        return (
            [r[place["id"]] for r in rows],
            [r[place["labels"]] or None for r in rows],
            *numbers,
        )
    file = np.load(path) if path.suffix == ".npz" else h5py.File(path)
    ids, labels = (
        np.array(file[name]).astype(str).tolist() for name in ("id", "labels")
    )
    return ids, [text or None for text in labels], file["x7"][:], file["delta8"][:]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_has_what_the_store_has(deepfish, store, tmp_path, ending):
    ran = deepfish("export", "store", f"out.{ending}")
    assert ran.code == 0, ran.err
    assert ran.out == f"out.{ending}: 9 images, delta8, x7\n"
    ids, labels, x7, delta8 = values_of(tmp_path / f"out.{ending}")
    assert ids == [f"{i}.jpg" for i in range(9)]
    assert labels == ["cat", "dog;cow", None] * 3
    np.testing.assert_array_equal(np.float32(x7), store.to_numpy("x7"))
    keys = [f"{i:064x}" for i in range(8)]
    np.testing.assert_array_equal(np.float32(delta8[:8]), store.read(keys, "delta8"))
    assert np.isnan(delta8[8]).all()


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_was_exported_is_imported_again(deepfish, store, tmp_path, ending):
    deepfish("export", "store", f"out.{ending}")
    ran = deepfish(
        "import", f"out.{ending}", "again", "--precision", "float32", "--json"
    )
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["factors"] == ["delta8", "x7"]
    again = Store.open(tmp_path / "again")
    assert [(r.id, r.path, r.sha256, r.labels) for r in again.usable()] == [
        (r.id, r.path, r.sha256, r.labels) for r in store.usable()
    ]
    np.testing.assert_allclose(again.to_numpy("x7"), store.to_numpy("x7"), rtol=1e-6)
    assert again.to_arrow()["delta8"].null_count == 1


def test_an_export_in_parquet_makes_the_same_store_with_its_network(
    deepfish, shapes, tmp_path
):
    deepfish("extract", "shapes", "store", "--features", "x7,dW8")
    deepfish("export", "store", "out.parquet")
    assert deepfish("import", "out.parquet", "again").code == 0
    first, again = (Store.open(tmp_path / name) for name in ("store", "again"))
    assert again.settings == first.settings
    new = tmp_path / "new.png"
    new.write_bytes((shapes / "test" / "dark" / "0.jpg").read_bytes() + b"\0")
    hits = [Searcher(one).search(str(new), k=3) for one in (first, again)]
    assert [hit.id for hit in hits[0]] == [hit.id for hit in hits[1]]


@pytest.fixture
def vectors(tmp_path, rng):
    """Vectors of another program: a column of lists, a path that exists, a label."""
    (tmp_path / "photos").mkdir()
    labels, rows = ["cat"] * 6 + ["dog"] * 6, []
    for i, label in enumerate(labels):
        (tmp_path / "photos" / f"{i}.jpg").write_bytes(f"photo {i}".encode())
        vector = rng.normal(size=16) + 3 * (np.arange(16) % 2 == (label == "cat"))
        rows.append(
            {"path": f"photos/{i}.jpg", "label": label, "clip": vector.tolist()}
        )
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "vectors.parquet")
    return tmp_path / "vectors.parquet"


def test_vectors_made_elsewhere_are_searched_curated_and_classified(deepfish, vectors):
    ran = deepfish("import", vectors, "store")
    assert ran.code == 0, ran.err
    assert "store: 12 images, x7" in ran.out
    advised = ran.err.strip().rpartition(", or ")[2]  # what is said to be next works
    ran = deepfish("search", "store", "photos/0.jpg", "-n", "5", "--json")
    assert {hit["labels"][0] for hit in json.loads(ran.out)["hits"]} == {"cat"}
    # a file that the store knows by its content is a query, too
    ran = deepfish(
        "search", "store", vectors.parent / "photos" / "7.jpg", "-n", "5", "--json"
    )
    assert json.loads(ran.out)["hits"][0]["id"] == "photos/7.jpg"
    assert deepfish("train", *advised.removeprefix("deepfish train ").split()).code == 0
    ran = deepfish("curate", "choose", "store", "-n", "3")
    assert ran.code == 0, ran.err
    assert deepfish("store", "verify", "store").code == 0


def test_a_new_photo_cannot_be_encoded_and_that_is_one_line(deepfish, vectors, shapes):
    deepfish("import", vectors, "store")
    ran = deepfish("search", "store", shapes / "test" / "dark" / "0.jpg")
    assert ran.code == 1
    assert "the network 'vectors' is not one that is found by name" in ran.err


def test_nothing_is_replaced_without_being_asked(deepfish, store, vectors, tmp_path):
    deepfish("export", "store", "out.csv")
    (tmp_path / "out.csv").write_text("mine")
    ran = deepfish("export", "store", "out.csv")
    assert ran.code == 1
    assert ran.err == (
        "deepfish: out.csv exists; choose another name, or delete it first\n"
    )
    assert (tmp_path / "out.csv").read_text() == "mine"
    deepfish("import", vectors, "made")
    ran = deepfish("import", vectors, "made")
    assert ran.code == 1
    assert "12 images of" in ran.err
    assert "such as photos/0.jpg; add --overwrite to replace them" in ran.err
    frame = pd.read_parquet(vectors)
    frame["clip"] = [np.ones(8)] * 12
    frame.to_parquet(vectors)
    assert "x7 of made is (16,), got (8,)" in deepfish("import", vectors, "made").err
    frame["clip"] = [np.ones(16)] * 12
    frame.to_parquet(vectors)
    assert deepfish("import", vectors, "made", "--overwrite").code == 0
    np.testing.assert_allclose(
        Store.open(tmp_path / "made").to_numpy("x7"), 1, rtol=1e-5
    )


def test_features_are_chosen(deepfish, store, tmp_path):
    ran = deepfish("export", "store", "out.npz", "--features", "x7")
    assert ran.out == "out.npz: 9 images, x7\n"
    assert sorted(np.load(tmp_path / "out.npz")) == [
        "id",
        "labels",
        "path",
        "sha256",
        "x7",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["store", "out.xls"], "must end in .parquet, .csv, .npz, .h5, got out.xls"),
        (["nowhere", "out.csv"], "nowhere"),
        (["store", "out.csv", "--features", "y8"], "lacks y8; it has delta8, x7"),
        (["store", "no/such/out.csv"], "cannot be written: no/such/out.csv"),
    ],
)
def test_a_bad_export_is_one_line(deepfish, store, tmp_path, arguments, said):
    ran = deepfish("export", *arguments)
    assert ran.code == 1
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert not list(tmp_path.glob("*out*"))


def a_file(tmp_path, **columns):
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")


BAD = {
    "no such file": (lambda p: None, "must exist"),
    "no table": (
        lambda p: (p / "v.parquet").write_text("text"),
        "vectors cannot be read",
    ),
    "no vectors": (
        lambda p: a_file(p, id=["a"]),
        "one column must hold vectors, got none",
    ),
    "several": (lambda p: a_file(p, a=[[1.0]], b=[[1.0]]), "got a, b in"),
    "NaN": (
        lambda p: a_file(p, a=[[1.0, float("nan")]]),
        "finite, got others: 0000000",
    ),
    "empty": (
        lambda p: a_file(p, a=pa.array([], pa.list_(pa.float32(), 2))),
        "got none",
    ),
    "lengths of blocks": (
        lambda p: a_file(p, a=[[1.0]] * 4096 + [[1.0, 2.0]] * 4),
        "one length, got two",
    ),
    "lengths": (lambda p: a_file(p, a=[[1.0], [1.0, 2.0]]), "one length, got [1, 2]"),
    "twice": (
        lambda p: a_file(p, id=["a", "a"], a=[[1.0], [2.0]]),
        "unique, got one twice",
    ),
    "hash": (
        lambda p: a_file(p, sha256=["../x"], a=[[1.0]]),
        "sha256 must be 64 hex digits",
    ),
    "two vectors": (
        lambda p: a_file(p, id=["a", "b"], sha256=["0" * 64] * 2, a=[[1.0], [2.0]]),
        "one vector, up to rounding, got two: b",
    ),
    "text": (lambda p: a_file(p, a=[["x"]]), "vectors cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_import_is_one_line_and_leaves_no_store(deepfish, tmp_path, case):
    make, said = BAD[case]
    make(tmp_path)
    ran = deepfish("import", "v.parquet", "made")
    assert ran.code == 1, ran.out
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "made").exists()


def test_arrays_of_other_lengths_and_gaps_in_columns_are_told(deepfish, tmp_path):
    np.savez(tmp_path / "v.npz", a=np.ones((3, 2)), id=np.array(["x", "y"]))
    assert "same images, got [2, 3] rows" in deepfish("import", "v.npz", "made").err
    (tmp_path / "v.csv").write_text("id,a_0,a_2\n1,0.5,0.25\n")
    assert "must be a_0, a_1 and so on" in deepfish("import", "v.csv", "made").err
    (tmp_path / "v.csv").write_text("id,a_0,a_1\n0,0.5,0.25\n1,1,2\n")
    assert (
        deepfish("import", "v.csv", "made", "--column", "b").err.count("one of a of")
        == 1
    )
    assert deepfish("import", "v.csv", "made", "--column", "a").code == 0
    assert [row.id for row in Store.open(tmp_path / "made").usable()] == ["0", "1"]


@pytest.mark.parametrize("names", ["0,1", "v0,v1", "vector_0,vector_1"])
def test_numbers_of_a_data_frame_are_taken_however_it_names_them(
    deepfish, tmp_path, names
):
    (tmp_path / "v.csv").write_text(f"id,year2020,{names}\na,3,0.5,0.25\nb,4,1,2\n")
    assert deepfish("import", "v.csv", "made", "--precision", "float32").code == 0
    store = Store.open(tmp_path / "made")
    np.testing.assert_array_equal(store.to_numpy("x7"), [[0.5, 0.25], [1, 2]])


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_column_may_begin_with_whole_numbers_for_long(deepfish, tmp_path, delimiter):
    n = 200_000  # the first rows, of which a type would be guessed, are a million bytes
    rows = [delimiter.join(("id", "x7_0", "x7_1"))]
    rows += [
        delimiter.join((f"{i:07d}", "0" if i < n - 1 else "0.5", "1")) for i in range(n)
    ]
    (tmp_path / "v.csv").write_text("\n".join(rows))
    blocks = [block.vectors["x7"] for block in read_vectors(tmp_path / "v.csv")]
    assert sum(map(len, blocks)) == n
    np.testing.assert_array_equal(blocks[-1][-1], [0.5, 1])
    np.testing.assert_array_equal(blocks[0][0], [0, 1])


def test_a_table_without_vectors_says_what_they_look_like(deepfish, tmp_path):
    (tmp_path / "v.csv").write_text("id,vector\na,0.5 0.25\n")
    assert "v_0, v_1 and so on" in deepfish("import", "v.csv", "made").err


@pytest.fixture
def pictures(tmp_path, rng):
    """Three photos and a copy of the first, and a vector of each that rounds differently."""
    names = [f"{number}.png" for number in range(3)]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(
            tmp_path / name
        )
    shutil.copy(tmp_path / "0.png", tmp_path / "copy.png")
    vectors = rng.normal(size=(3, 4))
    return [*names, "copy.png"], np.concatenate([vectors, vectors[:1] * (1 + 1e-5)])


@pytest.mark.parametrize("column", ["path", "filename", "file_name", "Image"])
def test_copies_may_differ_by_rounding_and_paths_may_have_other_names(
    deepfish, tmp_path, pictures, column
):
    names, vectors = pictures
    lines = [f"{column},label,v_0,v_1,v_2,v_3"]
    for name, vector in zip(names, vectors.tolist(), strict=True):
        lines.append(",".join([name, "a", *map(str, vector)]))
    (tmp_path / "v.csv").write_text("\n".join(lines))
    ran = deepfish("import", "v.csv", "made", "--precision", "float32")
    assert ran.code == 0, ran.err
    store = Store(tmp_path / "made")
    assert [row.path for row in store.usable()] == names
    assert len({row.sha256 for row in store.usable()}) == 3  # known by the files
    # the first vector of a photo counts
    expected = np.concatenate([vectors[:3], vectors[:1]])
    np.testing.assert_allclose(store.to_numpy("x7"), expected, rtol=1e-6)
    assert deepfish("search", "made", "1.png").code == 0


@pytest.mark.parametrize("column", ["path", "paths"])
def test_copies_that_differ_by_more_are_refused(deepfish, tmp_path, pictures, column):
    names, vectors = pictures
    vectors[3, 0] += 0.1
    np.savez(tmp_path / "v.npz", **{"x7": vectors, column: np.array(names)})
    ran = deepfish("import", "v.npz", "made")
    assert ran.code == 1
    assert "one vector, up to rounding, got two: copy.png" in ran.err
    assert not (tmp_path / "made").exists()


def test_copies_among_vectors_need_the_files_of_their_images(deepfish, tmp_path, rng):
    vectors = rng.normal(size=(6, 4)).astype(np.float32)
    np.save(tmp_path / "v.npy", np.concatenate([vectors, vectors + 1e-3]))
    assert deepfish("import", "v.npy", "made").code == 0
    ran = deepfish("curate", "twins", "made")
    assert "`deepfish import --paths` names them" in ran.err
    assert "extract --prune" not in ran.err


def test_an_array_alone_is_imported_with_and_without_a_list_of_its_images(
    deepfish, tmp_path, pictures
):
    names, vectors = pictures
    np.save(tmp_path / "v.npy", vectors.astype(np.float16))
    assert deepfish("import", "v.npy", "numbered").code == 0
    assert [row.id for row in Store(tmp_path / "numbered").usable()][:2] == [
        "0000000",
        "0000001",
    ]
    (tmp_path / "list.txt").write_text("\n".join(names))
    ran = deepfish("import", "v.npy", "named", "--paths", "list.txt")
    assert ran.code == 0, ran.err
    assert [row.id for row in Store(tmp_path / "named").usable()] == names
    (tmp_path / "list.txt").write_text("\n".join(names[:3]))
    ran = deepfish("import", "v.npy", "short", "--paths", "list.txt")
    assert "must list an image for each of 4 rows of v.npy, got 3" in ran.err
    np.save(tmp_path / "v.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    ran = deepfish("import", "v.npy", "pickled")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    np.save(tmp_path / "v.npy", vectors[0])
    assert (
        "an array must be (images, numbers)" in deepfish("import", "v.npy", "one").err
    )


@pytest.fixture
def embeddings(tmp_path, rng):
    """Vectors of 150 images of three kinds from elsewhere; six of them have a label."""
    kinds = np.arange(150) % 3
    x = np.eye(3, 16)[kinds] + 0.2 * rng.normal(size=(150, 16))
    labels = ["abc"[kind] if number < 6 else "" for number, kind in enumerate(kinds)]
    ids = [f"{number:03d}.jpg" for number in range(150)]
    np.savez(tmp_path / "api.npz", embedding=x.astype("f4"), id=ids, label=labels)
    return kinds


def test_imported_embeddings_have_gradients_of_a_head_made_of_them(
    embeddings, deepfish, tmp_path
):
    made = deepfish("import", "api.npz", "store")
    assert made.code == 0, made.err
    assert "deepfish train store model" in made.err
    assert "--features" not in made.err
    trained = deepfish("train", "store", "model")
    assert trained.code == 0, trained.err
    assert "own(x7" in trained.out
    store = Store.open(tmp_path / "store")
    hits = Searcher(store, "own(x7)").search("010.jpg", k=20)
    assert all(embeddings[int(hit.id[:3])] == embeddings[10] for hit in hits)
    assert all(hit.backward is not None for hit in hits)
    for what in ("choose", "odd", "labels"):
        ran = deepfish("curate", what, "store", "--features", "own(x7)")
        assert ran.code == 0, ran.err
    refused = deepfish("search", "store", "010.jpg", "--features", "dW8")
    assert "take x7, its embedding, or own(x7)" in refused.err


def test_gradients_from_elsewhere_keep_their_classifier():
    assert settings_of(["x7"], "api")["layers"] == {"8": "-"}
    assert settings_of(["x7"], "api")["head"] == "none"
    for names in (["x7", "delta8"], ["y8"], ["x8"], ["x6", "delta7"]):
        assert settings_of(names, "api")["layers"]["8"] == "layer 8"
        assert settings_of(names, "api")["head"] == "softmax"
