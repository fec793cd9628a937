"""Stage 2, networks: VGG with 11, 13, 16 or 19 layers, as torchvision and Caffe name its parts.

Comes in: the {tensor name: shape} of a weight file, {} for the original widths. Goes out: a
module from images (N, 3, 224, 224) to the class scores y_8 (N, classes). All four differ only
in how many 3x3 convolutions stand before each of the five poolings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

from torch import nn

from deepfishing.networks.weights import widths


def _convolutions(counts: tuple[int, ...], ceil: bool = False) -> OrderedDict[str, nn.Module]:
    """The part below the fully connected layers, under the names of Caffe's files."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    before = 3
    for stage, (channels, count) in enumerate(
        zip((64, 128, 256, 512, 512), counts, strict=True), 1
    ):
        for i in range(1, count + 1):
            parts[f"conv{stage}_{i}"] = nn.Conv2d(before, channels, 3, padding=1)
            parts[f"relu{stage}_{i}"] = nn.ReLU(inplace=True)
            before = channels
        parts[f"pool{stage}"] = nn.MaxPool2d(2, ceil_mode=ceil)
    return parts


def _vgg(counts: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    fc6, fc7, classes = widths(shapes, "classifier.0", "classifier.3", "classifier.6")
    classifier = nn.Sequential(
        *(nn.Linear(512 * 7 * 7, fc6), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(fc6, fc7), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(fc7, classes),
    )
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            features=nn.Sequential(*_convolutions(counts).values()),
            avgpool=nn.AdaptiveAvgPool2d((7, 7)),
            flatten=nn.Flatten(),
            classifier=classifier,
        )
    )


vgg11 = partial(_vgg, (1, 1, 2, 2, 2))
vgg13 = partial(_vgg, (2, 2, 2, 2, 2))
vgg16 = partial(_vgg, (2, 2, 3, 3, 3))
vgg19 = partial(_vgg, (2, 2, 4, 4, 4))


def vgg16_caffe(shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """VGG16 under the names of its authors' Caffe files: conv1_1 .. conv5_3, fc6, fc7, fc8."""
    fc6, fc7, classes = widths(shapes, "fc6", "fc7", "fc8")
    parts = _convolutions((2, 2, 3, 3, 3), ceil=True)
    parts["flatten"] = nn.Flatten()
    parts |= {"fc6": nn.Linear(512 * 7 * 7, fc6), "relu6": nn.ReLU(), "drop6": nn.Dropout(0.5)}
    parts |= {"fc7": nn.Linear(fc6, fc7), "relu7": nn.ReLU(), "drop7": nn.Dropout(0.5)}
    parts["fc8"] = nn.Linear(fc7, classes)
    return nn.Sequential(parts)
