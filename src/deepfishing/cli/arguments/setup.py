"""`deepfish models`, `deepfish fetch` and `deepfish doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from deepfishing.cli.arguments.shared import (
    NETWORK,
    Fields,
    Json,
    OptionalArgument,
)
from deepfishing.extraction.options import OPTIONS
from deepfishing.fetch.place import CATALOGUE

FILE_OPTIONS = ("preprocess", "embedding")


@dataclass(frozen=True, kw_only=True)
class Models:
    """List the networks, or show one: layers, features, preprocessing, weights.

    Example: deepfish models vgg16

    Features of a layer without a number are named by its path: x:PATH and dW:PATH.
    """

    name: Annotated[
        str | None,
        OptionalArgument(
            "Show only this network, whole: a name of the list, a .caffemodel or .onnx "
            "file, timm:NAME, torchvision:NAME, hf:ORG/NAME, open_clip:NAME/TAG or "
            "torchscript:FILE."
        ),
    ] = None
    options: Annotated[
        dict[str, Any], Fields(NETWORK, only=FILE_OPTIONS, records=OPTIONS)
    ]
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Download weights and data sets, checked against their published checksums.

    Example: deepfish fetch alexnet-caffe voc2007

    A broken download goes on where it stopped, and what exists is only checked. Everything
    goes to ~/.cache/deepfishing, or to $DEEPFISHING_HOME.
    """

    names: Annotated[tuple[str, ...], f"Some of: {', '.join(CATALOGUE)}."]


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Show what this computer has and what is missing, with the command that installs it.

    Example: deepfish doctor

    The exit code is 1 only if something that all commands need does not work.
    """
