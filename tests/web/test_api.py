"""The API says what the library says."""

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from deepfishing.errors import StoreError, WeightsError
from deepfishing.images.item import Item
from deepfishing.learn.labelled import Labelled
from deepfishing.learn.model import Model
from deepfishing.learn.predict import predict
from deepfishing.learn.training import train_on_store
from deepfishing.search import Searcher
from deepfishing.store import Store
from deepfishing.web import gallery as gallery_module
from deepfishing.web.app import make_app
from deepfishing.web.gallery import (
    Example,
    Gallery,
    Question,
    collapse,
    groups_of,
    thin_out,
)
from deepfishing.web.photos import REMEMBERED, Thumbnails


def like(*ids):
    return [{"id": id_} for id_ in ids]


@pytest.fixture(scope="module")
def photo():
    """A picture that is not in the store."""
    pixels = np.random.default_rng(3).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((300, 240)).save(file, "JPEG")
    return file.getvalue()


def test_the_page_knows_what_the_store_has(client, gallery, ids):
    facts = client.get("/api/store").json()
    assert facts["images"] == len(ids) == 32
    assert facts["forward"][0] == "x7"
    # as `deepfish search`
    assert facts["gradient"][0] == Searcher(gallery.store).recipe.name
    assert {"x6", "x6;x7", "pow(x7,0.5)"} <= set(facts["forward"])
    assert {"dW7", "dW8", "pow(dW8,0.5)"} <= set(facts["gradient"])
    pictures = [gallery.collection[i] for i in range(32)]
    for label in facts["labels"]:
        assert label["images"] == sum(label["name"] in one.labels for one in pictures)
    assert facts["model"] == "dW8"


@pytest.mark.parametrize("by", ["x7", "dW8", "dW8+x7"])
def test_hits_are_those_of_the_searcher(client, store_folder, ids, by):
    answer = client.post("/api/search", json={"by": by, "like": like(ids[3]), "k": 5})
    searcher = Searcher(store_folder, by)
    nearest = searcher.search(ids[3], k=15)
    expected = [hit for hit, _ in collapse(nearest, groups_of(searcher, nearest))][:5]
    assert answer.status_code == 200
    for hit, other in zip(answer.json()["hits"], expected, strict=True):
        assert (hit["id"], hit["labels"]) == (other.id, list(other.labels))
        assert hit["score"] == pytest.approx(other.score, abs=1e-4)
        assert hit["forward"] == pytest.approx(other.forward, abs=1e-4)
        assert hit["backward"] == (
            None if other.backward is None else pytest.approx(other.backward, abs=1e-4)
        )
        assert [one["name"] for one in hit["classes"]] == [
            one.name for one in other.classes
        ]


def test_more_like_these_and_not_like_those_is_what_the_searcher_does(
    client, store_folder, ids
):
    asked = {"by": "dW8", "like": like(ids[1], ids[2]), "unlike": like(ids[9]), "k": 6}
    hits = client.post("/api/search", json=asked).json()["hits"]
    expected = Searcher(store_folder, "dW8").search(ids[1:3], 6, [ids[9]])
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    without = client.post("/api/search", json={**asked, "unlike": []}).json()["hits"]
    assert [hit["score"] for hit in hits] != [hit["score"] for hit in without]


def test_pages_of_a_filter_are_the_images_that_pass_it(client, gallery, ids):
    label = gallery.collection[0].labels[0]
    pictures = [gallery.collection[i] for i in range(len(ids))]
    expected = [one.id for one in pictures if label in one.labels and "train" in one.id]
    found = []
    while True:
        query = {"label": label, "text": "train", "offset": len(found), "limit": 2}
        page = client.get("/api/images", params=query).json()
        assert page["total"] == len(expected)
        found += [one["id"] for one in page["images"]]
        if not page["images"]:
            break
    assert found == expected
    hits = client.post(
        "/api/search",
        json={
            "by": "x7",
            "like": like(ids[0]),
            "k": 50,
            "labels": [label],
            "text": "train",
        },
    ).json()["hits"]
    assert {hit["id"] for hit in hits} == set(expected) - {ids[0]}


def test_a_text_is_found_in_any_case_and_never_read_as_a_pattern(client, ids):
    def total(text):
        return client.get("/api/images", params={"text": text}).json()["total"]

    assert total("JPG") == total("jpg") == total(".Jpg") == len(ids)
    assert [total(text) for text in ("*", "?", "[0-9]", "[!", "]", "^", "\\")] == [
        0
    ] * 7


