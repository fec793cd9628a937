import pytest
import torch
from torch.nn.functional import conv2d

from deepfishing.networks.architectures import AcrossChannels, alexnet_torchvision
from deepfishing.networks.load import random_network

WIDTHS = {6: 32, 7: 24, 8: 10}


def normalise_by_definition(a):
    out = torch.empty_like(a)
    for c in range(a.shape[1]):
        near = a[:, max(c - 2, 0) : c + 3]
        out[:, c] = a[:, c] / (1 + 1e-4 / 5 * (near**2).sum(1)) ** 0.75
    return out


def pool_by_definition(a):
    """3x3 windows every 2 pixels, until the last pixel has been in one."""
    steps = [range(0, size - 1, 2) for size in a.shape[2:]]
    rows = [
        [a[:, :, i : i + 3, j : j + 3].amax((2, 3)) for j in steps[1]] for i in steps[0]
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def two_towers(a, weight, bias, padding):
    halves = zip(a.chunk(2, 1), weight.chunk(2), bias.chunk(2), strict=True)
    return torch.cat([conv2d(x, w, b, padding=padding) for x, w, b in halves], 1)


def alexnet_by_definition(a, w):
    a = conv2d(a, w["conv1.weight"], w["conv1.bias"], stride=4).clamp(min=0)
    a = pool_by_definition(normalise_by_definition(a))
    a = two_towers(a, w["conv2.weight"], w["conv2.bias"], 2).clamp(min=0)
    a = pool_by_definition(normalise_by_definition(a))
    a = conv2d(a, w["conv3.weight"], w["conv3.bias"], padding=1).clamp(min=0)
    a = two_towers(a, w["conv4.weight"], w["conv4.bias"], 1).clamp(min=0)
    a = two_towers(a, w["conv5.weight"], w["conv5.bias"], 1).clamp(min=0)
    a = pool_by_definition(a).reshape(len(a), -1)
    a = (a @ w["fc6.weight"].T + w["fc6.bias"]).clamp(min=0)
    a = (a @ w["fc7.weight"].T + w["fc7.bias"]).clamp(min=0)
    return a @ w["fc8.weight"].T + w["fc8.bias"]


# at 227 px every pooling window fits; at 199 px each of the three poolings ends with half a one
@pytest.mark.parametrize("size", [227, 199])
def test_caffes_alexnet_is_its_definition_written_out(size):
    net = random_network("alexnet-caffe", widths=WIDTHS, dtype="float64")
    # pixels as large as Caffe's, so that the normalisation matters
    images = 100 * torch.randn(2, 3, size, size, dtype=torch.float64)
    expected = alexnet_by_definition(images, net.module.state_dict())
    torch.testing.assert_close(net.module(images), expected, rtol=1e-10, atol=1e-10)


def test_caffes_alexnet_has_caffes_map_sizes():
    net = random_network("alexnet-caffe", widths=WIDTHS)
    a, sizes = torch.zeros(1, 3, 227, 227), {}
    for name, module in net.module.named_children():
        a = module(a)
        sizes[name] = tuple(a.shape[1:])
    assert sizes["conv1"] == (96, 55, 55)
    assert sizes["pool1"] == (96, 27, 27)
    assert sizes["pool2"] == (256, 13, 13)
    assert sizes["pool5"] == (256, 6, 6)
    assert sizes["fc8"] == (10,)


def test_normalisation_is_torchs_own_where_torch_has_one():
    theirs = torch.nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)
    a = 100 * torch.randn(2, 7, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(AcrossChannels()(a), theirs(a), rtol=1e-12, atol=0)


def test_normalisation_in_half_precision_does_not_overflow():
    a = torch.full((1, 5, 1, 1), 1000.0)  # its square does not fit float16
    out = AcrossChannels()(a.half())
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), AcrossChannels()(a), rtol=1e-3, atol=0)


@pytest.mark.parametrize("size", [(224, 224), (130, 171)])
def test_torchvisions_alexnet_gives_torchvisions_outputs(torchvision, size):
    net = random_network("alexnet-torchvision", widths=WIDTHS, dtype="float64")
    with torch.device("meta"):
        theirs = torchvision.models.alexnet().eval()
        theirs.classifier[1] = torch.nn.Linear(9216, 32)
        theirs.classifier[4] = torch.nn.Linear(32, 24)
        theirs.classifier[6] = torch.nn.Linear(24, 10)
    theirs.load_state_dict(net.module.state_dict(), assign=True)
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(
        net.module(images), theirs(images), rtol=1e-10, atol=1e-10
    )


def test_torchvisions_alexnet_has_torchvisions_tensors_at_the_default_widths(
    torchvision,
):
    with torch.device("meta"):
        ours, theirs = alexnet_torchvision({}), torchvision.models.alexnet()
    assert {n: t.shape for n, t in ours.state_dict().items()} == {
        n: t.shape for n, t in theirs.state_dict().items()
    }
