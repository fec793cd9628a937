import json

from deepfishing.networks.zoo import RECORDS


def test_every_network_is_listed_within_80_columns(deepfish):
    ran = deepfish("models")
    assert all(name in ran.out for name in RECORDS)
    assert max(map(len, ran.out.splitlines())) <= 80


def test_one_network_shows_its_layers_features_and_weights(deepfish):
    (facts,) = json.loads(deepfish("models", "efficientnet-lite0", "--json").out)
    assert facts["layers"] == {"7": "_conv_head", "8": "_fc"}
    assert "dW7" in facts["features"]
    assert facts["weights"].endswith(".pth")
    shown = deepfish("models", "vgg16").out
    assert "classifier.3" in shown
    assert "https://download.pytorch.org/models/vgg16" in shown


def test_an_unknown_network_is_one_line_with_a_guess(deepfish):
    ran = deepfish("models", "vgg-16")
    assert ran.code == 1
    assert "did you mean vgg16" in ran.err
