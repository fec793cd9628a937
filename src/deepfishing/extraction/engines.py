"""Engines that run an ONNX model, and the cache of models.

`start_onnx` returns a function that several threads may call at once, each on one core. Models are
cached in `home()/engines` by a hash of everything that determines them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

from deepfishing.core.rank_one import Array
from deepfishing.errors import (
    MissingDependencyError,
    NetworkError,
    check_choice,
    one_line,
    pip_install,
)
from deepfishing.networks.zoo import home
from deepfishing.util.files import replacing

RunOnnx = Callable[[Array], dict[str, Array]]  # pixels (n, 3, S, S) to arrays by name

# `auto` takes the first that is installed; fastest first
BY_SPEED = ("openvino", "onnxruntime", "torch")
ENGINES = ("auto", *BY_SPEED)
MAX_CACHE_BYTES = 4 * 2**30  # the models that were not used for longest are removed


def choose_engines(engine: str) -> tuple[str, ...]:
    """Return the engines to try, in turn: the one asked for, or all that are installed."""
    check_choice("engine", engine, ENGINES)
    if engine == "auto":
        return tuple(name for name in BY_SPEED if not missing_packages(name))
    packages = missing_packages(engine)
    if packages:
        raise MissingDependencyError(
            f"engine {engine} needs the package {' and '.join(packages)}; run "
            f"`{pip_install(extra=engine)}`, or take --engine torch"
        )
    return (engine,)


def missing_packages(engine: str) -> list[str]:
    """Return the missing packages of an engine; `onnx` writes the model that it reads."""
    if engine == "torch":
        return []
    return [name for name in (engine, "onnx") if importlib.util.find_spec(name) is None]


def start_onnx(engine: str, model: bytes, threads: int) -> RunOnnx:
    """Return a function that runs a model in several threads; its input is called `pixels`."""
    if engine == "onnxruntime":
        return _onnxruntime(model)
    return _openvino(model, threads)


def read_cached(key: str) -> bytes | None:
    """Return the model of a key, or None; one that is damaged is reported and removed."""
    for path in (home() / "engines").glob(f"{key}-*.onnx"):
        with contextlib.suppress(OSError):
            model = path.read_bytes()
            if path.stem == f"{key}-{hashlib.sha256(model).hexdigest()[:16]}":
                os.utime(path)  # used now
                return model
            path.unlink()
            warnings.warn(f"{path} was damaged; it is made again", stacklevel=2)
    return None


def write_cached(key: str, model: bytes) -> None:
    """Write a model to the cache; if the folder cannot be written, it is exported again later."""
    folder = home() / "engines"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        # in the name, so that a damaged file is detected
        digest = hashlib.sha256(model).hexdigest()[:16]
        with replacing(folder / f"{key}-{digest}.onnx") as partial:
            partial.write_bytes(model)
        newest_first = sorted(folder.glob("*.onnx"), key=lambda p: -p.stat().st_mtime)
        total = 0
        for path in newest_first:
            total += path.stat().st_size
            if total > MAX_CACHE_BYTES and path != newest_first[0]:
                path.unlink()


def cannot_run(what: str, error: Warning | Exception | str) -> NetworkError:
    """Return the error for a network that an engine does not run."""
    return NetworkError(
        f"the part below the lowest layer asked for is not for {what} ({one_line(error)})"
    )


def _onnxruntime(model: bytes) -> RunOnnx:
    package = importlib.import_module("onnxruntime")
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    options = package.SessionOptions()
    # then a run stays in the thread that calls
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = package.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
    except (
        state.Fail,
        state.InvalidGraph,
        state.NotImplemented,
        state.InvalidProtobuf,
    ) as error:
        raise cannot_run("onnxruntime", error) from None
    names = [output.name for output in session.get_outputs()]

    def run(pixels: Array) -> dict[str, Array]:
        outputs = session.run(names, {"pixels": pixels})
        return dict(zip(names, outputs, strict=True))

    return run


def _openvino(model: bytes, threads: int) -> RunOnnx:
    core = importlib.import_module("openvino").Core()
    settings = {
        "NUM_STREAMS": str(threads),  # one core each
        "INFERENCE_NUM_THREADS": str(threads),
        "INFERENCE_PRECISION_HINT": "f32",  # the default is bfloat16 where the CPU has it
    }
    try:
        compiled = core.compile_model(
            core.read_model(io.BytesIO(model)), "CPU", settings
        )
    except RuntimeError as error:
        raise cannot_run("openvino", error) from None
    thread = threading.local()  # a request serves one thread at a time
    names = [output.any_name for output in compiled.outputs]

    def run(pixels: Array) -> dict[str, Array]:
        if not hasattr(thread, "request"):
            thread.request = compiled.create_infer_request()
        outputs: Any = thread.request.infer([pixels], share_inputs=True)
        return {name: outputs[number] for number, name in enumerate(names)}

    return run
