"""Stage 2, networks: a frozen network, ready to be asked for x_k and delta_k.

A `Network` is a module in eval mode, the paper's numbers for its layers, its preprocessing and the
hash of its weights, which together decide every feature. `load` makes them from names and files,
`wrap` from a module of your own.
"""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from deepfishing.errors import LayerError, OptionError, check_choice, did_you_mean
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.identity import identity
from deepfishing.networks.reference import RANDOM, NetworkRef, Source
from deepfishing.networks.weights import load_into
from deepfishing.networks.zoo import DEFAULT, Record, record

DTYPES = ("float32", "float64", "float16", "bfloat16")


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
    >>> net = random_network("alexnet-torchvision", widths={6: 8, 7: 8, 8: 5})
    >>> net.layer(7), net.dtype, net.weights_sha256
    ('classifier.4', torch.float32, 'random-0-6x8-7x8-8x5')
    """

    name: str
    module: nn.Module
    layers: Mapping[int, str]
    preprocess: Preprocess
    weights_sha256: str
    head: str | Callable[[Any], Tensor] = "softmax"
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
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, and so of the input."""
        return next(self.module.parameters()).dtype

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
    module = build_module(entry, {f"{entry.layers[k]}.weight": (n, 1) for k, n in other.items()})
    random = torch.Generator().manual_seed(seed)
    tensors = {n: _random_like(n, t, random) for n, t in module.state_dict().items()}
    load_into(module, cast(tensors, torch_dtype), f"random-{seed}")
    return Network(
        name=name,
        module=ready(module, place),
        layers=entry.layers,
        preprocess=entry.preprocess,
        weights_sha256="-".join([f"random-{seed}", *(f"{k}x{n}" for k, n in other.items())]),
        source=Source(kind=RANDOM),
    )


def build_module(entry: Record, shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """The module of a record, with widths read off the weights' shapes and without memory."""
    file, _, function = entry.build.partition(":")
    builder = getattr(importlib.import_module(f"deepfishing.networks.{file}"), function)
    with torch.device("meta"):  # no memory and no random numbers for what is replaced anyway
        module: nn.Module = builder(shapes)
    return module


def ready(module: nn.Module, device: torch.device) -> nn.Module:
    """The module on a device, in eval mode, its parameters without gradients."""
    # pixel by pixel in memory: a fifth to a third faster on a CPU, the same outputs
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module.eval().requires_grad_(False).to(device)


def cast(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Floating-point tensors of another dtype, the others as they are."""
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}


def _random_like(name: str, tensor: Tensor, random: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    if tensor.ndim > 1:  # He's scale keeps the signal alive through many rectified layers
        scale = math.sqrt(2 / tensor[0].numel())
        return torch.randn(tensor.shape, generator=random) * scale
    # one value per channel: a scale or a variance around 1, a bias or a mean around 0
    centre = 1.0 if name.endswith((".weight", "running_var")) else 0.0
    return centre + 0.2 * torch.rand(tensor.shape, generator=random) - 0.1


def torch_target(device: str | torch.device, dtype: str) -> tuple[torch.device, torch.dtype]:
    """A device that exists and can hold numbers of this dtype, and the dtype as torch has it."""
    check_choice("dtype", dtype, DTYPES)
    torch_dtype: torch.dtype = getattr(torch, dtype)
    try:
        place = torch.device(device)
        torch.zeros(1, dtype=torch_dtype, device=place).item()  # the only way to know that it works
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]  # torch explains at length
        raise OptionError(
            f"device must be cpu, or cuda or mps where there is one, got {str(device)!r} ({reason})"
        ) from None
    if torch_dtype == torch.bfloat16 and place.type == "cpu":
        _check_bfloat16()
    return place, torch_dtype


@cache
def _check_bfloat16() -> None:
    """Refuse bfloat16 where it would end the process.

    Some virtual machines announce AMX instructions but do not let programs use them; torch then
    dies of an illegal instruction, so only another process can find out.
    """
    code = "import torch; torch.nn.Linear(64, 64).bfloat16()(torch.ones(8, 64).bfloat16())"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True)  # noqa: S603
    if tried.returncode:
        raise OptionError(
            "bfloat16 must work on this processor, but it ends the process; use float32, or set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 and try again"
        )
