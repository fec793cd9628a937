"""Input, output and gradient of any layers of a module, in one pass each way.

The graph begins at the output of the first layer whose gradient is wanted, so the trunk runs
without a graph and the backward pass covers only the part above. Mode, requires_grad and hooks of
the module are restored, also after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from deepfishing.errors import LayerError, did_you_mean, one_line

ErrorFunction = Callable[[Any], Tensor]  # E of a module's output

_BATCH_NORMS = frozenset(
    {
        functional.batch_norm,
        functional.instance_norm,
        torch.batch_norm,
        torch.instance_norm,
    }
)


@dataclass(frozen=True, eq=False)
class Call:
    """One run of a layer: its input x, output y and, if asked for, delta = dE/dy."""

    x: Tensor
    y: Tensor
    delta: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Taps:
    """Result of one pass: the module's output, and the calls of each layer by its path."""

    output: Any
    calls: dict[str, list[Call]]


def tap(
    module: nn.Module,
    batch: Tensor,
    read: Collection[str] = (),
    gradients: Collection[str] = (),
    objective: ErrorFunction | None = None,
) -> Taps:
    """One forward pass, and one backward pass through the head if gradients are asked for.

    Parameters
    ----------
    module : nn.Module
        Maps a batch of n inputs to anything. It is run in eval mode.
    batch : Tensor
        n inputs.
    read : paths
        Modules whose input and output are wanted.
    gradients : paths
        Modules whose dE/dy is wanted too.
    objective : callable
        E of the module's output, summed over the batch; needed with `gradients`.

    Returns
    -------
    Taps
        A layer that the network uses several times has several calls.

    Examples
    --------
    >>> from deepfishing.networks.objectives import cross_entropy
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> taps = tap(net, torch.ones(5, 4), gradients=["0", "2"], objective=cross_entropy())
    >>> taps.calls["2"][0].x.shape, taps.calls["0"][0].delta.shape
    (torch.Size([5, 3]), torch.Size([5, 3]))
    """
    calls: dict[str, list[Call]] = {path: [] for path in (*read, *gradients)}
    modules = {path: find_module(module, path) for path in calls}

    def hook_for(path: str) -> Callable[..., Any]:
        def hook(
            _: nn.Module, args: tuple[Any, ...], named: Any, output: Any
        ) -> Tensor | None:
            x = _only_tensor(path, "input", next(iter((*args, *named.values())), None))
            y = _only_tensor(path, "output", output)
            # clones, since an in-place operation further on would overwrite what we keep
            x = x.detach().clone()
            if path not in gradients:
                calls[path].append(Call(x, y.detach().clone()))
                return None
            if not y.requires_grad:
                y = y.detach().requires_grad_()
            calls[path].append(Call(x, y))
            return y.clone()

        return hook

    # nothing is recorded before the first of the gradients: no weight asks for it
    with frozen(module), torch.set_grad_enabled(bool(gradients)):
        with ExitStack() as stack:
            for path, m in modules.items():
                stack.enter_context(
                    m.register_forward_hook(hook_for(path), with_kwargs=True)
                )
            if gradients and len(batch) == 1:
                stack.enter_context(usual_strides())
            output = module(batch)
        for path, found in calls.items():
            if not found:
                raise LayerError(f"layer {path} did not run in the forward pass")
        if gradients:
            calls.update(
                _with_deltas(
                    output, {path: calls[path] for path in gradients}, objective
                )
            )
    return Taps(output, calls)


def _with_deltas(
    output: Any, calls: dict[str, list[Call]], objective: ErrorFunction | None
) -> dict[str, list[Call]]:
    if objective is None:
        raise LayerError("gradients need an objective, got none")
    with torch.enable_grad():
        error = objective(output)
    ys = [call.y for found in calls.values() for call in found]
    deltas: Iterator[Tensor | None] = iter([None] * len(ys))
    if error.requires_grad:
        try:
            deltas = iter(torch.autograd.grad(error, ys, allow_unused=True))
        except RuntimeError as reason:  # also of what torch has not implemented
            raise LayerError(
                f"torch cannot compute the gradient of layer {', '.join(calls)} "
                f"({one_line(reason)}); choose a layer further up"
            ) from None
    done: dict[str, list[Call]] = {}
    for path, found in calls.items():
        of_path = [next(deltas) for _ in found]
        if all(delta is None for delta in of_path):
            raise LayerError(
                f"the network's output does not depend on layer {path}, or is computed without a "
                "graph (torch.no_grad inside the network); choose another layer"
            )
        done[path] = []
        for call, delta in zip(found, of_path, strict=True):
            if delta is None:
                # a call whose output is not used has no part in the gradient
                delta = torch.zeros_like(call.y)
            done[path].append(replace(call, y=call.y.detach(), delta=delta))
    return done


def _only_tensor(path: str, what: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise LayerError(
            f"the {what} of layer {path} must be one tensor, got {type(value).__name__}; choose a "
            "layer inside it"
        )
    if value.is_complex():
        raise LayerError(f"the {what} of layer {path} must be real, got {value.dtype}")
    if value.is_inference():
        raise LayerError(
            f"layer {path} runs in torch.inference_mode, which allows no gradients"
        )
    return value


class usual_strides(TorchFunctionMode):  # noqa: N801 - used as a function is
    """A context for the forward pass of one input, in which gradients of batch norms are right.

    Where maps are made of tokens, the stride of the images' axis, which is 1 long, is that of a
    token. Torch's backward pass of a batch norm then takes channels for places (2.13, on a CPU).
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in _BATCH_NORMS or not args:
            return func(*args, **(kwargs or {}))
        y = func(_with_usual_strides(args[0]), *args[1:], **(kwargs or {}))
        if y.requires_grad:
            y.register_hook(_with_usual_strides)
        return y


def _with_usual_strides(value: Tensor) -> Tensor:
    is_unusual = (
        value.ndim > 3 and len(value) == 1 and value.stride(0) != value[0].numel()
    )
    return value.contiguous() if is_unusual else value


def find_module(module: nn.Module, path: str) -> nn.Module:
    """Return the sub-module called `path`; an error names similar ones."""
    modules = dict(module.named_modules(remove_duplicate=False))
    found: nn.Module | None = modules.get(path) if path else None
    if found is None:
        names = [name for name in modules if name]
        raise LayerError(
            f"layer must be a module's path, such as {names[-1] if names else '(none)'}, "
            f"got {path!r}{did_you_mean(path, names)}"
        )
    return found


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
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
