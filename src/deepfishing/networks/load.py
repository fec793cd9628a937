"""Loading of a network by a name or from a file.

A name is one of the zoo, a Caffe or ONNX model file, or that of another library: `timm:NAME`,
`torchvision:NAME`, `hf:ORG/NAME` or `open_clip:NAME/TAG`, or a folder behind the colon.
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
    explained,
)
from deepfishing.networks import architectures
from deepfishing.networks.caffe.importer import load_caffe
from deepfishing.networks.discover import find_layers
from deepfishing.networks.libraries import (
    open_clip_models,
    timm_models,
    torchvision_models,
    transformers_models,
)
from deepfishing.networks.libraries.facts import ModelFacts
from deepfishing.networks.network import (
    Network,
    cast,
    make_network,
    ready,
    torch_target,
    wrap,
)
from deepfishing.networks.onnx_file import load_onnx
from deepfishing.networks.outputs import Pick
from deepfishing.networks.prompts import PROMPT, prompts_of, read_classes
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
from deepfishing.networks.state_dicts import (
    match_by_order,
    missing_layers,
    remove_layers,
)
from deepfishing.networks.text_head import add_text_head, with_weights
from deepfishing.networks.texts import unpack
from deepfishing.networks.weights import load_into, read_weights
from deepfishing.networks.zoo import (
    DEFAULT,
    RECORDS,
    Record,
    find_weights,
    is_network_file,
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
    prototxt: str | Path | None = None,
    mean: str | Path | None = None,
    preprocess: str | Path | None = None,
    embedding: str | None = None,
    classes: str | Path | Sequence[str] | None = None,
    prompt: str = PROMPT,
) -> Network:
    """Build a network and load its weights.

    Parameters
    ----------
    name : str
        A name of the zoo (`deepfish models`), a `.caffemodel` or `.onnx` file, `timm:NAME`,
        `torchvision:NAME`, `hf:ORG/NAME`, `hf:FOLDER`, `open_clip:NAME/TAG` or
        `open_clip:FOLDER`.
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
    embedding : str, optional
        For an `.onnx` file without a classifier: the tensor that is x7, see `load_onnx`.
    classes : path or sequence of str, optional
        For a network with a text tower: names of classes, or a file with one per line, of which a
        classifier is made.
    prompt : str
        What the text tower reads of a class; its name is put in place of `{}`.

    Returns
    -------
    network : Network
    """
    hub, _, model = name.partition(":")
    if classes is not None:
        names = read_classes(classes)
        prompts = prompts_of(names, prompt)
        plain = load_network(name, weights, device=device, dtype=dtype)
        return add_text_head(plain, names, prompts)
    if str(weights) == RANDOM:
        weights = RANDOM
    is_caffe = name.endswith(".caffemodel")
    if (prototxt or mean) and not is_caffe:
        raise OptionError(f"prototxt and mean go with a .caffemodel file, got {name!r}")
    if preprocess and not name.endswith(".onnx"):
        raise OptionError(
            f"preprocess goes with an .onnx file, got {name!r}, which has its own"
        )
    if embedding and not name.endswith(".onnx"):
        raise OptionError(
            f"embedding goes with an .onnx file, got {name!r}; use wrap in Python"
        )
    if is_network_file(name):
        if weights is not None:
            raise OptionError(
                f"{name} brings its own weights, got weights {str(weights)!r} too"
            )
        if not is_caffe:
            return load_onnx(
                name, preprocess, embedding=embedding, device=device, dtype=dtype
            )
        return load_caffe(name, prototxt, mean, device=device, dtype=dtype)
    if model and hub in HUBS:
        return _load_hub(hub, model, weights, device, dtype)
    entry = record(name)
    if weights == RANDOM:
        return random_network(name, dtype=dtype, device=device)
    path = find_weights(entry, weights)
    if path.suffix == ".caffemodel":
        network = load_caffe(
            path, device=device, dtype=dtype, preprocess=entry.preprocess
        )
        return replace(
            network, name=name, source=_source(weights, network.source.files[WEIGHTS])
        )
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
    with torch.device("meta"):
        # no memory and no random numbers for what is replaced anyway
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
        raise WeightsError(
            f"the network {ref.name!r} is not one that is found by name; {how}"
        )
    path = (
        files[WEIGHTS].find(WEIGHTS, weights)
        if WEIGHTS in files and not random
        else None
    )
    if is_known:
        network = load_network(
            ref.name, RANDOM if random else path, device=device, dtype=ref.dtype
        )
        if ref.source.text_head:
            W = unpack(ref.source.text_head)
            network = with_weights(network, ref.source.classes, W)
    elif str(path).endswith(".onnx"):
        tensor = ref.source.embedding or None
        network = load_onnx(
            str(path), ref.preprocess, embedding=tensor, device=device, dtype=ref.dtype
        )
    else:
        prototxt = (
            files[PROTOTXT].find(PROTOTXT, weights) if PROTOTXT in files else None
        )
        network = load_caffe(
            str(path),
            prototxt,
            device=device,
            dtype=ref.dtype,
            preprocess=ref.preprocess,
        )
    network = replace(network, name=ref.name, preprocess=ref.preprocess)
    check_same(reference, network)
    return network


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


def _load_hub(
    hub: str,
    model: str,
    weights: str | Path | None,
    device: str | torch.device,
    dtype: str,
) -> Network:
    """A model of another library with its published weights, a file's, or random ones."""
    place, torch_dtype = torch_target(device, dtype)
    model = _resolved(model)
    name = f"{hub}:{model}"
    tensors: Mapping[str, Tensor] | None = None
    if weights is not None and weights != RANDOM:
        tensors = read_weights(weights)
    notes: list[str] = []
    made = "be made with its published weights" if weights is None else "be made"
    # no connection, or whatever its code raises
    do = "; give --weights FILE, or --weights random"
    with (
        explained(WeightsError, f"{name} cannot {made}", do),
        torch.random.fork_rng(devices=()),  # what the caller draws stays as it is
    ):
        torch.manual_seed(0)
        module, facts = HUBS[hub](model, weights is None)
        if tensors:
            module, facts, tensors, notes = _fitted(hub, model, module, facts, tensors)
    if tensors:
        load_into(module, tensors, f"{weights} for {name}")
    module = module.to(place, torch_dtype)
    network = make_network(module, facts, name=name)
    network = replace(network, notes=(*network.notes, *notes))
    source = replace(
        _source(weights), classes=facts.classes, reads_texts=facts.reads_texts
    )
    return replace(network, source=source)


