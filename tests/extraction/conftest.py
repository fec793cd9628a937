"""Small random networks in double precision, and the slow, obvious gradient to compare with."""

import pytest
import torch
from torch import nn


@pytest.fixture
def head():
    """Three fully connected layers with ReLUs, as on top of AlexNet."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(11, 9),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(9, 8),
        nn.ReLU(),
        nn.Linear(8, 6),
    ).double()


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(5, 11, dtype=torch.float64)


@pytest.fixture
def per_sample_gradient():
    """dE/dW of each image on its own, by torch.func: (n, *weight.shape)."""

    def compute(module, inputs, path, objective):
        module = module.eval()
        parameters = {k: v.detach() for k, v in module.named_parameters()}
        name = f"{path}.weight"

        def error(weight, image):
            changed = {**parameters, name: weight}
            return objective(
                torch.func.functional_call(module, changed, (image[None],))
            )

        grad = torch.func.vmap(torch.func.grad(error), in_dims=(None, 0))
        return grad(parameters[name], inputs)

    return compute
