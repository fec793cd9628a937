"""Loading of a network by a name or from a file.

A name is one of the zoo, a Caffe, ONNX or TorchScript file, or that of another library:
`timm:NAME`, `torchvision:NAME`, `hf:ORG/NAME` or `open_clip:NAME/TAG`, or a folder behind the
colon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from deepfishing.errors import (
    DeepFishingError,
    LayerError,
    OptionError,
    WeightsError,
)
from deepfishing.networks import architectures
from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.networks.known_files import is_weights_file, network_of_weights
from deepfishing.networks.library_models import load_library_model, source_of
from deepfishing.networks.network import (
    Network,
    cast,
    ready,
    torch_target,
    wrap,
)
from deepfishing.networks.onnx.load import load_onnx
from deepfishing.networks.prompts import read_classes
from deepfishing.networks.reference import (
    PROTOTXT,
    PYTHON,
    RANDOM,
    WEIGHTS,
    NetworkFile,
    NetworkRef,
    Source,
)
from deepfishing.networks.text_head import add_text_head, with_weights
from deepfishing.networks.texts import unpack
from deepfishing.networks.torchscript import load_torchscript
from deepfishing.networks.weights import load_into, read_weights
from deepfishing.networks.zoo import (
    DEFAULT,
    PROTOTXT_SUFFIX,
    RECORDS,
    Record,
    file_of,
    find_weights,
    is_caffe,
    is_library_name,
    is_network_file,
    is_torchscript,
    record,
)


def as_network(
    network: Network | str | nn.Module, device: str | None = None
) -> Network:
    """Return a network: itself, one loaded by its name, or a wrapped torch module."""
    if isinstance(network, str):
        return load_network(network, device=device or "cpu")
    if isinstance(network, nn.Module):
        try:
            network = wrap(network if device is None else network.to(device))
        except DeepFishingError as error:
            raise type(error)(f"{error}; see the options of deepfishing.wrap") from None
    if not isinstance(network, Network):
        raise OptionError(
            "network must be a name, a Network of load_network or wrap, or a torch module, got "
            f"{type(network).__name__}"
        )
    if device is not None and network.device != torch.device(device):
        raise OptionError(
            f"device is for a network that is given by its name, and {network.name} is loaded on "
            f"{network.device}, got {device}; load it there"
        )
    return network


def load_network(
    name: str = DEFAULT,
    weights: str | Path | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    preprocess: str | Path | None = None,
    embedding: str | None = None,
    classes: str | Path | Sequence[str] | None = None,
) -> Network:
    """Build a network and load its weights.

    Parameters
    ----------
    name : str
        A name of the zoo (`deepfish models`), a `.caffemodel` or `.onnx` file, a `.prototxt` file
        with its `.caffemodel` as `weights`, `timm:NAME`,
        `torchvision:NAME`, `hf:ORG/NAME`, `hf:FOLDER`, `open_clip:NAME/TAG`, `open_clip:FOLDER`,
        or `torchscript:FILE` for a program that you trust, since it is code.
    weights : path or "random", optional
        A `.pth`, `.safetensors` or, for Caffe's networks, `.caffemodel` file; widths and class
        count are read off it. Without it the published weights, whose hash is checked. "random"
        gives seeded random weights, for tests and timing.
    device : str or torch.device
        "cpu", "cuda", "cuda:1", "mps".
    dtype : str
        "float32", "float64", "float16" or "bfloat16".
    preprocess : str or path, optional
        For an `.onnx` or TorchScript file that does not say it: how it wants its pixels, see
        `find_preprocess`. For Caffe's files: the mean image or pixel, see `load_caffe`.
    embedding : str, optional
        For an `.onnx` file without a classifier: the tensor that is x7, see `load_onnx`; for a
        TorchScript program: the part of its output, see `load_torchscript`.
    classes : path or sequence of str, optional
        For a network with a text tower: names of classes, or a file with one per line, of which a
        classifier is made; one with `{}` is the text that the text tower reads for a class, by
        default `a photo of {}`.

    Returns
    -------
    network : Network
    """
    if classes is not None:
        wanted = read_classes(classes)
        plain = load_network(name, weights, device=device, dtype=dtype)
        return add_text_head(plain, wanted.names, wanted.texts())
    if str(weights) == RANDOM:
        weights = RANDOM
    _check_file_options(
        name, weights=weights, preprocess=preprocess, embedding=embedding
    )
    if is_caffe(name):
        caffemodel, prototxt = _caffe_files(name, weights)
        return load_caffe(caffemodel, prototxt, preprocess, device=device, dtype=dtype)
    if is_network_file(name):
        load = load_torchscript if is_torchscript(name) else load_onnx
        return load(
            file_of(name), preprocess, embedding=embedding, device=device, dtype=dtype
        )
    if is_weights_file(name):
        return load_network(network_of_weights(name), name, device=device, dtype=dtype)
    if is_library_name(name):
        return load_library_model(name, weights, device=device, dtype=dtype)
    if weights == RANDOM:
        return random_network(name, dtype=dtype, device=device)
    return _load_record(record(name), weights, device, dtype)


def _caffe_files(
    name: str, weights: str | Path | None
) -> tuple[str | Path, str | None]:
    """Return the .caffemodel file, and the .prototxt file if that is the network's name.

    Without `weights` it is the only .caffemodel file in the folder of the .prototxt file.
    """
    if not name.endswith(PROTOTXT_SUFFIX):
        return name, None
    if weights is None:
        beside = sorted(Path(name).parent.glob("*.caffemodel"))
        if len(beside) != 1:
            raise OptionError(
                f"{name} must have its .caffemodel file beside it, got {len(beside)}; pass "
                "--weights FILE"
            )
        weights = beside[0]
    return weights, name


def _check_file_options(name: str, **options: object) -> None:
    """Refuse options that a network of this name does not take."""
    given = {option: value for option, value in options.items() if value is not None}
    is_file = is_network_file(name)
    has_tensors = is_file and not is_caffe(name)
    if not is_file and "preprocess" in given:
        raise OptionError(
            "preprocess goes with a .caffemodel, .onnx or TorchScript file, got "
            f"{name!r}, which has its own"
        )
    if not has_tensors and "embedding" in given:
        raise OptionError(
            f"embedding goes with an .onnx or TorchScript file, got {name!r}; use wrap in Python"
        )
    has_weights = is_file and not name.endswith(PROTOTXT_SUFFIX)
    if "weights" in given and (has_weights or is_weights_file(name)):
        raise OptionError(
            f"{name} brings its own weights, got weights {str(given['weights'])!r} too"
        )


def _load_record(
    entry: Record,
    weights: str | Path | None,
    device: str | torch.device,
    dtype: str,
) -> Network:
    """Load a network of the zoo with its published weights or those of a file."""
    path = find_weights(entry, weights)
    if path.suffix == ".caffemodel":
        network = load_caffe(
            path, device=device, dtype=dtype, preprocess=entry.preprocess
        )
        source = source_of(weights, network.source.files[WEIGHTS])
        return replace(network, name=entry.name, source=source)
    target, torch_dtype = torch_target(device, dtype)
    tensors, file = read_weights(path), NetworkFile.of(path)
    if weights is None and not file.sha256.startswith(entry.weights.sha256):
        raise WeightsError(
            f"{path} must have the sha256 {entry.weights.sha256}.., got {file.sha256}; "
            "remove the file and get it again"
        )
    module = _build(entry, {name: tuple(t.shape) for name, t in tensors.items()})
    # cast before the check, so that a weight too large for float16 is found too
    load_into(module, cast(tensors, torch_dtype), f"{path} for {entry.name}")
    return Network(
        name=entry.name,
        module=ready(module, target),
        layers=entry.layers,
        preprocess=entry.preprocess,
        weights_sha256=file.sha256,
        source=source_of(weights, file),
    )


def _build(entry: Record, shapes: architectures.Shapes) -> nn.Module:
    """Return the module of a record, with widths read off the weights' shapes."""
    # no memory and no random numbers for what is replaced anyway
    with torch.device("meta"):
        module: nn.Module = getattr(architectures, entry.build)(shapes)
    return module


