import numpy as np
import pytest
import torch

from deepfishing.errors import OptionError
from deepfishing.extraction.extract import extract
from deepfishing.extraction.options import FeatureOptions
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks import objectives
from deepfishing.networks.network import wrap
from deepfishing.networks.objectives import OBJECTIVES, Objective, cross_entropy


@pytest.mark.parametrize("tau", [0, -1, float("nan"), float("inf"), "2"])
def test_a_temperature_that_is_not_a_positive_number_is_refused(tau):
    with pytest.raises(OptionError, match="tau must be a positive number"):
        cross_entropy(tau)


def test_error_with_a_class_label_is_torch_cross_entropy():
    y = torch.randn(4, 6, dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(
        y / 3, torch.full((4,), 2), reduction="sum"
    )
    torch.testing.assert_close(cross_entropy(tau=3.0, label=2)(y), expected)


@pytest.mark.parametrize("label", ["unifrom", 6, -1, [1.0], [np.nan] * 6])
def test_a_label_that_fits_no_class_is_refused(label):
    with pytest.raises(OptionError, match="label"):
        cross_entropy(label=label)(torch.zeros(2, 6))


def test_a_new_objective_is_one_record(monkeypatch, rng):
    """It can be asked for by name, describes images, gives x8 and is told from the others."""
    squares = Objective(
        error=lambda tau, label: lambda y: (y**2).sum() / (2 * tau),
        probabilities=lambda y: y.abs(),
    )
    monkeypatch.setattr(objectives, "OBJECTIVES", {**OBJECTIVES, "squares": squares})
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)).double()
    pixels = Preprocess(4, 4, mean=(127.0,) * 3, std=(128.0,) * 3)
    network = wrap(module, preprocess=pixels, head="squares")
    images = [rng.integers(0, 256, (5, 6, 3), dtype=np.uint8) for _ in range(2)]
    found = extract(network, images, "dW8,x8", tau=3.0)
    y = module(torch.from_numpy(np.stack([pixels(image) for image in images])).double())
    y = y.detach().numpy()
    unit = y / np.linalg.norm(y, axis=1, keepdims=True)
    np.testing.assert_allclose(found["dW8"].delta, unit, rtol=1e-9)
    np.testing.assert_allclose(found["x8"], abs(unit), rtol=1e-9)
    settings = Settings.from_network(network)
    assert settings.as_dict()["head"] == "squares"
    assert (
        settings.digest != Settings.from_network(wrap(module, preprocess=pixels)).digest
    )


def deltas(error, y):
    y = y.clone().requires_grad_()
    return torch.autograd.grad(error(y), y)[0]


@pytest.mark.parametrize("label", ["predicted", 1])
def test_the_gradient_of_one_class_is_exact_where_the_softmax_rounds_to_one(label):
    y = torch.tensor([[0.0, 60.0, 4.0, 1.0], [3.0, 5.0, 0.0, 1.0]])
    exact = y.double() / 2
    p = exact.softmax(dim=1)
    p[:, 1] = -(p[:, 0] + p[:, 2] + p[:, 3])  # the probability of class 1 minus 1
    expected = (p / 2).float()
    torch.testing.assert_close(
        deltas(cross_entropy(2.0, label), y), expected, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_saturated_scores_keep_the_direction_of_their_gradient(head, dtype):
    """At scores of 1000 every float32 probability is 0 or 1, and 1 - 1 would be no direction."""
    y = torch.tensor([[1000.0, 0.0, 2.0, -1.0]]) - 500 * (head == "sigmoid")
    found = deltas(OBJECTIVES[head].error(2.0, "predicted"), y.to(dtype)).double()
    true = deltas(OBJECTIVES[head].error(2.0, "predicted"), y.to(dtype).double())
    torch.testing.assert_close(
        found / found.norm(),
        true / true.norm(),
        rtol=1e-2,
        atol=1e-2 * (dtype != torch.float32),
    )


@pytest.mark.parametrize("features", ["dW8", "x8"])
def test_a_softmax_of_one_score_is_refused(features):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 1))
    pixels = Preprocess(4, 4, mean=(127.0,) * 3, std=(128.0,) * 3)
    image = np.arange(75, dtype=np.uint8).reshape(5, 5, 3)
    network = wrap(module, preprocess=pixels)
    with pytest.raises(OptionError, match=r'2 classes or more, got 1.*head="sigmoid"'):
        extract(network, [image], features)
    found = extract(wrap(module, preprocess=pixels, head="sigmoid"), [image], "dW8")
    assert np.abs(found["dW8"].delta).max() > 0


@pytest.mark.parametrize("label", [2.5, True, None, {"a": 1}, [[1.0, 0.0]], ["a", "b"]])
def test_a_label_of_another_kind_is_refused_in_one_line(label):
    with pytest.raises(
        OptionError, match="label must be uniform, predicted, a class number"
    ):
        FeatureOptions(label=label)


def test_a_class_number_may_be_one_of_numpy():
    assert FeatureOptions(label=np.int64(3)) == FeatureOptions(label=3)
