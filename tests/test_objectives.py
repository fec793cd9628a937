import numpy as np
import pytest
import torch

from deepfishing import objectives
from deepfishing.errors import OptionError
from deepfishing.gradients.extract import extract
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.network import wrap
from deepfishing.objectives import OBJECTIVES, Objective, cross_entropy
from deepfishing.settings import Settings


@pytest.mark.parametrize("tau", [0, -1, float("nan"), float("inf"), "2"])
def test_a_temperature_that_is_not_a_positive_number_is_refused(tau):
    with pytest.raises(OptionError, match="tau must be a positive number"):
        cross_entropy(tau)


def test_error_with_a_class_label_is_torch_cross_entropy():
    y = torch.randn(4, 6, dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(y / 3, torch.full((4,), 2), reduction="sum")
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
    settings = Settings.of(network)
    assert settings.as_dict()["head"] == "squares"
    assert settings.digest != Settings.of(wrap(module, preprocess=pixels)).digest