def load_reference(
    reference: NetworkRef,
    *,
    device: str | torch.device = "cpu",
    weights: str | Path | None = None,
) -> Network:
    """Reload the network of a reference, and check that it is the same.

    `weights` is its weight file, if it is elsewhere now; its prototxt may be beside it.
    """
    is_random = reference.source.kind == RANDOM
    if weights is not None:
        is_random = str(weights) == RANDOM
    moved = None if weights is None or is_random else weights
    if reference.name in RECORDS or is_library_name(reference.name):
        network = _reload_by_name(reference, moved, is_random, device)
    else:
        network = _reload_file(reference, moved, device)
    network = replace(network, name=reference.name, preprocess=reference.preprocess)
    check_same(reference, network)
    return network


def _reload_by_name(
    reference: NetworkRef,
    moved: str | Path | None,
    is_random: bool,
    device: str | torch.device,
) -> Network:
    """Reload a network of the zoo or of another library."""
    weights: str | Path | None = RANDOM if is_random else None
    file = _file(reference, WEIGHTS, moved)
    if file is not None and not is_random:
        weights = file.find(WEIGHTS, moved)
    network = load_network(
        reference.name, weights, device=device, dtype=reference.dtype
    )
    source = reference.source
    if source.text_head:
        network = with_weights(network, source.classes, unpack(source.text_head))
    return network


