"""Loading of a model of timm, torchvision, transformers or open_clip by its name.

Its weights are the published ones, random ones, or those of a file, which may have another number
of classes, no classifier, or other names for its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from deepfishing.errors import WeightsError, reraise_as
from deepfishing.networks.discover import find_layers
from deepfishing.networks.known_files import KNOWN_FILES
from deepfishing.networks.libraries import (
    open_clip_models,
    timm_models,
    torchvision_models,
    transformers_models,
)
from deepfishing.networks.libraries.connection import hub_or_cache
from deepfishing.networks.libraries.facts import ModelFacts
from deepfishing.networks.network import Network, make_network, torch_target
from deepfishing.networks.outputs import Pick
from deepfishing.networks.reference import (
    FILES,
    PUBLISHED,
    RANDOM,
    WEIGHTS,
    NetworkFile,
    Source,
)
from deepfishing.networks.state_dicts import (
    match_by_order,
    missing_layers,
    remove_layers,
    remove_prefix,
)
from deepfishing.networks.weights import load_into, read_weights

Loaded = tuple[nn.Module, ModelFacts]
Tensors = Mapping[str, Tensor]


def load_library_model(
    name: str,
    weights: str | Path | None,
    *,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
) -> Network:
    """Load `LIBRARY:MODEL` with its published weights, a file's, or random ones."""
    target, torch_dtype = torch_target(device, dtype)
    library, _, model = name.partition(":")
    if Path(model).is_dir():
        # by its whole path, so that it is found again from elsewhere
        model = str(Path(model).resolve())
    name = f"{library}:{model}"
    is_published = weights is None
    tensors: Tensors = {}
    if weights is not None and weights != RANDOM:
        tensors = read_weights(weights)
    source = source_of(weights)
    made = "be made with its published weights" if is_published else "be made"
    do = "; give --weights FILE, or --weights random"
    # without a connection, or whatever the library's code raises
    with (
        reraise_as(WeightsError, f"{name} cannot {made}", do),
        hub_or_cache() if _needs_hub(library, model, is_published) else nullcontext(),
        torch.random.fork_rng(devices=()),  # what the caller draws stays as it is
    ):
        torch.manual_seed(0)
        model, note = _model_of_file(library, model, source)
        fitted = _fit(library, model, is_published, tensors)
    if tensors:
        load_into(fitted.module, fitted.tensors, f"{weights} for {name}")
    module = fitted.module.eval().to(target, torch_dtype)
    facts = fitted.facts
    network = make_network(module, facts, name=name)
    source = replace(source, classes=facts.classes, reads_texts=facts.reads_texts)
    notes = [*network.notes]
    if tensors:
        known = KNOWN_FILES.get(source.files[WEIGHTS].sha256)
        notes += [f"{known.title}, by its checksum"] if known else []
        notes += [note or _pixels_note(library, model, fitted), *fitted.notes]
    return replace(network, notes=tuple(filter(None, notes)), source=source)


def _needs_hub(library: str, model: str, is_published: bool) -> bool:
    """Whether a model's files are those of the hub, or of its cache."""
    if library == "torchvision" or Path(model).is_dir():
        return False
    # the others have configurations there, too
    return is_published or library != "timm"


def source_of(weights: str | Path | None, file: NetworkFile | None = None) -> Source:
    """Return from where a network is loaded again, by what the user gave as its weights."""
    if weights is None:
        return Source(kind=PUBLISHED)
    if weights == RANDOM:
        return Source(kind=RANDOM)
    return Source(kind=FILES, files={WEIGHTS: file or NetworkFile.of(weights)})


def _model_of_file(library: str, model: str, source: Source) -> tuple[str, str]:
    """Return a model with the name of the published weights that a file has, and a note."""
    file = source.files.get(WEIGHTS)
    if library != "torchvision" or file is None:
        return model, ""
    tagged = torchvision_models.find_tag(model, file.sha256)
    if not tagged:
        return model, ""
    return tagged, f"the weights of torchvision:{tagged}, by their checksum"


