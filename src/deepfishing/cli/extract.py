"""`deepfish extract`: features of images into a store."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepfishing.cli import say
from deepfishing.cli.command import MORE, NETWORK, WORK, Fields, KeptPrecision, Strict
from deepfishing.errors import OptionError
from deepfishing.extraction.options import LOCAL, OPTIONS, Resources

if TYPE_CHECKING:
    from deepfishing.extraction.estimate import Estimate
    from deepfishing.extraction.to_store import Extraction


def extract(
    images: Annotated[
        str,
        "A folder, a VOC tree, an image, a quoted pattern, a .txt list, a .csv, .tsv or .parquet "
        "table, a .tar, a video, - for a list on standard input, or a URL such as "
        "s3://bucket/photos.",
    ],
    store: Annotated[Path, "Folder for the features; made if absent."],
    *,
    options: Annotated[dict[str, Any], Fields(NETWORK, records=OPTIONS)],
    features: Annotated[
        str, "Names or recipes: x7,dW7 or dW:layer4.1.conv2@64x64."
    ] = "all",
    resources: Annotated[Resources, Fields(WORK, without=("memory",))],
    precision: KeptPrecision = None,
    on: Annotated[
        str, "Where: local, ray, or ray://HOST:PORT of a Ray cluster.", WORK
    ] = LOCAL,
    strict: Strict = False,
    retry: Annotated[
        bool, "Try images again that could not be used before.", MORE
    ] = False,
    every: Annotated[
        float, "Seconds between the frames of a video; 0 for all.", MORE
    ] = 1.0,
    albums: Annotated[
        bool, "Folders are albums, not classes: take no labels from their names.", MORE
    ] = False,
    prune: Annotated[
        bool, "Drop images that are in the store and not in IMAGES.", MORE
    ] = False,
    dry_run: Annotated[
        bool,
        "Estimate time, disk and memory from a sample of the images; store nothing.",
        MORE,
    ] = False,
    as_json: Annotated[bool, "Print one JSON event per line, nothing else."] = False,
) -> None:
    """Extract features of images into a folder of Parquet files.

    Example: deepfish extract photos store

    What is in the store is not computed again, so an interrupted run goes on where it stopped
    and new or changed images are all that is computed. Unusable images are listed and left out.
    A store remembers its network and settings; options that contradict them are refused.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.extraction.estimate import estimate
    from deepfishing.extraction.pipeline import extract_to
    from deepfishing.images.sources import find_images, passed_over_in
    from deepfishing.store import Store

    items = find_images(images, every=every, albums=albums)
    if dry_run:
        if on != LOCAL:
            raise OptionError(
                f"--dry-run measures this machine, got --on {on}; leave --on out"
            )
        found = estimate(
            store,
            items,
            features=features,
            precision=precision,
            resources=resources,
            **options,
        )
        _print_estimate(store, found, as_json)
        return
    start = time.monotonic()
    events = say.JsonEvents(len(items)) if as_json else None
    with say.progress_bar(quiet=as_json) as bar:
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
            notice=say.note,
            **options,
        )
    passed_over = passed_over_in(images)
    rows = Store.open(store).labelled_rows()
    if events:
        events.emit(
            "end",
            store=str(store),
            images=len(items),
            computed=done.computed,
            factors=list(done.factors),
            failures=done.failures,
            zero_gradients=list(done.zero_gradients),
            removed=list(done.removed),
            replaced=list(done.replaced),
            pruned=prune,
            stored=len(rows),
            passed_over=passed_over,
            seconds=round(time.monotonic() - start, 3),
        )
    else:
        say.left_out(
            done.failures.values(),
            f", see `deepfish store info {shlex.quote(str(store))}`",
        )
        say.passed_over(passed_over)
        _summary(store, len(items), done, len(rows), prune)
        if labels := say.labels_text(items):
            say.line(f"labels: {labels}")
    problem = ""
    if strict and done.failures:
        problem = f"{say.images_text(len(done.failures))} cannot be used"
    if not any(done.keys):
        problem = f"none of {say.images_text(len(items))} can be used"
    if problem:
        if not events:
            say.line(f"deepfish: {problem}", err=True)
        raise typer.Exit(1)
    if not events:
        train, search = ("train", store, "model"), ("search", store, "PHOTO.jpg")
        several = len({label for row in rows for label in row.labels or ()}) > 1
        say.what_next(
            ("deepfish", "serve", store), ("deepfish", *(train if several else search))
        )


def _summary(
    store: Path, images: int, done: Extraction, stored: int, prune: bool
) -> None:
    left_out = f", {len(done.failures)} left out" if done.failures else ""
    usable = [key for key in done.keys if key is not None]
    if copies := len(usable) - len(set(usable)):
        left_out += f", {copies} the same as {'others' if copies > 1 else 'another'}"
    holds = f"; the store holds {stored} now" if stored != images else ""
    say.line(
        f"{store}: {say.images_text(images)}, {done.computed} computed now{left_out}{holds}"
    )
    told = {
        "dropped": done.removed if prune else (),
        "replaced by other files": done.replaced,
    }
    for what, ids in told.items():
        if ids:
            some = ", ".join(ids[: say.SHOWN]) + (
                " ..." if len(ids) > say.SHOWN else ""
            )
            say.line(f"{len(ids)} {what}: {some}")
    say.line(f"factors: {', '.join(done.factors)}")
    if zero := done.zero_gradients:
        some = ", ".join(zero[: say.SHOWN]) + (" ..." if len(zero) > say.SHOWN else "")
        say.note(f"zero gradient: {say.images_text(len(zero))}: {some}")
        say.note(
            "gradients cannot tell these apart: take forward features, or another --tau"
        )


def _print_estimate(store: Path, found: Estimate, as_json: bool) -> None:
    if as_json:
        say.json(asdict(found))
        return
    if not found.to_compute:
        say.line(
            f"{store}: nothing to compute, all {say.images_text(found.images)} are stored"
        )
        return
    each = say.size_text(found.bytes / found.to_compute)
    say.line(
        f"{store}: {found.to_compute:,} of {say.images_text(found.images)} to compute"
    )
    say.line(f"time    about {duration_text(found.seconds)} on this machine")
    say.line(f"disk    about {say.size_text(found.bytes)}, {each} per image")
    say.line(f"memory  about {say.size_text(found.memory)}")


def duration_text(seconds: float) -> str:
    """Return a duration in a readable unit."""
    for unit, length, most in (
        ("s", 1, 120),
        ("min", 60, 7200),
        ("h", 3600, 172_800),
        ("days", 86_400, 730 * 86_400),
    ):
        if seconds < most:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / (365.25 * 86_400):,.1f} years"
