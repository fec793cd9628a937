import itertools
import subprocess
import sys

import pytest
import torch

from deepfishing.errors import NetworkError
from deepfishing.networks import architectures
from deepfishing.networks.zoo import DEFAULT, RECORDS, record


def test_listing_the_networks_does_not_import_torch():
    code = "import sys, deepfishing.networks.zoo; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_ten_networks_and_the_default_are_listed_under_their_own_name():
    assert list(RECORDS) == [
        *(
            "alexnet-caffe",
            "vgg16-caffe",
            "alexnet-torchvision",
            "vgg11",
            "vgg13",
            "vgg16",
            "vgg19",
        ),
        *("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"),
    ]
    assert all(entry.name == name for name, entry in RECORDS.items())
    assert DEFAULT in RECORDS


@pytest.mark.parametrize("name", RECORDS)
def test_the_layers_of_a_record_are_modules_with_weights_in_order_up_to_the_classifier(
    name,
):
    entry = record(name)
    with torch.device("meta"):
        module = getattr(architectures, entry.build)({})
    weights = [module.get_submodule(path).weight for path in entry.layers.values()]
    assert list(entry.layers) == list(range(9 - len(weights), 9))
    for below, above in itertools.pairwise(weights):
        assert below.shape[0] == above.shape[1]
    assert len(weights[-1]) == 1000
    # weight and bias of the classifier
    assert list(module.parameters())[-2] is weights[-1]


@pytest.mark.parametrize("name", RECORDS)
def test_images_are_resized_as_in_the_paper_and_come_out_at_the_published_size(name):
    preprocess = record(name).preprocess
    sizes = {"alexnet-caffe": 227, "efficientnet-lite1": 240, "efficientnet-lite2": 260}
    assert preprocess.size == preprocess.short_side == sizes.get(name, 224)
    assert preprocess.order == ("BGR" if name.endswith("-caffe") else "RGB")


@pytest.mark.parametrize("name", RECORDS)
def test_weights_come_from_a_package_or_from_an_address(name):
    source = record(name).weights
    assert bool(source.package) != bool(source.url)
    assert source.megabytes > 0
    assert source.licence
    if name.endswith("-caffe"):
        assert len(source.sha1) == 40
    else:
        assert f"-{source.sha256[:8]}.pth" in source.file


def test_an_unknown_network_lists_the_known_ones_and_the_nearest():
    with pytest.raises(
        NetworkError, match=r"one of alexnet-caffe.*did you mean vgg16\?"
    ):
        record("vgg_16")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet50", "written timm:resnet50, torchvision:resnet50 or hf:ORG/resnet50"),
        (
            "tim:resnet50",
            "'tim' is not a library: write timm:NAME or timm:FOLDER, torchvision:NAME",
        ),
        ("nets/mine.safetensors", "goes with --weights"),
    ],
)
def test_a_network_of_another_package_is_told_how_it_is_written(name, words):
    with pytest.raises(NetworkError, match=words):
        record(name)


def test_the_addresses_and_normalisation_are_those_that_torchvision_publishes(
    torchvision,
):
    for name in ("alexnet-torchvision", "vgg11", "vgg13", "vgg16", "vgg19"):
        theirs = torchvision.models.get_model_weights(
            name.removesuffix("-torchvision")
        ).DEFAULT
        entry, transforms = record(name), theirs.transforms()
        assert entry.weights.url == theirs.url
        assert entry.preprocess.mean == tuple(transforms.mean)
        assert entry.preprocess.std == tuple(transforms.std)
        # torchvision's MB are 2**20 bytes
        published = theirs.meta["_file_size"] * 2**20 / 1e6
        assert entry.weights.megabytes == pytest.approx(published, abs=1)
