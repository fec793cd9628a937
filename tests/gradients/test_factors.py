import pytest
import torch
from torch import nn

from deepfishing.errors import LayerError
from deepfishing.gradients.factors import gradient_factors, spread_groups
from deepfishing.gradients.objective import cross_entropy
from deepfishing.gradients.tap import Call, tap


class ConvNet(nn.Module):
    """A convolution, batch norm, ReLU6, pooling, a classifier, as in EfficientNet-Lite's head."""

    def __init__(self, *arguments, **options):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, *arguments, bias=False, **options)
        self.bn = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(nn.functional.relu6(self.bn(self.conv(x))).mean(dim=(2, 3)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu, self.fc = nn.ReLU(inplace=True), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(self.relu(self.conv(self.relu(self.conv1(x))) + x).mean(dim=(2, 3)))


class Attention(nn.Module):
    """A transformer block on tokens: projections, softmax attention, an MLP."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(6, 18), nn.Linear(6, 6)
        self.norm, self.mlp, self.fc = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.proj(torch.softmax(q @ k.transpose(1, 2), dim=-1) @ v)
        x = x + nn.functional.gelu(self.mlp(self.norm(x)))
        return self.fc(x[:, 0])


class Shared(nn.Module):
    """One layer used three times."""

    def __init__(self):
        super().__init__()
        self.layer, self.fc = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return self.fc(x)


CASES = {
    "1x1": (ConvNet(1), "conv", (4, 7, 7)),
    "3x3 strided": (ConvNet(3, stride=2, padding=1), "conv", (4, 7, 8)),
    "dilated": (ConvNet((2, 3), dilation=2), "conv", (4, 9, 8)),
    "groups": (ConvNet(3, padding=1, groups=2), "conv", (4, 5, 6)),
    "same padding": (ConvNet(4, padding="same"), "conv", (4, 6, 6)),
    "reflect padding": (ConvNet(3, padding=1, padding_mode="reflect"), "conv", (4, 6, 6)),
    "residual, in-place": (Residual(), "conv", (4, 6, 6)),
    "residual, below": (Residual(), "conv1", (4, 6, 6)),
    "attention qkv": (Attention(), "qkv", (5, 6)),
    "attention out": (Attention(), "proj", (5, 6)),
    "token mlp": (Attention(), "mlp", (5, 6)),
    "classifier": (Attention(), "fc", (5, 6)),
    "shared": (Shared(), "layer", (6,)),
    "shared, tokens": (Shared(), "layer", (3, 6)),
}


def dense(layer, x, delta):
    """The gradient in the shape of the weight, from factors with positions."""
    if x.ndim == 2:
        x, delta = x[:, None], delta[:, None]
    full = torch.einsum("npd,npe->ned", x, delta)
    groups = getattr(layer, "groups", 1)
    n, D, d = full.shape
    blocks = full.reshape(n, groups, D // groups, groups, d // groups)
    inside = torch.stack([blocks[:, g, :, g] for g in range(groups)], dim=1)
    return inside.reshape(n, *layer.weight.shape)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("case", CASES)
def test_factors_multiply_to_the_per_sample_gradient(case, per_sample_gradient):
    module, path, shape = CASES[case]
    torch.manual_seed(0)
    module = module.double()
    batch = torch.randn(4, *shape, dtype=torch.float64)
    if "shared, tokens" in case:
        module.forward = lambda x: Shared.forward(module, x).mean(dim=1)
    objective = cross_entropy()
    taps = tap(module, batch, gradients=[path], objective=objective)
    layer = module.get_submodule(path)
    x, delta = gradient_factors(layer, taps.calls[path])
    if getattr(layer, "groups", 1) > 1:
        x, delta = spread_groups(x, delta, layer.groups)
    ours = dense(layer, x, delta)
    slow = per_sample_gradient(module, batch, path, objective)
    assert slow.abs().max() > 1e-6
    torch.testing.assert_close(ours, slow, rtol=0, atol=1e-10)


def test_groups_do_not_mix_in_the_spread_factors():
    x, delta = spread_groups(torch.randn(2, 3, 8), torch.randn(2, 3, 4), groups=4)
    full = torch.einsum("npd,npe->nde", x, delta).reshape(2, 4, 2, 4, 1)
    mask = torch.eye(4, dtype=torch.bool)
    assert full.permute(1, 3, 0, 2, 4)[~mask].abs().max() == 0
    assert full.permute(1, 3, 0, 2, 4)[mask].abs().min() > 0


def test_a_layer_without_rank_one_gradient_is_refused():
    call = Call(torch.zeros(1, 4, 5, 5), torch.zeros(1, 4, 5, 5), torch.zeros(1, 4, 5, 5))
    with pytest.raises(LayerError, match="must be Linear or Conv2d, got BatchNorm2d"):
        gradient_factors(nn.BatchNorm2d(4), [call])


def test_a_convolution_that_pads_by_itself_is_refused():
    call = Call(torch.zeros(1, 4, 5, 5), torch.zeros(1, 4, 5, 5), torch.zeros(1, 4, 5, 5))
    with pytest.raises(LayerError, match="must pad as"):
        gradient_factors(nn.Conv2d(4, 4, 3), [call])
