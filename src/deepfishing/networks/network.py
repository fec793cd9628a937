"""Stage 2, networks: a frozen network, ready to be asked for x_k and delta_k.

A `Network` is a module in eval mode, the paper's numbers for its layers, its preprocessing and the
hash of its weights, which together decide every feature. `wrap` makes one of a module of your own,
its classifier found and its weights hashed; `load` makes them from names and files.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from deepfishing.errors import LayerError, OptionError, WeightsError, check_choice, did_you_mean
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.discover import check_layers, find_layers, is_program
from deepfishing.networks.identity import architecture, identity
from deepfishing.networks.objectives import find_objective
from deepfishing.networks.reference import RANDOM, UNIDENTIFIED, NetworkRef, Source
from deepfishing.networks.zoo import IMAGENET

DTYPES = ("float32", "float64", "float16", "bfloat16")
RANDOM_CLASSES = 1000  # of the head of an embedding

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
    head : "softmax", "sigmoid" or callable
        What the scores mean, which decides the error E: one class per image, any number of
        classes per image, or E itself as a function of the module's output.
    pick : callable, optional
        Takes the scores out of the module's output where that is not a tensor.
    source : Source
        From where it can be loaded again.
    notes : tuple of str
        What was assumed when it was loaded; a line each, for people.

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

    def __repr__(self) -> str:
        layers = ", ".join(f"{k} {path}" for k, path in self.layers.items()) or "none numbered"
        size, dtype = self.preprocess.size, str(self.dtype).removeprefix("torch.")
        return f"Network({self.name!r}, layers {layers}, {size} pixels, {dtype} on {self.device})"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._like.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, and so of the input."""
        return self._like.dtype

    @property
    def _like(self) -> Tensor:
        return next(self.module.parameters(), torch.zeros(0))

    def reference(self) -> NetworkRef:
        """All of it that decides a feature, and from where it can be loaded again."""
        known = getattr(self.pick, "identity", None)
        return NetworkRef(
            name=self.name,
            weights_sha256=self.weights_sha256,
            layers=self.layers,
            preprocess=self.preprocess,
            dtype=str(self.dtype).removeprefix("torch."),
            head=self.head if isinstance(self.head, str) else identity(self.head),
            scores="" if self.pick is None else known() if known else identity(self.pick),
            source=self.source,
        )

    def layer(self, k_or_path: int | str) -> str:
        """Dotted path of layer k, or the path itself if the network has such a module."""
        paths = [path for path, _ in self.module.named_modules() if path]
        if k_or_path in self.layers:
            return self.layers[int(k_or_path)]
        if k_or_path in paths:
            return str(k_or_path)
        hint = did_you_mean(k_or_path, paths) if isinstance(k_or_path, str) else ""
        raise LayerError(
            f"layer must be one of {', '.join(map(str, self.layers))} or the path of a module for "
            f"{self.name}, got {k_or_path!r}{hint or f'; run `deepfish models {self.name}`'}"
        )


