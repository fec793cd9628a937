"""Small cases with figures that can be checked by hand: positions, views, shared weights."""

import numpy as np
import torch
from torch import nn

from deepfishing.core.features import Factor
from deepfishing.extraction.batches import aggregate
from deepfishing.extraction.factors import sharing_weights
from deepfishing.extraction.layout import Layout, find_layouts, mean_over_positions
from deepfishing.extraction.tap import tap
from deepfishing.extraction.trunk import cut


def test_the_mean_over_positions_keeps_channels():
    maps = torch.arange(8.0).reshape(1, 2, 2, 2)
    torch.testing.assert_close(
        mean_over_positions([maps], [1]), torch.tensor([[1.5, 5.5]])
    )
    both = mean_over_positions([maps, maps[:, :, 0]], [-3, 1])
    torch.testing.assert_close(both, torch.tensor([[7 / 6, 31 / 6]]))


def test_views_are_averaged_and_behind_exact_put_side_by_side():
    two_views = np.array([[1.0, 2.0], [3.0, 6.0]])
    assert aggregate(Factor("delta", 8), two_views, V=2).tolist() == [[2.0, 4.0]]
    side_by_side = aggregate(Factor("delta", 8, "exact"), two_views, V=2)
    assert side_by_side.tolist() == [[[0.5, 1.0], [1.5, 3.0]]]


def test_modules_that_share_weights_are_found():
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    assert sharing_weights(net, "2") == ("2",)
    net[2].weight = net[0].weight
    assert sharing_weights(net, "2") == ("2", "0")


def test_the_layout_of_a_convolution_has_images_first_and_channels_third_from_the_end():
    net = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(2), nn.Linear(9, 5))
    two = torch.rand(2, 3, 4, 4)
    found = find_layouts(net, two, tap(net, two[:1], ["0", "2"]), outputs=["0"])
    assert found["0"] == (Layout(channel=-3),)


def test_a_trunk_has_its_batch_norm_folded_and_a_head_begins_at_the_layer_read():
    layers = (
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 2),
    )
    parts = cut(nn.Sequential(*layers).eval(), ["4"])
    kinds = [type(module).__name__ for module in parts.trunk.children()]
    assert kinds == ["Conv2d", "ReLU", "Flatten"]
    assert [name for name, _ in parts.head.named_children()] == ["4"]
    assert parts.head(parts.trunk(torch.ones(5, 3, 4, 4))).shape == (5, 2)
