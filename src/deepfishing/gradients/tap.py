"""Stage 3, gradients: x, y and delta of any layers of any module, in one pass each way.

Comes in: a module, a batch, the layers to read. Goes out: tensors per layer. The trunk runs
without a graph; the graph begins at the output of the first layer whose gradient is asked for,
so the backward pass only crosses what lies above it. The module is left as it was found: mode,
requires_grad and hooks are restored even after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from deepfishing.errors import LayerError, did_you_mean
from deepfishing.gradients.objective import Objective


@dataclass(frozen=True, eq=False)
class Taps:
    """What one pass read, per module path; `logits` is the module's output y_L."""

    logits: Tensor
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    deltas: dict[str, Tensor] = field(default_factory=dict)


def tap(
    module: nn.Module,
    batch: Tensor,
    read: Collection[str] = (),
    gradients: Collection[str] = (),
    objective: Objective | None = None,
) -> Taps:
    """One forward pass, and one backward pass through the head if gradients are asked for.

    Parameters
    ----------
    module : nn.Module
        Maps a batch to logits (n, P). It is run in eval mode.
    batch : Tensor
        n inputs.
    read : paths
        Modules whose input and output are wanted.
    gradients : paths
        Modules whose dE/dy is wanted too.
    objective : callable
        E(logits), summed over the batch; needed with `gradients`.

    Returns
    -------
    Taps
        inputs and outputs as the modules saw them; deltas shaped as the outputs.

    Examples
    --------
    >>> from deepfishing.gradients.objective import cross_entropy
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> taps = tap(net, torch.ones(5, 4), gradients=["0", "2"], objective=cross_entropy())
    >>> taps.inputs["2"].shape, taps.deltas["0"].shape
    (torch.Size([5, 3]), torch.Size([5, 3]))
    """
    paths = list(dict.fromkeys([*read, *gradients]))
    modules = {path: find_module(module, path) for path in paths}
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}

    def hook_for(path: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> Tensor | None:
            if path in outputs:
                raise LayerError(
                    f"layer {path} runs more than once in one forward pass; choose a layer that "
                    "runs once"
                )
            # clones, since an in-place operation further on would overwrite what we keep
            inputs[path] = args[0].detach().clone()
            if path not in gradients:
                outputs[path] = y.detach().clone()
                return None
            torch.set_grad_enabled(True)
            if not y.requires_grad:
                y = y.detach().requires_grad_()
            outputs[path] = y
            return y.clone()  # in-place non-linearities change the clone, not y

        return hook

    with _frozen(module), torch.set_grad_enabled(False):
        handles = [m.register_forward_hook(hook_for(path)) for path, m in modules.items()]
        try:
            logits = module(batch)
            _check_seen(paths, outputs)
            deltas = _deltas(logits, outputs, gradients, objective) if gradients else {}
        finally:
            for handle in handles:
                handle.remove()
    detached = {path: y.detach() for path, y in outputs.items()}
    return Taps(logits.detach(), inputs, detached, deltas)


def _deltas(
    logits: Tensor,
    outputs: dict[str, Tensor],
    paths: Collection[str],
    objective: Objective | None,
) -> dict[str, Tensor]:
    if objective is None:
        raise LayerError("gradients need an objective, got none")
    error = objective(logits)
    ys = [outputs[path] for path in paths]
    found: tuple[Tensor | None, ...] = (None,) * len(ys)
    if error.requires_grad:
        found = torch.autograd.grad(error, ys, allow_unused=True)
    deltas = {}
    for path, delta in zip(paths, found, strict=True):
        if delta is None:
            raise LayerError(
                f"the network's output does not depend on layer {path}, or was computed without a "
                "graph (torch.no_grad inside the network); choose another layer"
            )
        deltas[path] = delta
    return deltas


def find_module(module: nn.Module, path: str) -> nn.Module:
    """The sub-module called `path`, or an error that lists what is near."""
    found: nn.Module | None = dict(module.named_modules()).get(path) if path else None
    if found is None:
        names = [name for name, _ in module.named_modules() if name]
        raise LayerError(
            f"layer must be a module's path, such as {names[-1] if names else '(none)'}, "
            f"got {path!r}{did_you_mean(path, names)}"
        )
    return found


def positions(layer: nn.Module, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of a layer's gradient: (n, d) and (n, D), or (n, P, d) and (n, P, D).

    The gradient with respect to `layer.weight` of image i is the sum over p of
    delta[i, p]^T x[i, p], flattened like the weight. A fully connected layer has one position, a
    token-wise one P tokens, a convolution one position per place of its kernel.

    Examples
    --------
    >>> conv = nn.Conv2d(3, 5, kernel_size=1)
    >>> x, delta = positions(conv, torch.ones(2, 3, 7, 7), torch.ones(2, 5, 7, 7))
    >>> x.shape, delta.shape
    (torch.Size([2, 49, 3]), torch.Size([2, 49, 5]))
    """
    if isinstance(layer, nn.Linear):
        if x.ndim == 2:
            return x, delta
        return x.flatten(1, -2), delta.flatten(1, -2)
    if isinstance(layer, nn.Conv2d) and layer.groups == 1 and not isinstance(layer.padding, str):
        patches = nn.functional.unfold(
            x, layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )
        if patches.shape[2] == delta[0, 0].numel():
            return patches.transpose(1, 2), delta.flatten(2).transpose(1, 2)
    raise LayerError(
        "a gradient layer must be Linear or a Conv2d with one group and numeric padding, "
        f"got {layer}"
    )


def _check_seen(paths: list[str], outputs: dict[str, Tensor]) -> None:
    for path in paths:
        if path not in outputs:
            raise LayerError(f"layer {path} did not run in the forward pass")


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients for parameters; both restored afterwards."""
    modes = {m: m.training for m in module.modules()}
    wants = {p: p.requires_grad for p in module.parameters()}
    try:
        module.eval()
        for p in wants:
            p.requires_grad_(False)
        yield
    finally:
        for m, training in modes.items():
            m.training = training
        for p, want in wants.items():
            p.requires_grad_(want)
