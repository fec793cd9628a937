"""Stage 2, networks: from a name or a file to a `Network`.

Comes in: a name of the zoo, a Caffe or ONNX model file, or `timm:NAME` and `torchvision:NAME`;
optionally a weight file, a device and a dtype. Goes out: a `Network`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from deepfishing.errors import OptionError, WeightsError
from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.networks.hub import HUBS, load_hub
from deepfishing.networks.network import (
    Network,
    build_module,
    cast,
    random_network,
    ready,
    torch_target,
)
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
from deepfishing.networks.zoo import DEFAULT, RECORDS, find_weights, is_network_file, record


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
        return load_hub(hub, model, weights, device, dtype)
    entry = record(name)
    if weights == RANDOM:
        return random_network(name, dtype=dtype, device=device)
    path = find_weights(entry, weights)
    if path.suffix == ".caffemodel":
        network = load_caffe(path, device=device, dtype=dtype, preprocess=entry.preprocess)
        source = network.source if weights is not None else Source(kind=PUBLISHED)
        return replace(network, name=name, source=source)
    place, torch_dtype = torch_target(device, dtype)
    tensors, file = read_weights(path), NetworkFile.of(path)
    if weights is None and not file.sha256.startswith(entry.weights.sha256):
        raise WeightsError(
            f"{path} must have the sha256 {entry.weights.sha256}.., got {file.sha256}; "
            "remove the file and get it again"
        )
    module = build_module(entry, {name: tuple(t.shape) for name, t in tensors.items()})
    # cast before the check, so that a weight too large for float16 is found too
    load_into(module, cast(tensors, torch_dtype), f"{path} for {entry.name}")
    own = Source(kind=FILES, files={WEIGHTS: file})
    return Network(
        name=entry.name,
        module=ready(module, place),
        layers=entry.layers,
        preprocess=entry.preprocess,
        weights_sha256=file.sha256,
        source=Source(kind=PUBLISHED) if weights is None else own,
    )


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
