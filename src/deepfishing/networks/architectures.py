"""Architectures of the zoo: AlexNet, VGG and EfficientNet-Lite.

A module maps images (N, 3, S, S), S as in the network's record, to class scores y_8 (N, classes).
Its widths follow from the shapes {tensor name: shape} of a weight file. Modules have the names of
the weight files, so a module's path is also a layer's name.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

Shapes = Mapping[str, tuple[int, ...]]


def alexnet_caffe(shapes: Shapes) -> nn.Module:
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


def alexnet_torchvision(shapes: Shapes) -> nn.Module:
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
        wide = a
        if a.dtype in (torch.float16, torch.bfloat16):
            wide = a.float()
        channel = torch.arange(a.shape[1], device=a.device)
        is_near = (channel[:, None] - channel).abs() <= 2
        band = is_near.to(wide.dtype)[:, :, None, None] * (1e-4 / 5)
        root = (1 + nn.functional.conv2d(wide * wide, band)).rsqrt()
        return (wide * root * root.sqrt()).to(a.dtype)


def _convolutions(
    counts: tuple[int, ...], ceil: bool = False
) -> OrderedDict[str, nn.Module]:
    """Return VGG below the fully connected layers, with the names of Caffe's files.

    Versions differ only in the number of 3x3 convolutions before each of the five poolings.
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    before = 3
    stages = zip((64, 128, 256, 512, 512), counts, strict=True)
    for stage, (channels, count) in enumerate(stages, start=1):
        for i in range(1, count + 1):
            parts[f"conv{stage}_{i}"] = nn.Conv2d(before, channels, 3, padding=1)
            parts[f"relu{stage}_{i}"] = nn.ReLU(inplace=True)
            before = channels
        parts[f"pool{stage}"] = nn.MaxPool2d(2, ceil_mode=ceil)
    return parts


def _vgg(counts: tuple[int, ...], shapes: Shapes) -> nn.Module:
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


def vgg16_caffe(shapes: Shapes) -> nn.Module:
    """VGG16 under the names of its authors' Caffe files: conv1_1 .. conv5_3, fc6, fc7, fc8."""
    parts = _convolutions((2, 2, 3, 3, 3), ceil=True)
    return nn.Sequential(parts | _caffe_head(512 * 7 * 7, shapes))


def _caffe_head(inputs: int, shapes: Shapes) -> OrderedDict[str, nn.Module]:
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


def _widths(shapes: Shapes, fc6: str, fc7: str, fc8: str) -> list[int]:
    """Return the outputs of the fully connected layers, by their names in the weight file."""
    return [
        _width(shapes, f"{fc6}.weight", 4096),
        _width(shapes, f"{fc7}.weight", 4096),
        _width(shapes, f"{fc8}.weight", 1000),
    ]


def _width(shapes: Shapes, name: str, default: int) -> int:
    """Return the number of a layer's outputs, by the shape of its weight."""
    shape = shapes.get(name, ())
    # a malformed tensor is reported by `load_into`, with all others that do not fit; one without
    # numbers can claim any width in a file of a few bytes
    if len(shape) > 1 and math.prod(shape) > 0:
        return shape[0]
    return default


# One row per stage of EfficientNet-Lite0: kernel, stride of its first block, expansion, channels
# out, blocks.
_STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
# channels; the stem is not scaled, neither are head, first and last stage in depth
_STEM = 32

_batch_norm = partial(nn.BatchNorm2d, eps=1e-3)


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: ceil(size / stride) positions come out."""

    def forward(self, input: Tensor) -> Tensor:
        """Pad as much as this input needs, the smaller half left and above, and convolve."""
        (kernel, *_), (stride, *_) = self.kernel_size, self.stride
        pads = []
        for size in (
            input.shape[3],
            input.shape[2],
        ):
            # `pad` begins with the last dimension
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(nn.functional.pad(input, pads))


class Block(nn.Module):
    """Inverted bottleneck: expand 1x1, filter each channel, project 1x1, perhaps add the input."""

    def __init__(
        self, before: int, after: int, kernel: int, stride: int, expansion: int
    ) -> None:
        super().__init__()
        inner = before * expansion
        if expansion != 1:
            self._expand_conv = nn.Conv2d(before, inner, 1, bias=False)
            self._bn0 = _batch_norm(inner)
        # with stride 1 "same" is symmetric, and the convolution pads without a copy
        if stride == 1:
            self._depthwise_conv = nn.Conv2d(
                inner, inner, kernel, padding=kernel // 2, groups=inner, bias=False
            )
        else:
            self._depthwise_conv = SameConv2d(
                inner, inner, kernel, stride=stride, groups=inner, bias=False
            )
        self._bn1 = _batch_norm(inner)
        self._project_conv = nn.Conv2d(inner, after, 1, bias=False)
        self._bn2 = _batch_norm(after)
        self._relu = nn.ReLU6(inplace=True)
        self.expands = expansion != 1
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, before, H, W) to (N, after, H / stride, W / stride)."""
        y = x
        if self.expands:
            y = self._relu(self._bn0(self._expand_conv(y)))
        y = self._relu(self._bn1(self._depthwise_conv(y)))
        out: Tensor = self._bn2(self._project_conv(y))
        if self.adds:
            return x + out
        return out


def _efficientnet_lite(wider: float, deeper: float, shapes: Shapes) -> nn.Module:
    blocks: list[nn.Module] = []
    before = _STEM
    for stage, (kernel, stride, expansion, channels, count) in enumerate(_STAGES):
        after = int(channels * wider + 4) // 8 * 8  # the nearest multiple of 8
        if stage not in (0, len(_STAGES) - 1):
            count = math.ceil(count * deeper)
        for _ in range(count):
            blocks.append(Block(before, after, kernel, stride, expansion))
            before = after
            stride = 1  # of all blocks but the first
    head = _width(shapes, "_conv_head.weight", 1280)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            _conv_stem=SameConv2d(3, _STEM, 3, stride=2, bias=False),
            _bn0=_batch_norm(_STEM),
            _relu0=nn.ReLU6(inplace=True),
            _blocks=nn.Sequential(*blocks),
            _conv_head=nn.Conv2d(before, head, 1, bias=False),
            _bn1=_batch_norm(head),
            _relu1=nn.ReLU6(),
            _avg_pooling=nn.AdaptiveAvgPool2d(1),
            _flatten=nn.Flatten(),
            _dropout=nn.Dropout(0.2),
            _fc=nn.Linear(head, _width(shapes, "_fc.weight", 1000)),
        )
    )


efficientnet_lite0 = partial(_efficientnet_lite, 1.0, 1.0)
efficientnet_lite1 = partial(_efficientnet_lite, 1.0, 1.1)
efficientnet_lite2 = partial(_efficientnet_lite, 1.1, 1.2)
