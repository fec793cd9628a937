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
    """Factors of dE/dW over all positions and all uses of W, `weight` flattened and transposed.

    A fully connected layer has one position, a token-wise one a position per token, a
    convolution one per place of its kernel; a layer that is used twice has the positions of both.

    >>> conv = nn.Conv2d(3, 5, kernel_size=1)
    >>> y = torch.ones(2, 5, 7, 7)
    >>> x, delta = gradient_factors([(conv, Call(torch.ones(2, 3, 7, 7), y, delta=y))])
    >>> x.shape, delta.shape
    (torch.Size([2, 49, 3]), torch.Size([2, 49, 5]))
    """
    pairs = [_factors(layer, call) for layer, call in uses]
    if len(pairs) == 1:
        return pairs[0]
    xs, deltas = zip(*((_positions(x), _positions(delta)) for x, delta in pairs), strict=True)
    return torch.cat(xs, dim=1), torch.cat(deltas, dim=1)


def pooled_factors(uses: Sequence[Use]) -> tuple[Tensor, Tensor]:
    """x averaged (n, d) and delta summed (n, D) over all positions and all uses of W.

    What `gradient_factors` gives, pooled, but the patches of a convolution are never built.
    """
    means, sums, positions = [], [], []
    for layer, call in uses:
        if isinstance(layer, nn.Conv2d):
            x, delta = _maps(layer, call)
            means.append(_windows(_mean_patch(layer, x, delta.shape), len(call.x)).mean(dim=1))
            sums.append(_windows(delta, len(call.x)).sum(dim=(1, 3, 4)))
            positions.append(call.y[0].numel() // call.y.shape[-3])
        else:
            x, delta = map(_positions, _factors(layer, call))
            means.append(x.mean(dim=1))
            sums.append(delta.sum(dim=1))
            positions.append(x.shape[1])
    return weighted_mean(means, positions), torch.stack(sums).sum(dim=0)


def block_gradients(uses: Sequence[Use]) -> Tensor:
    """dE/dW of each image for a convolution, (n, groups, D / groups, d / groups).

    Each output channel sees its own group of inputs only, so this is all of the gradient. Nothing
    larger than the layer's input, its output and this is built.
    """
    gradients = []
    for layer, call in uses:
        if not isinstance(layer, nn.Conv2d):
            raise _refused(layer)
        x, delta = _maps(layer, call)
        each = _weight_gradient(layer, x, delta, layer.groups)
        own = _windows(each, len(call.x)).sum(dim=1)
        gradients.append(own.reshape(len(own), layer.groups, -1, layer.weight[0].numel()))
    return gradients[0] if len(gradients) == 1 else torch.stack(gradients).sum(dim=0)


def is_grouped(layer: nn.Module) -> bool:
    """Whether the gradient of a layer is block-diagonal."""
    return isinstance(layer, nn.Conv2d) and layer.groups > 1


def _positions(value: Tensor) -> Tensor:
    return value if value.ndim == 3 else value[:, None]


def _delta(call: Call) -> Tensor:
    if call.delta is None:
        raise LayerError("the factors of a gradient need delta, got a call without it")
    return call.delta


def _refused(layer: nn.Module) -> LayerError:
    kind = type(layer).__name__
    return LayerError(f"a gradient layer must be Linear or Conv2d, got {kind}: {layer}")


def _factors(layer: nn.Module, call: Call) -> tuple[Tensor, Tensor]:
    x, delta = call.x, _delta(call)
    if isinstance(layer, nn.Linear):
        return (x, delta) if x.ndim == 2 else (x.flatten(1, -2), delta.flatten(1, -2))
    if not isinstance(layer, nn.Conv2d):
        raise _refused(layer)
    # a convolution is a linear layer on patches: one for each place of the kernel
    maps, deltas = _maps(layer, call)
    if _pointwise(layer):
        patches = maps.flatten(2)  # as they are
    else:
        size, dilation, stride = layer.kernel_size, layer.dilation, layer.stride
        patches = nn.functional.unfold(maps, size, dilation=dilation, stride=stride)
    pair = patches.transpose(1, 2), deltas.flatten(2).transpose(1, 2)
    if x.ndim == 4:
        return pair
    patches, deltas = (_windows(value, len(x)).flatten(1, 2) for value in pair)
    return patches, deltas


def _maps(layer: nn.Conv2d, call: Call) -> tuple[Tensor, Tensor]:
    """The padded input and delta of a convolution, (N, C, H, W), N images or their windows."""
    x, delta = (value.flatten(0, -4) for value in (call.x, _delta(call)))
    size, places, stride = x.shape[2:], delta.shape[2:], layer.stride
    reach = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    same: list[int] = []  # as TensorFlow pads to ceil(size / stride) places, smaller half first
    for i in (1, 0):  # the last direction comes first
        whole = max((-(-size[i] // stride[i]) - 1) * stride[i] + reach[i] - size[i], 0)
        same += [whole // 2, whole - whole // 2]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    for pads in (list(layer._reversed_padding_repeated_twice), same):
        padded = size[0] + sum(pads[2:]), size[1] + sum(pads[:2])
        if all((padded[i] - reach[i]) // stride[i] + 1 == places[i] for i in (0, 1)):
            return (nn.functional.pad(x, pads, mode=mode) if any(pads) else x), delta
    raise LayerError(
        f"a convolution must pad as nn.Conv2d or TensorFlow's `same` does, got "
        f"{type(layer).__name__} with an output of {tuple(places)} for an input of {tuple(size)}"
    )


def _pointwise(layer: nn.Conv2d) -> bool:
    padded = any(layer._reversed_padding_repeated_twice)
    return layer.kernel_size == layer.stride == (1, 1) and not padded


def _mean_patch(layer: nn.Conv2d, x: Tensor, output: Sequence[int]) -> Tensor:
    """Return the mean of the patches that the kernel sees, (N, d)."""
    if _pointwise(layer):
        return x.mean(dim=(2, 3))
    # the gradient of a depthwise convolution whose delta is 1 / P everywhere
    (N, C), P = x.shape[:2], output[2] * output[3]
    exact = x if x.dtype == torch.float64 else x.float()  # 1 / P is too small for half precision
    constant = exact.new_full((1, 1, 1, 1), 1 / P).expand(N, C, *output[2:])
    return _weight_gradient(layer, exact, constant, groups=C).flatten(1).to(x.dtype)


def _weight_gradient(layer: nn.Conv2d, x: Tensor, delta: Tensor, groups: int) -> Tensor:
    """dE/dW of each of N images, (N, D, C / groups, h, w), for a kernel of the layer's size."""
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
    """(N, ...) as (n, N / n, ...): the windows of each image."""
    return value.reshape(n, -1, *value.shape[1:])


def sharing_weights(module: nn.Module, path: str) -> tuple[str, ...]:
    """The path, then those of all other modules whose `weight` is the same Parameter."""
    own = dict(module.named_modules(remove_duplicate=False)).get(path)
    if (weight := _weight(own)) is None:
        return (path,)
    layers = dict(module.named_modules()).items()
    return (path, *(n for n, layer in layers if layer is not own and _weight(layer) is weight))


def check_gradients(
    module: nn.Module,
    one_input: Tensor,
    objective: ErrorFunction,
    uses: Mapping[str, Sequence[Use]],
    tolerance: float = 1e-3,
) -> None:
    """Compare factors on one input with torch's gradient, up to so much of its largest value."""
    weights = {path: w for path, own in uses.items() if (w := _weight(own[0][0])) is not None}
    for path, true in _true_gradients(module, one_input, objective, weights, uses).items():
        d = true[0].numel()
        random = torch.Generator().manual_seed(0)
        V = torch.randn(d, DIRECTIONS, generator=random).to(true)
        expected = true.flatten(1) @ V
        if is_grouped(uses[path][0][0]):
            found = block_gradients(uses[path])[0].flatten(0, 1) @ V
        else:
            x, delta = map(_positions, gradient_factors(uses[path]))
            found = delta[0].T @ (x[0] @ V)
        error = float((found - expected).abs().max())
        largest, numbers = float(expected.abs().max()), torch.finfo(true.dtype)
        # what rounding to multiples of the smallest number, not so small in float16, does to a sum
        rounding = max(1e-12, 4 * numbers.tiny * numbers.eps * math.sqrt(d))
        if not math.isfinite(largest):
            raise LayerError(
                f"the gradient of layer {path} must be finite, got {largest}; look for NaN in the "
                "weights, or take --dtype float32"
            )
        if not error <= tolerance * largest + rounding:
            raise LayerError(
                f"the gradient of layer {path} is not what goes in times what comes back: it "
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
    """dE/dW by torch, whatever the network does with W."""
    if not weights:
        return {}
    layers = {layer for path in weights for layer, _ in uses[path]}
    try:
        with ExitStack() as hooks, frozen(module), torch.enable_grad():
            for layer in layers:
                # a copy of what goes in, since an in-place operation further on would overwrite it
                copy = layer.register_forward_pre_hook(lambda _, args: tuple(map(_copied, args)))
                hooks.enter_context(copy)
            for weight in weights.values():
                weight.requires_grad_(True)
            hooks.enter_context(usual_strides())
            error = objective(module(one_input))
            found = torch.autograd.grad(error, list(weights.values()), allow_unused=True)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0][:200]
        raise LayerError(
            f"the gradient of layer {', '.join(weights)} cannot be computed by torch, so it cannot "
            f"be checked ({reason}); choose another layer"
        ) from None
    return {
        path: torch.zeros_like(weight) if gradient is None else gradient
        for (path, weight), gradient in zip(weights.items(), found, strict=True)
    }


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _weight(layer: nn.Module | None) -> nn.Parameter | None:
    """The weights of a Linear or a convolution, unless they are computed from others."""
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        return None
    return layer._parameters.get("weight")
