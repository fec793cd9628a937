"""Stage 3, gradients: are the factors those of the gradient that torch computes?

Comes in: a module, one input, the error, and the uses of some layers' weights on that input. Goes
out: nothing, or a `LayerError`. A network may use the same weights beside their module, too, as
`F.linear(x, self.embed.weight)`, or make others of them, and only the gradient itself shows that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from deepfishing.errors import LayerError
from deepfishing.gradients.factors import Use, block_gradients, gradient_factors, is_grouped
from deepfishing.gradients.tap import ErrorFunction, frozen

DIRECTIONS = 4  # a gradient (D, d) is compared in so many random directions of its input


def sharing_weights(module: nn.Module, path: str) -> tuple[str, ...]:
    """The path, then those of all other modules whose `weight` is the same Parameter.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    >>> net[2].weight = net[0].weight
    >>> sharing_weights(net, "2")
    ('2', '0')
    """
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
    """Compare the factors of each layer on one input with torch's gradient.

    They may differ by so much of the gradient's largest value.
    """
    weights = {path: w for path, found in uses.items() if (w := _weight(found[0][0])) is not None}
    for path, true in _true_gradients(module, one_input, objective, weights, uses).items():
        d = true[0].numel()
        random = torch.Generator().manual_seed(0)
        V = torch.randn(d, DIRECTIONS, generator=random).to(true)
        expected = true.flatten(1) @ V
        error = float((_times(uses[path], V) - expected).abs().max())
        largest, precision = float(expected.abs().max()), torch.finfo(true.dtype)
        # what rounding to multiples of the smallest number, not so small in float16, does to a sum
        rounding = max(1e-12, 4 * precision.tiny * precision.eps * math.sqrt(d))
        if not error <= tolerance * largest + rounding:
            raise LayerError(
                f"the gradient of layer {path} is not what goes in times what comes back: it "
                f"differs by {error:.2g} of {largest:.2g}; its weights are also used outside of "
                "the module, or changed before they are used; choose another layer"
            )


def _times(uses: Sequence[Use], V: Tensor) -> Tensor:
    """The gradient (D, d) of one input times V, from its factors."""
    if is_grouped(uses[0][0]):
        return block_gradients(uses)[0].flatten(0, 1) @ V
    x, delta = (value if value.ndim == 3 else value[:, None] for value in gradient_factors(uses))
    return delta[0].T @ (x[0] @ V)


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
                copy = layer.register_forward_pre_hook(lambda _, args: (args[0].clone(), *args[1:]))
                hooks.enter_context(copy)
            for weight in weights.values():
                weight.requires_grad_(True)
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


def _weight(layer: nn.Module | None) -> nn.Parameter | None:
    """The weights of a Linear or a convolution, unless they are computed from others."""
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        return None
    return layer._parameters.get("weight")
