"""`deepfish models`: the networks, their layers, and where their weights are."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from deepfishing.cli.say import say
from deepfishing.errors import DeepFishingError
from deepfishing.features import table_features
from deepfishing.networks.zoo import RECORDS, Record, find_weights, record


def models(
    name: Annotated[str | None, typer.Argument(help="Show only this network, whole.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the networks, or show one: layers, features, preprocessing, weights.

    Example: deepfish models vgg16
    """
    if as_json:
        shown = [record(name)] if name else list(RECORDS.values())
        say(json.dumps([_facts(entry) for entry in shown], indent=1))
    elif name:
        for key, value in _facts(record(name)).items():
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
