"""Options of an extraction: those of the network, of its features, and of the resources.

Each field has its help, from which the command line makes its options. `NetworkOptions` are
keywords of `load_network`, `FeatureOptions` the other part of `Settings`; `Resources` decide how
fast factors are computed and none of their values. The help of commands reads this module, so it
imports little.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from deepfishing.errors import OptionError, check_choice
from deepfishing.networks import DEFAULT
from deepfishing.util.machine import memory as machine_memory

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

LOCAL, RAY = "local", "ray"  # values of `on`: this process, or a cluster
Label = str | int | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Options that do not depend on the network; the base of `Settings` and `Protocol`."""

    tau: Annotated[float, "Temperature of the SoftMax."] = 2.0
    label: Annotated[
        Label, "Label of the error: uniform, predicted or a class number."
    ] = "uniform"
    views: Annotated[
        str, "Parts of an image that are used: centre, flip, scales or crops."
    ] = "centre"

    def __post_init__(self) -> None:
        # loaded when options are checked, so that the help of commands is quick
        from deepfishing.images.preprocess import find_views
        from deepfishing.networks.objectives import check_objective

        label = self.label
        # also NumPy's
        is_number = isinstance(label, Integral) and not isinstance(label, bool)
        if is_number or (isinstance(label, str) and label.isdigit()):
            object.__setattr__(self, "label", int(label))  # type: ignore[arg-type]
        check_objective(self.tau, self.label)
        find_views(self.views)
        object.__setattr__(self, "tau", float(self.tau))
        if not isinstance(self.label, str | int):
            object.__setattr__(self, "label", tuple(float(g) for g in self.label))

    def feature_options(self) -> dict[str, Any]:
        """Return these options by name, as `Settings.from_network` takes them."""
        return {field.name: getattr(self, field.name) for field in FEATURES}


FEATURES = fields(FeatureOptions)


class NetworkOptions(TypedDict, total=False):
    """Keywords of `load_network`; of several types the command line takes the first."""

    network: Annotated[
        str,
        "A name of `deepfish models`, a .caffemodel or .onnx file, a .prototxt with its "
        ".caffemodel as --weights, timm:NAME, torchvision:NAME, "
        "hf:ORG/NAME, open_clip:NAME/TAG, hf: or open_clip: with a folder, or torchscript:FILE, a "
        "program that you trust. "
        f"[default: {DEFAULT}]",
    ]
    weights: Annotated[
        Path | str,
        "Weight file, .pth, .safetensors or .caffemodel; `random` for tests.",
    ]
    preprocess: Annotated[
        str | Path,
        "How a file wants its pixels: imagenet, a network that takes them alike, or a .json file; "
        "for a .caffemodel its mean, a .binaryproto image, or BLUE,GREEN,RED such as 104,117,123.",
    ]
    embedding: Annotated[
        str,
        "The tensor of an .onnx network without a classifier, or the part of a TorchScript "
        "program's output, that is x7, with @class, @patches or @mean where it has tokens.",
    ]
    classes: Annotated[
        Path | str,
        "Names of classes, a line each, of which a network that reads texts gets a classifier. A "
        "line with {} is the text for a class. [default: a photo of {}]",
    ]
    dtype: Annotated[
        str,
        "Numbers while computing: float32, float64, bfloat16, float16. [default: float32]",
    ]


OPTIONS = (NetworkOptions, FeatureOptions)


def split_options(options: Mapping[str, Any]) -> tuple[NetworkOptions, dict[str, Any]]:
    """Return the network options and the feature options among these keywords, without None."""
    feature_names = [field.name for field in FEATURES]
    choices = [*NetworkOptions.__annotations__, *feature_names]
    network, features = NetworkOptions(), {}
    for name, value in options.items():
        check_choice("an option", name, choices)
        if value is None:
            continue
        if name in feature_names:
            features[name] = value
        else:
            network[name] = value  # type: ignore[literal-required]
    # loaded when options are checked, so that the help of commands is quick
    from deepfishing.networks.known_files import is_weights_file, network_of_weights

    file = network.get("network", "")
    if is_weights_file(file) and "weights" not in network:
        network["weights"] = file
        network["network"] = network_of_weights(file)
    return network, features


def load_from_options(options: Mapping[str, Any], *, device: str = "cpu") -> Network:
    """Load the network of the options, whichever network a store has."""
    from deepfishing.networks.load import load_network  # torch takes seconds to load

    keywords: dict[str, Any] = {**split_options(options)[0]}
    return load_network(keywords.pop("network", DEFAULT), device=device, **keywords)


