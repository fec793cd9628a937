"""Caffe's layers that torch lacks, and the module that runs a network of them.

Layers map (N, C, H, W) or (N, d) to the same kind, by Caffe's own formulas. Where torch has the
same layer, `layers` uses torch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

Pair = tuple[int, int]


class CaffeNet(nn.Module):
    """A network whose sub-modules bear the names of Caffe's layers; the last one makes the scores.

    `inputs` has per layer the values it takes: 0 is the image, i the output of the i-th layer.
    """

    def __init__(
        self, layers: Mapping[str, nn.Module], inputs: Sequence[tuple[int, ...]]
    ) -> None:
        super().__init__()
        for name, module in layers.items():
            self.add_module(name, module)
        self._inputs = tuple(inputs)
        # free outputs that are no longer needed, as a plain chain of modules does
        last_use: dict[int, int] = {}
        for step, numbers in enumerate(inputs):
            last_use.update(dict.fromkeys(numbers, step))
        self._freed: list[list[int]] = [[] for _ in inputs]
        for value, step in last_use.items():
            self._freed[step].append(value)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, 3, size, size) to class scores (N, classes)."""
        values = {0: images}
        for step, module in enumerate(self.children()):
            arguments = [values[number] for number in self._inputs[step]]
            for number in self._freed[step]:
                del values[number]
            if isinstance(module, nn.Linear):
                # Caffe's inner product takes maps as they are
                arguments = [arguments[0].flatten(1)]
            values[step + 1] = module(*arguments)
        return values[len(self._inputs)].flatten(1)


class Pool(nn.Module):
    """Caffe's pooling, whose windows may hang over the border.

    A maximum is over the pixels of the window that exist. An average divides by the size of the
    window cut off at the padded border, so that padding counts and pixels beyond do not. With
    `ceil` there is a last window for what is left over (Caffe's rule; False is round_mode FLOOR).
    """

    def __init__(
        self, average: bool, kernel: Pair, stride: Pair, pad: Pair, ceil: bool = True
    ) -> None:
        super().__init__()
        self.average, self.ceil = average, ceil
        self.kernel, self.stride, self.pad = kernel, stride, pad

    def output_size(self, size: Pair) -> Pair:
        """Return height and width of the output for an input of this size."""
        counts = []
        for length, kernel, stride, pad in zip(
            size, self.kernel, self.stride, self.pad, strict=True
        ):
            room = length + 2 * pad - kernel
            count = room // stride + 1
            if self.ceil:
                count = -(-room // stride) + 1
            # with padding, the last window must begin inside the image
            if any(self.pad) and (count - 1) * stride >= length + pad:
                count -= 1
            counts.append(count)
        return counts[0], counts[1]

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C, *output_size((H, W)))."""
        size = (x.shape[2], x.shape[3])
        out = self.output_size(size)
        # pixels that the last windows need beyond the image, as far as padding goes and further
        beyond = []
        for i in (0, 1):
            end = (out[i] - 1) * self.stride[i] + self.kernel[i] - self.pad[i]
            beyond.append(max(end - size[i], 0))
        around = (self.pad[1], beyond[1], self.pad[0], beyond[0])
        if any(around):
            fill = float("-inf")
            if self.average:
                fill = 0.0
            x = functional.pad(x, around, value=fill)
        if not self.average:
            return functional.max_pool2d(x, self.kernel, self.stride)
        means = functional.avg_pool2d(x, self.kernel, self.stride)
        if not any(beyond):
            return means
        rows = self._correction(0, size[0], out[0]).to(x)
        columns = self._correction(1, size[1], out[1]).to(x)
        return means * rows[:, None] * columns

    def _correction(self, axis: int, length: int, count: int) -> Tensor:
        """Return length of the kernel / length of each window inside the padded border."""
        start = torch.arange(count) * self.stride[axis] - self.pad[axis]
        end = (start + self.kernel[axis]).clamp(max=length + self.pad[axis])
        return self.kernel[axis] / (end - start)


class LocalResponseNorm(nn.Module):
    """Caffe's LRN: a / (k + alpha/m * sum of a^2 over the neighbours)^beta.

    The neighbours are m = `size` (odd) channels or, `within` a channel, the m = `size` x `size`
    pixels around; there Caffe takes k = 1 and ignores the value of the file.
    """

    def __init__(
        self, size: int, alpha: float, beta: float, k: float, within: bool
    ) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.within = size, alpha, beta, within
        self.k = k
        if within:
            self.k = 1.0

    def forward(self, a: Tensor) -> Tensor:
        """Normalise a (N, C, H, W)."""
        # squares of activations overflow float16 long before the activations do
        wide = a
        if a.dtype in (torch.float16, torch.bfloat16):
            wide = a.float()
        square = wide * wide
        if self.within:
            mean = functional.avg_pool2d(
                square, self.size, stride=1, padding=self.size // 2
            )
        else:  # a band of ones as 1x1 convolution is several times faster than nn.LocalResponseNorm
            channel = torch.arange(a.shape[1], device=a.device)
            is_near = (channel[:, None] - channel).abs() <= self.size // 2
            band = is_near.to(wide.dtype) / self.size
            mean = functional.conv2d(square, band[:, :, None, None])
        return (wide * (self.k + self.alpha * mean) ** -self.beta).to(a.dtype)


class Scale(nn.Module):
    """One factor and optionally one summand per channel."""

    def __init__(self, channels: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = None
        if bias:
            self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Scale x (N, C, ...)."""
        per_channel = (-1,) + (1,) * (x.ndim - 2)
        scaled = x * self.weight.view(per_channel)
        if self.bias is None:
            return scaled
        return scaled + self.bias.view(per_channel)


class Join(nn.Module):
    """Several maps become one by a function of all of them."""

    def __init__(self, function: Callable[[Sequence[Tensor]], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *maps: Tensor) -> Tensor:
        """Join them."""
        return self.function(maps)


def weighted_sum(maps: Sequence[Tensor], coefficients: tuple[float, ...]) -> Tensor:
    """Add maps of the same shape, each times its coefficient, from the first to the last."""
    if coefficients:
        maps = [c * m for c, m in zip(coefficients, maps, strict=True)]
    return functools.reduce(torch.add, maps)
