"""`deepfish extract`: features of images into a store."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepfishing.cli.help import MORE, NETWORK, WORK
from deepfishing.cli.parameters import Fields, Strict
from deepfishing.cli.progress import JsonEvents, progress_bar
from deepfishing.cli.say import (
    SHOWN,
    images_text,
    say,
    say_left_out,
    say_next,
    say_note,
    say_passed_over,
)
from deepfishing.options import Options, Resources

if TYPE_CHECKING:
    from deepfishing.gradients.to_store import Extraction


def extract(
    images: Annotated[
        str,
        "A folder, a VOC tree, an image, a quoted pattern, a .txt list, a .csv, .tsv or .parquet "
        "table, a .tar, a video, - for a list on standard input, or a URL such as "
        "s3://bucket/photos.",
    ],
    store: Annotated[Path, "Folder for the features; made if absent."],
    *,
    options: Annotated[Options, Fields(NETWORK)],
    features: Annotated[
        str, "Comma-separated names or recipes, such as x7,dW7 or dW:layer4.1.conv2@64x64."
    ] = "all",
    resources: Annotated[Resources, Fields(WORK)],
    precision: Annotated[
        str | None,
        "Numbers on disk: int8, int4, float16 or float32; a store that exists keeps its own, a new "
        "one has int8.",
        MORE,
    ] = None,
    on: Annotated[str, "Where: local, ray, or ray://HOST:PORT of a Ray cluster.", WORK] = "local",
    strict: Strict = False,
    retry: Annotated[bool, "Try images again that could not be used before.", MORE] = False,
    every: Annotated[float, "Seconds between the frames of a video; 0 for all.", MORE] = 1.0,
    prune: Annotated[bool, "Drop images that are in the store and not in IMAGES.", MORE] = False,
    as_json: Annotated[bool, "Print one JSON event per line, nothing else."] = False,
) -> None:
    """Extract features of images into a folder of Parquet files.

    Example: deepfish extract photos store

    What is in the store is not computed again, so an interrupted run goes on where it stopped
    and new or changed images are all that is computed. Unusable images are listed and left out.
    A store remembers its network and settings; options that contradict them are refused.
    """
    from deepfishing.extraction import extract_to
    from deepfishing.images.sources import find_images, passed_over_in
    from deepfishing.store import Store

    items = find_images(images, every=every)
    start = time.monotonic()
    events = JsonEvents(len(items)) if as_json else None
    with progress_bar(quiet=as_json) as bar:
        watch = events or bar
        done = extract_to(
            store,
            items,
            features=features,
            precision=precision,
            resources=resources,
            on=on,
            retry=retry,
            prune=prune,
            strict=strict,
            progress=watch,
            on_failure=watch.failure,
            notice=say_note,
            **vars(options),
        )
    passed_over = passed_over_in(images)
    rows = Store.open(store).rows().values()
    if events:
        events.emit(
            "end",
            store=str(store),
            images=len(items),
            computed=done.computed,
            factors=list(done.factors),
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
    problem = ""
    if strict and done.failures:
        problem = f"{images_text(len(done.failures))} cannot be used"
    if not any(done.keys):
        problem = f"none of {images_text(len(items))} can be used"
    if problem:
        if not events:
            say(f"deepfish: {problem}", err=True)
        raise typer.Exit(1)
    if not events:
        train, search = ("train", store, "model"), ("search", store, "PHOTO.jpg")
        several = len({label for row in rows for label in row.labels or ()}) > 1
        say_next(("deepfish", "serve", store), ("deepfish", *(train if several else search)))


def _summary(store: Path, images: int, done: Extraction, stored: int, prune: bool) -> None:
    left_out = f", {len(done.failures)} left out" if done.failures else ""
    holds = f"; the store holds {stored} now" if stored != images else ""
    say(f"{store}: {images_text(images)}, {done.computed} computed now{left_out}{holds}")
    told = {"dropped": done.removed if prune else (), "replaced by other files": done.replaced}
    for what, ids in told.items():
        if ids:
            some = ", ".join(ids[:SHOWN]) + (" ..." if len(ids) > SHOWN else "")
            say(f"{len(ids)} {what}: {some}")
    say(f"factors: {', '.join(done.factors)}")
