"""`deepfish extract`: features of images into a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from deepfishing.cli.network import (
    Device,
    Dtype,
    Label,
    Mean,
    NetworkName,
    Prototxt,
    Tau,
    Weights,
    check_names,
    parse_label,
)
from deepfishing.images.sources import find_images


def extract(
    images: Annotated[Path, typer.Argument(help="A folder, an image, or a .txt list of images.")],
    store: Annotated[Path, typer.Argument(help="Folder for the features; made if absent.")],
    network: NetworkName = "efficientnet-lite0",
    weights: Weights = None,
    prototxt: Prototxt = None,
    mean: Mean = None,
    features: Annotated[
        str, typer.Option(help="Comma-separated names, such as x7,dW7 or dW:layer4.1.conv2@64x64.")
    ] = "all",
    tau: Tau = 2.0,
    label: Label = "uniform",
    batch_size: Annotated[int, typer.Option(help="Images per forward pass.")] = 32,
    precision: Annotated[
        str, typer.Option(help="Numbers on disk: float16 or float32.")
    ] = "float16",
    device: Device = "cpu",
    dtype: Dtype = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Extract features of images into a folder of Parquet files.

    Example: deepfish extract photos store --features x7,dW8

    What is in the store is not computed again. Unreadable images are listed and left out.
    """
    check_names(network, features)
    paths = find_images(images)

    from deepfishing.cli.progress import progress_bar
    from deepfishing.features import needed_factors, parse_features
    from deepfishing.gradients.to_store import extract_to_store, store_settings
    from deepfishing.networks.load import load_network
    from deepfishing.store import Store

    net = load_network(network, weights, device, dtype, prototxt, mean)
    factors = needed_factors(parse_features(features, net.layers))
    target = parse_label(label)
    opened = Store(store, store_settings(net, tau, target), precision)
    with progress_bar() as progress:
        done = extract_to_store(
            net,
            paths,
            opened,
            factors,
            tau,
            target,
            batch_size,
            lambda count, total: progress("images", count, total),
        )
    if as_json:
        failures = {str(path): reason for path, reason in done.failures.items()}
        summary = {"store": str(store), "images": len(paths), "computed": done.computed}
        typer.echo(json.dumps({**summary, "factors": list(factors), "failures": failures}))
        return
    for reason in done.failures.values():
        typer.echo(f"left out: {reason}", err=True)
    left_out = f", {len(done.failures)} left out" if done.failures else ""
    typer.echo(f"{store}: {len(paths)} images, {done.computed} computed now{left_out}")
    typer.echo(f"factors: {', '.join(factors)}")
