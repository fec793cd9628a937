"""Classifiers and heads made of the names of classes."""

import json

import numpy as np
import pytest
import torch

from deepfishing import extract, load_network
from deepfishing.errors import NetworkError, OptionError, StoreError
from deepfishing.extraction.settings import Settings
from deepfishing.images.sources import find_images
from deepfishing.learn.model import Model
from deepfishing.learn.zero_shot import suggest_labels, zero_shot_model
from deepfishing.networks.load import load_reference
from deepfishing.networks.prompts import read_classes
from deepfishing.networks.texts import pack, unpack
from deepfishing.search import Searcher

PROMPT = "a {} bicycle"


@pytest.fixture(scope="module")
def photos(towers, tmp_path_factory):
    return towers.write_photos(tmp_path_factory.mktemp("words") / "photos")


@pytest.fixture(scope="module")
def trained(towers, photos):
    """A tiny CLIP that knows colours, in a folder, and a store by it."""
    folder = towers.write_trained(photos.parent / "clip")
    return folder, towers.extract(folder, photos)


@pytest.fixture
def names(towers, tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("\n".join([PROMPT, *towers.COLOURS]))
    return file


def colour(name):
    return str(name).rpartition("/")[2][:-5]


def test_names_make_a_classifier_without_labels(trained, names, towers, tmp_path):
    model = zero_shot_model(trained[1], names)
    model.save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model")
    assert loaded.classes == tuple(towers.COLOURS)
    rng = np.random.default_rng(9)
    new = [towers.coloured(rng, name) for name in towers.COLOURS]
    assert loaded.predict(new).tolist() == list(towers.COLOURS)
    images = sorted(find_images(trained[0].parent / "photos"), key=lambda item: item.id)
    assert loaded.predict(trained[1]).tolist() == [colour(item.id) for item in images]
    probabilities = loaded.predict_proba(trained[1])
    assert ((probabilities > 0.5).sum(axis=1) == 1).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)


def test_a_model_is_as_sure_as_the_suggestions_are(trained, towers):
    store = towers.extract(trained[0], trained[0].parent / "photos", "unsure")
    classes = [f"{name} bicycle" for name in towers.COLOURS]
    suggested = {one.id: one for one in suggest_labels(store, classes)}
    model = zero_shot_model(store, classes)
    rows = list(store.labelled_rows())
    for row, found in zip(rows, model.predict_proba(store), strict=True):
        expected = suggested[row.id]
        assert classes[found.argmax()] == expected.label
        assert abs(found.max() - expected.probability) < 1e-3


def test_scores_and_probabilities_are_those_of_the_library(
    trained, photos, names, towers
):
    folder, store = trained
    network = load_network(f"hf:{folder}", classes=names)
    assert network.layers == {7: "tower.visual_projection", 8: "texts"}
    transformers = towers.import_package("transformers")
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [PROMPT.replace("{}", name) for name in towers.COLOURS]
    tokens = tokenizer(texts, return_tensors="pt", padding=True)
    given = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    images = sorted(photos.iterdir())
    pixels = torch.from_numpy(np.stack([network.preprocess(image) for image in images]))
    with torch.inference_mode():
        logits = model(pixel_values=pixels, **given).logits_per_image.numpy()
    found = extract(network, images, "x7,y8,x8,dW8", tau=1.0)
    unit = logits / np.linalg.norm(logits, axis=1, keepdims=True)
    np.testing.assert_allclose(found["y8"], unit, atol=1e-5)
    expected = torch.from_numpy(logits).softmax(1).numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found["x8"], expected, atol=1e-5)
    scores = zero_shot_model(store, names).decision_function(store)
    scale = float(model.logit_scale.detach().exp())
    np.testing.assert_allclose(scale * scores, logits, atol=1e-4)


