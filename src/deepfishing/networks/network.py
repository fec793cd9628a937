"""Frozen networks, and the wrapping of a user's own module.

A `Network` is a module in eval mode, the paper's numbers for its layers, its preprocessing and the
hash of its weights, which together decide every feature. `wrap` makes one of a module of your own,
its classifier found and its weights hashed; `load` makes them from names and files.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from deepfishing.core.features import NO_CLASSIFIER, TOP
from deepfishing.errors import (
    LayerError,
    OptionError,
    WeightsError,
    check_choice,
    did_you_mean,
)
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.discover import (
    check_layers,
    find_below,
    find_layers,
    is_program,
    run_blank,
)
from deepfishing.networks.identity import architecture, identity
from deepfishing.networks.libraries import (
    open_clip_models,
    timm_models,
    transformers_models,
)
from deepfishing.networks.libraries.facts import ModelFacts
from deepfishing.networks.objectives import find_objective
from deepfishing.networks.outputs import (
    EMBEDDING_PARTS,
    TOKENS,
    Part,
    Pick,
    named_part,
    take_part,
)
from deepfishing.networks.reference import EMBEDDING, RANDOM, NetworkRef, Source
from deepfishing.networks.zoo import IMAGENET

DTYPES = ("float32", "float64", "float16", "bfloat16")
# by the package that a module's class is in: our code that describes such networks
DESCRIBED: Mapping[str, ModuleType] = {
    "timm": timm_models,
    "transformers": transformers_models,
    "open_clip": open_clip_models,
}

Head = str | Callable[[Any], Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """A frozen network.

    Parameters
    ----------
    name : str
        As in the zoo, or your own.
    module : Module
        In eval mode, without gradients of its parameters.
    layers : mapping from int to str
        k -> dotted name of the module that holds W_k.
    preprocess : Preprocess
        How it wants its pixels.
    weights_sha256 : str
        Which weights these are.
    head : "softmax", "sigmoid", "none" or callable
        What the scores mean, which decides the error E: one class per image, any number of
        classes per image, nothing since the output is an embedding, or E itself as a function of
        the module's output.
    pick : callable, optional
        Takes the scores, or the embedding, out of the module's output.
    source : Source
        From where it can be loaded again.
    notes : tuple of str
        What was assumed when it was loaded; a line each, for people.
    prefix_tokens : int
        Number of tokens before those of the patches in a transformer; the first is the class token.
    embedding : str
        What x7 is in a network without a classifier, and why.

    Examples
    --------
    >>> from deepfishing.networks.load import random_network
    >>> net = random_network("alexnet-torchvision", widths={6: 8, 7: 8, 8: 5})
    >>> net.layer(7), net.dtype, net.weights_sha256
    ('classifier.4', torch.float32, 'random-0-6x8-7x8-8x5')
    """

    name: str
    module: nn.Module
    layers: Mapping[int, str]
    preprocess: Preprocess
    weights_sha256: str
    head: Head = "softmax"
    pick: Callable[[Any], Tensor] | None = None
    source: Source = field(default_factory=Source)
    notes: tuple[str, ...] = ()
    prefix_tokens: int = 0
    embedding: str = ""

    def __repr__(self) -> str:
        numbered = [f"{k} {path}" for k, path in self.layers.items()]
        layers = ", ".join(numbered) or "none numbered"
        size, dtype = self.preprocess.size, str(self.dtype).removeprefix("torch.")
        return f"Network({self.name!r}, layers {layers}, {size} pixels, {dtype} on {self.device})"

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self._like.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights, and of the input."""
        return self._like.dtype

    @property
    def _like(self) -> Tensor:
        return next(self.module.parameters(), torch.zeros(0))

    def reference(self) -> NetworkRef:
        """Return everything that determines a feature, and the source to load it from."""
        head = self.head
        if not isinstance(head, str):
            head = identity(head)
        scores = ""
        if isinstance(self.pick, Pick):
            scores = self.pick.identity()
        elif self.pick is not None:
            scores = identity(self.pick)
        return NetworkRef(
            name=self.name,
            weights_sha256=self.weights_sha256,
            layers=self.layers,
            preprocess=self.preprocess,
            dtype=str(self.dtype).removeprefix("torch."),
            head=head,
            scores=scores,
            prefix_tokens=self.prefix_tokens,
            source=self.source,
        )

    def layer(self, k_or_path: int | str) -> str:
        """Return the dotted path of layer k, or the path itself if the network has that module."""
        paths = [path for path, _ in self.module.named_modules() if path]
        if k_or_path in self.layers:
            return self.layers[int(k_or_path)]
        if k_or_path in paths:
            return str(k_or_path)
        hint = ""
        if isinstance(k_or_path, str):
            hint = did_you_mean(k_or_path, paths)
        hint = hint or f"; run `deepfish models {self.name}`"
        raise LayerError(
            f"layer must be one of {', '.join(map(str, self.layers))} or the path of a module for "
            f"{self.name}, got {k_or_path!r}{hint}"
        )


