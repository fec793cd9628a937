"""What a machine has and lacks: `deepfish models`, `deepfish fetch` and `deepfish doctor`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepfishing.cli import say
from deepfishing.cli.command import NETWORK, Fields, Json
from deepfishing.cli.doctor import OK, Finding, examine
from deepfishing.core.features import TOP, table_features
from deepfishing.errors import DeepFishingError
from deepfishing.extraction.options import OPTIONS, load_from_options
from deepfishing.fetch.download import Patience
from deepfishing.fetch.place import CATALOGUE, find_download
from deepfishing.fetch.place import fetch as fetch_one
from deepfishing.networks.zoo import (
    RECORDS,
    Record,
    find_weights,
    is_library_name,
    is_network_file,
    record,
)

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

FILE_OPTIONS = ("prototxt", "mean", "preprocess", "embedding")


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show only this network, whole: a name of the list, a .caffemodel or .onnx "
            "file, timm:NAME, torchvision:NAME, hf:ORG/NAME or open_clip:NAME/TAG."
        ),
    ] = None,
    *,
    options: Annotated[
        dict[str, Any], Fields(NETWORK, only=FILE_OPTIONS, records=OPTIONS)
    ],
    as_json: Json = False,
) -> None:
    """List the networks, or show one: layers, features, preprocessing, weights.

    Example: deepfish models vgg16

    Features of a layer without a number are named by its path: x:PATH and dW:PATH.
    """
    if as_json:
        shown = (
            [_find(name, options)]
            if name
            else [_known(entry) for entry in RECORDS.values()]
        )
        say.json(shown, indent=1)
    elif name:
        for key, value in _find(name, options).items():
            text = ", ".join(value) if isinstance(value, list) else value
            if isinstance(value, dict):
                text = ", ".join(f"{k} = {v}" for k, v in value.items())
            say.line(f"{key:<11} {text}")
    else:
        width = max(map(len, RECORDS))
        say.line(f"{'network':<{width}}  px   gradients      weights")
        for entry in RECORDS.values():
            gradients = ", ".join(f"dW{k}" for k in entry.layers)
            weights = "here" if _known(entry)["weights"] else "missing"
            say.line(
                f"{entry.name:<{width}}  {entry.preprocess.size}  {gradients:<13}  {weights}"
            )
        say.line("\n`deepfish models NAME` shows one, and where its weights come from")


def _find(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Facts of a network of any kind; one that is not in the list is loaded for them."""
    is_library = is_library_name(name)
    if not is_library and not is_network_file(name):
        return _known(record(name))
    # a model's own weights decide nothing of what is shown, and may have to be fetched
    weights = "random" if is_library else None
    network = load_from_options({**options, "network": name, "weights": weights})
    if is_library:
        library = name.partition(":")[0]
        summary = "; ".join((f"a model of {library}", *network.notes))
        return _facts(network, summary, weights=f"those that {library} publishes")
    return _facts(network, "; ".join(network.notes), weights=str(Path(name).resolve()))


def _known(entry: Record) -> dict[str, Any]:
    """Facts of a network of the list."""
    try:
        weights = {"weights": str(find_weights(entry))}
    except DeepFishingError as error:
        weights = {"weights": "", "missing": str(error)}
    return _facts(entry, entry.summary, **weights, licence=entry.weights.licence)


def _facts(network: Record | Network, summary: str, **more: str) -> dict[str, Any]:
    prefix_tokens = getattr(network, "prefix_tokens", 0)
    if prefix_tokens:
        tokens = "x:PATH is the mean of all tokens, x:PATH@class the class token"
        more["tokens"] = (
            f"{tokens}, x:PATH@patches the mean of all but the first {prefix_tokens}"
        )
    return {
        "name": network.name,
        "summary": summary,
        "x7": about_x7(network),
        "layers": {str(k): path for k, path in network.layers.items()},
        "features": list(table_features(network.layers)),
        "preprocess": asdict(network.preprocess),
        **more,
    }


def about_x7(network: Record | Network) -> str:
    """Say what x7 is, and why."""
    embedding = getattr(network, "embedding", "")
    if embedding:
        return (
            f"{embedding}; gradients are those of own(x7), a head made of your photos"
        )
    if TOP in network.layers:
        return (
            f"the input of the classifier {network.layers[TOP]}, which makes the scores"
        )
    return "not known, since no layer was found that makes scores"


def fetch(
    names: Annotated[list[str], f"Some of: {', '.join(CATALOGUE)}."],
    timeout: Annotated[
        float, "Seconds after which a silent server is asked again."
    ] = 30.0,
    as_json: Annotated[bool, "Print one JSON object per name, nothing else."] = False,
) -> None:
    """Download weights and data sets, checked against their published checksums.

    Example: deepfish fetch alexnet-caffe voc2007

    A broken download goes on where it stopped, and what exists is only checked. Everything
    goes to ~/.cache/deepfishing, or to $DEEPFISHING_HOME.
    """
    # a mistyped one is told before any work
    wanted = [find_download(name) for name in names]
    failed = False
    for name in names:
        try:
            with say.progress_bar(download=True) as bar:
                done = fetch_one(name, bar, Patience(timeout=timeout))
        except DeepFishingError as error:
            failed = True
            if as_json:
                say.json({"name": name, "status": "failed", "error": str(error)})
            else:
                say.note(f"deepfish: {name}: {error}")
            continue
        paths = [str(path) for path in done.paths]
        if as_json:
            facts = {"name": name, "status": done.status, "paths": paths}
            say.json({**facts, "licence": done.licence})
        else:
            say.line(
                f"{name} {done.status}: {', '.join(paths)} (licence: {done.licence})"
            )
    if failed:
        raise typer.Exit(1)
    if not as_json:
        last = wanted[-1]
        photos = ("extract", "photos", "store", "--network", last.name)
        say.what_next(
            ("deepfish", *(("reproduce", last.name) if last.archives else photos))
        )


def doctor(as_json: Json = False) -> None:
    """Show what this machine has and what is missing, and the command that brings it.

    Example: deepfish doctor

    The exit code is 1 only if something that all commands need does not work.
    """
    findings: list[Finding] = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            fix = f": {finding.fix}" if finding.fix else ""
            say.line(f"{finding.status:<8} {finding.name:<28} {finding.detail}{fix}")
    broken = any(finding.core and finding.status != OK for finding in findings)
    if as_json:
        facts = {
            "works": not broken,
            "findings": [asdict(finding) for finding in findings],
        }
        say.json(facts, indent=1)
    if broken:
        raise typer.Exit(1)
