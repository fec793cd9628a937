import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from deepfishing.core.kernels import gram
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import ImageError, OptionError, StoreError, WeightsError
from deepfishing.search import Searcher, compare
from deepfishing.store import Row, Store

N = 120
LAYERS = {7: "_conv_head", 8: "_fc"}


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def ids(hits):
    return [hit.id for hit in hits]


def names(order):
    return [f"{i:05d}.jpg" for i in order]


def brute_force(arrays, by):
    """The kernel of all pairs from outer products that are really built."""

    def dense(x, delta):
        g = np.einsum("nd,ne->nde", unit(arrays[x]), unit(arrays[delta]))
        return np.einsum("nde,mde->nm", g, g)

    x7 = unit(arrays["x7"]) @ unit(arrays["x7"]).T
    kernels = {"x7": x7, "dW8": dense("x7", "delta8"), "dW7": dense("x6", "delta7")}
    kernels["dW8+x7"] = (kernels["dW8"] + x7) / 2
    return kernels[by]


@pytest.mark.parametrize("by", ["x7", "dW8", "dW7", "dW8+x7"])
@pytest.mark.parametrize("keep", [0, 1 << 30])
def test_exact_search_is_brute_force_over_dense_gradients(
    make_store, arrays_of, monkeypatch, by, keep
):
    monkeypatch.setattr(compare, "MAX_CACHE_BYTES", keep)
    monkeypatch.setattr(compare, "BLOCK_BYTES", 1000)  # many blocks
    store = make_store(N)
    K = brute_force(arrays_of(store, N), by)
    searcher = Searcher(store, by)
    for i in (0, 7, 119):
        expected = [j for j in np.argsort(-K[i]) if j != i][:5]
        hits = searcher.search(f"{i:05d}.jpg", k=5)
        assert ids(hits) == names(expected)
        np.testing.assert_allclose(
            [hit.score for hit in hits], K[i][expected], atol=1e-5
        )


def test_any_recipe_gives_the_kernel_that_the_recipe_module_gives(
    make_store, arrays_of
):
    by = "whiten(pow(dW8,0.5))*x7"
    store = make_store(N)
    arrays = arrays_of(store, N)
    features = parse_recipe(by, LAYERS).fit(arrays)(arrays)
    K = gram(features)
    hits = Searcher(store, by).search("00003.jpg", k=4)
    assert ids(hits) == names([j for j in np.argsort(-K[3]) if j != 3][:4])


def test_forward_times_backward_is_the_score_of_a_gradient(make_store):
    store = make_store(N)
    searcher = Searcher(store, "dW8")
    for hit in searcher.search("00001.jpg", k=5):
        assert hit.forward * hit.backward == pytest.approx(hit.score, abs=1e-6)
    assert all(
        hit.backward is None for hit in Searcher(store, "x7").search("00001.jpg")
    )


def test_similarities_of_all_images_are_those_of_the_hits(make_store):
    searcher = Searcher(make_store(N), "dW8+x7")
    forward, backward, score = searcher.similarities("00001.jpg")
    assert len(forward) == len(backward) == len(score) == len(searcher.collection) == N
    for hit in searcher.search("00001.jpg", k=20):
        row = searcher.collection.row_of(hit.id)
        assert (forward[row], backward[row], score[row]) == pytest.approx(
            (hit.forward, hit.backward, hit.score), abs=1e-6
        )
    assert Searcher(searcher.store, "x7").similarities("00001.jpg")[1] is None


def rooted(rows):
    return unit(np.sign(rows) * np.sqrt(np.abs(unit(rows))))


@pytest.mark.parametrize(
    ("by", "transform"),
    [
        ("dW8", unit),
        ("pow(dW8,0.5)", rooted),
        ("pow(dW8,0.5)+pow(x7,0.5)", rooted),
        ("dW8+x7", unit),  # the default
        ("x6*(x7+2*pow(dW8,0.5))", rooted),
        ("dW7+dW8", unit),
        (
            "whiten(dW8,0.5)+pow(dW8,0.5)",
            rooted,
        ),  # explained by the one that has classes
    ],
)
def test_the_terms_of_all_classes_add_up_to_the_backward_half(
    make_store, arrays_of, tmp_path, by, transform
):
    store = make_store(N)
    (tmp_path / "names.txt").write_text("\n".join("abcdefg"))
    delta = transform(arrays_of(store, N)["delta8"])
    searcher = Searcher(store, by, class_names=tmp_path / "names.txt")
    for hit in searcher.search(["00004.jpg", "00009.jpg"], k=5):
        terms = delta[[4, 9]].mean(axis=0) * delta[int(hit.id[:5])]
        assert terms.sum() == pytest.approx(hit.backward, abs=1e-6)
        best = [c for c in np.argsort(-terms)[:3] if terms[c] > 0]
        assert [(one.index, one.name) for one in hit.classes] == [
            (c, "abcdefg"[c]) for c in best
        ]
        np.testing.assert_allclose(
            [one.term for one in hit.classes], terms[best], atol=2e-6
        )


