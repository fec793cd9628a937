"""Axes of images, channels and positions in the tensors of a layer.

A `Layout` rearranges the tensors of one run of a layer so that images come first. The images' axis
is the one that grows with the number of inputs; the windows of an image are put together in the
order that one input alone gives. The channels' axis is that of the layer, or of the layers with
weights right before and after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from deepfishing.errors import LayerError
from deepfishing.extraction.tap import Call, Taps, find_module, frozen, tap

_WITH_WIDTH = (nn.Linear, _ConvNd, _NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Layout:
    """Axes of the tensors of a layer.

    >>> windows = Layout(rows=16)
    >>> windows.images_first(torch.ones(2 * 16, 49, 96)).shape
    torch.Size([2, 16, 49, 96])
    >>> Layout(axis=1).images_first(torch.ones(49, 2, 96)).shape
    torch.Size([2, 49, 96])
    """

    axis: int = 0  # along which the images are
    # how many entries of that axis belong to one image: windows, or tokens
    rows: int = 1
    inner: bool = False  # whether neighbours on that axis belong to different images
    # the channels' axis, images first; None if it is not needed
    channel: int | None = None

    def images_first(self, value: Tensor) -> Tensor:
        """Return a value with one row per image: (n, ...)."""
        if self.rows == 1:
            return value.movedim(self.axis, 0)
        n = value.shape[self.axis] // self.rows
        if self.inner:
            parts = torch.unflatten(value, self.axis, (self.rows, n))
            return parts.movedim(self.axis + 1, 0)
        parts = torch.unflatten(value, self.axis, (n, self.rows))
        return parts.movedim(self.axis, 0)

    def regroup(self, call: Call) -> Call:
        """Return the call with one row per image; x is right where y is computed row by row."""
        delta = None
        if call.delta is not None:
            delta = self.images_first(call.delta)
        return Call(self.images_first(call.x), self.images_first(call.y), delta)


def find_layouts(
    module: nn.Module,
    inputs: Tensor,
    alone: Taps,
    outputs: Collection[str] = (),
    tolerance: float = 1e-3,
) -> dict[str, tuple[Layout, ...]]:
    """Return the layout of every run of the layers that were read in `alone`.

    Parameters
    ----------
    inputs : Tensor
        Two inputs; `alone` has the tensors of the first one.
    outputs : collection of paths
        The layers whose channels' axis is needed.
    tolerance : float
        Largest difference between one input and both, relative to the largest value.
    """
    try:
        both: Taps | None = tap(module, inputs, alone.calls)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, LayerError):
            raise
        both = None  # a module that takes one input at a time
    layouts = {}
    for path, calls in alone.calls.items():
        others = calls
        if both is not None:
            others = both.calls[path]
        if len(others) != len(calls):
            raise LayerError(
                f"layer {path} must run as often for one image as for two, but runs {len(calls)} "
                f"and {len(others)} times; choose another layer"
            )
        of_path = []
        for one, two in zip(calls, others, strict=True):
            of_path.append(_find_images(path, one.y, two.y, both is None, tolerance))
        layouts[path] = tuple(of_path)
    for path in outputs:
        with_channels = []
        axes = _channel_axes(module, path, inputs[:1], layouts[path])
        for layout, axis in zip(layouts[path], axes, strict=True):
            with_channels.append(replace(layout, channel=axis))
        layouts[path] = tuple(with_channels)
    return layouts


def own_axis(layer: nn.Module) -> int | None:
    """Return the channels' axis of a fully connected layer or a convolution, from the end."""
    if isinstance(layer, nn.Linear):
        return -1
    if isinstance(layer, _ConvNd):
        return -1 - len(layer.kernel_size)
    return None


