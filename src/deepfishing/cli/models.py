"""`deepfish models`: the networks, their layers, and where their weights are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from deepfishing.networks.network import Network


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
        shown = [_find(name, options)] if name else [_known(entry) for entry in RECORDS.values()]
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
            gradients = ", ".join(f"dW{k}" for k in entry.layers)
            weights = "here" if _known(entry)["weights"] else "missing"
            table.add_row(entry.name, str(entry.preprocess.size), gradients, weights)
        Console().print(table)
        say("\n`deepfish models NAME` shows one, and where its weights come from")


def _find(name: str, options: Options) -> dict[str, Any]:
    """Facts of a network of any kind; one that is not in the list is loaded for them."""
    hub, _, model = name.partition(":")
    is_hub = bool(model) and hub in ("timm", "torchvision")
    if not is_hub and not is_network_file(name):
        return _known(record(name))
    # a model's own weights decide nothing of what is shown, and may have to be fetched
    network = replace(options, network=name, weights="random" if is_hub else None).load()
    if is_hub:
        return _facts(network, f"a model of {hub}", weights=f"those that {hub} publishes")
    return _facts(network, "; ".join(network.notes), weights=str(Path(name).resolve()))


def _known(entry: Record) -> dict[str, Any]:
    """Facts of a network of the list."""
    try:
        weights = {"weights": str(find_weights(entry))}
    except DeepFishingError as error:
        weights = {"weights": "", "missing": str(error)}
    return _facts(entry, entry.summary, **weights, licence=entry.weights.licence)


def _facts(network: Record | Network, summary: str, **more: str) -> dict[str, Any]:
    return {
        "name": network.name,
        "summary": summary,
        "layers": {str(k): path for k, path in network.layers.items()},
        "features": list(table_features(network.layers)),
        "preprocess": network.preprocess.as_dict(),
        **more,
    }
