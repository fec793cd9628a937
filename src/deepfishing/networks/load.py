"""Stage 2, networks: from a name or a file to a `Network`.

Comes in: a name of the zoo, a Caffe or ONNX model file, or `timm:NAME` and `torchvision:NAME`, an
optional extra; and perhaps a weight file, a device and a dtype. Goes out: a `Network`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from deepfishing.errors import (
    LayerError,
    MissingDependencyError,
    NetworkError,
    OptionError,
    WeightsError,
    did_you_mean,
    explained,
    pip_install,
)
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks import architectures
from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.networks.network import Network, cast, ready, state_sha256, torch_target, wrap
from deepfishing.networks.onnx_file import load_onnx
from deepfishing.networks.reference import (
    FILES,
    PROTOTXT,
    PUBLISHED,
    PYTHON,
    RANDOM,
    WEIGHTS,
    NetworkFile,
    NetworkRef,
    Source,
)
from deepfishing.networks.weights import load_into, read_weights
from deepfishing.networks.zoo import DEFAULT, RECORDS, Record, find_weights, is_network_file, record

_OPERATORS: list[Any] = []  # torch forgets operators whose library object is collected


def load_network(
    name: str = DEFAULT,
    weights: str | Path | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    prototxt: str | Path | None = None,
    mean: str | Path | None = None,
    preprocess: str | Path | None = None,
) -> Network:
    """Build a network and load its weights.

    Parameters
    ----------
    name : str
        A name of the zoo (`deepfish models`), a `.caffemodel` or `.onnx` file, `timm:NAME` or
        `torchvision:NAME`.
    weights : path or "random", optional
        A `.pth`, `.safetensors` or, for Caffe's networks, `.caffemodel` file; widths and class
        count are read off it. Without it the published weights, whose hash is checked. "random"
        gives seeded random weights, for tests and timing.
    device : str or torch.device
        "cpu", "cuda", "cuda:1", "mps".
    dtype : str
        "float32", "float64", "float16" or "bfloat16".
    prototxt, mean : path, optional
        For a `.caffemodel` file: its description, and its mean image or pixel, see `load_caffe`.
    preprocess : str or path, optional
        For an `.onnx` file that does not say it: how it wants its pixels, see `find_preprocess`.

    Returns
    -------
    network : Network
    """
    hub, _, model = name.partition(":")
    if str(weights) == RANDOM:
        weights = RANDOM
    is_caffe = name.endswith(".caffemodel")
    if (prototxt or mean) and not is_caffe:
        raise OptionError(f"prototxt and mean go with a .caffemodel file, got {name!r}")
    if preprocess and not name.endswith(".onnx"):
        raise OptionError(f"preprocess goes with an .onnx file, got {name!r}, which has its own")
    if is_network_file(name):
        if weights is not None:
            raise OptionError(f"{name} brings its own weights, got weights {str(weights)!r} too")
        if not is_caffe:
            return load_onnx(name, preprocess, device=device, dtype=dtype)
        return load_caffe(name, prototxt, mean, device=device, dtype=dtype)
    if model and hub in HUBS:
        return _load_hub(hub, model, weights, device, dtype)
    entry = record(name)
    if weights == RANDOM:
        return random_network(name, dtype=dtype, device=device)
    path = find_weights(entry, weights)
    if path.suffix == ".caffemodel":
        network = load_caffe(path, device=device, dtype=dtype, preprocess=entry.preprocess)
        return replace(network, name=name, source=_source(weights, network.source.files[WEIGHTS]))
    place, torch_dtype = torch_target(device, dtype)
    tensors, file = read_weights(path), NetworkFile.of(path)
    if weights is None and not file.sha256.startswith(entry.weights.sha256):
        raise WeightsError(
            f"{path} must have the sha256 {entry.weights.sha256}.., got {file.sha256}; "
            "remove the file and get it again"
        )
    module = _build(entry, {name: tuple(t.shape) for name, t in tensors.items()})
    # cast before the check, so that a weight too large for float16 is found too
    load_into(module, cast(tensors, torch_dtype), f"{path} for {entry.name}")
    known = ready(module, place), entry.layers, entry.preprocess, file.sha256
    return Network(entry.name, *known, source=_source(weights, file))


def _source(weights: str | Path | None, file: NetworkFile | None = None) -> Source:
    """From where a network is loaded again, after what the user said of its weights."""
    if weights is None or weights == RANDOM:
        return Source(kind=PUBLISHED if weights is None else RANDOM)
    return Source(kind=FILES, files={WEIGHTS: file or NetworkFile.of(weights)})


def _build(entry: Record, shapes: architectures.Shapes) -> nn.Module:
    """The module of a record, with widths read off the weights' shapes and without memory."""
    with torch.device("meta"):  # no memory and no random numbers for what is replaced anyway
        module: nn.Module = getattr(architectures, entry.build)(shapes)
    return module


