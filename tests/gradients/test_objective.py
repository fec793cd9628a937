import numpy as np
import pytest
import torch

from deepfishing.errors import OptionError
from deepfishing.gradients.objective import cross_entropy


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
