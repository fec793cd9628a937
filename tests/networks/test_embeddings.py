"""Networks without a classifier: x7 is the embedding, and gradients are those of an own head."""

import numpy as np
import pytest
import torch
from torch import nn

from deepfishing.core.features import has_classifier, table_features
from deepfishing.core.recipes import parse_recipe
from deepfishing.errors import DeepFishingError, FeatureError, LayerError, OptionError
from deepfishing.extraction.extract import extract
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.network import wrap

SMALL = Preprocess(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3)


class Tokens(nn.Module):
    """Four patch tokens behind a class token; what it returns is made of all five."""

    def __init__(self, output):
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 12, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 12))
        self.block = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
        self.norm = nn.LayerNorm(12)
        self.dense = nn.Linear(12, 6)
        self.output = output

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        return self.output(self, self.norm(self.block(x)))


OUTPUTS = {
    "class token": lambda m, x: x[:, 0],
    "pooler": lambda m, x: torch.tanh(m.dense(x[:, 0])),
    "unit length": lambda m, x: nn.functional.normalize(m.dense(x[:, 0])),
    "rectified": lambda m, x: m.dense(x.mean(1)).relu(),
}


@pytest.fixture
def images(rng):
    return [rng.integers(0, 256, (9, 12, 3), dtype=np.uint8) for _ in range(5)]


@pytest.fixture
def pixels(images):
    return torch.from_numpy(np.stack([SMALL(image) for image in images]))


def unit(values):
    values = values.detach().numpy()
    return values / np.linalg.norm(values, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", OUTPUTS)
def test_an_output_that_no_classifier_makes_is_x7(images, pixels, kind):
    module = Tokens(OUTPUTS[kind]).eval()
    network = wrap(module, preprocess=SMALL)
    assert not has_classifier(network.layers)
    assert network.head == "none"
    assert "x7 is the output, since" in network.notes[0]
    found = extract(network, images)
    assert list(found) == list(table_features(network.layers)) == ["x7"]
    np.testing.assert_allclose(found["x7"], unit(module(pixels)), atol=1e-6)


def test_a_projection_that_was_asked_for_has_its_input_as_x6(images, pixels):
    module = Tokens(lambda m, x: m.dense(x[:, 0])).eval()
    # it may be a classifier
    assert wrap(module, preprocess=SMALL).layers == {8: "dense"}
    network = wrap(module, preprocess=SMALL, embedding=True)
    assert network.layers == {7: "dense", 8: "-"}
    found = extract(network, images, "all")
    assert list(found) == ["x6", "x7", "x6;x7"]
    np.testing.assert_allclose(found["x7"], unit(module(pixels)), atol=1e-6)


@pytest.mark.parametrize("name", ["dW8", "y8", "x8", "dW7", "dW:dense", "dW:dense@4x4"])
def test_gradients_without_a_classifier_are_refused_with_the_own_head_as_advice(
    images, name
):
    network = wrap(Tokens(OUTPUTS["pooler"]), preprocess=SMALL)
    with pytest.raises(FeatureError, match=r"take x7, its embedding, or own\(x7\)"):
        extract(network, images, name)


@pytest.mark.parametrize("recipe", ["auto", "best"])
def test_default_recipes_need_x7_alone(recipe):
    layers = wrap(Tokens(OUTPUTS["pooler"]), preprocess=SMALL).layers
    assert parse_recipe(recipe, layers).columns == ("x7",)


def test_parts_of_an_output_that_are_embeddings_are_never_scores(images, pixels):
    module = Tokens(
        lambda m, x: {"last_hidden_state": x, "pooler_output": m.dense(x[:, 0])}
    )
    with pytest.raises(OptionError, match="pass embedding='pooler_output'"):
        wrap(module, preprocess=SMALL, logits="pooler_output")
    for options in ({"embedding": "pooler_output"}, {}):
        network = wrap(module, preprocess=SMALL, **options)
        expected = unit(module.eval()(pixels)["pooler_output"])
        np.testing.assert_allclose(extract(network, images)["x7"], expected, atol=1e-6)
    scores = Tokens(lambda m, x: {"last_hidden_state": x, "logits": m.dense(x[:, 0])})
    assert wrap(scores, preprocess=SMALL).layers == {8: "dense"}


def test_of_tokens_one_must_say_which(images, pixels):
    module = Tokens(lambda m, x: x).eval()
    with pytest.raises(LayerError, match='tokens="class"'):
        wrap(module, preprocess=SMALL, embedding=True)
    tokens = module(pixels)
    for name, expected in (("class", tokens[:, 0]), ("mean", tokens.mean(1))):
        network = wrap(module, preprocess=SMALL, embedding=True, tokens=name)
        np.testing.assert_allclose(
            extract(network, images)["x7"], unit(expected), atol=1e-6
        )
    digests = {
        Settings.from_network(
            wrap(module, preprocess=SMALL, embedding=True, tokens=name)
        ).digest
        for name in ("class", "mean")
    }
    assert len(digests) == 2


def test_a_feature_map_is_averaged_and_said_to_be(images, pixels):
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU())
    network = wrap(module, preprocess=SMALL)
    assert "mean of the output's feature map" in network.notes[0]
    np.testing.assert_allclose(
        extract(network, images)["x7"], unit(module(pixels).mean((2, 3))), atol=1e-6
    )


def test_tokens_of_a_module_are_taken_by_name(images, pixels):
    from dataclasses import replace

    module = Tokens(OUTPUTS["class token"]).eval()
    network = replace(wrap(module, preprocess=SMALL), prefix_tokens=1)
    kept = []
    with module.norm.register_forward_hook(lambda m, a, y: kept.append(y)):
        module(pixels)
    tokens = kept[0]
    found = extract(network, images, "x:norm,x:norm@class,x:norm@patches")
    for name, expected in (
        ("x:norm", tokens.mean(1)),
        ("x:norm@class", tokens[:, 0]),
        ("x:norm@patches", tokens[:, 1:].mean(1)),
    ):
        np.testing.assert_allclose(found[name], unit(expected), atol=1e-6)
    with pytest.raises(LayerError, match="needs a module with a class token"):
        extract(replace(network, prefix_tokens=0), images, "x:norm@class")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logits": 0, "embedding": 0}, "must not both be given"),
        ({"embedding": True, "head": "softmax"}, "an embedding has no class scores"),
        ({"tokens": "first"}, "tokens must be"),
    ],
)
def test_contradictions_are_one_line(options, words):
    with pytest.raises(DeepFishingError, match=words):
        wrap(Tokens(OUTPUTS["pooler"]), preprocess=SMALL, **options)
