"""Options that say which network and which error; shared by the commands that extract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepfishing.cli.help import NETWORK, WORK
from deepfishing.networks import DEFAULT

NetworkName = Annotated[
    str | None,
    typer.Option(
        "--network",
        help="A name of `deepfish models`, a .caffemodel or .onnx file, timm:NAME or "
        f"torchvision:NAME. [default: {DEFAULT}]",
        show_default=False,
        rich_help_panel=NETWORK,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="Weight file, .pth, .safetensors or .caffemodel; `random` for tests.",
        rich_help_panel=NETWORK,
    ),
]
Prototxt = Annotated[
    Path | None,
    typer.Option(
        help="Description of a .caffemodel, if it is not in there.", rich_help_panel=NETWORK
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        help="Mean of a .caffemodel network: a .binaryproto image, or BLUE,GREEN,RED such as "
        "104,117,123.",
        rich_help_panel=NETWORK,
    ),
]
Preprocess = Annotated[
    str | None,
    typer.Option(
        help="How an .onnx network wants its pixels: imagenet, a network that takes them alike, "
        "or a .json file.",
        rich_help_panel=NETWORK,
    ),
]
Tau = Annotated[
    float | None,
    typer.Option(
        help="Temperature of the SoftMax. [default: 2]", show_default=False, rich_help_panel=NETWORK
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Stop before the work if an image cannot be used.")
]
Label = Annotated[
    str | None,
    typer.Option(
        help="Label of the error: uniform, predicted or a class number. [default: uniform]",
        show_default=False,
        rich_help_panel=NETWORK,
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.", rich_help_panel=WORK)]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Precision of the network: float32, float64, bfloat16, float16. [default: float32]",
        show_default=False,
        rich_help_panel=NETWORK,
    ),
]

Engine = Annotated[
    str,
    typer.Option(
        help="What runs the trunk: auto, torch, onnxruntime or openvino.", rich_help_panel=WORK
    ),
]


BatchSize = Annotated[
    str, typer.Option(help="Images per pass; auto is what memory allows.", rich_help_panel=WORK)
]
Views = Annotated[
    str | None,
    typer.Option(
        help="What is seen of an image: centre, flip, scales or crops. [default: centre]",
        show_default=False,
        rich_help_panel=NETWORK,
    ),
]


def check_names(network: str | None, features: str, single: bool = False) -> None:
    """Tell a mistyped network or recipe before torch is loaded and before any work."""
    from deepfishing.networks.zoo import is_network_file, record

    name = network or DEFAULT
    if is_network_file(name) or ":" in name:
        return  # only the network itself knows its layers

    from deepfishing.recipes import parse_recipe, parse_recipes

    (parse_recipe if single else parse_recipes)(features, record(name).layers)


def parse_label(label: str | None) -> str | int | None:
    """A class number, or the word as it is."""
    return int(label) if label is not None and label.isdigit() else label