def wrap(
    module: nn.Module,
    layers: Mapping[int, str] | None = None,
    preprocess: Preprocess | None = None,
    name: str = "",
    head: Head | None = None,
    logits: Part | None = None,
    embedding: Part | bool | None = None,
    tokens: str = "",
    seed: int = 0,
) -> Network:
    """Make a `Network` of any torch module.

    Every Linear and Conv2d of it is then a gradient layer, `dW:PATH` with its dotted path;
    `layers` gives some of them the short names. A module without a classifier has forward features
    only: `x7` is its output.

    Parameters
    ----------
    module : nn.Module
        It is not changed, and its mode and `requires_grad` are restored after each use. Of a
        TorchScript program (`torch.jit.load`) the output is taken as the embedding.
    layers : mapping from int to str, optional
        k -> path of the module that holds W_k, 8 being the classifier: fully connected layers or
        1x1 convolutions. Without it the classifier and the fully connected layers right below it
        are found by running the module on a blank image.
    preprocess : Preprocess, optional
        How it wants its pixels, or an image processor of transformers. By default that of the
        library it comes from (timm, transformers and open_clip), else ImageNet's mean and deviation
        at 224 px.
    name : str
        The module's class by default.
    head : "softmax", "sigmoid", "none", "random" or callable, optional
        What the output means: scores of one class per image; of any number of classes per image;
        an embedding without a classifier; an embedding which gets a fixed random linear head of
        1,000 classes; or the error E(output) itself, summed over the batch. By default softmax
        where a fully connected layer or a 1x1 convolution makes the output, else none.
    logits : str, int or callable, optional
        Where the scores are in an output that is a dict, a tuple or an object.
    embedding : str, int, callable or True, optional
        Where the embedding is in the output, True if it is all of it; implies `head="none"`.
    tokens : "class", "patches" or "mean", optional
        Which tokens of an embedding (n, tokens, d) are taken.
    seed : int
        Of the random head.

    Examples
    --------
    >>> net = wrap(nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 5), nn.ReLU(),
    ...                          nn.Linear(5, 4)))
    >>> net.layers
    {7: '1', 8: '3'}
    >>> wrap(nn.Sequential(nn.Conv2d(3, 5, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten())).layers
    {8: '-'}
    """
    module = getattr(module, "_orig_mod", module)  # what torch.compile was given
    is_script = isinstance(module, torch.jit.ScriptModule)
    if not isinstance(module, nn.Module) or (is_program(module) and not is_script):
        raise OptionError(
            f"module must be a torch module with its layers, got {type(module).__name__}; give the "
            "module that it was made of"
        )
    _check_meaning(head, logits, embedding, tokens)
    if is_script:
        _check_script(head, logits, layers)
    weights = state_sha256(module)
    name = name or type(module).__name__
    module = image_tower(module)
    facts = describe(module)
    if is_script:
        facts = ModelFacts(
            embeds=True,
            embedding="the output of a TorchScript program, whose layers are closed",
        )
    if preprocess is not None:
        facts = replace(facts, preprocess=as_preprocess(preprocess))
    meaning = Meaning(head, logits, embedding, tokens, seed)
    network = make_network(module, facts, name=name, meaning=meaning, layers=layers)
    code = architecture(module) + weights.encode()
    return replace(network, weights_sha256=hashlib.sha256(code).hexdigest())


def _check_script(head: Head | None, logits: Part | None, layers: Any) -> None:
    """Refuse what needs the layers of a TorchScript program, which cannot be read."""
    if logits is not None or layers or head not in (None, EMBEDDING, RANDOM):
        raise OptionError(
            "a TorchScript program must be used as an embedding, since its layers cannot be read; "
            "leave head, logits and layers out, or give the module that it was made of"
        )


@dataclass(frozen=True)
class Meaning:
    """Options of `wrap` about the module's output."""

    head: Head | None = None
    logits: Part | None = None
    embedding: Part | bool | None = None
    tokens: str = ""
    seed: int = 0


def make_network(
    module: nn.Module,
    facts: ModelFacts,
    *,
    name: str,
    meaning: Meaning = Meaning(),  # noqa: B008 - a frozen value
    layers: Mapping[int, str] | None = None,
) -> Network:
    """Make a `Network` of a module with facts of its library; its hash is that of the weights."""
    pixels = facts.preprocess or IMAGENET
    if layers is not None:
        check_layers(module, layers)
    output = _find_output(module, pixels, facts, meaning, layers)
    return Network(
        name=name,
        module=module,
        layers=dict(sorted(output.layers.items())),
        preprocess=pixels,
        weights_sha256=weights_hash(module, facts),
        head=output.head,
        pick=output.pick,
        notes=output.notes,
        prefix_tokens=facts.prefix_tokens,
        embedding=output.embedding,
        source=Source(classes=facts.classes),
    )


