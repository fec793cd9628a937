"""Stage 2, networks: AlexNet and VGG, as Caffe has them (the paper's) and as torchvision has them.

Comes in: the {tensor name: shape} of a weight file, {} for the original widths. Goes out: a module
from images (N, 3, 227, 227), for AlexNet of Caffe, or (N, 3, 224, 224) to the class scores y_8 (N,
classes). Modules are named as in the weight files, so a module's path is also a layer's name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from deepfishing.networks.weights import width


def alexnet_caffe(shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """BVLC AlexNet: two towers (grouped convolutions), LRN before pooling, 227 px."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(3, 96, 11, stride=4),  # 227 -> 55
            relu1=nn.ReLU(inplace=True),
            norm1=AcrossChannels(),
            pool1=nn.MaxPool2d(3, stride=2, ceil_mode=True),  # 55 -> 27
            conv2=nn.Conv2d(96, 256, 5, padding=2, groups=2),
            relu2=nn.ReLU(inplace=True),
            norm2=AcrossChannels(),
            pool2=nn.MaxPool2d(3, stride=2, ceil_mode=True),  # 27 -> 13
            conv3=nn.Conv2d(256, 384, 3, padding=1),
            relu3=nn.ReLU(inplace=True),
            conv4=nn.Conv2d(384, 384, 3, padding=1, groups=2),
            relu4=nn.ReLU(inplace=True),
            conv5=nn.Conv2d(384, 256, 3, padding=1, groups=2),
            relu5=nn.ReLU(inplace=True),
            pool5=nn.MaxPool2d(3, stride=2, ceil_mode=True),  # 13 -> 6
        )
        | _caffe_head(256 * 6 * 6, shapes)
    )


def alexnet_torchvision(shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """One tower, no LRN, 224 px; the fully connected widths are those of the weight file."""
    fc6, fc7, classes = _widths(shapes, "classifier.1", "classifier.4", "classifier.6")
    features = nn.Sequential(
        *(nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(inplace=True)),
        nn.MaxPool2d(3, stride=2),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True)),
        nn.MaxPool2d(3, stride=2),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True)),
        nn.MaxPool2d(3, stride=2),
    )
    classifier = nn.Sequential(
        *(nn.Dropout(0.5), nn.Linear(256 * 6 * 6, fc6), nn.ReLU()),
        *(nn.Dropout(0.5), nn.Linear(fc6, fc7), nn.ReLU()),
        nn.Linear(fc7, classes),
    )
    return _torchvision(features, 6, classifier)


class AcrossChannels(nn.Module):
    """Caffe's local response normalisation with AlexNet's constants (n=5, alpha=1e-4, beta=0.75).

    out_c = a_c / (1 + alpha/n * sum of a_j^2 over the n channels j around c)^beta

    The sum is a 1x1 convolution with a band of ones, and s^-0.75 = s^-1/2 (s^-1/2)^1/2: several
    times faster on a CPU than `nn.LocalResponseNorm`, which does not know half precision there
    either.
    """

    def forward(self, a: Tensor) -> Tensor:
        """Normalise a (N, C, H, W) by its neighbours in C."""
        # squares of activations overflow float16 long before the activations do
        wide = a.float() if a.dtype in (torch.float16, torch.bfloat16) else a
        channel = torch.arange(a.shape[1], device=a.device)
        near = (channel[:, None] - channel).abs() <= 2
        band = near.to(wide.dtype)[:, :, None, None] * (1e-4 / 5)
        root = (1 + nn.functional.conv2d(wide * wide, band)).rsqrt()
        return (wide * root * root.sqrt()).to(a.dtype)


def _convolutions(counts: tuple[int, ...], ceil: bool = False) -> OrderedDict[str, nn.Module]:
    """VGG below the fully connected layers, under the names of Caffe's files.

    Versions differ only in how many 3x3 convolutions stand before each of the five poolings.
    """
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
    fc6, fc7, classes = _widths(shapes, "classifier.0", "classifier.3", "classifier.6")
    classifier = nn.Sequential(
        *(nn.Linear(512 * 7 * 7, fc6), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(fc6, fc7), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(fc7, classes),
    )
    return _torchvision(nn.Sequential(*_convolutions(counts).values()), 7, classifier)


vgg11 = partial(_vgg, (1, 1, 2, 2, 2))
vgg13 = partial(_vgg, (2, 2, 2, 2, 2))
vgg16 = partial(_vgg, (2, 2, 3, 3, 3))
vgg19 = partial(_vgg, (2, 2, 4, 4, 4))


def vgg16_caffe(shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """VGG16 under the names of its authors' Caffe files: conv1_1 .. conv5_3, fc6, fc7, fc8."""
    parts = _convolutions((2, 2, 3, 3, 3), ceil=True)
    return nn.Sequential(parts | _caffe_head(512 * 7 * 7, shapes))


def _caffe_head(inputs: int, shapes: Mapping[str, tuple[int, ...]]) -> OrderedDict[str, nn.Module]:
    fc6, fc7, classes = _widths(shapes, "fc6", "fc7", "fc8")
    return OrderedDict[str, nn.Module](
        flatten=nn.Flatten(),
        **{"fc6": nn.Linear(inputs, fc6), "relu6": nn.ReLU(), "drop6": nn.Dropout(0.5)},
        **{"fc7": nn.Linear(fc6, fc7), "relu7": nn.ReLU(), "drop7": nn.Dropout(0.5)},
        fc8=nn.Linear(fc7, classes),
    )


def _torchvision(features: nn.Module, side: int, classifier: nn.Module) -> nn.Module:
    pool = nn.AdaptiveAvgPool2d((side, side))
    parts = {"features": features, "avgpool": pool, "flatten": nn.Flatten()}
    return nn.Sequential(OrderedDict[str, nn.Module](**parts, classifier=classifier))


def _widths(shapes: Mapping[str, tuple[int, ...]], fc6: str, fc7: str, fc8: str) -> list[int]:
    """Outputs of the fully connected layers, by their names in the weight file."""
    usual = {fc6: 4096, fc7: 4096, fc8: 1000}
    return [width(shapes, f"{name}.weight", default) for name, default in usual.items()]