def check_features(options: Mapping[str, Any], features: str | Iterable[str]) -> None:
    """Refuse a mistyped network or recipe before torch is loaded."""
    # loaded when options are checked, so that the help of commands is quick
    from deepfishing.core.recipes import parse_recipes
    from deepfishing.networks.zoo import is_network_file, record

    name = split_options(options)[0].get("network", DEFAULT)
    if (
        not is_network_file(name) and ":" not in name
    ):  # others know their layers only when loaded
        parse_recipes(features, record(name).layers)


BatchSize = Literal["auto"] | int  # the command line reads the first

MAX_INPUTS = 32  # images times views; with more the head is hardly faster
MEMORY_SHARE = 1 / 4  # of the computer's memory, by default
MAX_MEMORY = 2 * 2**30

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
}


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Options that decide how fast factors are computed.

    Parameters
    ----------
    batch_size : int or "auto"
        Images per pass; the result does not depend on it, except for the last bits. `auto` is 32
        divided by the number of views, as a power of two, or what `memory` allows.
    memory : int or str, optional
        Memory for a batch, in bytes or as `2GB`; by default a quarter of the memory of the
        computer, at most 2 GiB. Only used with `batch_size="auto"`.
    engine : "auto", "torch", "onnxruntime" or "openvino"
        Library that runs the network below the lowest layer asked for; `auto` is the fastest
        installed.
    device : str
        Device on which a network is loaded: cpu, cuda, cuda:1, mps; by default that in the
        environment, `DEEPFISHING_DEVICE`, else cpu.

    Examples
    --------
    >>> Resources(batch_size=8).engine
    'auto'
    >>> Resources(batch_size=0)
    Traceback (most recent call last):
    deepfishing.errors.OptionError: batch size must be auto or a number from 1, got 0
    """

    batch_size: Annotated[BatchSize, "Images per pass; auto is what memory allows."] = (
        "auto"
    )
    memory: Annotated[str | int | None, "Memory for a batch, such as 2GB."] = None
    device: Annotated[
        str, "cpu, cuda, cuda:1, mps. [default: $DEEPFISHING_DEVICE, or cpu]"
    ] = ""
    engine: Annotated[
        str, "Engine that runs the trunk: auto, torch, onnxruntime or openvino."
    ] = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", parse_batch_size(self.batch_size))
        device = self.device or os.environ.get("DEEPFISHING_DEVICE", "cpu")
        object.__setattr__(self, "device", device)
        parse_memory(self.memory)


def parse_batch_size(batch_size: str | int) -> BatchSize:
    """Return a batch size, given as a number, as text or as `auto`."""
    if batch_size == "auto":
        return "auto"
    number = int(batch_size) if str(batch_size).isdecimal() else 0
    if number < 1:
        raise OptionError(
            f"batch size must be auto or a number from 1, got {batch_size!r}"
        )
    return number


def parse_memory(memory: int | str | None) -> int:
    """Return a memory budget in bytes; None is a share of what this process may use.

    >>> parse_memory("1.5 GB"), parse_memory("1GiB"), parse_memory(1000)
    (1500000000, 1073741824, 1000)
    """
    if memory is None:
        return min(MAX_MEMORY, int(machine_memory() * MEMORY_SHARE))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", str(memory).strip().lower())
    amount = float(match[1]) * _UNITS[match[2] or ""] if match else 0
    if amount < 1:
        raise OptionError(f"memory must be bytes or text such as 2GB, got {memory!r}")
    return int(amount)


def choose_batch_size(
    bytes_per_input: int, views: int, memory: int | str | None = None
) -> int:
    """Return the batch size that `auto` means: a power of two, at least 1.

    It must be the same whenever a run is resumed, since another one may change the last bit of a
    feature, so it does not look at what happens to be free. Where stores of different machines must
    agree to the last bit, give a number instead.

    >>> choose_batch_size(2_000_000, views=1, memory="1GB")
    32
    >>> choose_batch_size(2_000_000, views=1, memory="20MB"), choose_batch_size(1, views=6)
    (8, 4)
    """
    inputs = min(MAX_INPUTS, parse_memory(memory) // max(bytes_per_input, 1))
    images = max(1, inputs // views)
    return 1 << (images.bit_length() - 1)
