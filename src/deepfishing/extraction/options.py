"""What a user says of the network, its error, and what the work may use, with help of each option.

Comes in: words of the command line or keywords of a call. Goes out: two values that commands and
calls hand on whole: `Options`, of which `resolve_settings` makes `Settings`, and `Resources`, which
decide how fast factors are computed and none of their numbers. Imports little: the help reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from deepfishing.errors import OptionError, check_choice
from deepfishing.networks import DEFAULT
from deepfishing.util.machine import memory as machine_memory

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

LOCAL, RAY = "local", "ray"  # where the work is done
Label = str | int | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """What is asked of a network, whichever it is."""

    tau: float = 2.0  # temperature of the SoftMax
    label: Label = "uniform"  # of the error: or "predicted", a class, a vector: `cross_entropy`
    views: str = "centre"  # what the network sees of an image, see `find_views`

    def __post_init__(self) -> None:
        from deepfishing.images.preprocess import find_views
        from deepfishing.networks.objectives import check_objective

        if isinstance(self.label, Integral) and not isinstance(self.label, bool):
            object.__setattr__(self, "label", int(self.label))  # also NumPy's
        check_objective(self.tau, self.label)
        find_views(self.views)
        object.__setattr__(self, "tau", float(self.tau))
        if not isinstance(self.label, str | int):
            object.__setattr__(self, "label", tuple(float(g) for g in self.label))

    def of_features(self) -> dict[str, Any]:
        """These options by their names, as `Settings.of` takes them."""
        return {one.name: getattr(self, one.name) for one in FEATURES}


FEATURES = fields(FeatureOptions)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user says; None means that nothing is said.

    Fields of `FeatureOptions` go into the settings, the others are keywords of `load_network`.
    Of several types the command line takes the first.
    """

    network: Annotated[
        str | None,
        "A name of `deepfish models`, a .caffemodel or .onnx file, timm:NAME, torchvision:NAME, "
        "hf:ORG/NAME, open_clip:NAME/TAG, or hf: or open_clip: with a folder. "
        f"[default: {DEFAULT}]",
    ] = None
    weights: Annotated[
        Path | str | None, "Weight file, .pth, .safetensors or .caffemodel; `random` for tests."
    ] = None
    prototxt: Annotated[
        Path | str | None, "Description of a .caffemodel, if it is not in there."
    ] = None
    mean: Annotated[
        str | Path | None,
        "Mean of a .caffemodel network: a .binaryproto image, or BLUE,GREEN,RED such as "
        "104,117,123.",
    ] = None
    preprocess: Annotated[
        str | Path | None,
        "How an .onnx network wants its pixels: imagenet, a network that takes them alike, or a "
        ".json file.",
    ] = None
    tau: Annotated[float | None, "Temperature of the SoftMax. [default: 2]"] = None
    label: Annotated[
        Label | None, "Label of the error: uniform, predicted or a class number. [default: uniform]"
    ] = None
    views: Annotated[
        str | None, "What is seen of an image: centre, flip, scales or crops. [default: centre]"
    ] = None
    dtype: Annotated[
        str | None,
        "Numbers while computing: float32, float64, bfloat16, float16. [default: float32]",
    ] = None

    def __post_init__(self) -> None:
        if isinstance(self.label, str) and self.label.isdigit():
            object.__setattr__(self, "label", int(self.label))

    @classmethod
    def of(cls, said: dict[str, Any]) -> Options:
        """From keywords of a call, whose names nobody has checked yet."""
        known = [one.name for one in fields(cls)]
        for name in said:
            check_choice("an option", name, known)
        return cls(**said)

    def of_features(self) -> dict[str, Any]:
        """What was said of features, as `Settings.of` takes it."""
        said = {one.name: getattr(self, one.name) for one in FEATURES}
        return {name: value for name, value in said.items() if value is not None}

    def of_network(self) -> dict[str, Any]:
        """What was said of the network, as `load_network` takes it."""
        said = {name: value for name, value in vars(self).items() if value is not None}
        return {name: said[name] for name in said if name not in self.of_features()}

    def load(self, *, device: str = "cpu") -> Network:
        """The network, whatever a store says."""
        from deepfishing.networks.load import load_network  # torch takes seconds to load

        said = self.of_network()
        return load_network(said.pop("network", DEFAULT), device=device, **said)

    def check_features(self, features: str | Iterable[str]) -> None:
        """Tell a mistyped network or recipe before torch is loaded and before any work."""
        from deepfishing.core.recipes import parse_recipes
        from deepfishing.networks.zoo import is_network_file, record

        name = self.network or DEFAULT
        if not is_network_file(name) and ":" not in name:  # else it alone knows its layers
            parse_recipes(features, record(name).layers)


