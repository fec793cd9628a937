"""Stage 3, gradients: networks as ONNX, and the engines that run a trunk of one.

Comes in: a trunk from `cut`, the part of a network below its head, or a `Computer`, which has the
network and the factors. Goes out: a function from pixels (n, 3, S, S) to the trunk's output, which
several threads may call at a time, each of them on one core; or a program, see there.
"""

from __future__ import annotations

import copy
import hashlib
import io
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from deepfishing import networks
from deepfishing.errors import NetworkError
from deepfishing.gradients.program import Program, part_name
from deepfishing.gradients.runtime import cannot_run, keep, kept, start_onnx
from deepfishing.gradients.tap import tap
from deepfishing.networks.onnx_file import onnx_of
from deepfishing.rank_one import Array

if TYPE_CHECKING:
    from deepfishing.gradients.compute import Computer

Run = Callable[[Array], Tensor]

OPSET = 17
_aten = torch.ops.aten
STEPS = (  # that torch has and ONNX has not: torch writes them with others
    *(_aten._softmax, _aten._log_softmax, _aten._log_softmax_backward_data),
    *(_aten.hardtanh_backward, _aten.threshold_backward),
)


def start_engine(engine: str, trunk: nn.Module, size: int, threads: int) -> Run:
    """Make a trunk, which takes (n, 3, size, size) in float32, ready for so many threads at a time.

    >>> import numpy as np
    >>> run = start_engine("torch", nn.ReLU(), size=2, threads=1)
    >>> run(np.full((1, 3, 2, 2), -1.0, dtype=np.float32)).sum().item()
    0.0
    """
    if engine != "torch":
        run = start_onnx(engine, exported(trunk, size), threads)
        return lambda pixels: torch.from_numpy(next(iter(run(pixels).values())))

    def run_in_torch(pixels: Array) -> Tensor:
        with torch.inference_mode():
            batch = torch.from_numpy(pixels).contiguous(memory_format=torch.channels_last)
            output: Tensor = trunk(batch)
            return output

    return run_in_torch


def exported(trunk: nn.Module, size: int) -> bytes:
    """The trunk as ONNX, from `home()/engines` if it was exported before."""
    if (own := onnx_of(trunk)) is not None:
        return own
    # structure, weights and versions: a trunk that was changed has another file
    what = f"{trunk}\n{getattr(trunk, 'code', '')}\n{size} {OPSET} {torch.__version__}"
    digest = hashlib.sha256(f"{what} {version('onnx')} {version('deepfishing')}".encode())
    for tensor in trunk.state_dict().values():
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    key = digest.hexdigest()[:32]
    if (model := kept(key)) is None:
        model = export(trunk, torch.zeros(2, 3, size, size))
        keep(key, model)
    return model


def export(module: nn.Module, example: Tensor, names: Sequence[str] = ("trunk",)) -> bytes:
    """A module as ONNX, with the names of its outputs; refused if it might not be the same."""
    try:
        model, told = write_onnx(module, example, names)
    except (RuntimeError, TypeError, ValueError) as error:
        raise cannot_run("ONNX", error) from None
    for warning in told:
        # code that looks at what comes in would be frozen for one case; our own networks look at
        # sizes only, and those are fixed
        ours = Path(warning.filename).is_relative_to(Path(networks.__file__).parent)
        if warning.category.__name__ == "TracerWarning" and not ours:
            raise cannot_run("ONNX", warning.message)
    return model


def write_onnx(
    module: nn.Module,
    example: Tensor,
    outputs: Sequence[str],
    *,
    name: str = "pixels",
    opset: int = OPSET,
) -> tuple[bytes, list[warnings.WarningMessage]]:
    """A module as ONNX and what torch warned of; it takes any n, or 1 if the example has n = 1."""
    file = io.BytesIO()
    # it prints the whole graph that it does not take, whatever its logging is set to
    torch._C._jit_onnx_log = lambda *_: None
    # the exporter by tracing is the old one and says so, but takes a second where the new one
    # takes ten and another package
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.onnx.export(
            module,
            (example,),
            file,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=opset,
            input_names=[name],
            output_names=list(outputs),
            dynamic_axes={key: {0: "n"} for key in (name, *outputs)} if len(example) > 1 else None,
        )
    return file.getvalue(), told


def make_program(computer: Computer, engine: str) -> bytes:
    """A program for the factors of a computer, compared with torch on noise.

    The head's two passes are recorded by `make_fx`, so that the backward pass is written out as
    plain steps; the trunk goes in front as it is. What ONNX has not is a `NetworkError`.
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
        steps: Any = get_decompositions(STEPS)
        written_out = make_fx(head, decomposition_table=steps)(middle)
        pixels = torch.zeros(1, *noise.shape[1:])
        model = export(nn.Sequential(parts.trunk, written_out), pixels, names)
        program = Program(start_onnx(engine, model, 1), computer.settings, computer.factors)
        for one in (noise[:1], noise[1:]):
            expected = computer.compute(computer.network.module, torch.from_numpy(one))
            if difference := computer.difference(program.factors_of(one), expected):
                raise NetworkError(difference)
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        raise NetworkError(str(error)) from None
    finally:
        computer.skips = skips
    return model