@pytest.mark.parametrize(
    "by", ["x7", "dW7", "whiten(dW8,0.5)", "whiten(pow(dW8,0.5))*x7"]
)
def test_no_classes_are_told_where_the_backward_half_is_no_sum_over_classes(
    make_store, by
):
    hits = Searcher(make_store(N), by).search("00004.jpg", k=5)
    assert [hit.classes for hit in hits] == [()] * 5


def test_class_names_must_be_as_many_as_the_classes(make_store, tmp_path):
    (tmp_path / "names.txt").write_text("only\ntwo")
    with pytest.raises(OptionError, match="must be 7, one per line, got 2"):
        Searcher(make_store(), "dW8", class_names=tmp_path / "names.txt").search(
            "00004.jpg"
        )
    with pytest.raises(OptionError, match=r"gone\.txt"):
        Searcher(make_store(), "dW8", class_names=tmp_path / "gone.txt")


def test_several_positive_examples_have_the_mean_of_their_kernels(
    make_store, arrays_of
):
    store = make_store(N)
    K = brute_force(arrays_of(store, N), "dW8")
    mean = K[[2, 5]].mean(axis=0)
    hits = Searcher(store, "dW8").search(["00002.jpg", "00005.jpg"], k=6)
    assert ids(hits) == names([j for j in np.argsort(-mean) if j not in (2, 5)][:6])


def test_a_quarter_of_the_similarity_to_negative_examples_is_taken_away(
    make_store, arrays_of
):
    store = make_store(N)
    K = brute_force(arrays_of(store, N), "dW8")
    scores = K[[2, 5]].mean(axis=0) - 0.25 * K[[9, 11]].mean(axis=0)
    unlike = ["00009.jpg", "00011.jpg"]
    hits = Searcher(store, "dW8").search(["00002.jpg", "00005.jpg"], k=6, unlike=unlike)
    expected = [j for j in np.argsort(-scores) if j not in (2, 5, 9, 11)][:6]
    assert ids(hits) == names(expected)
    np.testing.assert_allclose([h.score for h in hits], scores[expected], atol=1e-6)


def test_filters_leave_only_images_with_all_labels_and_a_matching_path(
    make_store, arrays_of
):
    store = make_store(N)
    K = brute_force(arrays_of(store, N), "dW8")[1]
    searcher = Searcher(store, "dW8")
    hits = searcher.search("00001.jpg", k=7, labels=["third"], path="even/*")
    assert ids(hits) == names([j for j in np.argsort(-K) if j % 6 == 0][:7])
    hits = searcher.search("00001.jpg", k=7, labels=["third", "fifth"])
    assert ids(hits) == names([j for j in np.argsort(-K) if j % 15 == 0][:7])
    assert all(hit.labels == ("third", "fifth") for hit in hits)


def test_a_filter_that_leaves_most_images_is_searched_right_too(make_store, arrays_of):
    store = make_store(N)
    K = brute_force(arrays_of(store, N), "dW8")[1]
    hits = Searcher(store, "dW8").search("00001.jpg", k=7, path="*[2-9].jpg")
    assert ids(hits) == names([j for j in np.argsort(-K) if j % 10 >= 2][:7])


def test_contents_that_no_image_has_any_more_take_no_place(make_store, arrays_of):
    store = make_store(N)
    K = brute_force(arrays_of(store, N), "dW8")[1]
    nearest = [j for j in np.argsort(-K) if j != 1]
    gone = names(nearest[:5])  # their features are still there
    store.write_rows(row for row in store.rows().values() if row.id not in gone)
    for method in ("exact", "index"):
        hits = Searcher(store, "dW8", method).search("00001.jpg", k=5)
        assert ids(hits) == names(nearest[5:10])


def test_a_filter_that_leaves_fewer_than_k_gives_fewer(make_store):
    assert (
        len(
            Searcher(make_store(), "x7").search(
                "00001.jpg", k=50, path="*/0000[246].jpg"
            )
        )
        == 3
    )


def test_ids_are_found_in_whatever_order_the_index_has_them(make_store):
    store = make_store(50)
    path = store.folder / "index.parquet"
    shuffled = np.random.default_rng(0).permutation(50)
    sorted_ids = [hit.id for hit in Searcher(store, "dW8").search("00007.jpg")]
    pq.write_table(pq.read_table(path).take(shuffled), path)
    searcher = Searcher(store, "dW8")
    assert [searcher.collection.row_of(f"{i:05d}.jpg") for i in shuffled] == list(
        range(50)
    )
    assert searcher.collection.row_of("zebra.jpg") is None
    assert [hit.id for hit in searcher.search("00007.jpg")] == sorted_ids


