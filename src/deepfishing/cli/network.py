"""Options that say which network and which error; shared by the commands that extract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepfishing.networks.zoo import record
from deepfishing.recipes import parse_recipe, parse_recipes

NetworkName = Annotated[
    str,
    typer.Option(
        "--network",
        help="A name of `deepfish models`, a .caffemodel file, timm:NAME or torchvision:NAME.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="Weight file, .pth, .safetensors or .caffemodel; `random` for tests."),
]
Prototxt = Annotated[
    Path | None, typer.Option(help="Description of a .caffemodel, if it is not in there.")
]
Mean = Annotated[
    Path | None, typer.Option(help="Mean image of a .caffemodel network, .binaryproto.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Stop before the work if an image cannot be used.")
]
Tau = Annotated[float, typer.Option(help="Temperature of the SoftMax.")]
Label = Annotated[
    str, typer.Option(help="Label of the error: uniform, predicted or a class number.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[
    str, typer.Option(help="Precision of the network: float32, float64, bfloat16, float16.")
]

Engine = Annotated[
    str, typer.Option(help="What runs the trunk: auto, torch, onnxruntime or openvino.")
]


BatchSize = Annotated[str, typer.Option(help="Images per pass; auto is what memory allows.")]
Views = Annotated[
    str, typer.Option(help="What is seen of an image: centre, flip, scales or crops.")
]


def check_names(network: str, features: str, single: bool = False) -> None:
    """Tell a mistyped network or recipe before torch is loaded and before any work."""
    if network.endswith(".caffemodel") or ":" in network:
        return  # only the network itself knows its layers

    (parse_recipe if single else parse_recipes)(features, record(network).layers)


def parse_label(label: str) -> str | int:
    """A class number, or the word as it is."""
    return int(label) if label.isdigit() else label
