"""`deepfish extract`, features of images into a store, and `deepfish plan`, what they will cost."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepfishing.cli import say
from deepfishing.cli.command import (
    MORE,
    NETWORK,
    WORK,
    Fields,
    Json,
    KeptPrecision,
    Precision,
    Strict,
)
from deepfishing.errors import OptionError
from deepfishing.extraction.options import LOCAL, RAY, Options, Resources
from deepfishing.networks import DEFAULT

if TYPE_CHECKING:
    from deepfishing.extraction.planning import Plan
    from deepfishing.extraction.to_store import Extraction

WIDTH = 24  # of a column of a plan


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
    features: Annotated[str, "Names or recipes: x7,dW7 or dW:layer4.1.conv2@64x64."] = "all",
    resources: Annotated[Resources, Fields(WORK)],
    precision: KeptPrecision = None,
    on: Annotated[str, "Where: local, ray, or ray://HOST:PORT of a Ray cluster.", WORK] = LOCAL,
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
    from deepfishing.extraction.pipeline import extract_to
    from deepfishing.images.sources import find_images, passed_over_in
    from deepfishing.store import Store

    items = find_images(images, every=every)
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
            **vars(options),
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
            removed=list(done.removed),
            replaced=list(done.replaced),
            pruned=prune,
            stored=len(rows),
            passed_over=passed_over,
            seconds=round(time.monotonic() - start, 3),
        )
    else:
        say.left_out(
            done.failures.values(), f", see `deepfish store info {shlex.quote(str(store))}`"
        )
        say.passed_over(passed_over)
        _summary(store, len(items), done, len(rows), prune)
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
        say.what_next(("deepfish", "serve", store), ("deepfish", *(train if several else search)))


def _summary(store: Path, images: int, done: Extraction, stored: int, prune: bool) -> None:
    left_out = f", {len(done.failures)} left out" if done.failures else ""
    usable = [key for key in done.keys if key is not None]
    if copies := len(usable) - len(set(usable)):
        left_out += f", {copies} the same as {'others' if copies > 1 else 'another'}"
    holds = f"; the store holds {stored} now" if stored != images else ""
    say.line(f"{store}: {say.images_text(images)}, {done.computed} computed now{left_out}{holds}")
    told = {"dropped": done.removed if prune else (), "replaced by other files": done.replaced}
    for what, ids in told.items():
        if ids:
            some = ", ".join(ids[: say.SHOWN]) + (" ..." if len(ids) > say.SHOWN else "")
            say.line(f"{len(ids)} {what}: {some}")
    say.line(f"factors: {', '.join(done.factors)}")


def plan(
    images: Annotated[str, typer.Option(help="How many images, such as 5000, 1e9 or 10M.")],
    *,
    options: Annotated[Options, Fields(NETWORK, only=("network", "weights"))],
    features: Annotated[str, "Names or recipes, as for `deepfish extract`."] = "all",
    precision: Precision = "int8",
    resources: Annotated[Resources, Fields(WORK, only=("engine",))],
    on: Annotated[str, "Where: local, or ray, which is then shown beside it.", WORK] = LOCAL,
    workers: Annotated[int | None, "Workers on Ray.", WORK] = None,
    cores: Annotated[
        int | None, "Cores of this machine, or per worker. [default: of the rates]", WORK
    ] = None,
    rates: Annotated[
        Path | None, "File with rates to use; if it does not exist, what is measured goes in.", MORE
    ] = None,
    measure: Annotated[bool, "Measure again, even if the file of rates exists.", MORE] = False,
    sample: Annotated[
        str | None, "Images to measure with, as for `deepfish extract`.", MORE
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what features of many images will cost: hours, bytes, files, memory.

    Example: deepfish plan --images 1e9 --network vgg16 --on ray --workers 100 --cores 8

    The network runs on this machine for a few seconds, with random weights if its own are not
    here; everything else is counted up from that.
    """
    from deepfishing.extraction import planning
    from deepfishing.store.precision import check_precision

    count = planning.parse_count(images)
    options.check_features(features)
    name = options.network or DEFAULT
    if on not in (LOCAL, RAY):
        raise OptionError(f"on must be local or ray, got {on!r}; a plan needs no address")
    if workers is not None and on != RAY:
        raise OptionError(f"workers go with --on ray, got --workers {workers} and --on {on}")
    planning.check_counts(workers=workers, cores=cores)
    check_precision(precision)
    found = None if measure or rates is None else planning.Rates.read(rates)
    if found is None:
        found = planning.measure_rates(
            name, features, options.weights, resources.engine, sample, tell=say.note
        )
        if rates is not None:
            found.write(rates)
    for option, asked in {"network": name, "features": features}.items():
        had = getattr(found, option)
        if asked != had:
            raise OptionError(
                f"{rates} has rates for --{option} {had}, got --{option} {asked}; give "
                f"--{option} {had}, or another file"
            )
    made = planning.make_plan(count, found, precision, cores, (workers or 1) if on == RAY else None)
    if as_json:
        say.json(asdict(made), indent=1)
    else:
        say.line(plan_text(made))


def plan_text(plan: Plan) -> str:
    """A plan as people read it, within 80 columns."""
    rates = plan.rates
    lines = [f"{plan.images:,} images, {rates.network}, {rates.features}, {plan.precision}", ""]
    columns = []
    for name, run in {LOCAL: plan.local, RAY: plan.ray}.items():
        if run is None:
            continue
        cores = f"{run.cores} core{'s' * (run.cores > 1)}"
        columns.append(
            {
                "": f"{name}: {cores}" if name == LOCAL else f"{name}: {run.workers:,} x {cores}",
                "time": duration_text(run.wall_seconds),
                "core-hours": f"{run.core_hours:,.1f}",
                "images per second": f"{run.images_per_second:,.1f}",
                "written per second": say.size_text(run.written_per_second),
                "memory of a worker": say.size_text(run.worker_bytes),
                "memory for the index": say.size_text(run.index_bytes),
            }
        )
    for name in columns[0]:
        lines.append(f"{name:<22}" + "".join(f"{cells[name]:>{WIDTH}}" for cells in columns))
    each = say.size_text(plan.bytes / plan.images)
    lines += [
        "",
        f"on disk               {say.size_text(plan.bytes)}, {each} per image",
        f"shards                {plan.shards:,} files, {len(rates.factors)} factors",
        f"rates                 {rates.core_seconds * 1000:,.1f} ms of a core per image",
    ]
    if plan.stores > 1:
        most = -(-plan.images // plan.stores)
        lines.append(
            f"\nthe index of one store is held in memory: on this machine make {plan.stores:,} "
            f"stores\nof at most {most:,} images"
        )
    return "\n".join(lines)


def duration_text(seconds: float) -> str:
    """A duration in the unit that people would use."""
    for unit, length, most in (
        ("s", 1, 120),
        ("min", 60, 7200),
        ("h", 3600, 172_800),
        ("days", 86_400, 730 * 86_400),
    ):
        if seconds < most:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / (365.25 * 86_400):,.1f} years"
