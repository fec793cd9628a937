"""What a user says of the network and its error, with the help of each option.

Comes in: words of the command line or keywords of a call. Goes out: one value that commands and
calls hand on whole; `settling.settle` makes `Settings` of it. Imports little: the help reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from deepfishing.errors import check_choice
from deepfishing.networks import DEFAULT

if TYPE_CHECKING:
    from deepfishing.networks.network import Network


Label = str | int | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """What is asked of a network, whichever it is.

    `tau` is the temperature of the SoftMax; `label` the label vector of the error: "uniform",
    "predicted", a class number or a vector, see `cross_entropy`; `views` what the network sees of
    an image, see `find_views`.
    """

    tau: float = 2.0
    label: Label = "uniform"
    views: str = "centre"

    def __post_init__(self) -> None:
        from deepfishing.images.preprocess import find_views
        from deepfishing.objectives import check_objective

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
        "A name of `deepfish models`, a .caffemodel or .onnx file, timm:NAME or torchvision:NAME. "
        f"[default: {DEFAULT}]",
    ] = None
    weights: Annotated[
        Path | str | None,
        "Weight file, .pth, .safetensors or .caffemodel; `random` for tests.",
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
        Label | None,
        "Label of the error: uniform, predicted or a class number. [default: uniform]",
    ] = None
    views: Annotated[
        str | None,
        "What is seen of an image: centre, flip, scales or crops. [default: centre]",
    ] = None
    dtype: Annotated[
        str | None,
        "Precision of the network: float32, float64, bfloat16, float16. [default: float32]",
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
        return self._said(of_features=True)

    def of_network(self) -> dict[str, Any]:
        """What was said of the network, as `load_network` takes it."""
        return self._said(of_features=False)

    def _said(self, *, of_features: bool) -> dict[str, Any]:
        names = {one.name for one in FEATURES}
        said = {name: value for name, value in vars(self).items() if value is not None}
        return {name: said[name] for name in said if (name in names) == of_features}

    def load(self, *, device: str = "cpu") -> Network:
        """The network, whatever a store says."""
        from deepfishing.networks.load import load_network  # torch takes seconds to load

        said = self.of_network()
        return load_network(said.pop("network", DEFAULT), device=device, **said)

    def check_features(self, features: str | Iterable[str]) -> None:
        """Tell a mistyped network or recipe before torch is loaded and before any work."""
        from deepfishing.networks.zoo import is_network_file, record
        from deepfishing.recipes import parse_recipes

        name = self.network or DEFAULT
        if not is_network_file(name) and ":" not in name:  # else it alone knows its layers
            parse_recipes(features, record(name).layers)