def _reload_file(
    reference: NetworkRef, moved: str | Path | None, device: str | torch.device
) -> Network:
    """Reload a network that is a file."""
    file = _file(reference, WEIGHTS, moved)
    if file is None:
        how = "only Python has it: pass network= to Searcher or predict"
        if reference.source.kind != PYTHON:
            how = "pass --weights with the .caffemodel or .onnx file that was used"
        raise WeightsError(
            f"the network {reference.name!r} is not one that is found by name; {how}"
        )
    path = file.find(WEIGHTS, moved)
    tensor = reference.source.embedding or None
    pixels, dtype = reference.preprocess, reference.dtype
    if is_torchscript(reference.name):
        return load_torchscript(
            path, pixels, embedding=tensor, device=device, dtype=dtype, is_asked=False
        )
    if path.suffix == ".onnx":
        return load_onnx(path, pixels, embedding=tensor, device=device, dtype=dtype)
    prototxt = _file(reference, PROTOTXT, None)
    return load_caffe(
        str(path),
        None if prototxt is None else prototxt.find(PROTOTXT, moved),
        device=device,
        dtype=dtype,
        preprocess=pixels,
    )


def _file(
    reference: NetworkRef, role: str, moved: str | Path | None
) -> NetworkFile | None:
    """Return a file of a reference, or the one that a user gives where it has none."""
    file = reference.source.files.get(role)
    if file is None and moved is not None:
        return NetworkFile(path=str(moved))
    return file


def check_same(reference: NetworkRef, network: Network) -> None:
    """Refuse a network that would give other factors than that of the reference."""
    mine, theirs = network.reference().as_dict(), reference.as_dict()
    for key in mine:
        if key not in ("network", "source") and mine[key] != theirs.get(key):
            raise WeightsError(
                f"the features need {reference.name} with {key} = {theirs.get(key)}, got "
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
    module = _build(
        entry, {f"{entry.layers[k]}.weight": (n, 1) for k, n in other.items()}
    )
    random = torch.Generator().manual_seed(seed)
    tensors = {n: _random_like(n, t, random) for n, t in module.state_dict().items()}
    load_into(module, cast(tensors, torch_dtype), f"random-{seed}")
    sha256 = "-".join([f"random-{seed}", *(f"{k}x{n}" for k, n in other.items())])
    known = ready(module, place), entry.layers, entry.preprocess, sha256
    return Network(name, *known, source=Source(kind=RANDOM))


def _random_like(name: str, tensor: Tensor, random: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    if tensor.ndim > 1:
        # He's scale keeps the signal alive through many rectified layers
        scale = math.sqrt(2 / tensor[0].numel())
        return torch.randn(tensor.shape, generator=random) * scale
    # one value per channel: a scale or a variance around 1, a bias or a mean around 0
    centre = 1.0 if name.endswith((".weight", "running_var")) else 0.0
    return centre + 0.2 * torch.rand(tensor.shape, generator=random) - 0.1
