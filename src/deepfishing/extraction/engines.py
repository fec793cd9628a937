"""Stage 3, gradients: what runs an ONNX model, and factors of a few images without torch.

Comes in: the name of an engine and a model, or settings, factors and images. Goes out: a function
that several threads may call at a time, each of them on one core; or what an `Extractor` gives. A
program is one ONNX model of all of the work on one input, forward and backward. The first run,
which has torch, makes it (`trunk.make_program`) and keeps it in `home()/engines` under a hash of
all that decides it; later ones need it alone, provided that the network's files are still the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.core.features import Factor
from deepfishing.core.projections import two_sided
from deepfishing.core.rank_one import Array, RankOne
from deepfishing.errors import (
    FeatureError,
    ImageError,
    MissingDependencyError,
    NetworkError,
    check_choice,
    one_line,
    pip_install,
    version_of,
)
from deepfishing.extraction.options import Resources
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import ImageLike, find_views
from deepfishing.networks.zoo import home
from deepfishing.util.files import replacing

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

RunOnnx = Callable[[Array], dict[str, Array]]  # pixels (n, 3, S, S) to arrays by name

# `auto` takes the first that is installed; fastest first
FASTEST = ("openvino", "onnxruntime", "torch")
ENGINES = ("auto", *FASTEST)
KEPT = 4 * 2**30  # bytes of models; those that were not used for longest leave first
FEW = 64  # images; with more, torch's batches win back the time that it takes to load
HUBS = ("timm", "torchvision")  # whose code decides a network, too
QUICKEST = ("onnxruntime", "openvino")  # to start, not to run


def choose_engines(engine: str) -> tuple[str, ...]:
    """The engines to try, in turn: the one asked for, or for `auto` all that are installed."""
    check_choice("engine", engine, ENGINES)
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


def start_onnx(engine: str, model: bytes, threads: int) -> RunOnnx:
    """Make a model ready to run in so many threads at a time; its input is called `pixels`."""
    return _onnxruntime(model) if engine == "onnxruntime" else _openvino(model, threads)


def kept(key: str) -> bytes | None:
    """The model of a key, or None; one that is damaged is reported and removed."""
    for path in (home() / "engines").glob(f"{key}-*.onnx"):
        with contextlib.suppress(OSError):
            model = path.read_bytes()
            if path.stem == f"{key}-{hashlib.sha256(model).hexdigest()[:16]}":
                os.utime(path)  # used now
                return model
            path.unlink()
            warnings.warn(f"{path} was damaged; it is made again", stacklevel=2)
    return None


def keep(key: str, model: bytes) -> None:
    """Keep a model for the next time."""
    folder = home() / "engines"
    with contextlib.suppress(OSError):  # a folder that cannot be written costs the next export
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(model).hexdigest()[:16]  # so that a damaged file is found out
        with replacing(folder / f"{key}-{digest}.onnx") as partial:
            partial.write_bytes(model)
        newest = sorted(folder.glob("*.onnx"), key=lambda path: -path.stat().st_mtime)
        used = accumulate(path.stat().st_size for path in newest)
        for path, size in list(zip(newest, used, strict=True))[1:]:
            if size > KEPT:
                path.unlink()


def cannot_run(what: str, error: Warning | Exception | str) -> NetworkError:
    """That an engine does not take a network, in one line."""
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
        session = package.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except (state.Fail, state.InvalidGraph, state.NotImplemented, state.InvalidProtobuf) as error:
        raise cannot_run("onnxruntime", error) from None
    names = [output.name for output in session.get_outputs()]
    return lambda pixels: dict(zip(names, session.run(names, {"pixels": pixels}), strict=True))


def _openvino(model: bytes, threads: int) -> RunOnnx:
    core = importlib.import_module("openvino").Core()
    settings = {
        "NUM_STREAMS": str(threads),  # each on a core of its own
        "INFERENCE_NUM_THREADS": str(threads),
        "INFERENCE_PRECISION_HINT": "f32",  # the default is bfloat16 where the CPU has it
    }
    try:
        compiled = core.compile_model(core.read_model(io.BytesIO(model)), "CPU", settings)
    except RuntimeError as error:
        raise cannot_run("openvino", error) from None
    own = threading.local()  # a request serves one thread at a time
    names = [output.any_name for output in compiled.outputs]

    def run(pixels: Array) -> dict[str, Array]:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        outputs: Any = own.request.infer([pixels], share_inputs=True)
        return {name: outputs[at] for at, name in enumerate(names)}

    return run


@dataclass(frozen=True, eq=False)
class Batch:
    """Factors of the images at `indices` by name, and the images that could not be read."""

    indices: list[int]
    factors: dict[str, Array]
    failures: dict[int, str]


Describer = Callable[[Sequence[ImageLike]], Iterator[Batch]]  # an unreadable image is reported


def gather(batches: Iterable[Batch]) -> dict[str, Array]:
    """Factors of all batches together; an image that could not be read or described is an error."""
    parts: dict[str, list[Array]] = {}
    for batch in batches:
        if batch.failures:
            raise ImageError(next(iter(batch.failures.values())))
        for name, values in batch.factors.items():
            if not np.isfinite(values).all():
                raise FeatureError(
                    f"{name} must be finite, got NaN or infinity; look for NaN in the network's "
                    "weights, or take dtype float32"
                )
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def describer(
    settings: Settings,
    factors: Sequence[Factor],
    load: Callable[[], Network],
    *,
    resources: Resources,
    weights: str | Path | None = None,
    own: bool = False,
) -> Describer:
    """What describes a few images: the program that was kept, or torch, which makes one to keep.

    `load` gives the network of the settings, `weights` is its weight file if it is elsewhere now,
    and `own` says that it was given in Python: then nothing is kept of it.
    """
    engine = next((name for name in QUICKEST if importlib.util.find_spec(name)), "")
    plain = settings.network.dtype == "float32" and resources.device == "cpu" and not own
    key = ""
    if engine and plain and settings.network.is_unchanged(weights):
        key = _key(settings, factors, engine)
    model = kept(key) if key else None
    if model:
        return Program(start_onnx(engine, model, threads=1), settings, factors)
    from deepfishing.extraction.extract import Extractor  # torch takes seconds to load

    made = Extractor(load(), factors, settings=settings, resources=resources)
    if key and model is None and not missing_packages(engine):
        from deepfishing.extraction.trunk import make_program

        try:
            keep(key, make_program(made.compute, engine))
        except NetworkError:
            keep(key, b"")  # so that it is not tried again
    return made


class Program:
    """A network's work on one input at a time: `run` makes parts of factors by `part_name`."""

    def __init__(self, run: RunOnnx, settings: Settings, factors: Sequence[Factor]) -> None:
        self.run, self.factors = run, factors
        self.preprocess, self.views = settings.network.preprocess, find_views(settings.views)

    def __call__(self, images: Sequence[ImageLike]) -> Iterator[Batch]:
        """Compute the factors of some images, one by one."""
        for index, image in enumerate(images):
            try:
                inputs = self.preprocess.see(image, self.views)
            except ImageError as error:
                yield Batch([], {}, {index: str(error)})
                continue
            each, V = [self.factors_of(one[None]) for one in inputs], len(inputs)
            joined = {f: np.concatenate([values[f] for values in each]) for f in self.factors}
            yield Batch([index], {f.name: aggregate(f, v, V) for f, v in joined.items()}, {})

    def factors_of(self, pixels: Array) -> dict[Factor, Array]:
        """Factors of one input (1, 3, S, S)."""
        outputs = self.run(pixels)
        found = {}
        for factor in self.factors:
            names = part_name(factor, 0), part_name(factor, 1)
            found[factor] = finish(factor, [outputs[name] for name in names if name in outputs])
        return found


