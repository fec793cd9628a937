import pytest
import torch
from torch import nn

from deepfishing.errors import LayerError
from deepfishing.extraction.compute import peak_bytes
from deepfishing.extraction.factors import (
    block_gradients,
    gradient_factors,
    is_grouped,
    pooled_factors,
)
from deepfishing.extraction.tap import Call, tap
from deepfishing.networks.architectures import SameConv2d
from deepfishing.networks.objectives import cross_entropy


class ConvNet(nn.Module):
    """A convolution, batch norm, ReLU6, pooling, a classifier, as in EfficientNet-Lite's head."""

    def __init__(self, *arguments, **options):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, *arguments, bias=False, **options)
        self.bn = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(nn.functional.relu6(self.bn(self.conv(x))).mean(dim=(2, 3)))


class PadsItself(ConvNet):
    """A convolution with TensorFlow's padding, which depends on the input."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.conv = SameConv2d(4, 6, *arguments, **options)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv = (
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
        )
        self.relu, self.fc = nn.ReLU(inplace=True), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(
            self.relu(self.conv(self.relu(self.conv1(x))) + x).mean(dim=(2, 3))
        )


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
    "groups, strided, dilated": (
        ConvNet(3, stride=2, dilation=2, groups=2),
        "conv",
        (4, 9, 8),
    ),
    "same padding": (ConvNet(4, padding="same"), "conv", (4, 6, 6)),
    "reflect padding": (
        ConvNet(3, padding=1, padding_mode="reflect"),
        "conv",
        (4, 6, 6),
    ),
    "pads itself": (PadsItself(3, stride=2), "conv", (4, 8, 7)),
    "pads itself, groups": (PadsItself(5, stride=2, groups=2), "conv", (4, 7, 8)),
    "residual, in-place": (Residual(), "conv", (4, 6, 6)),
    "residual, below": (Residual(), "conv1", (4, 6, 6)),
    "attention qkv": (Attention(), "qkv", (5, 6)),
    "attention out": (Attention(), "proj", (5, 6)),
    "token mlp": (Attention(), "mlp", (5, 6)),
    "classifier": (Attention(), "fc", (5, 6)),
    "shared": (Shared(), "layer", (6,)),
    "shared, tokens": (Shared(), "layer", (3, 6)),
}


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
    uses = [(layer, call) for call in taps.calls[path]]
    slow = per_sample_gradient(module, batch, path, objective)
    assert slow.abs().max() > 1e-6
    x, delta = (v if v.ndim == 3 else v[:, None] for v in gradient_factors(uses))
    if not is_grouped(layer):
        ours = torch.einsum("npd,npe->ned", x, delta).reshape(slow.shape)
        torch.testing.assert_close(ours, slow, rtol=0, atol=1e-10)
    if isinstance(layer, nn.Conv2d):
        blocks = block_gradients(uses).reshape(slow.shape)
        torch.testing.assert_close(blocks, slow, rtol=0, atol=1e-10)
    pooled_x, pooled_delta = pooled_factors(uses)
    torch.testing.assert_close(pooled_x, x.mean(dim=1), rtol=0, atol=1e-12)
    torch.testing.assert_close(pooled_delta, delta.sum(dim=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [6, 2])
def test_a_grouped_convolution_needs_no_more_memory_than_its_maps_and_weights(groups):
    layer = nn.Conv2d(48, 48, 7, padding=3, groups=8 * groups)
    maps = torch.randn(2, 48, 40, 40)
    with torch.no_grad():
        uses = [(layer, Call(maps, layer(maps), torch.randn(2, 48, 40, 40)))]
    own = 2 * maps.nbytes + 2 * layer.weight.nbytes
    for compute in (block_gradients, pooled_factors):
        assert peak_bytes(lambda compute=compute: compute(uses)) < 3 * own


def test_windows_of_an_image_are_positions_of_it(per_sample_gradient):
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, padding=1, groups=2).double()
    x, delta = torch.randn(6, 4, 5, 5).double(), torch.randn(6, 6, 5, 5).double()
    rows = [(conv, Call(x, delta, delta))]
    windows = [
        (conv, Call(*(v.reshape(2, 3, *v.shape[1:]) for v in (x, delta, delta))))
    ]
    each = block_gradients(rows).reshape(2, 3, 2, 3, 18)
    torch.testing.assert_close(block_gradients(windows), each.sum(dim=1))
    plain = nn.Conv2d(4, 6, 3, padding=1).double()
    dense = [
        torch.einsum("npd,npe->nde", *gradient_factors([(plain, use[0][1])]))
        for use in (rows, windows)
    ]
    torch.testing.assert_close(dense[1], dense[0].reshape(2, 3, 36, 6).sum(dim=1))
    pooled = [pooled_factors(use) for use in (rows, windows)]
    torch.testing.assert_close(pooled[1][0], pooled[0][0].reshape(2, 3, -1).mean(dim=1))
    torch.testing.assert_close(pooled[1][1], pooled[0][1].reshape(2, 3, -1).sum(dim=1))


def test_a_layer_without_rank_one_gradient_is_refused():
    call = Call(
        torch.zeros(1, 4, 5, 5), torch.zeros(1, 4, 5, 5), torch.zeros(1, 4, 5, 5)
    )
    for factors in (gradient_factors, block_gradients, pooled_factors):
        with pytest.raises(
            LayerError, match="must be Linear or Conv2d, got BatchNorm2d"
        ):
            factors([(nn.BatchNorm2d(4), call)])


def test_a_convolution_that_pads_in_a_way_of_its_own_is_refused():
    call = Call(
        torch.zeros(1, 4, 5, 5), torch.zeros(1, 4, 6, 6), torch.zeros(1, 4, 6, 6)
    )
    for factors in (gradient_factors, block_gradients, pooled_factors):
        with pytest.raises(LayerError, match="must pad as"):
            factors([(nn.Conv2d(4, 4, 3), call)])
