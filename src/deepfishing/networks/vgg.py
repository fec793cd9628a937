"""Stage 2, networks: VGG with 11, 13, 16 or 19 layers, as torchvision lays it out.

Comes in: the {tensor name: shape} of a weight file, {} for the original widths. Goes out: a
module from images (N, 3, 224, 224) to the class scores y_8 (N, classes). All four differ only
in how many 3x3 convolutions stand before each of the five poolings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

from torch import nn

from deepfishing.networks.weights import width


def _vgg(convolutions: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    fc6, fc7, classes = (
        width(shapes, f"classifier.{place}.weight", default)
        for place, default in ((0, 4096), (3, 4096), (6, 1000))
    )
    features: list[nn.Module] = []
    before = 3
    for channels, count in zip((64, 128, 256, 512, 512), convolutions, strict=True):
        for _ in range(count):
            features += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(inplace=True)]
            before = channels
        features.append(nn.MaxPool2d(2))
    classifier = nn.Sequential(
        nn.Linear(512 * 7 * 7, fc6),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(fc6, fc7),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(fc7, classes),
    )
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            features=nn.Sequential(*features),
            avgpool=nn.AdaptiveAvgPool2d((7, 7)),
            flatten=nn.Flatten(),
            classifier=classifier,
        )
    )


vgg11 = partial(_vgg, (1, 1, 2, 2, 2))
vgg13 = partial(_vgg, (2, 2, 2, 2, 2))
vgg16 = partial(_vgg, (2, 2, 3, 3, 3))
vgg19 = partial(_vgg, (2, 2, 4, 4, 4))