def test_the_gradient_is_that_of_the_texts(trained, photos, names):
    network = load_network(f"hf:{trained[0]}", classes=names)
    image = sorted(photos.iterdir())[0]
    pixels = torch.from_numpy(network.preprocess(image)[None])
    W = network.module.texts.weight.detach().clone().requires_grad_()
    with torch.no_grad():
        embedding = network.module.pick(network.module.tower(pixels))
    scores = (embedding / embedding.norm()) @ W.T
    (-scores.div(2).log_softmax(1).mean()).backward()
    expected = (W.grad.T / W.grad.norm()).numpy()
    np.testing.assert_allclose(
        extract(network, [image], "dW8")["dW8"].dense()[0], expected, atol=1e-5
    )


def test_a_store_with_a_text_head_is_loaded_again_and_read_by_words(
    trained, photos, names, deepfish
):
    folder, _ = trained
    asked = ("--network", f"hf:{folder}", "--classes", names)
    ran = deepfish("extract", photos, "store", *asked, "--precision", "float32")
    assert ran.code == 0, ran.err
    assert "the classifier is made of 4 texts" in ran.err
    again = deepfish("extract", photos, "store", *asked[:2], "--features", "x7")
    assert again.code == 0, again.err
    other = names.with_name("other.txt")
    other.write_text("red\ngreen")
    wrong = deepfish("extract", photos, "store", *asked[:2], "--classes", other)
    assert "made with classes = red, green, blue, yellow" in wrong.err
    searcher = Searcher(names.parent / "store")
    assert searcher.recipe.is_gradient
    top = searcher.search(photos / "red0.png", k=3)
    assert {colour(hit.id) for hit in top} == {"red"}
    found = deepfish("search", "store", "a blue bicycle", "-n", "3", "--json")
    assert {colour(hit["id"]) for hit in json.loads(found.out)["hits"]} == {"blue"}
    reference = Settings.from_dict(searcher.store.settings).network
    assert load_reference(reference).reference() == reference


def test_suggested_labels_are_right_and_can_be_given_back(
    trained, names, towers, deepfish, photos
):
    store = towers.extract(trained[0], photos, "unlabelled")
    found = suggest_labels(store, names)
    assert len(found) == 12
    assert all(one.label == colour(one.id) for one in found)
    assert [one.probability for one in found] == sorted(
        (o.probability for o in found), reverse=True
    )
    options = ("--classes", names)
    ran = deepfish("label", store.folder, *options, "--out", "suggested.csv")
    assert ran.code == 0, ran.err
    assert deepfish("label", store.folder, "suggested.csv").code == 0
    assert {colour(row.id) == row.labels[0] for row in store.labelled_rows()} == {True}
    assert suggest_labels(store, names) == []
    made = deepfish("train", store.folder, "model", *options)
    assert made.code == 0, made.err
    assert "4 classes by their names" in made.out
    told = deepfish("predict", "model", photos / "green1.png", "--json")
    assert json.loads(told.out)["probabilities"]["green"] > 0.5


def test_bad_names_are_one_line(trained, tmp_path, names, deepfish, photos):
    for lines in ("one", "same\nsame"):
        names.write_text(lines)
        with pytest.raises(OptionError, match="2 to 2,000 different ones"):
            zero_shot_model(trained[1], names)
    with pytest.raises(OptionError, match="one per line"):
        zero_shot_model(trained[1], tmp_path / "nothing.txt")
    with pytest.raises(NetworkError, match="words need a network with a text tower"):
        load_network("timm:mobilenetv3_small_050", "random", classes=["a", "b"])
    with pytest.raises(StoreError, match="damaged"):
        unpack("2x2:nothing")
    assert (
        "--classes needs a store"
        in deepfish("train", photos, "m", "--classes", names).err
    )
    W = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(unpack(pack(W)), W)


def test_a_line_with_braces_is_the_text_for_a_class(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("cat\n\na drawing of a {}\ndog\n")
    assert read_classes(file).names == ("cat", "dog")
    assert read_classes(file).texts() == ["a drawing of a cat", "a drawing of a dog"]
    assert read_classes(["cat", "dog"]).texts()[0] == "a photo of cat"
    with pytest.raises(OptionError, match=r"one line with {}, .* got 2"):
        read_classes(["cat", "dog", "a {}", "the {}"])
