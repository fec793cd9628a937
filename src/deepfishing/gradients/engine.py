"""Stage 3, gradients: the engines that can run a trunk, the part of a network below its head.

Comes in: a trunk from `cut`, the name of an engine. Goes out: a function from pixels (n, 3, S, S)
to the trunk's output, which several threads may call at a time, each of them on one core. A trunk
is exported to ONNX once and kept in `home()/engines`, under a hash of all that decides the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
import threading
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepfishing import networks
from deepfishing.errors import (
    MissingDependencyError,
    NetworkError,
    OptionError,
    did_you_mean,
    pip_install,
)
from deepfishing.files import replacing
from deepfishing.networks.onnx_file import onnx_of
from deepfishing.networks.zoo import home
from deepfishing.rank_one import Array

Run = Callable[[Array], Tensor]

# `auto` takes the first that is installed; fastest first
FASTEST = ("openvino", "onnxruntime", "torch")
ENGINES = ("auto", *FASTEST)
OPSET = 17


def choose_engines(engine: str) -> tuple[str, ...]:
    """The engines to try, in turn: the one asked for, or for `auto` all that are installed.

    Examples
    --------
    >>> choose_engines("torch")
    ('torch',)
    >>> choose_engines("auto")[-1]
    'torch'
    >>> choose_engines("onxruntime")
    Traceback (most recent call last):
    deepfishing.errors.OptionError: engine must be one of auto, openvino, onnxruntime, torch, got
        'onxruntime'; did you mean onnxruntime?
    """
    if engine not in ENGINES:
        raise OptionError(
            f"engine must be one of {', '.join(ENGINES)}, got {engine!r}"
            f"{did_you_mean(engine, ENGINES)}"
        )
    if engine == "auto":
        return tuple(name for name in FASTEST if not missing_packages(name))
    if packages := missing_packages(engine):
        raise MissingDependencyError(
            f"engine {engine} needs the package {' and '.join(packages)}; run "
            f"`{pip_install(extra=engine)}`, or take --engine torch"
        )
    return (engine,)


def missing_packages(engine: str) -> list[str]:
    """What an engine needs that is not installed; `onnx` writes the file that it reads."""
    needed = [] if engine == "torch" else [engine, "onnx"]
    return [name for name in needed if importlib.util.find_spec(name) is None]


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
    model = exported(trunk, size)
    return _onnxruntime(model) if engine == "onnxruntime" else _openvino(model, threads)


def exported(trunk: nn.Module, size: int) -> bytes:
    """The trunk as ONNX, from `home()/engines` if it was exported before."""
    if (own := onnx_of(trunk)) is not None:
        return own
    folder, key = home() / "engines", _key(trunk, size)
    for path in folder.glob(f"{key}-*.onnx"):
        with contextlib.suppress(OSError):
            model = path.read_bytes()
            if path.stem.endswith(f"-{_digest(model)}"):  # else it was damaged
                return model
    model = _export(trunk, size)
    with contextlib.suppress(OSError):  # a folder that cannot be written costs the next export
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / f"{key}-{_digest(model)}.onnx") as partial:
            partial.write_bytes(model)
    return model


def _digest(model: bytes) -> str:
    return hashlib.sha256(model).hexdigest()[:16]


def _key(trunk: nn.Module, size: int) -> str:
    """Hash of structure, weights and versions: a trunk that was changed has another file."""
    what = f"{trunk}\n{getattr(trunk, 'code', '')}\n{size} {OPSET} {torch.__version__}"
    digest = hashlib.sha256(f"{what} {version('onnx')} {version('deepfishing')}".encode())
    for tensor in trunk.state_dict().values():
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def _export(trunk: nn.Module, size: int) -> bytes:
    file = io.BytesIO()
    # the exporter by tracing is the old one and says so, but takes a second where the new one
    # takes ten and another package
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            torch.onnx.export(
                trunk,
                (torch.zeros(2, 3, size, size),),
                file,  # type: ignore[arg-type]
                dynamo=False,
                opset_version=OPSET,
                input_names=["pixels"],
                output_names=["trunk"],
                dynamic_axes={"pixels": {0: "n"}, "trunk": {0: "n"}},
            )
        except (RuntimeError, TypeError, ValueError) as error:
            raise _cannot_run("ONNX", error) from None
    for warning in told:
        # code that looks at what comes in would be frozen for one case; our own networks look at
        # sizes only, and those are fixed
        ours = Path(warning.filename).is_relative_to(Path(networks.__file__).parent)
        if warning.category.__name__ == "TracerWarning" and not ours:
            raise _cannot_run("ONNX", warning.message)
    return file.getvalue()


def _cannot_run(what: str, error: Warning | Exception | str) -> NetworkError:
    reason = " ".join(str(error).split())[:200]  # these packages explain at length
    return NetworkError(f"the part below the lowest layer asked for is not for {what} ({reason})")


def _torch(trunk: nn.Module) -> Run:
    def run(pixels: Array) -> Tensor:
        with torch.inference_mode():
            batch = torch.from_numpy(pixels).contiguous(memory_format=torch.channels_last)
            output: Tensor = trunk(batch)
            return output

    return run


def _onnxruntime(model: bytes) -> Run:
    package = importlib.import_module("onnxruntime")
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    options = package.SessionOptions()
    options.intra_op_num_threads = 1  # then a run stays in the thread that calls
    options.inter_op_num_threads = 1
    try:
        session = package.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except (state.Fail, state.InvalidGraph, state.NotImplemented, state.InvalidProtobuf) as error:
        raise _cannot_run("onnxruntime", error) from None
    return lambda pixels: torch.from_numpy(session.run(None, {"pixels": pixels})[0])


def _openvino(model: bytes, threads: int) -> Run:
    core = importlib.import_module("openvino").Core()
    settings = {
        "NUM_STREAMS": str(threads),  # each on a core of its own
        "INFERENCE_NUM_THREADS": str(threads),
        "INFERENCE_PRECISION_HINT": "f32",  # the default is bfloat16 where the CPU has it
    }
    try:
        compiled = core.compile_model(core.read_model(io.BytesIO(model)), "CPU", settings)
    except RuntimeError as error:
        raise _cannot_run("openvino", error) from None
    own = threading.local()  # a request serves one thread at a time

    def run(pixels: Array) -> Tensor:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        outputs: Any = own.request.infer([pixels], share_inputs=True)
        return torch.from_numpy(outputs[0])

    return run
