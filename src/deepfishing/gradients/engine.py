"""Stage 3, gradients: the engines that can run a trunk, the part of a network below its head.

Comes in: a trunk from `cut`, the name of an engine. Goes out: a function from pixels (n, 3, S, S)
to the trunk's output, which several threads may call at a time, each of them on one core. A trunk
is exported to ONNX once and kept, see `runtime`.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from deepfishing import networks
from deepfishing.gradients.runtime import cannot_run, keep, kept, start_onnx
from deepfishing.networks.onnx_file import onnx_of
from deepfishing.rank_one import Array

Run = Callable[[Array], Tensor]

OPSET = 17


def start_engine(engine: str, trunk: nn.Module, size: int, threads: int) -> Run:
    """Make a trunk ready to run.

    Parameters
    ----------
    engine : str
        "torch", "onnxruntime" or "openvino".
    trunk : nn.Module
        Takes (n, 3, size, size) in float32, for any n.
    threads : int
        How many threads will call it at a time.

    Examples
    --------
    >>> import numpy as np
    >>> run = start_engine("torch", nn.ReLU(), size=2, threads=1)
    >>> run(np.full((1, 3, 2, 2), -1.0, dtype=np.float32)).sum().item()
    0.0
    """
    if engine == "torch":
        return _torch(trunk)
    run = start_onnx(engine, exported(trunk, size), threads)
    return lambda pixels: torch.from_numpy(next(iter(run(pixels).values())))


def exported(trunk: nn.Module, size: int) -> bytes:
    """The trunk as ONNX, from `home()/engines` if it was exported before."""
    if (own := onnx_of(trunk)) is not None:
        return own
    key = _key(trunk, size)
    if (model := kept(key)) is None:
        model = export(trunk, size)
        keep(key, model)
    return model


def _key(trunk: nn.Module, size: int) -> str:
    """Hash of structure, weights and versions: a trunk that was changed has another file."""
    what = f"{trunk}\n{getattr(trunk, 'code', '')}\n{size} {OPSET} {torch.__version__}"
    digest = hashlib.sha256(f"{what} {version('onnx')} {version('deepfishing')}".encode())
    for tensor in trunk.state_dict().values():
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def export(module: nn.Module, size: int, names: Sequence[str] = ("trunk",), n: int = 2) -> bytes:
    """A module as ONNX, with the names of its outputs; for n = 1 it takes one input at a time."""
    file = io.BytesIO()
    # it prints the whole graph that it does not take, whatever its logging is set to
    torch._C._jit_onnx_log = lambda *_: None
    # the exporter by tracing is the old one and says so, but takes a second where the new one
    # takes ten and another package
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            torch.onnx.export(
                module,
                (torch.zeros(n, 3, size, size),),
                file,  # type: ignore[arg-type]
                dynamo=False,
                opset_version=OPSET,
                input_names=["pixels"],
                output_names=list(names),
                dynamic_axes={key: {0: "n"} for key in ("pixels", *names)} if n > 1 else None,
            )
        except (RuntimeError, TypeError, ValueError) as error:
            raise cannot_run("ONNX", error) from None
    for warning in told:
        # code that looks at what comes in would be frozen for one case; our own networks look at
        # sizes only, and those are fixed
        ours = Path(warning.filename).is_relative_to(Path(networks.__file__).parent)
        if warning.category.__name__ == "TracerWarning" and not ours:
            raise cannot_run("ONNX", warning.message)
    return file.getvalue()


def _torch(trunk: nn.Module) -> Run:
    def run(pixels: Array) -> Tensor:
        with torch.inference_mode():
            batch = torch.from_numpy(pixels).contiguous(memory_format=torch.channels_last)
            output: Tensor = trunk(batch)
            return output

    return run