def wrap(
    module: nn.Module,
    layers: Mapping[int, str] | None = None,
    preprocess: Preprocess = IMAGENET,
    name: str = "",
    head: Head = "softmax",
    logits: str | int | Callable[[Any], Tensor] | None = None,
    seed: int = 0,
) -> Network:
    """Make a `Network` of any torch module.

    Every Linear and Conv2d of it is then a gradient layer, `dW:PATH` with its dotted path;
    `layers` gives some of them the short names.

    Parameters
    ----------
    module : nn.Module
        It is not changed, and its mode and `requires_grad` are restored after each use.
    layers : mapping from int to str, optional
        k -> path of the module that holds W_k, 8 being the classifier: fully connected layers or
        1x1 convolutions. Without it the classifier and the fully connected layers right below it
        are found by running the module on a blank image; where no such layer makes the scores, no
        layer has a short name.
    preprocess : Preprocess
        How it wants its pixels; ImageNet's mean and deviation at 224 px by default.
    name : str
        The module's class by default.
    head : "softmax", "sigmoid", "random" or callable
        What the output means: scores of one class per image; of any number of classes per image;
        an embedding without a classifier, which gets a fixed random linear head of 1,000 classes;
        or the error E(output) itself, summed over the batch.
    logits : str, int or callable, optional
        Where the scores are in an output that is a dict, a tuple or an object.
    seed : int
        Of the random head.

    Examples
    --------
    >>> net = wrap(nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 5), nn.ReLU(),
    ...                          nn.Linear(5, 4)))
    >>> net.layers
    {7: '1', 8: '3'}
    """
    module = getattr(module, "_orig_mod", module)  # what torch.compile was given
    if not isinstance(module, nn.Module) or is_program(module):
        raise OptionError(
            f"module must be a torch module with its layers, got {type(module).__name__}; give the "
            "module that it was made of"
        )
    if isinstance(head, str) and head != RANDOM:
        find_objective(head)
    pick = _Pick(logits, seed if head == RANDOM else None)
    notes: tuple[str, ...] = ()
    weights = state_sha256(module)
    if layers is None:
        has_classifier = isinstance(head, str) and head != RANDOM
        layers, notes = find_layers(module, preprocess, pick) if has_classifier else ({}, ())
    else:
        check_layers(module, layers)
    return Network(
        name=name or type(module).__name__,
        module=module,
        layers=dict(sorted(layers.items())),
        preprocess=preprocess,
        weights_sha256=hashlib.sha256(architecture(module) + weights.encode()).hexdigest(),
        head="softmax" if head == RANDOM else head,
        pick=pick,
        notes=notes,
    )


@dataclass(frozen=True)
class _Pick:
    """Takes the scores out of an output, or makes scores of the embedding that it finds there."""

    logits: str | int | Callable[[Any], Tensor] | None  # name, number or function of the part
    seed: int | None  # of the random head of an embedding

    def __call__(self, output: Any) -> Tensor:
        logits = self.logits
        if callable(logits):
            output = logits(output)
        elif logits is not None:
            try:
                output = output[logits]
            except (KeyError, IndexError, TypeError):
                output = getattr(output, str(logits), None)
        if isinstance(output, Tensor) and output.ndim == 2:
            if self.seed is None:
                return output
            return torch.mm(output, _random_head(self.seed, output.shape[1]).to(output))
        names = f" with {list(output)}" if isinstance(output, dict) and output else ""
        got = f"a {type(output).__name__}{names}"
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else got
        raise LayerError(
            f"the network's output must be scores of shape (n, classes), got {got}; say which part "
            "of it with wrap(..., logits=NAME or INDEX or FUNCTION)"
        )

    def identity(self) -> str:
        """Which part it takes, empty if all of it, and which random head."""
        part = "" if self.logits is None else repr(self.logits)
        part = identity(self.logits) if callable(self.logits) else part
        if self.seed is None or part == UNIDENTIFIED:
            return part
        return f"{part} @ random({self.seed}, {RANDOM_CLASSES})".strip()


@cache
def _random_head(seed: int, width: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False):  # so that gradients can go through it, whoever asks first
        head: Tensor = torch.randn(width, RANDOM_CLASSES, generator=random) / width**0.5
        return head


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
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _has_numbers(tensor: Any) -> bool:
    is_plain = isinstance(tensor, Tensor) and not nn.parameter.is_lazy(tensor)
    return (
        is_plain and tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_quantized)
    )


def ready(module: nn.Module, device: torch.device) -> nn.Module:
    """The module on a device, in eval mode, its parameters without gradients."""
    # pixel by pixel in memory: a fifth to a third faster on a CPU, the same outputs
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module.eval().requires_grad_(False).to(device)


def cast(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Floating-point tensors of another dtype, the others as they are."""
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}


def torch_target(device: str | torch.device, dtype: str) -> tuple[torch.device, torch.dtype]:
    """A device that exists and can hold numbers of this dtype, and the dtype as torch has it."""
    check_choice("dtype", dtype, DTYPES)
    torch_dtype: torch.dtype = getattr(torch, dtype)
    try:
        place = torch.device(device)
        torch.zeros(1, dtype=torch_dtype, device=place).item()  # the only way to know that it works
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]  # torch explains at length
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
    code = "import torch; torch.nn.Linear(64, 64).bfloat16()(torch.ones(8, 64).bfloat16())"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True)  # noqa: S603
    if tried.returncode:
        raise OptionError(
            "bfloat16 must work on this processor, but it ends the process; use float32, or set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 and try again"
        )