def _fitted(
    hub: str,
    model: str,
    module: nn.Module,
    facts: ModelFacts,
    tensors: Mapping[str, Tensor],
) -> tuple[nn.Module, ModelFacts, Mapping[str, Tensor], list[str]]:
    """A module and the tensors of a file that fit each other as far as possible, and notes."""
    if hub == "timm":
        tensors = timm_models.convert(module, tensors)
    tensors, note = match_by_order(module, tensors)
    notes = [note] if note else []
    if classes := _classes(module, tensors):
        return (*HUBS[hub](model, False, num_classes=classes), tensors, notes)
    missing = missing_layers(module, tensors)
    if not missing or facts.embeds or facts.preprocess is None:
        return module, facts, tensors, notes
    numbered = find_layers(module, facts.preprocess, Pick(facts.part)).layers
    top = [numbered[k] for k in sorted(numbered, reverse=True)][: len(missing)]
    if missing != set(top):
        return module, facts, tensors, notes
    notes.append(
        f"the file lacks {' and '.join(sorted(missing))}: there is no classifier"
    )
    if hub == "timm":
        return (*HUBS[hub](model, False, num_classes=0), tensors, notes)
    remove_layers(module, missing)
    what = "the input of the classifier, which the file of weights lacks"
    return (
        module,
        replace(facts, embeds=True, embedding=what, classes=()),
        tensors,
        notes,
    )


def _resolved(model: str) -> str:
    """A folder by its whole path, so that it is found again from elsewhere."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def _classes(module: nn.Module, tensors: Mapping[str, Tensor]) -> int | None:
    """Of how many classes a file's weights are, if they fit the module but for that."""
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = set()
    for name, tensor in tensors.items():
        if own.get(name) != tensor.shape:
            fits = name in own and tensor.ndim and own[name][1:] == tensor.shape[1:]
            found.add(len(tensor) if fits else None)
    return found.pop() if len(found) == 1 else None


Loaded = tuple[nn.Module, ModelFacts]


def _timm(model: str, pretrained: bool, **options: int) -> Loaded:
    module = timm_models.load(model, pretrained, **options)
    return module, timm_models.describe(module)


def _torchvision(model: str, pretrained: bool, **options: int) -> Loaded:
    module = torchvision_models.load(model, pretrained, **options)
    facts = torchvision_models.describe_model(model, options.get("num_classes"))
    return module, facts


def _transformers(model: str, pretrained: bool, **options: int) -> Loaded:
    module = transformers_models.load(model, pretrained)
    return module, transformers_models.describe(module)


def _open_clip(model: str, pretrained: bool, **options: int) -> Loaded:
    module = open_clip_models.load(model, pretrained)
    return module, open_clip_models.describe(module)


HUBS = {
    "timm": _timm,
    "torchvision": _torchvision,
    "hf": _transformers,
    "open_clip": _open_clip,
}