def test_the_same_content_under_two_names_is_two_hits(make_store):
    store = make_store(10)
    rows = store.rows()
    twin = Row("twin.jpg", "elsewhere/twin.jpg", rows["00003.jpg"].sha256, status="ok")
    store.write_rows([*rows.values(), twin])
    hits = Searcher(store, "dW8").search("00003.jpg", k=3)
    assert hits[0].id == "twin.jpg"
    assert hits[0].score == pytest.approx(1.0, abs=1e-6)
    assert len(hits) == 3
    assert "00003.jpg" not in ids(hits)


def test_images_without_the_factors_of_the_recipe_are_not_searched(make_store):
    store = make_store(10)
    store.append(["f" * 64], {"x7": np.ones((1, 9), dtype="f4")})
    store.write_rows(
        [*store.rows().values(), Row("new.jpg", "new.jpg", "f" * 64, status="ok")]
    )
    assert "new.jpg" not in ids(Searcher(store, "dW8").search("00001.jpg", k=99))
    hits = Searcher(store, "x7").search("00001.jpg", k=99)
    assert "new.jpg" in ids(hits)


def test_half_precision_on_disk_changes_the_third_digit_at_most(make_store):
    half, single = (
        Searcher(make_store(N, d, d), "dW8") for d in ("float16", "float32")
    )
    a, b = (s.similarities("00001.jpg")[2] for s in (half, single))
    np.testing.assert_allclose(a, b, atol=2e-3)
    assert not np.array_equal(a, b)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"like": "00001.jpg", "k": 0}, "k must be at least 1, got 0"),
        ({"like": []}, "at least one example"),
        ({"like": "00001.jpg", "labels": ["thrid"]}, "did you mean third"),
        ({"like": "00001.jpg", "path": "nowhere/*"}, "leave images .* path nowhere"),
    ],
)
def test_options_that_cannot_be_are_told(make_store, arguments, message):
    with pytest.raises(OptionError, match=message):
        Searcher(make_store(), "x7").search(**arguments)


def test_a_query_that_is_no_id_and_no_file_is_told_with_what_was_meant(make_store):
    with pytest.raises(ImageError, match=r"'0000\.jpg' .*did you mean 00\d+\.jpg\?"):
        Searcher(make_store(), "x7").search("0000.jpg")
    with pytest.raises(ImageError, match=r"an id of .* or an image file"):
        Searcher(make_store(), "x7").search("nul\0byte")


def test_a_store_without_the_factor_names_the_command_that_adds_it(
    tmp_path, make_store
):
    store = make_store(10)
    with pytest.raises(
        StoreError, match=r"lacks y8; add them with `deepfish extract .*'y8,x7'`"
    ):
        Searcher(store, "pow(y8,0.5)+x7")
    empty = Store(tmp_path / "empty", store.settings, "float32")
    with pytest.raises(StoreError, match="must have images to search in"):
        Searcher(empty)
    with pytest.raises(StoreError, match=r"must hold store\.json"):
        Searcher(tmp_path)
    with pytest.raises(OptionError, match="method must be one of auto, exact, index"):
        Searcher(store, method="fast")


def test_a_store_whose_rows_have_no_features_is_told(make_store):
    store = make_store(10)
    store.write_rows([Row("a.jpg", "a.jpg", None, status="error", error="cut")])
    with pytest.raises(StoreError, match="must have images to search in, got none"):
        Searcher(store, "x7")


def test_the_default_recipe_is_the_first_that_the_store_has(make_store, tmp_path):
    assert Searcher(make_store()).recipe.name == "dW8+x7+own(x7,64)"
    assert Searcher(make_store(20)).recipe.name == "dW8+x7"  # too few to make a head of
    for layers, factor, name in (
        ({"7": "_conv_head", "8": "_fc"}, "x6", "x6"),
        ({"8": "_fc"}, "y8", "y8"),
    ):
        forward = Store(
            tmp_path / name, {"network": "toy", "layers": layers}, "float32"
        )
        forward.append(["a" * 64], {factor: np.ones((1, 3))})
        forward.write_rows([Row("a", "a", "a" * 64)])
        assert Searcher(forward).recipe.name == name
    for columns, name in (
        (["x:blocks.3"], "x:blocks.3"),
        (["x:blocks.3", "in:fc", "delta:fc"], "dW:fc"),
        (["delta:blocks.3"], None),
    ):
        other = Store(
            tmp_path / f"{columns}", {"network": "toy", "layers": {}}, "float32"
        )
        other.append(["a" * 64], {column: np.ones((1, 3)) for column in columns})
        other.write_rows([Row("a", "a", "a" * 64)])
        if name:
            assert Searcher(other).recipe.name == name
            continue
        with pytest.raises(
            StoreError, match=r"got delta:blocks\.3; name a recipe with --features"
        ):
            Searcher(other)