def test_a_filter_that_leaves_nothing_is_an_empty_answer(client, ids):
    assert client.get("/api/images", params={"text": "nowhere"}).json() == {
        "total": 0,
        "images": [],
    }
    asked = {"by": "dW8", "like": like(ids[0]), "text": "nowhere"}
    assert client.post("/api/search", json=asked).json()["hits"] == []
    assert client.post("/api/scatter", json=asked).json()["ids"] == []


def test_the_plot_has_the_similarities_of_all_images(client, store_folder, ids):
    answer = client.post(
        "/api/scatter", json={"by": "dW8", "like": like(ids[5])}
    ).json()
    forward, backward, _ = Searcher(store_folder, "dW8").similarities(ids[5])
    assert answer["ids"] == ids
    np.testing.assert_allclose(answer["forward"], forward, atol=1e-4)
    np.testing.assert_allclose(answer["backward"], backward, atol=1e-4)
    assert answer["forward"][5] == pytest.approx(1, abs=1e-3)
    assert answer["is_product"]  # so that lines of the same score can be drawn
    sum_ = {"by": "dW8+x7", "like": like(ids[5])}
    assert not client.post("/api/scatter", json=sum_).json()["is_product"]


def test_a_plot_of_many_images_keeps_the_best_and_some_of_all_others(rng):
    score = rng.normal(size=1000)
    rows = np.sort(rng.permutation(1000)[:800])
    shown = thin_out(rows, score, limit=100)
    assert len(shown) == len(set(shown)) == 100
    assert set(shown) <= set(rows)
    best = rows[np.argsort(-score[rows])[:50]]
    assert set(best) <= set(shown)
    np.testing.assert_array_equal(thin_out(rows, score, limit=800), rows)


@pytest.mark.parametrize("by", ["x7", "dW8"])
def test_an_uploaded_photo_finds_what_its_bytes_find(client, store_folder, photo, by):
    key = client.post("/api/uploads", content=photo).json()["upload"]
    asked = {"by": by, "like": [{"upload": key}], "k": 4}
    hits = client.post("/api/search", json=asked).json()["hits"]
    expected = Searcher(store_folder, by).search(photo, k=4)
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    np.testing.assert_allclose(
        [h["score"] for h in hits], [h.score for h in expected], atol=1e-4
    )
    assert [c["name"] for c in hits[0]["classes"]] == [
        c.name for c in expected[0].classes
    ]


def test_an_uploaded_photo_goes_together_with_images_of_the_store(
    client, store_folder, photo, ids
):
    key = client.post("/api/uploads", content=photo).json()["upload"]
    asked = {
        "by": "dW8",
        "like": [{"id": ids[0]}, {"upload": key}],
        "unlike": like(ids[4]),
        "k": 4,
    }
    hits = client.post("/api/search", json=asked).json()["hits"]
    expected = Searcher(store_folder, "dW8").search([ids[0], photo], 4, [ids[4]])
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]


def test_only_factors_of_the_last_photos_are_remembered(gallery, photo):
    uploads = gallery.uploads
    key = uploads.add(photo)
    values = uploads.recall(key)
    for number in range(REMEMBERED):
        uploads._remembered[str(number)] = values
    other = uploads.add(photo + b"\0")  # another content, the same picture
    assert len(uploads._remembered) == REMEMBERED
    assert other in uploads._remembered
    assert key not in uploads._remembered


def test_predictions_are_those_of_the_model(
    client, store_folder, model_folder, ids, photo
):
    model = Model.load(model_folder)
    searcher = Searcher(store_folder, "dW8")
    path = Path(searcher.collection[6].path)
    (expected,) = predict(model, [Item("a", path)])
    best = np.argsort(-expected.probabilities, kind="stable")[:3]
    found = client.post("/api/predict", json={"id": ids[6]}).json()["classes"]
    assert [one["name"] for one in found] == [model.classes[c] for c in best]
    chances = [one["probability"] for one in found]
    # float16 on disk
    np.testing.assert_allclose(chances, expected.probabilities[best], atol=5e-3)
    key = client.post("/api/uploads", content=path.read_bytes()).json()["upload"]
    uploaded = client.post("/api/predict", json={"upload": key}).json()["classes"]
    assert [one["name"] for one in uploaded] == [one["name"] for one in found]


def test_without_a_model_there_are_no_predictions(store_folder, ids):
    client = TestClient(make_app(Gallery(store_folder)), base_url="http://localhost")
    assert client.get("/api/store").json()["model"] is None
    assert client.post("/api/predict", json={"id": ids[0]}).status_code == 404