def weights_hash(module: nn.Module, facts: ModelFacts) -> str:
    """Return a hash of a model's weights and of its library's configuration."""
    sha256 = state_sha256(module)
    if facts.config:
        sha256 = hashlib.sha256(facts.config.encode() + sha256.encode()).hexdigest()
    return sha256


def as_preprocess(given: Any) -> Preprocess:
    """Return a `Preprocess`, or that of an image processor of transformers."""
    if isinstance(given, Preprocess):
        return given
    if hasattr(given, "image_mean"):
        return transformers_models.read_processor(given)
    raise OptionError(
        "preprocess must be a Preprocess or an image processor of transformers, got "
        f"{type(given).__name__}"
    )


def image_tower(module: nn.Module) -> nn.Module:
    """Return the part of a library's model that takes images; other modules unchanged."""
    library = _library(module)
    if library is None or not hasattr(library, "image_tower"):
        return module
    tower: nn.Module = library.image_tower(module)
    return tower


def describe(module: nn.Module) -> ModelFacts:
    """Return the facts about a module from its library."""
    library = _library(module)
    if library is None:
        return ModelFacts()
    facts: ModelFacts = library.describe(module)
    return facts


def _library(module: nn.Module) -> ModuleType | None:
    """Return our code for the library of a module's class; None for other modules."""
    if isinstance(module, transformers_models.ImageTower):
        return transformers_models
    return DESCRIBED.get(type(module).__module__.partition(".")[0])


def _check_meaning(
    head: Head | None, logits: Part | None, embedding: Part | bool | None, tokens: str
) -> None:
    """Refuse a meaning of the output that contradicts itself."""
    if isinstance(head, str) and head not in (RANDOM, EMBEDDING):
        find_objective(head)
    if tokens:
        check_choice("tokens", tokens, TOKENS)
    if logits is not None and embedding is not None:
        raise OptionError(
            "logits and embedding must not both be given; take one of them"
        )
    if embedding is not None and head not in (None, EMBEDDING, RANDOM):
        raise OptionError(
            f"an embedding has no class scores, got head {head!r}; leave head out"
        )
    if logits in EMBEDDING_PARTS and head is None:
        raise OptionError(
            f"{logits} is an embedding, not class scores; pass embedding={logits!r}, or head= if "
            "its numbers are scores of classes"
        )


@dataclass(frozen=True)
class _Output:
    """Kind of a module's output, and its numbered layers."""

    pick: Pick
    head: Head
    layers: Mapping[int, str]
    notes: tuple[str, ...] = ()
    embedding: str = ""


def _find_output(
    module: nn.Module,
    pixels: Preprocess,
    facts: ModelFacts,
    meaning: Meaning,
    layers: Mapping[int, str] | None,
) -> _Output:
    """Determine the output: by options of the user, by the library, or by a blank image."""
    head, logits = meaning.head, meaning.logits
    if callable(head):
        return _Output(Pick(logits), head, layers or {})
    if head == RANDOM:
        return _Output(_random_scores(facts, meaning), "softmax", layers or {})
    if layers is not None and meaning.embedding is None and head != EMBEDDING:
        return _Output(Pick(logits), head or "softmax", layers)
    if meaning.embedding is not None or head == EMBEDDING:
        return _asked_embedding(module, pixels, facts, meaning)
    if head is None and logits is None and facts.embeds:
        return _embedding(
            module, pixels, facts, facts.part, facts.tokens, facts.embedding
        )
    part = logits
    if logits is None and facts.embeds is False:
        part = facts.part
    if head is None and part is None:
        output = run_blank(module, pixels)
        part = named_part(output)
        value = take_part(output, part)
        if part in EMBEDDING_PARTS or (isinstance(value, Tensor) and value.ndim == 4):
            kind = "the mean of the output's feature map"
            if part:
                kind = f"{part} of the output"
            why = f"{kind}, which has no class scores"
            return _embedding(module, pixels, facts, part, meaning.tokens, why)
    pick = Pick(part)
    result = find_layers(module, pixels, pick, is_scores=facts.embeds is False)
    if result.layers or head is not None:
        return _Output(pick, head or "softmax", result.layers, result.notes)
    why = f"the output, since {result.no_scores}"
    return _embedding(module, pixels, facts, part, meaning.tokens, why)