def test_many_threads_find_what_one_finds(make_store):
    store = make_store(N)
    queries = [f"{i:05d}.jpg" for i in range(40)]
    expected = [Searcher(store, "dW8").search(query) for query in queries]
    shared = Searcher(store, "dW8")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(shared.search, queries)) == expected


def test_searching_among_stored_images_does_not_import_torch(make_store):
    code = (
        "import sys; from deepfishing.search import Searcher;"
        "print(len(Searcher(sys.argv[1], 'dW8').search('00001.jpg')), 'torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, make_store().folder],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["10", "False"]


def test_shards_of_another_writer_are_searched_too(make_store, arrays_of):
    store = make_store(N)
    for path in store.folder.glob("*/shard-*.parquet"):
        table = pq.read_table(path)
        other = path.with_name(f"shard-other-{path.stem[-8:]}.parquet")
        pq.write_table(table.replace_schema_metadata({}), other, compression="zstd")
        path.unlink()
    store.look_again()
    K = brute_force(arrays_of(store, N), "dW8")[1]
    hits = Searcher(store, "dW8").search("00001.jpg", k=5)
    assert ids(hits) == names([j for j in np.argsort(-K) if j != 1][:5])


def test_a_shard_that_is_cut_short_is_told_with_its_path(make_store):
    store = make_store(N)
    searcher = Searcher(store, "dW8")
    for path in (store.folder / "x7").glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(StoreError, match=r"shard is damaged: .*x7.shard-"):
        searcher.search("00001.jpg")


def test_a_network_that_has_no_name_asks_for_its_file(make_store, tmp_path):
    store = make_store(10)
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    searcher = Searcher(store, "dW8")
    pixels = {"size": 8, "short_side": 8, "mean": [0.0] * 3, "std": [1.0] * 3}
    unnamed = {"network": "mine", "weights_sha256": "0", "compute_dtype": "float32"}
    unnamed |= {"preprocess": pixels, "label": "uniform", "views": "centre"}
    unnamed |= {
        "head": "softmax",
        "scores": "",
        "source": {"kind": "published", "files": {}},
    }
    searcher.encoder.settings = {**store.settings, **unnamed}
    with pytest.raises(WeightsError, match=r"'mine' is not .* by name; pass --weights"):
        searcher.search(tmp_path / "a.png")


@pytest.fixture
def pictures(tmp_path, rng, deepfish):
    """A folder of pictures and the store of their features by a random network."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(6):
        pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((64, 64)).save(folder / f"{i}.png")
    ran = deepfish(
        "extract", folder, "store", "--weights", "random", "--features", "x7,dW8"
    )
    assert ran.code == 0, ran.err
    return folder, tmp_path / "store"


def test_files_and_bytes_are_compared_by_the_network_of_the_store(pictures, tmp_path):
    folder, store = pictures
    searcher = Searcher(store, "dW8")
    known = folder / "2.png"
    by_id = searcher.search("2.png", k=3)
    for query in (known, str(known), known.read_bytes()):
        hits = searcher.search(query, k=4)
        assert hits[0].id == "2.png"
        assert hits[0].score == pytest.approx(1.0, abs=1e-3)
        assert ids(hits)[1:] == ids(by_id)
    assert "_loaded_network" not in vars(
        searcher.encoder
    )  # their content is in the store
    # the same pixels as other bytes: now the network must look
    copy = tmp_path / "copy.bmp"
    Image.open(known).save(copy)
    image = Image.open(copy)
    for query in (copy, copy.read_bytes(), image, np.asarray(image), [image]):
        hits = searcher.search(query, k=4)
        assert ids(hits) == ["2.png", *ids(by_id)]
        assert hits[0].score == pytest.approx(1.0, abs=1e-3)
    # the new one is first, though it is computed after the stored one is read
    mixed = searcher.search(copy, k=6, unlike=["3.png"])
    stored = searcher.search("2.png", k=6, unlike=["3.png"])
    assert ids(mixed) == ["2.png", *ids(stored)]
    with pytest.raises(
        ImageError, match="not an image that Pillow can read: the bytes given"
    ):
        searcher.search(b"hello")
    with pytest.raises(ImageError, match=r"of uint8, .* got float64"):
        searcher.search(-np.ones((4, 4)))
    with pytest.raises(OptionError, match="a PIL image, an array or Words, got int"):
        searcher.search(7)
