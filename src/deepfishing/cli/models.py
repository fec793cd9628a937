"""`deepfish models`: the networks, their layers, and where their weights are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from deepfishing.cli.help import NETWORK
from deepfishing.cli.parameters import Fields
from deepfishing.cli.say import say, say_json
from deepfishing.errors import DeepFishingError
from deepfishing.features import table_features
from deepfishing.networks.zoo import RECORDS, Record, find_weights, is_network_file, record
from deepfishing.options import Options


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show only this network, whole: a name of the list, a .caffemodel or .onnx "
            "file, timm:NAME or torchvision:NAME."
        ),
    ] = None,
    *,
    options: Annotated[Options, Fields(NETWORK, only=("prototxt", "mean", "preprocess"))],
    as_json: Annotated[bool, "Print JSON."] = False,
) -> None:
    """List the networks, or show one: layers, features, preprocessing, weights.

    Example: deepfish models vgg16

    Features of a layer without a number are named by its path: x:PATH and dW:PATH.
    """
    if as_json:
        shown = [_find(name, options)] if name else [_facts(entry) for entry in RECORDS.values()]
        say_json(shown, indent=1)
    elif name:
        for key, value in _find(name, options).items():
            text = ", ".join(value) if isinstance(value, list) else value
            if isinstance(value, dict):
                text = ", ".join(f"{k} = {v}" for k, v in value.items())
            say(f"{key:<11} {text}")
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("network", "px", "gradients", "weights"):
            table.add_column(column, no_wrap=column != "weights")
        for entry in RECORDS.values():
            facts = _facts(entry)
            gradients = ", ".join(f"dW{k}" for k in entry.layers)
            there = "here" if facts["weights"] else "missing"
            table.add_row(entry.name, str(entry.preprocess.size), gradients, there)
        Console().print(table)
        say("\n`deepfish models NAME` shows one, and where its weights come from")


def _find(name: str, options: Options) -> dict[str, Any]:
    """Facts of a network of any kind; one that is not in the list is loaded for them."""
    hub, _, model = name.partition(":")
    is_hub = bool(model) and hub in ("timm", "torchvision")
    if not is_hub and not is_network_file(name):
        return _facts(record(name))
    # a model's own weights decide nothing of what is shown, and may have to be fetched
    network = replace(options, network=name, weights="random" if is_hub else None).load()
    return {
        "name": network.name,
        "summary": f"a model of {hub}" if is_hub else "; ".join(network.notes),
        "layers": {str(k): path for k, path in network.layers.items()},
        "features": list(table_features(network.layers)),
        "preprocess": network.preprocess.as_dict(),
        "weights": f"those that {hub} publishes" if is_hub else str(Path(name).resolve()),
    }


def _facts(entry: Record) -> dict[str, Any]:
    try:
        weights, missing = str(find_weights(entry)), ""
    except DeepFishingError as error:
        weights, missing = "", str(error)
    return {
        "name": entry.name,
        "summary": entry.summary,
        "layers": {str(k): path for k, path in entry.layers.items()},
        "features": list(table_features(entry.layers)),
        "preprocess": entry.preprocess.as_dict(),
        "weights": weights,
        **({"missing": missing} if missing else {}),
        "licence": entry.weights.licence,
    }