def test_a_model_of_another_network_or_features_is_refused(copied, model_folder):
    manifest = copied.folder / "store.json"
    text = manifest.read_text()
    manifest.write_text(
        text.replace('"tau": 2.0', '"tau": 3.0').replace('"seal"', '"no seal"')
    )
    with pytest.raises(WeightsError, match=r"trained with the tau .* 3\.0, got 2\.0"):
        Gallery(copied.folder, model=model_folder)
    manifest.write_text(text)
    for file in (copied.folder / "delta8").iterdir():
        file.unlink()
    (copied.folder / "delta8").rmdir()
    with pytest.raises(StoreError, match=r"needs delta8, which .* lacks"):
        Gallery(copied.folder, model=model_folder)


def test_thumbnails_are_small_pictures_of_the_images(client, gallery, ids):
    answer = client.get("/api/thumbnail", params={"id": ids[0]})
    assert answer.headers["content-type"] == "image/jpeg"
    small = Image.open(io.BytesIO(answer.content)).convert("RGB")
    whole = Image.open(gallery.collection[0].path).convert("RGB")
    assert max(small.size) == 320
    difference = np.abs(
        np.asarray(small, float) - np.asarray(whole.resize(small.size), float)
    )
    assert difference.mean() < 8
    again = client.get(
        "/api/thumbnail",
        params={"id": ids[0]},
        headers={"If-None-Match": answer.headers["etag"]},
    )
    assert (again.status_code, again.content) == (304, b"")
    assert "max-age" in answer.headers["cache-control"]


def test_an_image_can_be_seen_in_full_size(client, gallery, ids, monkeypatch):
    kept = dict(gallery.thumbnails._kept)
    answer = client.get("/api/thumbnail", params={"id": ids[0], "size": "full"})
    with Image.open(io.BytesIO(answer.content)) as sent:
        assert (sent.format, sent.size) == ("JPEG", (640, 640))
    assert gallery.thumbnails._kept == kept  # memory is for the small ones
    assert (
        client.get("/api/thumbnail", params={"id": ids[0], "size": "huge"}).status_code
        == 400
    )


def test_the_network_is_ready_before_the_page_says_so(store_folder, photo):
    gallery = Gallery(store_folder)
    client = TestClient(make_app(gallery), base_url="http://localhost")
    assert client.get("/api/uploads").json() == {"network": "not loaded"}
    gallery.uploads.warm_up().join()
    assert client.get("/api/uploads").json() == {"network": "ready"}
    loaded = dict(gallery.uploads._encoders)
    assert len(loaded) == 1
    assert client.post("/api/uploads", content=photo).status_code == 200
    assert gallery.uploads._encoders == loaded  # nothing more to load


def test_a_network_that_cannot_be_loaded_is_told_in_the_terminal(
    store_folder, caplog, monkeypatch
):
    gallery = Gallery(store_folder)
    broken = {**gallery.store.settings, "network": "mine", "weights_sha256": "0"}
    monkeypatch.setattr(gallery.uploads, "settings", broken)
    gallery.uploads.warm_up().join()
    client = TestClient(make_app(gallery), base_url="http://localhost")
    assert client.get("/api/uploads").json() == {"network": "failed"}
    assert "photos cannot be searched with: " in caplog.text
    assert client.get("/api/store").status_code == 200


def test_thumbnails_in_memory_are_bounded_and_made_once(gallery, ids, monkeypatch):
    thumbnails = Thumbnails(gallery.store.folder, keep_bytes=60_000)
    for id_ in ids:
        thumbnails.jpeg(*gallery.content(id_), "small")
    assert 0 < sum(map(len, thumbnails._kept.values())) == thumbnails._bytes <= 60_000
    monkeypatch.setattr(thumbnails, "_make", None)
    thumbnails.jpeg(*gallery.content(ids[-1]), "small")  # not made again


def test_images_of_a_relative_path_are_found_from_above_the_store(
    copied, monkeypatch, tmp_path
):
    image = next((tmp_path / "images").iterdir())
    sha256 = next(
        r.sha256 for r in copied.rows().values() if Path(r.path).name == image.name
    )
    monkeypatch.chdir("/")
    assert Thumbnails(copied.folder).jpeg(f"images/{image.name}", sha256, "small")


def test_images_in_a_tar_have_thumbnails(copied, tmp_path):
    import tarfile

    row = next(iter(copied.rows().values()))
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(row.path, "in/a.jpg")
    assert Thumbnails(copied.folder).jpeg(
        f"{tmp_path}/photos.tar/in/a.jpg", row.sha256, "small"
    )


