"""Stage 3, gradients: the factors of a layer's gradient, whatever the layer.

Comes in: a layer and its calls (x, y, delta). Goes out: x (n, P, d) and delta (n, P, D) such that
the gradient with respect to the layer's weights is the sum over p of x_p delta_p^T
(eq:weight_derivative), or (n, d) and (n, D) for a fully connected layer, where P is 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepfishing.errors import LayerError
from deepfishing.gradients.tap import Call


def gradient_factors(layer: nn.Module, calls: Sequence[Call]) -> tuple[Tensor, Tensor]:
    """Factors of dE/dW over all positions and all calls of a layer.

    A fully connected layer has one position, a token-wise one a position per token, a
    convolution one per place of its kernel; a layer that is used twice has the positions of both.
    W is `weight` flattened to (D, d) and transposed. In a grouped convolution each output channel
    sees its own group of inputs only; here x holds all of them (see `spread_groups`).

    Examples
    --------
    >>> conv = nn.Conv2d(3, 5, kernel_size=1)
    >>> y = torch.ones(2, 5, 7, 7)
    >>> x, delta = gradient_factors(conv, [Call(torch.ones(2, 3, 7, 7), y, delta=y)])
    >>> x.shape, delta.shape
    (torch.Size([2, 49, 3]), torch.Size([2, 49, 5]))
    """
    pairs = [_call_factors(layer, call) for call in calls]
    if len(pairs) == 1:
        return pairs[0]
    with_positions = [(_positions(x), _positions(delta)) for x, delta in pairs]
    xs, deltas = zip(*with_positions, strict=True)
    return torch.cat(xs, dim=1), torch.cat(deltas, dim=1)


def spread_groups(x: Tensor, delta: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Give every group of a grouped convolution positions of its own, zero outside the group.

    Groups do not mix in the gradient, which is block-diagonal. Written as a sum of rank-1 terms it
    has P * groups of them; vectors of different groups do not overlap, so their products vanish
    and the trace kernel needs no special case.

    Examples
    --------
    >>> x, delta = spread_groups(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 4.0]]]), 2)
    >>> x.tolist(), delta.tolist()
    ([[[1.0, 0.0], [0.0, 2.0]]], [[[3.0, 0.0], [0.0, 4.0]]])
    """
    spread = []
    for value in (x, delta):
        n, P, width = value.shape
        blocks = value.new_zeros(n, P, groups, groups, width // groups)
        index = torch.arange(groups, device=value.device)
        blocks[:, :, index, index] = value.reshape(n, P, groups, -1)
        spread.append(blocks.reshape(n, P * groups, width))
    return spread[0], spread[1]


def _positions(value: Tensor) -> Tensor:
    return value if value.ndim == 3 else value[:, None]


def _call_factors(layer: nn.Module, call: Call) -> tuple[Tensor, Tensor]:
    x, delta = call.x, call.delta
    if delta is None:
        raise LayerError("the factors of a gradient need delta, got a call without it")
    if isinstance(layer, nn.Linear):
        return (x, delta) if x.ndim == 2 else (x.flatten(1, -2), delta.flatten(1, -2))
    if isinstance(layer, nn.Conv2d):
        return _conv_factors(layer, x, delta)
    raise LayerError(
        f"a gradient layer must be Linear or Conv2d, got {type(layer).__name__}: {layer}"
    )


def _conv_factors(layer: nn.Conv2d, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """A convolution is a linear layer on patches: one for each place of the kernel."""
    padding = layer._reversed_padding_repeated_twice
    if layer.kernel_size == layer.stride == (1, 1) and not any(padding):
        patches = x.flatten(2)  # as they are
    else:
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padded = nn.functional.pad(x, padding, mode=mode)
        patches = nn.functional.unfold(
            padded, layer.kernel_size, dilation=layer.dilation, stride=layer.stride
        )
    if patches.shape[2] != delta[0, 0].numel():
        raise LayerError(
            f"a convolution must pad as nn.Conv2d does, got {type(layer).__name__} with an output "
            f"of {tuple(delta.shape[2:])} for an input of {tuple(x.shape[2:])}"
        )
    return patches.transpose(1, 2), delta.flatten(2).transpose(1, 2)
