"""Stage 3, gradients: all of a network's work on one input, forward and backward, as ONNX.

Comes in: a `Computer`, which has the network and the factors. Goes out: a model that gives the same
factors without torch, see `program`. The head's two passes are recorded by `make_fx`, so that the
backward pass is written out as plain steps; the trunk goes in front as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from deepfishing.errors import NetworkError
from deepfishing.gradients.compute import Computer
from deepfishing.gradients.engine import export
from deepfishing.gradients.program import Program, part_name
from deepfishing.gradients.runtime import start_onnx
from deepfishing.gradients.tap import tap
from deepfishing.networks.onnx_file import onnx_of


def make_program(computer: Computer, engine: str) -> bytes:
    """A program for the factors of a computer, compared with torch on noise.

    Raises
    ------
    NetworkError
        If the network cannot be cut or has steps that ONNX has not, or if a factor differs.
    """
    parts = computer.parts()
    if parts is None:
        raise NetworkError(f"{computer.network.name} cannot be cut below its layers")
    if onnx_of(parts.trunk) is not None:
        raise NetworkError(f"{computer.network.name} is not torch's, which would not record it")
    # in the plain layout of memory, since in the other one gradients are written by address
    shared: dict[int, Any] = {id(p): p for p in parts.head.parameters() if p.ndim != 4}
    module = copy.deepcopy(parts.head, shared)
    module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    names: list[str] = []

    def head(middle: Tensor) -> list[Tensor]:
        taps = tap(module, middle, computer.read, computer.gradients, computer.objective)
        found = {factor: computer.factor(factor, taps) for factor in computer.factors}
        names[:] = [part_name(f, n) for f, own in found.items() for n in range(len(own))]
        return [part.detach().float() for own in found.values() for part in own]

    noise = computer.noise(2)
    skips, computer.skips = computer.skips, False
    try:
        with torch.no_grad():
            middle = parts.trunk(torch.from_numpy(noise[:1])).contiguous()
        written_out = make_fx(head, decomposition_table=_plain_steps())(middle)
        size = noise.shape[-1]
        model = export(nn.Sequential(parts.trunk, written_out), size, names, n=1)
        program = Program(start_onnx(engine, model, 1), computer.settings, computer.factors)
        for pixels in (noise[:1], noise[1:]):
            expected = computer.compute(computer.network.module, torch.from_numpy(pixels))
            if difference := computer.difference(program.factors_of(pixels), expected):
                raise NetworkError(difference)
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        raise NetworkError(str(error)) from None
    finally:
        computer.skips = skips
    return model


def _plain_steps() -> dict[Any, Callable[..., Tensor]]:
    """Steps that torch has and ONNX has not, written with others."""
    aten = torch.ops.aten

    def exp(x: Tensor, dim: int) -> Tensor:
        return torch.exp(x - x.amax(dim, keepdim=True))

    def log_softmax(x: Tensor, dim: int, _: bool) -> Tensor:
        total = exp(x, dim).sum(dim, keepdim=True)
        return x - x.amax(dim, keepdim=True) - torch.log(total)

    def keep_inside(g: Tensor, x: Tensor, low: float, high: float) -> Tensor:
        return torch.where((x <= low) | (x >= high), torch.zeros_like(g), g)

    return {
        aten._softmax.default: lambda x, d, _: exp(x, d) / exp(x, d).sum(d, keepdim=True),
        aten._log_softmax.default: log_softmax,
        aten._log_softmax_backward_data.default: lambda g, y, d, _: (
            g - torch.exp(y) * g.sum(d, keepdim=True)
        ),
        aten.hardtanh_backward.default: keep_inside,
        aten.threshold_backward.default: lambda g, x, low: keep_inside(g, x, low, torch.inf),
    }
