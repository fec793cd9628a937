import pytest
import torch

from deepfishing.networks import architectures as vgg
from deepfishing.networks.load import random_network

NAMES = ["vgg11", "vgg13", "vgg16", "vgg19"]


def same_weights_in_torchvision(torchvision, net, widths):
    with torch.device("meta"):
        theirs = torchvision.models.get_model(net.name, init_weights=False).eval()
        theirs.classifier[0] = torch.nn.Linear(512 * 49, widths[6])
        theirs.classifier[3] = torch.nn.Linear(widths[6], widths[7])
        theirs.classifier[6] = torch.nn.Linear(widths[7], widths[8])
    theirs.load_state_dict(net.module.state_dict(), assign=True)
    return theirs


@pytest.mark.parametrize("name", NAMES)
def test_vgg_gives_torchvisions_outputs(torchvision, name):
    widths = {6: 32, 7: 24, 8: 10}
    net = random_network(name, widths=widths, dtype="float64")
    theirs = same_weights_in_torchvision(torchvision, net, widths)
    images = torch.randn(2, 3, 64, 70, dtype=torch.float64)
    torch.testing.assert_close(
        net.module(images), theirs(images), rtol=1e-10, atol=1e-10
    )


def test_vgg19_gives_torchvisions_outputs_at_its_own_size(torchvision):
    widths = {6: 32, 7: 24, 8: 10}
    net = random_network("vgg19", widths=widths)
    theirs = same_weights_in_torchvision(torchvision, net, widths)
    images = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(net.module(images), theirs(images), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_vgg_has_torchvisions_tensors_at_the_default_widths(torchvision, name):
    with torch.device("meta"):
        ours = getattr(vgg, name)({})
        theirs = torchvision.models.get_model(name, init_weights=False)
    assert {n: t.shape for n, t in ours.state_dict().items()} == {
        n: t.shape for n, t in theirs.state_dict().items()
    }