BatchSize = Literal["auto"] | int  # the command line reads the first

MOST_INPUTS = 32  # images times views; with more the head is hardly faster
SHARE = 1 / 4  # of the machine's memory,
CAP = 2 * 2**30  # and never more than this

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the work may use.

    Parameters
    ----------
    batch_size : int or "auto"
        Images per pass; the result does not depend on it, except for the last bits. `auto` is 32
        divided by the number of views, as a power of two, or what `memory` allows.
    memory : int or str, optional
        What a batch may need, in bytes or as `2GB`; by default a quarter of the memory of the
        machine, at most 2 GiB. Only `batch_size="auto"` looks at it.
    engine : "auto", "torch", "onnxruntime" or "openvino"
        What runs the network below the lowest layer asked for; `auto` is the fastest installed.
    device : str
        Where a network is put that is loaded for the work: cpu, cuda, cuda:1, mps.

    Examples
    --------
    >>> Resources(batch_size=8).engine
    'auto'
    >>> Resources(batch_size=0)
    Traceback (most recent call last):
    deepfishing.errors.OptionError: batch size must be auto or a number from 1, got 0
    """

    batch_size: Annotated[BatchSize, "Images per pass; auto is what memory allows."] = "auto"
    memory: Annotated[str | int | None, "What a batch may need, such as 2GB."] = None
    device: Annotated[str, "cpu, cuda, cuda:1, mps."] = "cpu"
    engine: Annotated[str, "What runs the trunk: auto, torch, onnxruntime or openvino."] = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", parse_batch_size(self.batch_size))
        parse_memory(self.memory)


def parse_batch_size(batch_size: str | int) -> BatchSize:
    """A number, also as text; or `auto`."""
    if batch_size == "auto":
        return "auto"
    number = int(batch_size) if str(batch_size).isdecimal() else 0
    if number < 1:
        raise OptionError(f"batch size must be auto or a number from 1, got {batch_size!r}")
    return number


def parse_memory(memory: int | str | None) -> int:
    """Bytes of a budget; None is a share of what this process may use at most.

    >>> parse_memory("1.5 GB"), parse_memory("1GiB"), parse_memory(1000)
    (1500000000, 1073741824, 1000)
    """
    if memory is None:
        return min(CAP, int(machine_memory() * SHARE))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", str(memory).strip().lower())
    amount = float(match[1]) * _UNITS[match[2] or ""] if match else 0
    if amount < 1:
        raise OptionError(f"memory must be bytes or text such as 2GB, got {memory!r}")
    return int(amount)


def choose_batch_size(bytes_per_input: int, views: int, memory: int | str | None = None) -> int:
    """The batch size that `auto` stands for: a power of two, at least 1.

    It must be the same whenever a run is resumed, since another one may change the last bit of a
    feature, so it does not look at what happens to be free. Where stores of different machines must
    agree to the last bit, give a number instead.

    >>> choose_batch_size(2_000_000, views=1, memory="1GB")
    32
    >>> choose_batch_size(2_000_000, views=1, memory="20MB"), choose_batch_size(1, views=6)
    (8, 4)
    """
    inputs = min(MOST_INPUTS, parse_memory(memory) // max(bytes_per_input, 1))
    images = max(1, inputs // views)
    return 1 << (images.bit_length() - 1)
