"""`deepfish extract`: features of images into a store."""

from __future__ import annotations

import hashlib
import shlex
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepfishing.cli.network import (
    BatchSize,
    Device,
    Dtype,
    Engine,
    Label,
    Mean,
    NetworkName,
    Prototxt,
    Strict,
    Tau,
    Views,
    Weights,
    check_names,
    parse_label,
)
from deepfishing.cli.say import SHOWN, say, say_left_out, say_next, say_passed_over
from deepfishing.distributed import connect
from deepfishing.distributed.cluster import check_place
from deepfishing.gradients.batch_size import parse_batch_size, parse_memory
from deepfishing.images.sources import find_images, passed_over_in
from deepfishing.images.views import find_views
from deepfishing.networks.zoo import RECORDS, find_weights
from deepfishing.recipes import parse_recipes

if TYPE_CHECKING:
    from deepfishing.gradients.to_store import Extraction
    from deepfishing.networks.network import Network

PRECISION = "int8"  # of a new store: the smallest of one pass that loses nothing, docs/store.md


def extract(
    images: Annotated[
        str,
        typer.Argument(
            help="A folder, a VOC tree, an image, a quoted pattern, a .txt list, a .csv, .tsv or "
            ".parquet table, a .tar, - for a list on standard input, or a URL such as "
            "s3://bucket/photos."
        ),
    ],
    store: Annotated[Path, typer.Argument(help="Folder for the features; made if absent.")],
    network: NetworkName = "efficientnet-lite0",
    weights: Weights = None,
    prototxt: Prototxt = None,
    mean: Mean = None,
    features: Annotated[
        str,
        typer.Option(
            help="Comma-separated names or recipes, such as x7,dW7 or dW:layer4.1.conv2@64x64."
        ),
    ] = "all",
    tau: Tau = 2.0,
    label: Label = "uniform",
    views: Views = "centre",
    batch_size: BatchSize = "auto",
    memory: Annotated[str | None, typer.Option(help="What a batch may need, such as 2GB.")] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Numbers on disk: int4, int8, float16 or float32; a store that is there keeps its "
            "own, a new one has int8."
        ),
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "auto",
    on: Annotated[
        str, typer.Option(help="Where: local, ray, or ray://HOST:PORT of a Ray cluster.")
    ] = "local",
    strict: Strict = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Try images again that could not be used before.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Drop images that are in the store and not in IMAGES.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON event per line, nothing else.")
    ] = False,
) -> None:
    """Extract features of images into a folder of Parquet files.

    Example: deepfish extract photos store --features x7,dW8

    What is in the store is not computed again, so an interrupted run goes on where it stopped
    and new or changed images are all that is computed. Unusable images are listed and left out.
    """
    check_names(network, features)
    check_place(on)
    size = parse_batch_size(batch_size)
    find_views(views)
    budget = parse_memory(memory)
    items = find_images(images)
    target = parse_label(label)

    # torch takes seconds to load, and a store that is complete does not need it
    from deepfishing.cli.progress import JsonEvents, progress_bar
    from deepfishing.features import needed_factors
    from deepfishing.gradients.to_store import extract_to_store
    from deepfishing.store.store import MANIFEST, Store

    def load(device: str = device) -> Network:
        from deepfishing.networks.load import load_network

        return load_network(network, weights, device, dtype, prototxt, mean)

    far = on != "local"
    gpu = far and device.startswith("cuda")
    loaded: Network | None = None
    settings = None
    if (store / MANIFEST).exists() and not prototxt and not mean:
        settings = _known_settings(network, weights, dtype, tau, target, views)
    if settings is None:
        from deepfishing.gradients.objective import check_label, check_tau
        from deepfishing.gradients.to_store import store_settings

        # before a store is made for nothing
        check_tau(tau)
        check_label(target)
        loaded = load("cpu" if far else device)  # this machine may have no GPU
        settings = store_settings(loaded, tau, target, views)
    layers = {int(k): path for k, path in settings["layers"].items()}
    factors = needed_factors(parse_recipes(features, layers))
    columns = [factor.name for factor in factors]
    if precision is None and not (store / MANIFEST).exists():
        precision = PRECISION
    opened = Store(store, settings, precision)
    start = time.monotonic()
    events = JsonEvents(len(items)) if as_json else None
    with connect(on, gpu) as place, progress_bar(quiet=as_json) as bar:
        watch = events or bar
        done = extract_to_store(
            # a worker sees its GPU as the only one
            partial(load, "cuda" if gpu else device) if far else loaded or load,
            items,
            opened,
            factors,
            tau,
            target,
            size,
            watch,
            watch.failure,
            retry,
            prune,
            engine,
            place,
            views,
            budget,
            strict,
        )
    passed_over = passed_over_in(images)
    rows = opened.rows().values()
    usable = sum(key is not None for key in done.keys)
    if events:
        events.emit(
            "end",
            store=str(store),
            images=len(items),
            computed=done.computed,
            factors=columns,
            failures=done.failures,
            removed=list(done.removed),
            replaced=list(done.replaced),
            pruned=prune,
            stored=len(rows),
            passed_over=passed_over,
            seconds=round(time.monotonic() - start, 3),
        )
    else:
        say_left_out(
            done.failures.values(), f", see `deepfish store info {shlex.quote(str(store))}`"
        )
        say_passed_over(passed_over)
        _summary(store, len(items), done, len(rows), prune)
        say(f"factors: {', '.join(columns)}")
    problem = f"{len(done.failures)} images cannot be used" if strict and done.failures else ""
    if not usable:
        problem = f"none of {len(items)} images can be used"
    if problem:
        if not events:
            say(f"deepfish: {problem}", err=True)
        raise typer.Exit(1)
    if not events:
        train, search = ("train", store, "model"), ("search", store, "PHOTO.jpg")
        labelled = any(row.labels for row in rows)
        say_next(("deepfish", "serve", store), ("deepfish", *(train if labelled else search)))


def _summary(store: Path, images: int, done: Extraction, stored: int, prune: bool) -> None:
    left_out = f", {len(done.failures)} left out" if done.failures else ""
    holds = f"; the store holds {stored} now" if stored != images else ""
    say(f"{store}: {images} images, {done.computed} computed now{left_out}{holds}")
    told = {"dropped": done.removed if prune else (), "replaced by other files": done.replaced}
    for what, ids in told.items():
        if ids:
            some = ", ".join(ids[:SHOWN]) + (" ..." if len(ids) > SHOWN else "")
            say(f"{len(ids)} {what}: {some}")


def _known_settings(
    network: str, weights: Path | None, dtype: str, tau: float, label: str | int, views: str
) -> dict[str, Any] | None:
    """The settings of a network of the zoo without loading it, or None if only it can tell."""
    from deepfishing.gradients.to_store import settings_of

    entry = RECORDS.get(network)
    if entry is None or str(weights) == "random":
        return None
    path = find_weights(entry, weights)
    if path.suffix == ".caffemodel" or not path.is_file():
        return None
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return settings_of(entry.name, sha256, entry.layers, entry.preprocess, dtype, tau, label, views)