def _pixels_note(library: str, model: str, fitted: _Fitted) -> str:
    """Say how a file's weights are assumed to want their pixels, if their name does not say."""
    if library == "torchvision" and "/" not in model:
        tag, form = torchvision_models.default_tag(model), f"torchvision:{model}/TAG"
    elif library == "timm" and "." not in model:
        tag, form = timm_models.default_tag(fitted.module), f"timm:{model}.TAG"
    else:
        return ""
    pixels = fitted.facts.preprocess
    if pixels is None or not tag:
        return ""
    return (
        f"pixels as those of the published weights {tag}: short side {pixels.short_side}, centre "
        f"{pixels.size}; {form} takes those of others"
    )


@dataclass(frozen=True)
class _Fitted:
    """A module and the tensors of a file that fit each other as far as possible."""

    module: nn.Module
    facts: ModelFacts
    tensors: Tensors
    notes: tuple[str, ...] = ()


def _fit(library: str, model: str, is_published: bool, tensors: Tensors) -> _Fitted:
    """Make a module, with the classes and the classifier that a file has, if there is one."""
    make = LIBRARY_MODELS[library]
    module, facts = make(model, is_published, None)
    if not tensors:
        return _Fitted(module, facts, tensors)
    if library == "timm":
        tensors = timm_models.convert(module, tensors)
    tensors, of_prefix = remove_prefix(module, tensors)
    tensors, of_order = match_by_order(module, tensors)
    notes = tuple(note for note in (of_prefix, of_order) if note)
    classes = _count_classes(module, tensors)
    if classes is not None:
        module, facts = make(model, False, classes)
        return _Fitted(module, facts, tensors, notes)
    missing = _missing_head(module, facts, tensors)
    if not missing:
        return _Fitted(module, facts, tensors, notes)
    lacks = " and ".join(sorted(missing))
    notes = (*notes, f"the file lacks {lacks}: there is no classifier")
    if library == "timm":
        module, facts = make(model, False, 0)
        return _Fitted(module, facts, tensors, notes)
    remove_layers(module, missing)
    what = "the input of the classifier, which the file of weights lacks"
    facts = replace(facts, embeds=True, embedding=what, classes=())
    return _Fitted(module, facts, tensors, notes)


def _count_classes(module: nn.Module, tensors: Tensors) -> int | None:
    """Return how many classes a file's weights have, if they fit the module but for that."""
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    counts: set[int | None] = set()
    for name, tensor in tensors.items():
        if own.get(name) == tensor.shape:
            continue
        fits = name in own and tensor.ndim and own[name][1:] == tensor.shape[1:]
        counts.add(len(tensor) if fits else None)
    return counts.pop() if len(counts) == 1 else None


def _missing_head(module: nn.Module, facts: ModelFacts, tensors: Tensors) -> set[str]:
    """Return the layers that a file lacks, if these are the uppermost ones; else nothing."""
    missing = missing_layers(module, tensors)
    if not missing or facts.embeds or facts.preprocess is None:
        return set()
    layers = find_layers(module, facts.preprocess, Pick(facts.part)).layers
    highest = sorted(layers, reverse=True)[: len(missing)]
    return missing if missing == {layers[k] for k in highest} else set()


def _load_timm(model: str, is_published: bool, classes: int | None) -> Loaded:
    module = timm_models.load(model, is_published, num_classes=classes)
    return module, timm_models.describe(module)


def _load_torchvision(model: str, is_published: bool, classes: int | None) -> Loaded:
    module = torchvision_models.load(model, is_published, num_classes=classes)
    return module, torchvision_models.describe_model(model, classes)


def _load_transformers(model: str, is_published: bool, classes: int | None) -> Loaded:
    if transformers_models.is_of_timm(model):
        source = model if Path(model).is_dir() else f"hf-hub:{model}"
        return _load_timm(source, is_published, classes)
    module = transformers_models.load(model, is_published)
    return module, transformers_models.describe(module)


def _load_open_clip(model: str, is_published: bool, classes: int | None) -> Loaded:
    module = open_clip_models.load(model, is_published)
    return module, open_clip_models.describe(module)


# by library: makes a module, with published weights or random ones, and a number of classes
LIBRARY_MODELS: dict[str, Callable[[str, bool, int | None], Loaded]] = {
    "timm": _load_timm,
    "torchvision": _load_torchvision,
    "hf": _load_transformers,
    "open_clip": _load_open_clip,
}