def _random_scores(facts: ModelFacts, meaning: Meaning) -> Pick:
    """Return the choice of scores that a random head computes from an embedding."""
    part = meaning.logits
    if meaning.embedding is not None and not isinstance(meaning.embedding, bool):
        part = meaning.embedding
    tokens = meaning.tokens
    if part is None and facts.embeds:
        part, tokens = facts.part, tokens or facts.tokens
    embeds = meaning.embedding is not None or bool(facts.embeds)
    return Pick(part, meaning.seed, embeds, tokens, facts.prefix_tokens)


def _asked_embedding(
    module: nn.Module, pixels: Preprocess, facts: ModelFacts, meaning: Meaning
) -> _Output:
    """Return the output of an embedding that is asked for."""
    part = meaning.logits
    if meaning.embedding is not None and not isinstance(meaning.embedding, bool):
        part = meaning.embedding
    if part is None and facts.embeds:
        tokens = meaning.tokens or facts.tokens
        return _embedding(module, pixels, facts, facts.part, tokens, facts.embedding)
    why = "the output, as it was asked for"
    if part is not None:
        name = getattr(part, "__name__", repr(part))
        why = f"{name} of the output, as it was asked for"
    return _embedding(module, pixels, facts, part, meaning.tokens, why)


def _embedding(
    module: nn.Module,
    pixels: Preprocess,
    facts: ModelFacts,
    part: Part | None,
    tokens: str,
    why: str,
) -> _Output:
    """Return the output of a network without a classifier."""
    tokens = tokens or _usual_tokens(module, pixels, facts, part)
    pick = Pick(part, embeds=True, tokens=tokens, prefix_tokens=facts.prefix_tokens)
    layers = {**find_below(module, pixels, pick), TOP: NO_CLASSIFIER}
    texts = {
        "class": ", class token",
        "patches": ", mean of the patches",
        "mean": ", mean",
    }
    text = why
    if tokens != facts.tokens:
        text += texts.get(tokens, "")
    return _Output(pick, EMBEDDING, layers, (f"no classifier: x7 is {text}",), text)


def _usual_tokens(
    module: nn.Module, pixels: Preprocess, facts: ModelFacts, part: Part | None
) -> str:
    """Take the class token of an output of tokens, if the library reports one."""
    value = take_part(run_blank(module, pixels), part)
    has_tokens = isinstance(value, Tensor) and value.ndim == 3
    return "class" if has_tokens and facts.prefix_tokens else ""


def state_sha256(module: nn.Module) -> str:
    """Hash of a module's weights, 64 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if not _has_numbers(tensor):
            kind = type(tensor).__name__
            where = f" on {tensor.device}" if isinstance(tensor, Tensor) else ""
            raise WeightsError(
                f"the module's weights must be dense numbers, got a {kind}{where} for {name}; load "
                "its weights first, and do not quantise it"
            )
        digest.update(name.encode())
        digest.update(
            tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()


def _has_numbers(tensor: Any) -> bool:
    is_plain = isinstance(tensor, Tensor) and not nn.parameter.is_lazy(tensor)
    return (
        is_plain
        and tensor.layout == torch.strided
        and not (tensor.is_meta or tensor.is_quantized)
    )


def ready(module: nn.Module, device: torch.device) -> nn.Module:
    """The module on a device, in eval mode, its parameters without gradients."""
    # pixel by pixel in memory: a fifth to a third faster on a CPU, the same outputs
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module.eval().requires_grad_(False).to(device)


def cast(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Floating-point tensors of another dtype, the others as they are."""
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}


def torch_target(
    device: str | torch.device, dtype: str
) -> tuple[torch.device, torch.dtype]:
    """A device that exists and can hold numbers of this dtype, and the dtype as torch has it."""
    check_choice("dtype", dtype, DTYPES)
    torch_dtype: torch.dtype = getattr(torch, dtype)
    try:
        place = torch.device(device)
        # the only way to know that it works
        torch.zeros(1, dtype=torch_dtype, device=place).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        # torch explains at length
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise OptionError(
            f"device must be cpu, or cuda or mps where there is one, got {str(device)!r} ({reason})"
        ) from None
    if torch_dtype == torch.bfloat16 and place.type == "cpu":
        _check_bfloat16()
    return place, torch_dtype


@cache
def _check_bfloat16() -> None:
    """Refuse bfloat16 where it would end the process."""
    # some virtual machines announce AMX instructions but do not let programs use them; torch then
    # dies of an illegal instruction, so only another process can find out
    code = (
        "import torch; torch.nn.Linear(64, 64).bfloat16()(torch.ones(8, 64).bfloat16())"
    )
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True)  # noqa: S603
    if tried.returncode:
        raise OptionError(
            "bfloat16 must work on this processor, but it ends the process; use float32, or set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 and try again"
        )
