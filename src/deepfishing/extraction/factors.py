"""Factors of a layer's gradient for any kind of layer, and their check.

The gradient with respect to the weights W is the sum over positions p of x_p delta_p^T
(eq:weight_derivative), with x (n, P, d) and delta (n, P, D), or (n, d) and (n, D) where P is 1. The
gradient of a grouped convolution is block-diagonal and no larger than W, so it is returned whole. A
network may also use W outside of its module or compute other weights from it; only a comparison
with torch's own gradient shows that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from deepfishing.errors import LayerError
from deepfishing.extraction.layout import weighted_mean
from deepfishing.extraction.tap import Call, ErrorFunction, frozen, usual_strides

Use = tuple[nn.Module, Call]

DIRECTIONS = 4  # random directions of its input in which a gradient (D, d) is compared


def gradient_factors(uses: Sequence[Use]) -> tuple[Tensor, Tensor]:
    """Return the factors of dE/dW over all positions and uses of W, the flattened weight.

    A fully connected layer has one position, a token-wise one a position per token, a
    convolution one per place of its kernel; a layer that is used twice has the positions of both.

    >>> conv = nn.Conv2d(3, 5, kernel_size=1)
    >>> y = torch.ones(2, 5, 7, 7)
    >>> x, delta = gradient_factors([(conv, Call(torch.ones(2, 3, 7, 7), y, delta=y))])
    >>> x.shape, delta.shape
    (torch.Size([2, 49, 3]), torch.Size([2, 49, 5]))
    """
    if len(uses) == 1:
        return _factors(*uses[0])
    xs, deltas = [], []
    for layer, call in uses:
        x, delta = _factors(layer, call)
        xs.append(_positions(x))
        deltas.append(_positions(delta))
    return torch.cat(xs, dim=1), torch.cat(deltas, dim=1)


def pooled_factors(uses: Sequence[Use]) -> tuple[Tensor, Tensor]:
    """Return x averaged (n, d) and delta summed (n, D) over all positions and uses of W.

    The same as pooling the result of `gradient_factors`, but without building the patches of a
    convolution.
    """
    means, sums, positions = [], [], []
    for layer, call in uses:
        if isinstance(layer, nn.Conv2d):
            n = len(call.x)
            x, delta = _maps(layer, call)
            patch = _mean_patch(layer, x, delta.shape)
            means.append(_windows(patch, n).mean(dim=1))
            sums.append(_windows(delta, n).sum(dim=(1, 3, 4)))
            positions.append(call.y[0].numel() // call.y.shape[-3])
        else:
            x, delta = map(_positions, _factors(layer, call))
            means.append(x.mean(dim=1))
            sums.append(delta.sum(dim=1))
            positions.append(x.shape[1])
    return weighted_mean(means, positions), torch.stack(sums).sum(dim=0)


def block_gradients(uses: Sequence[Use]) -> Tensor:
    """Return dE/dW of each image for a convolution, (n, groups, D / groups, d / groups).

    An output channel depends on its group of inputs only, so this is the whole gradient. Nothing
    larger than the layer's input, its output and the result is built.
    """
    gradients = []
    for layer, call in uses:
        if not isinstance(layer, nn.Conv2d):
            raise _refused(layer)
        x, delta = _maps(layer, call)
        n, d = len(call.x), layer.weight[0].numel()
        of_windows = _weight_gradient(layer, x, delta, layer.groups)
        of_images = _windows(of_windows, n).sum(dim=1)
        gradients.append(of_images.reshape(n, layer.groups, -1, d))
    if len(gradients) == 1:
        return gradients[0]
    return torch.stack(gradients).sum(dim=0)


def is_grouped(layer: nn.Module) -> bool:
    """Whether the gradient of a layer is block-diagonal."""
    return isinstance(layer, nn.Conv2d) and layer.groups > 1


def _positions(value: Tensor) -> Tensor:
    """Return a factor with an axis of positions, (n, P, d)."""
    if value.ndim == 3:
        return value
    return value[:, None]


def _delta(call: Call) -> Tensor:
    if call.delta is None:
        raise LayerError("the factors of a gradient need delta, got a call without it")
    return call.delta


def _refused(layer: nn.Module) -> LayerError:
    kind = type(layer).__name__
    return LayerError(f"a gradient layer must be Linear or Conv2d, got {kind}: {layer}")


def _factors(layer: nn.Module, call: Call) -> tuple[Tensor, Tensor]:
    """Return the factors of one run of a layer: (n, d) and (n, D), or (n, P, d) and (n, P, D)."""
    x, delta = call.x, _delta(call)
    if isinstance(layer, nn.Linear):
        if x.ndim == 2:
            return x, delta
        return x.flatten(1, -2), delta.flatten(1, -2)
    if not isinstance(layer, nn.Conv2d):
        raise _refused(layer)
    # a convolution is a linear layer on patches: one for each position of the kernel
    maps, deltas = _maps(layer, call)
    if _pointwise(layer):
        patches = maps.flatten(2)  # as they are
    else:
        size, dilation, stride = layer.kernel_size, layer.dilation, layer.stride
        patches = nn.functional.unfold(maps, size, dilation=dilation, stride=stride)
    patches = patches.transpose(1, 2)
    deltas = deltas.flatten(2).transpose(1, 2)
    if x.ndim == 4:
        return patches, deltas
    n = len(x)
    return _windows(patches, n).flatten(1, 2), _windows(deltas, n).flatten(1, 2)


def _maps(layer: nn.Conv2d, call: Call) -> tuple[Tensor, Tensor]:
    """Return padded input and delta of a convolution, (N, C, H, W), of N images or windows."""
    x = call.x.flatten(0, -4)
    delta = _delta(call).flatten(0, -4)
    size = x.shape[2:]
    output = delta.shape[2:]
    stride = layer.stride
    reach = []  # of the kernel, in pixels
    for dilation, kernel in zip(layer.dilation, layer.kernel_size, strict=True):
        reach.append(dilation * (kernel - 1) + 1)
    # as TensorFlow pads to ceil(size / stride) positions, smaller half first
    same: list[int] = []
    for i in (1, 0):  # the last direction comes first
        positions = math.ceil(size[i] / stride[i])
        padding = max((positions - 1) * stride[i] + reach[i] - size[i], 0)
        same += [padding // 2, padding - padding // 2]
    mode: str = layer.padding_mode
    if mode == "zeros":
        mode = "constant"
    for pads in (list(layer._reversed_padding_repeated_twice), same):
        padded = size[0] + sum(pads[2:]), size[1] + sum(pads[:2])
        rows, columns = ((padded[i] - reach[i]) // stride[i] + 1 for i in (0, 1))
        if (rows, columns) == tuple(output):
            if any(pads):
                x = nn.functional.pad(x, pads, mode=mode)
            return x, delta
    raise LayerError(
        f"a convolution must pad as nn.Conv2d or TensorFlow's `same` does, got "
        f"{type(layer).__name__} with an output of {tuple(output)} for an input of {tuple(size)}"
    )


def _pointwise(layer: nn.Conv2d) -> bool:
    """Whether a convolution is a linear layer on each pixel."""
    padded = any(layer._reversed_padding_repeated_twice)
    return layer.kernel_size == layer.stride == (1, 1) and not padded


def _mean_patch(layer: nn.Conv2d, x: Tensor, output: Sequence[int]) -> Tensor:
    """Return the mean of the patches that the kernel sees, (N, d)."""
    if _pointwise(layer):
        return x.mean(dim=(2, 3))
    # the gradient of a depthwise convolution whose delta is 1 / P everywhere
    N, C = x.shape[:2]
    P = output[2] * output[3]
    exact = x
    if x.dtype != torch.float64:
        exact = x.float()  # 1 / P is too small for half precision
    constant = exact.new_full((1, 1, 1, 1), 1 / P).expand(N, C, *output[2:])
    return _weight_gradient(layer, exact, constant, groups=C).flatten(1).to(x.dtype)


def _weight_gradient(layer: nn.Conv2d, x: Tensor, delta: Tensor, groups: int) -> Tensor:
    """Return dE/dW of each of N images, (N, D, C / groups, h, w)."""
    (N, C), D = x.shape[:2], delta.shape[1]
    shape = N * D, C // groups, *layer.kernel_size
    # every image is one group, so that one call serves all of them
    gradient: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
        x.reshape(1, N * C, *x.shape[2:]),
        shape,
        delta.reshape(1, N * D, *delta.shape[2:]),
        layer.stride,
        dilation=layer.dilation,
        groups=N * groups,
    )
    return gradient.reshape(N, D, *shape[1:])


def _windows(value: Tensor, n: int) -> Tensor:
    """Reshape (N, ...) to (n, N / n, ...), the windows of each image."""
    return value.reshape(n, -1, *value.shape[1:])


def sharing_weights(module: nn.Module, path: str) -> tuple[str, ...]:
    """Return the path, then those of all other modules whose `weight` is the same Parameter."""
    layer = dict(module.named_modules(remove_duplicate=False)).get(path)
    weight = _weight(layer)
    paths = [path]
    if weight is not None:
        for name, other in module.named_modules():
            if other is not layer and _weight(other) is weight:
                paths.append(name)
    return tuple(paths)


def check_gradients(
    module: nn.Module,
    one_input: Tensor,
    objective: ErrorFunction,
    uses: Mapping[str, Sequence[Use]],
    tolerance: float = 1e-3,
) -> None:
    """Compare the factors of one input with torch's gradient.

    `tolerance` is relative to the largest value of the gradient.
    """
    weights = {}
    for path, uses_of_path in uses.items():
        weight = _weight(uses_of_path[0][0])
        if weight is not None:
            weights[path] = weight
    gradients = _true_gradients(module, one_input, objective, weights, uses)
    for path, gradient in gradients.items():
        d = gradient[0].numel()
        random = torch.Generator().manual_seed(0)
        V = torch.randn(d, DIRECTIONS, generator=random).to(gradient)
        expected = gradient.flatten(1) @ V
        if is_grouped(uses[path][0][0]):
            product = block_gradients(uses[path])[0].flatten(0, 1) @ V
        else:
            x, delta = map(_positions, gradient_factors(uses[path]))
            product = delta[0].T @ (x[0] @ V)
        error = float((product - expected).abs().max())
        largest = float(expected.abs().max())
        numbers = torch.finfo(gradient.dtype)
        # error of a sum whose terms are rounded to multiples of the smallest number of the type
        rounding = max(1e-12, 4 * numbers.tiny * numbers.eps * math.sqrt(d))
        if not math.isfinite(largest):
            raise LayerError(
                f"the gradient of layer {path} must be finite, got {largest}; look for NaN in the "
                "weights, or compute in dtype float32"
            )
        if not error <= tolerance * largest + rounding:
            raise LayerError(
                f"the gradient of layer {path} is not its input times its output's gradient: it "
                f"differs by {error:.2g} of {largest:.2g}; its weights are also used outside of "
                "the module, or changed before they are used; choose another layer"
            )


def _true_gradients(
    module: nn.Module,
    one_input: Tensor,
    objective: ErrorFunction,
    weights: Mapping[str, nn.Parameter],
    uses: Mapping[str, Sequence[Use]],
) -> dict[str, Tensor]:
    """Return dE/dW as torch computes it, including uses of W outside of its module."""
    if not weights:
        return {}
    layers = {layer for path in weights for layer, _ in uses[path]}
    try:
        with ExitStack() as hooks, frozen(module), torch.enable_grad():
            for layer in layers:
                # a copy of the input, since an in-place operation further on would overwrite it
                copy = layer.register_forward_pre_hook(_copy_arguments)
                hooks.enter_context(copy)
            for weight in weights.values():
                weight.requires_grad_(True)
            hooks.enter_context(usual_strides())
            error = objective(module(one_input))
            of_weights = torch.autograd.grad(
                error, list(weights.values()), allow_unused=True
            )
    except RuntimeError as error:
        reason = str(error).partition("\n")[0][:200]
        raise LayerError(
            f"the gradient of layer {', '.join(weights)} cannot be computed by torch, so it cannot "
            f"be checked ({reason}); choose another layer"
        ) from None
    gradients = {}
    for (path, weight), gradient in zip(weights.items(), of_weights, strict=True):
        if gradient is None:
            gradient = torch.zeros_like(weight)
        gradients[path] = gradient
    return gradients


def _copy_arguments(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)


def _weight(layer: nn.Module | None) -> nn.Parameter | None:
    """Return the weights of a Linear or a convolution, unless they are computed from others."""
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        return None
    return layer._parameters.get("weight")
