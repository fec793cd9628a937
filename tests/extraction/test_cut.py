import pytest
import torch
from torch import nn

from deepfishing.extraction.tap import tap
from deepfishing.extraction.trunk import cut
from deepfishing.networks.load import random_network


class Residual(nn.Module):
    """A skip connection around a convolution, batch norm and a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        x = x + torch.relu(self.norm(self.conv(x)))
        return self.fc((x * self.scale).mean(dim=(2, 3))) * self.scale


def filled(module):
    """Batch norms whose folding would show if it were wrong."""
    torch.manual_seed(0)
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            for tensor in (m.running_mean, m.running_var, m.weight.data, m.bias.data):
                tensor.uniform_(0.5, 2)
    return module.eval()


@pytest.fixture
def images():
    torch.manual_seed(1)
    return torch.randn(2, 3, 8, 8)


def test_trunk_and_head_are_the_network(images):
    module = filled(Residual())
    parts = cut(module, ["fc"])
    torch.testing.assert_close(parts.head(parts.trunk(images)), module(images))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in parts.trunk.modules())
    assert [name for name, _ in parts.head.named_children()] == ["fc"]


def test_what_lies_inside_a_skip_connection_is_not_cut_off():
    # its input crosses the cut, and so does what it is added to
    assert cut(filled(Residual()), ["norm"]) is None


def test_the_output_of_a_convolution_that_is_read_stays_without_its_batch_norm(images):
    module = filled(
        nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    )
    parts = cut(module, ["1"])
    with torch.no_grad():
        expected = tap(module, images, read=["1"]).calls["1"][0]
        got = tap(parts.head, parts.trunk(images), read=["1"]).calls["1"][0]
    torch.testing.assert_close(got.x, expected.x)
    torch.testing.assert_close(got.y, expected.y)


@pytest.mark.parametrize("affine", [True, False])
def test_gradients_pass_a_batch_norm_of_the_head_as_they_did(images, affine):
    norm = nn.BatchNorm2d(4, affine=affine)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    module = nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 1), norm, nn.ReLU()).eval()
    if affine:
        filled(module)
    parts = cut(module, ["1"])
    options = {"gradients": ["1"], "objective": lambda output: (output**2).sum()}
    expected = tap(module, images, **options).calls["1"][0]
    got = tap(parts.head, parts.trunk(images), **options).calls["1"][0]
    torch.testing.assert_close(got.delta, expected.delta)
    assert [name for name, _ in cut(module, ["1", "2"]).head.named_children()] == [
        "1",
        "2",
        "3",
    ]
    assert cut(module, ["1", "2"]).head.get_submodule("2") is norm


def test_a_batch_norm_is_folded_only_where_nothing_else_sees_the_convolution(images):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.fc = (
                nn.Conv2d(3, 4, 1),
                nn.BatchNorm2d(4),
                nn.Linear(8, 2),
            )

        def forward(self, x):
            x = self.conv(x)
            return self.fc(torch.cat([x, self.norm(x)], dim=1).mean(dim=(2, 3)))

    module = filled(Twice())
    parts = cut(module, ["fc"])
    torch.testing.assert_close(parts.head(parts.trunk(images)), module(images))


def test_a_network_whose_code_depends_on_its_input_is_not_cut():
    class Choosing(Residual):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    assert cut(Choosing(), ["fc"]) is None


def test_a_network_in_training_mode_is_cut_as_it_runs_in_eval_mode(images):
    class Dropping(Residual):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, 0.5, self.training))

    module = filled(Dropping())
    expected = module(images)
    parts = cut(module.train(), ["fc"])
    torch.testing.assert_close(parts.head.eval()(parts.trunk(images)), expected)


def test_a_network_that_was_changed_from_outside_is_not_cut():
    module = Residual()
    module.conv.register_forward_hook(lambda module, args, output: output * 2)
    assert cut(module, ["fc"]) is None


def test_a_network_is_not_cut_below_its_first_layer_or_one_that_does_not_run():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    assert cut(module, ["0", "1"]) is None
    assert cut(module, ["2"]) is None


def test_the_network_is_left_as_it_was(images):
    module = Residual().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    parts = cut(module, ["fc"])
    parts.trunk(images)
    assert all(m.training for m in module.modules())
    assert all(p.requires_grad for p in module.parameters())
    assert all(
        torch.equal(before[name], value) for name, value in module.state_dict().items()
    )


@pytest.mark.parametrize(
    ("name", "read", "begins"),
    [
        ("efficientnet-lite0", ["_conv_head", "_fc"], "_conv_head"),
        ("alexnet-caffe", ["fc6", "fc8"], "fc6"),
        ("vgg11", ["classifier.3"], "classifier"),
        ("vgg11", ["features.18"], "features"),
    ],
)
def test_networks_of_the_zoo_are_cut_at_any_layer(name, read, begins):
    widths = {8: 5} if name == "efficientnet-lite0" else {6: 8, 7: 8, 8: 5}
    network = random_network(name, widths=widths)
    parts = cut(network.module, read)
    assert next(iter(parts.head.named_children()))[0] == begins
    size = network.preprocess.size
    batch = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network.module(batch)
        torch.testing.assert_close(
            parts.head(parts.trunk(batch)),
            expected,
            rtol=1e-3,
            atol=1e-4 * expected.abs().max(),
        )