def test_a_store_without_gradients_has_one_side(store_folder, tmp_path, ids):
    whole = Store.open(store_folder)
    rows = list(whole.rows().values())
    store = Store(tmp_path / "x7", {**whole.settings, "dtype": "float16"})
    keys = [row.sha256 for row in rows]
    store.append(keys, {"x7": whole.read(keys, "x7")})
    store.write_rows(rows)
    client = TestClient(make_app(Gallery(store.folder)), base_url="http://localhost")
    facts = client.get("/api/store").json()
    assert (facts["gradient"], facts["forward"]) == ([], ["x7", "pow(x7,0.5)"])
    answer = client.post("/api/search", json={"by": "x7", "like": like(ids[0]), "k": 3})
    assert len(answer.json()["hits"]) == 3


def test_a_store_that_needs_an_index_plots_the_nearest(
    store_folder, tmp_path, ids, monkeypatch
):
    shutil.copytree(store_folder, tmp_path / "large")
    monkeypatch.setattr("deepfishing.search.searcher.EXACT_IMAGES", 10)
    monkeypatch.setattr("deepfishing.web.gallery.NEAREST", 7)
    gallery = Gallery(tmp_path / "large")
    assert gallery.searcher("dW8").index is not None
    plot = gallery.scatter(Question(by="dW8", like=[Example(id=ids[5])]))
    assert plot["is_product"]
    expected = Searcher(store_folder, "dW8", "exact").search(ids[5], 7)
    assert plot["total"] == 32
    assert plot["ids"] == [hit.id for hit in expected]
    np.testing.assert_allclose(
        plot["backward"], [hit.backward for hit in expected], atol=1e-4
    )


def test_a_photo_that_the_model_knows_is_predicted_by_one_that_does_not(
    store_folder, gallery, ids, tmp_path
):
    """Random labels: a classifier that was trained on a photo tells its label, one without not."""
    store = Store.open(store_folder)
    rows = list(store.rows().values())
    heads = np.random.default_rng(0).permutation([1, -1] * (len(rows) // 2))
    given = {
        row.id: np.array([one, -one]) for row, one in zip(rows, heads, strict=True)
    }
    labelled = Labelled(("heads", "tails"), given)
    truth = {
        id_: "heads" if labels[0] == 1 else "tails" for id_, labels in given.items()
    }
    model, _ = train_on_store(store, rows, labelled, "x7", C=100.0)
    model.save(tmp_path / "model")
    client = TestClient(
        make_app(Gallery(store_folder, model=tmp_path / "model")),
        base_url="http://localhost",
    )
    right = 0
    for row in rows:
        found = client.post("/api/predict", json={"id": row.id}).json()
        assert found["basis"] == "held out"
        right += found["classes"][0]["name"] == truth[row.id]
    assert right < 0.8 * len(rows)
    chances = model.probabilities(
        {"x7": store.read([row.sha256 for row in rows], "x7")}
    )
    told = [model.classes[c] for c in chances.argmax(axis=1)]
    assert (
        np.mean([name == truth[row.id] for name, row in zip(told, rows, strict=True)])
        == 1
    )
    path = Path(store.rows()[ids[0]].path)
    key = client.post("/api/uploads", content=path.read_bytes() + b"\0").json()[
        "upload"
    ]
    assert client.post("/api/predict", json={"upload": key}).json()["basis"] == "new"


def test_copies_are_one_hit_with_the_others_beside_it(copied, tmp_path):
    rows = list(copied.rows().values())
    copies = [replace(rows[3], id=f"copies/{number}.jpg") for number in range(6)]
    copied.write_rows([*rows, *copies])
    client = TestClient(make_app(Gallery(copied.folder)), base_url="http://localhost")
    asked = {"by": "x7", "like": [{"id": rows[3].id}], "k": 8}
    answer = client.post("/api/search", json=asked)
    assert answer.status_code == 200, answer.text
    hits = answer.json()["hits"]
    stands_for = [{hit["id"], *hit["similar"]} for hit in hits]
    ids = {copy.id for copy in copies}
    assert sum(bool(ids & some) for some in stands_for) == 1
    assert any(ids <= some | {rows[3].id} for some in stands_for)
    assert len(hits) == 8


def test_more_photos_than_fit_into_memory_are_searched_through_an_index(
    copied, monkeypatch
):
    exact = Gallery(copied.folder)
    assert exact.first_searcher.index is None
    monkeypatch.setattr(gallery_module, "EXACT_PHOTOS", 31)
    large = Gallery(copied.folder)
    assert large.first_searcher.index is not None
    like = [Example(id=exact.collection[0].id)]
    asked = Question(by="x7", like=like, k=5)
    hits = [{one["id"] for one in gallery.search(asked)} for gallery in (exact, large)]
    assert len(hits[0] & hits[1]) >= 4
