"""Stage 3, gradients: a backward pass that skips the tokens without a gradient.

Comes in: a head that is run within `skipping_rows()`. Goes out: the same gradients, for less:
where a transformer's output is read off one token, torch multiplies the zeros of the others.
Functions that treat every row of (n, T, d) on its own, such as LayerNorm, Linear and GELU, are put
into chains. The backward pass runs a chain once more, for the rows whose gradient is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

Step = Callable[[Tensor], Tensor]

_ROW_WISE = frozenset(
    {functional.linear, functional.gelu, functional.relu, functional.silu, functional.layer_norm}
)

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def few_rows(deltas: Iterable[Tensor | None]) -> bool:
    """Whether at most half of the rows of all these are not zero; else chains would cost more."""
    return all(
        d is not None and d.ndim == 3 and 2 * int(_rows(d).sum()) <= d[..., 0].numel()
        for d in deltas
    )


def without_zeros(x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Factors (n, P, d) and (n, P, D) without the positions at which no image has a gradient."""
    used = _rows(delta).any(dim=0)
    return x[:, used], delta[:, used]


@dataclass(frozen=True, eq=False)
class _Chain:
    """How a tensor came about: steps from `root`, and which state of the tensor that is."""

    root: Tensor
    steps: tuple[Step, ...]
    version: int


class skipping_rows(TorchFunctionMode):  # noqa: N801 - used as a function is
    """A context for the forward pass: it sees every function of torch, and lengthens chains."""

    def __init__(self) -> None:
        super().__init__()
        self.chains: Any = WeakIdKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_row_wise(func, args, kwargs):
            return func(*args, **kwargs)
        x, rest = args[0], args[1:]
        chain = self.chains.get(x)
        if chain is None or chain.version != x._version:  # none, or x was written to since
            chain = _Chain(x, (), x._version)
        step = partial(_apply, func, rest, kwargs)
        steps = (*chain.steps, step)
        y = _Rows.apply(chain.root, steps, partial(step, x.detach()))  # type: ignore[no-untyped-call]
        self.chains[y] = _Chain(chain.root, steps, y._version)
        return y


def _is_row_wise(func: Any, args: Any, kwargs: Any) -> bool:
    if func not in _ROW_WISE or not args or kwargs.get("inplace"):
        return False
    x = args[0]
    if x.ndim != 3 or not (torch.is_grad_enabled() and x.requires_grad):
        return False
    if any(v.requires_grad for v in (*args[1:], *kwargs.values()) if isinstance(v, Tensor)):
        return False  # weights are frozen, but another tensor may take their place
    return func is not functional.layer_norm or len(args[1]) == 1


def _apply(func: Any, rest: Any, kwargs: Any, x: Tensor) -> Tensor:
    y: Tensor = func(x, *rest, **kwargs)
    return y


class _Rows(torch.autograd.Function):
    """A chain of steps from x, whose last value is computed already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: tuple[Step, ...], last: Callable[[], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.steps = steps
        return last()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,), (gradient,) = ctx.saved_tensors, gradients
        rows = _rows(gradient)
        with torch.enable_grad():
            some = y = x.detach()[rows].requires_grad_()
            for step in ctx.steps:
                y = step(y)
        (back,) = torch.autograd.grad(y, some, gradient[rows])
        whole = torch.zeros_like(x)
        whole[rows] = back
        return whole, None, None


def _rows(gradient: Tensor) -> Tensor:
    """Which rows are not zero, (n, T); -0.0 counts as not zero."""
    bits = gradient.view(_BITS[gradient.itemsize])
    return (bits.amax(dim=-1) != 0) | (bits.amin(dim=-1) != 0)  # a third of the time of `any`
