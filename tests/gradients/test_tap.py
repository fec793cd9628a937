import contextlib

import pytest
import torch
from torch import nn

from deepfishing.errors import LayerError
from deepfishing.gradients.objective import cross_entropy
from deepfishing.gradients.tap import positions, tap


class ConvHead(nn.Module):
    """As EfficientNet-Lite's: a 1x1 convolution, batch norm, ReLU6, pooling, a classifier."""

    def __init__(self, kernel=1, stride=1, padding=0, dilation=1):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, kernel, stride, padding, dilation, bias=False)
        self.bn = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(nn.functional.relu6(self.bn(self.conv(x))).mean(dim=(2, 3)))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Linear(3, 5)
        self.fc = nn.Linear(5, 4)

    def forward(self, x):
        return self.fc(torch.tanh(self.mlp(x)).mean(dim=1))


@pytest.mark.parametrize(
    ("module", "path", "shape"),
    [
        (ConvHead(), "conv", (3, 7, 7)),
        (ConvHead(kernel=3, stride=2, padding=1), "conv", (3, 7, 8)),
        (ConvHead(kernel=(2, 3), dilation=2), "conv", (3, 9, 8)),
        (Tokens(), "mlp", (10, 3)),
    ],
    ids=["1x1", "3x3", "dilated", "tokens"],
)
def test_positions_sum_to_the_per_sample_gradient(module, path, shape, per_sample_gradient):
    torch.manual_seed(0)
    module = module.double()
    batch = torch.randn(4, *shape, dtype=torch.float64)
    objective = cross_entropy()
    taps = tap(module, batch, gradients=[path], objective=objective)
    layer = module.get_submodule(path)
    x, delta = positions(layer, taps.inputs[path], taps.deltas[path])
    ours = torch.einsum("npd,npe->ned", x, delta).reshape(4, *layer.weight.shape)
    slow = per_sample_gradient(module, batch, path, objective)
    torch.testing.assert_close(ours, slow, rtol=0, atol=1e-10)


def test_per_sample_gradients_sum_to_the_gradient_of_the_batch(head, batch):
    taps = tap(head, batch, gradients=["0"], objective=cross_entropy())
    ours = taps.deltas["0"].T @ taps.inputs["0"]
    head.eval()
    cross_entropy()(head(batch)).backward()
    torch.testing.assert_close(ours, head[0].weight.grad)


def test_an_in_place_relu_does_not_change_y_or_delta(head, batch):
    expected = tap(head, batch, read=["3"], gradients=["0"], objective=cross_entropy())
    head[1].inplace = head[4].inplace = True
    for asked in (["0"], ["0", "3"]):
        taps = tap(head, batch, read=["3"], gradients=asked, objective=cross_entropy())
        torch.testing.assert_close(taps.deltas["0"], expected.deltas["0"])
        torch.testing.assert_close(taps.outputs["0"], expected.outputs["0"])
        torch.testing.assert_close(taps.outputs["3"], expected.outputs["3"])
    assert (expected.outputs["0"] < 0).any()


def test_the_trunk_below_the_lowest_layer_has_no_graph(head, batch):
    seen = {}
    head[0].register_forward_hook(lambda m, i, y: seen.update(trunk=y.requires_grad))
    head[4].register_forward_hook(lambda m, i, y: seen.update(head=y.requires_grad))
    tap(head, batch, gradients=["3"], objective=cross_entropy())
    assert seen == {"trunk": False, "head": True}
    tap(head, batch, read=["3"])
    assert seen == {"trunk": False, "head": False}


def test_the_module_is_left_as_it_was_found_even_after_an_error(head, batch):
    head.train()
    head[0].weight.requires_grad_(False)
    wants = [p.requires_grad for p in head.parameters()]

    def explode(y):
        raise RuntimeError("boom")

    for objective in (cross_entropy(), explode):
        with contextlib.suppress(RuntimeError):
            tap(head, batch, gradients=["3"], objective=objective)
        assert all(m.training for m in head.modules())
        assert [p.requires_grad for p in head.parameters()] == wants
        assert not any(m._forward_hooks for m in head.modules())
        assert torch.is_grad_enabled()
    assert all(p.grad is None for p in head.parameters())


def test_dropout_and_batch_norm_run_in_eval_mode(head, batch):
    head.train()
    first = tap(head, batch, gradients=["0"], objective=cross_entropy()).deltas["0"]
    again = tap(head, batch, gradients=["0"], objective=cross_entropy()).deltas["0"]
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def test_unknown_unused_and_repeated_layers_are_named(head, batch):
    with pytest.raises(LayerError, match="got '7'"):
        tap(head, batch, read=["7"])
    head.spare = nn.Linear(2, 2)
    head.forward = lambda x: head[5](head[3](head[3](head[0](x))[:, :1].repeat(1, 9)))
    with pytest.raises(LayerError, match="spare did not run"):
        tap(head, batch, read=["spare"])
    with pytest.raises(LayerError, match="3 runs more than once"):
        tap(head, batch, read=["3"])


def test_a_layer_that_the_output_does_not_depend_on_is_named(head, batch):
    head.forward = lambda x: (head[0](x), head[5](x[:, :8]))[1]
    with pytest.raises(LayerError, match="does not depend on layer 0"):
        tap(head, batch, gradients=["0"], objective=cross_entropy())


def test_a_layer_without_rank_one_gradient_is_refused():
    for layer in (nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4)):
        with pytest.raises(LayerError, match="must be Linear or a Conv2d"):
            positions(layer, torch.zeros(1, 4, 5, 5), torch.zeros(1, 4, 3, 3))