def part_name(factor: Factor, number: int) -> str:
    """What a program calls a part of a factor: a projection is made of x and delta."""
    return f"{factor.name}/{number}"


def finish(factor: Factor, parts: Sequence[Array]) -> Array:
    """A factor of its parts: itself, or what is projected from both sides."""
    if isinstance(factor.positions, tuple):
        return two_sided(RankOne(*parts) if len(parts) > 1 else parts[0], *factor.positions)
    return parts[0]


def _key(settings: Settings, factors: Sequence[Factor], engine: str) -> str:
    """Hash of all that decides a program, and of the code that makes one."""
    packages = [engine, "torch", *(h for h in HUBS if settings.network.name.startswith(f"{h}:"))]
    versions = [f"{name} {version_of(name)}" for name in packages]
    facts = [settings.digest, [factor.name for factor in factors], versions, _source()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


@cache
def _source() -> str:
    root, patterns = (
        Path(__file__).parents[1],
        ("*.py", "core/**/*.py", "extraction/*.py", "networks/**/*.py"),
    )
    files = (path for pattern in patterns for path in sorted(root.glob(pattern)))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def aggregate(factor: Factor, values: Array, V: int) -> Array:
    """One descriptor per image of those of its V views, which follow each other.

    Forward factors and the factors of a gradient are averaged. Mean x times mean delta keeps the
    gradient rank-1; it approximates the mean of the V rank-1 gradients, which is not rank-1, and is
    exact if x or delta is the same in all views. Projected gradients are averaged too, and there
    the mean is exact since a projection is linear. Nor is anything lost behind `@exact`: positions
    of different views show different places, so the views' positions are put side by side and
    delta is divided by V, which makes the sum over all of them the mean of the V gradients. Values
    (n * V, d) or (n * V, P, d) become (n, d), or (n, V * P, d) behind `@exact`.
    """
    if V == 1:
        return values
    if factor.positions == "exact":
        positions = values.reshape(len(values) // V, -1, values.shape[-1])
        return positions / V if factor.kind == "delta" else positions
    means: Array = values.reshape(-1, V, *values.shape[1:]).mean(axis=1)
    return means
