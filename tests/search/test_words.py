"""Search by words: what a text tower says of a text is compared with what images are."""

import json
import shutil

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from deepfishing.errors import NetworkError, OptionError, WeightsError
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.texts import FILE
from deepfishing.networks.load import load_network
from deepfishing.networks.texts import load_text_tower
from deepfishing.search import Searcher, Words
from deepfishing.web.app import make_app
from deepfishing.web.gallery import Gallery


@pytest.fixture(scope="module")
def photos(towers, tmp_path_factory):
    return towers.write_photos(tmp_path_factory.mktemp("words") / "photos")


@pytest.fixture(scope="module")
def trained(towers, photos):
    """A tiny CLIP that knows colours, in a folder, and a store by it."""
    folder = towers.write_trained(photos.parent / "clip")
    return folder, towers.extract(folder, photos)


def test_words_find_what_they_describe(trained, towers):
    searcher = Searcher(trained[1])
    for name in towers.COLOURS:
        hits = searcher.search(f"a {name} bicycle", k=3)
        assert {hit.id for hit in hits} == {
            f"{name}{number}.png" for number in range(3)
        }


def test_words_are_compared_by_the_embedding_where_photos_are_not_by_default(
    trained, towers, tmp_path_factory
):
    photos = towers.write_photos(tmp_path_factory.mktemp("many") / "photos", 25)
    folder = shutil.copytree(trained[0], photos.parent / "clip")
    searcher = Searcher(towers.extract(folder, photos))
    assert searcher.recipe.is_gradient  # of a head made of the photos
    hits = searcher.search("a green bicycle", k=25)
    assert all(hit.id.startswith("green") for hit in hits)
    with pytest.raises(OptionError, match="pass --features x7"):
        Searcher(searcher.store, searcher.recipe.name).search("a green bicycle")


def test_words_and_photos_count_alike(trained):
    searcher = Searcher(trained[1])
    examples = (Words("a red bicycle"), "blue0.png")
    alone = [
        {hit.id: hit.score for hit in searcher.search(one, k=12)} for one in examples
    ]
    for hit in searcher.search(list(examples), k=12):
        assert hit.score == pytest.approx(
            np.mean([scores[hit.id] for scores in alone]), abs=1e-6
        )


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_scores_are_those_of_the_library(towers, photos, tmp_path, kind):
    transformers = towers.import_package("transformers")
    folder = tmp_path / kind
    model = towers.write_clip(folder, kind)
    store = towers.extract(folder, photos)
    texts = ["a red bicycle", "the photo of a blue bicycle"]
    searcher = Searcher(store)
    found = [
        {hit.id: hit.score for hit in searcher.search(Words(t), k=99)} for t in texts
    ]
    names = sorted(found[0])
    scores = np.array([[of_text[name] for of_text in found] for name in names])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    padding = (
        {"padding": "max_length", "max_length": 8}
        if kind == "siglip"
        else {"padding": True}
    )
    tokens = tokenizer(texts, return_tensors="pt", **padding)
    preprocess = load_network(f"hf:{folder}").preprocess
    pixels = np.stack([preprocess(photos / name) for name in names])
    given = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        expected = model(
            pixel_values=torch.from_numpy(pixels), **given
        ).logits_per_image.numpy()
    tower = load_text_tower(Settings.from_dict(store.settings).network)
    np.testing.assert_allclose(tower.scale * scores + tower.bias, expected, atol=2e-5)


def test_open_clip_reads_the_same_words(photos, monkeypatch, towers):
    open_clip = towers.import_package("open_clip")
    small = {
        "embed_dim": 8,
        "vision_cfg": {
            "image_size": 16,
            "layers": 1,
            "width": 16,
            "patch_size": 8,
            "head_width": 8,
        },
        "text_cfg": {
            "context_length": 12,
            "vocab_size": 49408,
            "width": 8,
            "heads": 1,
            "layers": 1,
        },
    }
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", small)
    network = load_network("open_clip:tiny", "random")
    texts = ["a red bicycle", "two cats"]
    tower = load_text_tower(network.reference())
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = open_clip.create_model("tiny", load_weights=False).eval()
    tokens = open_clip.get_tokenizer("tiny")(texts)
    with torch.inference_mode():
        expected = model.encode_text(tokens, normalize=True).numpy()
    np.testing.assert_allclose(tower.encode(texts), expected, atol=1e-6)
    assert tower.scale == pytest.approx(float(model.logit_scale.detach().exp()))


def test_a_slash_or_the_suffix_of_an_image_is_always_a_file(trained, photos):
    searcher = Searcher(trained[1])
    for text in ("red.jpg", "holiday/red", "cat.HEIC"):
        assert searcher.read(text) == text
    assert searcher.read("red0.png") == "red0.png"  # an id
    assert searcher.read("a red bicycle") == Words("a red bicycle")
    assert searcher.search(str(photos / "red1.png"), k=1)[0].id == "red1.png"


def test_texts_are_read_from_the_store_without_the_network(trained):
    _, store = trained
    searcher = Searcher(store)
    expected = searcher.search("a green bicycle", k=12)

    def never(texts):
        raise AssertionError(texts)

    again = Searcher(store)
    again.texts._encode = never
    assert [hit.id for hit in again.search("a green bicycle", k=12)] == [
        h.id for h in expected
    ]
    (store.folder / FILE).write_bytes(b"damaged")
    assert [h.id for h in searcher.search("a green bicycle", k=12)] == [
        h.id for h in expected
    ]


def test_the_text_tower_must_belong_to_the_weights_of_the_images(trained):
    _, store = trained
    facts = {**store.settings, "weights_sha256": "0" * 64}
    with pytest.raises(WeightsError, match="must belong to the images' weights"):
        load_text_tower(Settings.from_dict(facts).network)
    facts["network"] = "efficientnet-lite0"
    with pytest.raises(NetworkError, match="words need a network with a text tower"):
        load_text_tower(Settings.from_dict(facts).network)


def test_words_need_the_embedding_and_letters(trained):
    with pytest.raises(OptionError, match="pass --features x7"):
        Searcher(trained[1], "pow(x7,0.5)").search(Words("red"))
    for text in ("  ", "a" * 3000):
        with pytest.raises(OptionError, match="1 to 2,000 letters"):
            Words(text)


def test_the_command_takes_words(trained, deepfish):
    ran = deepfish(
        "search", str(trained[1].folder), "a yellow bicycle", "-n", "3", "--json"
    )
    assert ran.code == 0, ran.err
    assert {hit["id"][:-5] for hit in json.loads(ran.out)["hits"]} == {"yellow"}


def test_the_page_takes_words(trained):
    gallery = Gallery(trained[1].folder)
    client = TestClient(make_app(gallery), base_url="http://127.0.0.1:8765")
    assert client.get("/api/store").json()["words"] is True
    answer = client.post(
        "/api/search", json={"by": "x7", "words": "a blue bicycle", "k": 3}
    )
    assert answer.status_code == 200
    assert {hit["id"][:-5] for hit in answer.json()["hits"]} == {"blue"}
    both = {
        "by": "x7",
        "words": "a red bicycle",
        "unlike": [{"id": "red0.png"}],
        "k": 2,
    }
    assert client.post("/api/search", json=both).status_code == 200
    nothing = client.post("/api/search", json={"by": "x7", "words": " "})
    assert (nothing.status_code, nothing.json()["error"]) == (
        400,
        "the body: a search must have an example in like, or words",
    )
