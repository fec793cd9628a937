"""Recording of both passes of a network as a program, one ONNX model."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from deepfishing.errors import NetworkError
from deepfishing.extraction.compute import Computer
from deepfishing.extraction.engines import start_onnx
from deepfishing.extraction.program import Program, part_name
from deepfishing.extraction.tap import tap
from deepfishing.extraction.trunk import export
from deepfishing.networks.onnx.trunk import onnx_of

_aten = torch.ops.aten
STEPS = (  # that torch has and ONNX lacks: torch writes them with others
    *(_aten._softmax, _aten._log_softmax, _aten._log_softmax_backward_data),
    *(_aten.hardtanh_backward, _aten.threshold_backward, _aten.softplus_backward),
)


def make_program(computer: Computer, engine: str) -> bytes:
    """A program for the factors of a computer, compared with torch on noise.

    The head's two passes are recorded by `make_fx`, so that the backward pass is written out as
    plain steps; the trunk goes in front as it is.
    """
    parts = computer.parts()
    if parts is None:
        raise NetworkError(f"{computer.network.name} cannot be cut below its layers")
    if onnx_of(parts.trunk) is not None:
        raise NetworkError(
            f"{computer.network.name} is not torch's, which would not record it"
        )
    # in the plain layout of memory, since in the other one gradients are written by address
    shared: dict[int, Any] = {id(p): p for p in parts.head.parameters() if p.ndim != 4}
    module = copy.deepcopy(parts.head, shared)
    module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    names: list[str] = []

    def head(middle: Tensor) -> list[Tensor]:
        taps = tap(
            module, middle, computer.read, computer.gradients, computer.objective
        )
        names.clear()
        values = []
        for factor, read in computer.readers.items():
            for number, part in enumerate(read(taps)):
                names.append(part_name(factor, number))
                values.append(part.detach().float())
        return values

    noise = computer.noise(2)
    try:
        with torch.no_grad():
            middle = parts.trunk(torch.from_numpy(noise[:1])).contiguous()
        steps: Any = get_decompositions(STEPS)
        written_out = make_fx(head, decomposition_table=steps)(middle)
        example = torch.zeros(1, *noise.shape[1:])
        model = export(nn.Sequential(parts.trunk, written_out), example, names)
        program = Program(
            start_onnx(engine, model, 1), computer.settings, computer.factors
        )
        for pixels in (noise[:1], noise[1:]):
            batch = torch.from_numpy(pixels)
            expected = computer.compute(computer.network.module, batch)
            difference = computer.difference(program.factors_of(pixels), expected)
            if difference:
                raise NetworkError(difference)
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        raise NetworkError(str(error)) from None
    return model