def mean_over_positions(values: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
    """Return the mean (n, channels) of tensors, images first, over all other axes."""
    means = []
    for value, axis in zip(values, axes, strict=True):
        channels = axis % value.ndim
        others = [i for i in range(1, value.ndim) if i != channels]
        if others:
            means.append(value.mean(dim=others))
        else:
            means.append(value)
    return weighted_mean(means, [value[0].numel() for value in values])


def weighted_mean(means: Sequence[Tensor], weights: Sequence[int]) -> Tensor:
    """Return the mean of several means, each with the weight of its number of values."""
    if len(means) == 1:
        return means[0]
    parts = [mean * (w / sum(weights)) for mean, w in zip(means, weights, strict=True)]
    return torch.stack(parts).sum(dim=0)


def _find_images(
    path: str, one: Tensor, two: Tensor, single: bool, tolerance: float
) -> Layout:
    """Find the axis of the images from the output for one of them and the output for both."""
    if single and one.ndim > 1 and len(one) == 1:
        return Layout()
    axis = _doubled_axis(one.shape, two.shape)
    if axis is not None:
        layout = Layout(axis, one.shape[axis])
        if layout.rows == 1:
            return layout
        largest = float(one.abs().max())
        for candidate in (layout, replace(layout, inner=True)):
            difference = candidate.images_first(two)[0] - candidate.images_first(one)[0]
            if float(difference.abs().max()) <= tolerance * largest:
                return candidate
    shapes = f"{tuple(one.shape)} for one image and {tuple(two.shape)} for two"
    raise LayerError(
        f"cannot determine which part of the output of layer {path} belongs to which image: its "
        f"shape is {shapes}; choose another layer"
    )


def _doubled_axis(one: Sequence[int], two: Sequence[int]) -> int | None:
    """Return the only axis that is longer in the second shape, if it is twice as long."""
    if len(one) != len(two):
        return None
    different = [axis for axis in range(len(one)) if one[axis] != two[axis]]
    if len(different) != 1:
        return None
    axis = different[0]
    if two[axis] != 2 * one[axis]:
        return None
    return axis


@dataclass(frozen=True, eq=False)
class _Event:
    """An input or output of a layer with weights, or the output whose axes are wanted."""

    kind: str  # "in", "out" or "target"
    layer: Any
    value: Tensor  # without memory: its shape

    def find_axis(self, value: Tensor, images_were_first: bool) -> int | None:
        """Return the axis of the value, images first, that has the layer's width; None if unsure.

        With `images_were_first` the value has the same axes as in the network.
        """
        width, axis = self._width_and_axis(value.ndim)
        is_same_tensor = images_were_first and self.value.shape == value.shape
        if is_same_tensor and axis and value.shape[axis] == width:
            return axis
        candidates = [i for i in range(1, value.ndim) if value.shape[i] == width]
        if len(candidates) != 1:
            return None
        return candidates[0]

    def _width_and_axis(self, ndim: int) -> tuple[int, int]:
        """Return the number of channels and their axis in this kind of layer, 0 if unknown."""
        layer = self.layer
        side = "out"
        if self.kind == "in":
            side = "in"
        if isinstance(layer, nn.Linear):
            return getattr(layer, f"{side}_features"), ndim - 1
        if isinstance(layer, _ConvNd):
            return getattr(layer, f"{side}_channels"), 1
        if isinstance(layer, nn.GroupNorm):
            return layer.num_channels, 1
        if not isinstance(layer, nn.LayerNorm):
            return layer.num_features, 1
        axis = 0
        if type(layer).forward is nn.LayerNorm.forward:
            axis = ndim - 1
        if len(layer.normalized_shape) == 1:
            return layer.normalized_shape[0], axis
        return 0, axis


def _channel_axes(
    module: nn.Module, path: str, one_input: Tensor, layouts: Sequence[Layout]
) -> Iterator[int]:
    """Yield the channels' axis in the output of each run of a layer, images first."""
    target = find_module(module, path)
    own = own_axis(target)
    if own:
        yield from [own] * len(layouts)
        return
    events = _record(module, target, one_input)
    runs = [i for i, event in enumerate(events) if event.kind == "target"]
    for i, layout in zip(runs, layouts, strict=True):
        raw = events[i].value
        value = layout.images_first(raw)
        # the layer with weights before the target, and the one after it
        neighbours = [event for event in events[:i] if event.kind == "out"][-1:]
        if not isinstance(target, _WITH_WIDTH):
            neighbours += [event for event in events[i:] if event.kind == "in"][:1]
        axes = set()
        for neighbour in neighbours:
            axis = neighbour.find_axis(value, value.shape == raw.shape)
            if axis:
                axes.add(axis)
        long_axes = [axis for axis in range(1, value.ndim) if value.shape[axis] > 1]
        if len(axes) == 1:
            yield axes.pop()
        elif len(long_axes) == 1:
            yield long_axes[0]
        elif not long_axes:
            yield value.ndim - 1
        else:
            raise LayerError(
                f"cannot determine which axis of the output of layer {path} has the channels: one "
                f"image gives {tuple(value.shape[1:])}; choose a layer inside it, or after it"
            )


def _record(module: nn.Module, target: nn.Module, one_input: Tensor) -> list[_Event]:
    """Record inputs and outputs of every layer with weights, and of the target, in order."""
    events: list[_Event] = []

    def add(kind: str, layer: nn.Module, value: Any = None, *_: Any) -> None:
        if isinstance(value, Tensor):
            events.append(_Event(kind, layer, torch.empty_like(value, device="meta")))

    with ExitStack() as hooks, frozen(module), torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, _WITH_WIDTH):
                before = layer.register_forward_pre_hook(
                    lambda m, args: add("in", m, *args)
                )
                after = layer.register_forward_hook(lambda m, _, y: add("out", m, y))
                hooks.enter_context(before)
                hooks.enter_context(after)
        hooks.enter_context(
            target.register_forward_hook(lambda m, _, y: add("target", m, y))
        )
        module(one_input)
    return events
