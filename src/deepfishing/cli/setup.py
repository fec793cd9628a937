"""`deepfish models`, `deepfish fetch` and `deepfish doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from deepfishing.cli.arguments.setup import Doctor, Fetch, Models
from deepfishing.cli.doctor import OK, Finding, examine
from deepfishing.cli.printing import (
    print_json,
    print_line,
    print_next,
    print_note,
)
from deepfishing.cli.progress import progress_bar
from deepfishing.core.features import TOP, table_features
from deepfishing.errors import DeepFishingError
from deepfishing.extraction.options import load_from_options
from deepfishing.fetch.place import fetch as fetch_one
from deepfishing.fetch.place import find_download
from deepfishing.networks.known_files import is_weights_file
from deepfishing.networks.reference import RANDOM, WEIGHTS
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


def run_models(args: Models) -> None:
    """Run `deepfish models`."""
    if args.as_json:
        networks = [_known(entry) for entry in RECORDS.values()]
        if args.name:
            networks = [_find(args.name, args.options)]
        print_json(networks, indent=1)
    elif args.name:
        for key, value in _find(args.name, args.options).items():
            text = value
            if isinstance(value, list):
                text = ", ".join(value)
            if isinstance(value, dict):
                text = ", ".join(f"{k} = {v}" for k, v in value.items())
            print_line(f"{key:<11} {text}")
    else:
        width = max(map(len, RECORDS))
        print_line(f"{'network':<{width}}  px   gradients      weights")
        for entry in RECORDS.values():
            gradients = ", ".join(f"dW{k}" for k in entry.layers)
            weights = "missing"
            if _known(entry)["weights"]:
                weights = "here"
            print_line(
                f"{entry.name:<{width}}  {entry.preprocess.size}  {gradients:<13}  {weights}"
            )
        print_line(
            "\n`deepfish models NAME` shows one, and where its weights come from"
        )


def _find(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Facts of a network of any kind; one that is not in the list is loaded for them."""
    if is_network_file(name) or is_weights_file(name):
        network = load_from_options({**options, "network": name})
        weights = network.source.files[WEIGHTS].path
        return _facts(network, "; ".join(network.notes), weights=weights)
    if not is_library_name(name):
        return _known(record(name))
    # a model's own weights decide nothing of what is shown, and may have to be fetched
    network = load_from_options({**options, "network": name, "weights": RANDOM})
    library = name.partition(":")[0]
    summary = "; ".join((f"a model of {library}", *network.notes))
    return _facts(network, summary, weights=f"those that {library} publishes")


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


def run_fetch(args: Fetch) -> None:
    """Run `deepfish fetch`."""
    # mistyped names are refused before any work
    wanted = [find_download(name) for name in args.names]
    failed = False
    for name in args.names:
        try:
            with progress_bar(download=True) as bar:
                done = fetch_one(name, bar)
        except DeepFishingError as error:
            failed = True
            print_note(f"deepfish: {name}: {error}")
            continue
        paths = ", ".join(str(path) for path in done.paths)
        print_line(f"{name} {done.status}: {paths} (licence: {done.licence})")
    if failed:
        sys.exit(1)
    last = wanted[-1]
    if last.archives:
        print_next(("deepfish", "reproduce", last.name))
    else:
        print_next(("deepfish", "extract", "photos", "store", "--network", last.name))


def run_doctor(args: Doctor) -> None:
    """Run `deepfish doctor`."""
    findings: list[Finding] = []
    for finding in examine():
        findings.append(finding)
        text = f"{finding.status:<8} {finding.name:<28} {finding.detail}"
        if finding.fix:
            text += f": {finding.fix}"
        print_line(text)
    if any(finding.core and finding.status != OK for finding in findings):
        sys.exit(1)