def load_reference(
    reference: NetworkRef,
    *,
    device: str | torch.device = "cpu",
    weights: str | Path | None = None,
) -> Network:
    """Load the very network of a reference, and check that it is the one.

    `weights` is its weight file, if it is elsewhere now; its prototxt may lie beside it.
    """
    ref, files = reference, dict(reference.source.files)
    if weights is not None and str(weights) != RANDOM:
        files.setdefault(WEIGHTS, NetworkFile(path=str(weights)))
        random = False
    else:
        weights, random = None, str(weights) == RANDOM or ref.source.kind == RANDOM
    is_known = ref.name in RECORDS or ref.name.partition(":")[0] in HUBS
    if not is_known and WEIGHTS not in files:
        how = "only Python has it: pass network= to Searcher or predict"
        if ref.source.kind != PYTHON:
            how = "pass --weights with the .caffemodel or .onnx file that was used"
        raise WeightsError(f"the network {ref.name!r} is not one that is found by name; {how}")
    path = files[WEIGHTS].find(WEIGHTS, weights) if WEIGHTS in files and not random else None
    if is_known:
        network = load_network(ref.name, RANDOM if random else path, device=device, dtype=ref.dtype)
    elif str(path).endswith(".onnx"):
        network = load_onnx(str(path), ref.preprocess, device=device, dtype=ref.dtype)
    else:
        prototxt = files[PROTOTXT].find(PROTOTXT, weights) if PROTOTXT in files else None
        network = load_caffe(
            str(path), prototxt, device=device, dtype=ref.dtype, preprocess=ref.preprocess
        )
    network = replace(network, name=ref.name, preprocess=ref.preprocess)
    check_same(reference, network)
    return network


def check_same(reference: NetworkRef, network: Network) -> None:
    """Refuse a network that would give other factors than that of the reference."""
    mine, theirs = network.reference().as_dict(), reference.as_dict()
    for key in mine:
        if key not in ("network", "source") and mine[key] != theirs[key]:
            raise WeightsError(
                f"the features need {reference.name} with {key} = {theirs[key]}, got "
                f"{network.name} with {mine[key]}; pass --weights with the file that they were "
                "made with"
            )


def random_network(
    name: str = DEFAULT,
    seed: int = 0,
    widths: Mapping[int, int] | None = None,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
) -> Network:
    """Build a network of the zoo with seeded random weights, for tests and timing without files.

    `widths` has the number of outputs of layer k where it differs from the original; 8 is the
    number of classes. Narrow layers make quick tests.
    """
    place, torch_dtype = torch_target(device, dtype)
    entry, other = record(name), dict(sorted((widths or {}).items()))
    if not set(other) <= set(entry.layers):
        raise LayerError(f"widths must be of layers {list(entry.layers)}, got {widths}")
    module = _build(entry, {f"{entry.layers[k]}.weight": (n, 1) for k, n in other.items()})
    random = torch.Generator().manual_seed(seed)
    tensors = {n: _random_like(n, t, random) for n, t in module.state_dict().items()}
    load_into(module, cast(tensors, torch_dtype), f"random-{seed}")
    sha256 = "-".join([f"random-{seed}", *(f"{k}x{n}" for k, n in other.items())])
    known = ready(module, place), entry.layers, entry.preprocess, sha256
    return Network(name, *known, source=Source(kind=RANDOM))


def _random_like(name: str, tensor: Tensor, random: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    if tensor.ndim > 1:  # He's scale keeps the signal alive through many rectified layers
        scale = math.sqrt(2 / tensor[0].numel())
        return torch.randn(tensor.shape, generator=random) * scale
    # one value per channel: a scale or a variance around 1, a bias or a mean around 0
    centre = 1.0 if name.endswith((".weight", "running_var")) else 0.0
    return centre + 0.2 * torch.rand(tensor.shape, generator=random) - 0.1


def _load_hub(
    hub: str, model: str, weights: str | Path | None, device: str | torch.device, dtype: str
) -> Network:
    """A model of timm or torchvision with its published weights, a file's, or random ones."""
    place, torch_dtype = torch_target(device, dtype)
    name = f"{hub}:{model}"
    tensors = None if weights in (None, RANDOM) else read_weights(weights)
    made = "be made with its published weights" if weights is None else "be made"
    do = "; give --weights FILE, or --weights random"  # no connection, or whatever its code raises
    with (
        explained(WeightsError, f"{name} cannot {made}", do),
        torch.random.fork_rng(devices=()),  # what the caller draws stays as it is
    ):
        torch.manual_seed(0)
        module, preprocess = HUBS[hub](model, weights is None)
        if tensors and (classes := _classes(module, tensors)):
            module, preprocess = HUBS[hub](model, False, num_classes=classes)
    if tensors:
        load_into(module, tensors, f"{weights} for {name}")
    wrapped = wrap(module.to(place, torch_dtype), preprocess=preprocess, name=name)
    # the model's name stands for its code
    return replace(wrapped, weights_sha256=state_sha256(module), source=_source(weights))


def _classes(module: nn.Module, tensors: Mapping[str, Tensor]) -> int | None:
    """Of how many classes a file's weights are, if they fit the module but for that."""
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = set()
    for name, tensor in tensors.items():
        if own.get(name) != tensor.shape:
            fits = name in own and tensor.ndim and own[name][1:] == tensor.shape[1:]
            found.add(len(tensor) if fits else None)
    return found.pop() if len(found) == 1 else None


def import_hub(package: str) -> ModuleType:
    """Import torchvision or timm, also beside a torch build that torchvision was not made for."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingDependencyError(
            f"networks of {package} need the package {package}; run "
            f"`{pip_install(extra='hub')}`, or `{pip_install(package)}` with the version that fits "
            "your torch"
        ) from None
    except RuntimeError as error:
        if _OPERATORS or "torchvision::" not in str(error):
            raise NetworkError(f"{package} cannot be imported: {error}") from None
    # torchvision's Python code registers kernels for operators of its compiled part; where that
    # does not load, the operators are declared first: models and transforms do not use them
    _OPERATORS.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        _OPERATORS[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return import_hub(package)


def _timm(model: str, pretrained: bool, **options: int) -> tuple[nn.Module, Preprocess]:
    timm = import_hub("timm")
    if not timm.is_model(model.partition(".")[0]):  # what follows the dot names weights
        raise _unknown("timm", model, timm.list_models())
    module = timm.create_model(model, pretrained=pretrained, **options)
    config = timm.data.resolve_model_data_config(module)
    size, kind = config["input_size"][-1], config["interpolation"]
    short_side = math.floor(size / config["crop_pct"])  # as timm rounds
    return module, _preprocess(size, short_side, config["mean"], config["std"], kind)


def _torchvision(model: str, pretrained: bool, **options: int) -> tuple[nn.Module, Preprocess]:
    models = import_hub("torchvision").models
    known = models.list_models(module=models)
    if model not in known:
        raise _unknown("torchvision", model, known)
    weights = models.get_model_weights(model).DEFAULT
    module = models.get_model(model, weights=weights if pretrained else None, **options)
    config = weights.transforms()
    (size, *_), (short_side, *_) = config.crop_size, config.resize_size
    kind = config.interpolation.value
    return module, _preprocess(size, short_side, config.mean, config.std, kind)


HUBS = {"timm": _timm, "torchvision": _torchvision}


def _preprocess(size: int, short: int, mean: Any, std: Any, interpolation: str) -> Preprocess:
    return Preprocess(
        size=int(size),
        short_side=int(short),
        mean=tuple(mean),
        std=tuple(std),
        scale=1 / 255,
        resample="bicubic" if interpolation == "bicubic" else "bilinear",
    )


def _unknown(hub: str, model: str, known: list[str]) -> NetworkError:
    return NetworkError(
        f"{hub} must know the model, got {model!r}{did_you_mean(model, known)}; it has "
        f"{len(known)} models, see its documentation"
    )
