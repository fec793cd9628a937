"""`deepfish plan`: what features of so many images will cost."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepfishing.cli.help import MORE, NETWORK, WORK
from deepfishing.cli.parameters import Fields, Json
from deepfishing.cli.say import say, say_json, say_note, size_text
from deepfishing.distributed.cluster import LOCAL, RAY
from deepfishing.errors import OptionError
from deepfishing.networks import DEFAULT
from deepfishing.options import Options, Resources

if TYPE_CHECKING:
    from deepfishing.planning import Plan, Run

WIDTH = 24  # of a column


def plan(
    images: Annotated[str, typer.Option(help="How many images, such as 5000, 1e9 or 10M.")],
    *,
    options: Annotated[Options, Fields(NETWORK, only=("network", "weights"))],
    features: Annotated[
        str, "Comma-separated names or recipes, as for `deepfish extract`."
    ] = "all",
    precision: Annotated[str, "Numbers on disk: int8, int4, float16 or float32."] = "int8",
    resources: Annotated[Resources, Fields(WORK, only=("engine",))],
    on: Annotated[str, "Where: local, or ray, which is then shown beside it.", WORK] = LOCAL,
    workers: Annotated[int | None, "Workers on Ray.", WORK] = None,
    cores: Annotated[
        int | None, "Cores of the machine, or of each worker; else those of the rates.", WORK
    ] = None,
    rates: Annotated[
        Path | None,
        "File with rates to use; if it is not there, what is measured goes in.",
        MORE,
    ] = None,
    measure: Annotated[bool, "Measure again, even if the file of rates is there.", MORE] = False,
    sample: Annotated[
        str | None, "Images of yours to measure with, as for `deepfish extract`.", MORE
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what features of many images will cost: hours, bytes, files, memory.

    Example: deepfish plan --images 1e9 --network vgg16 --on ray --workers 100 --cores 8

    The network runs on this machine for a few seconds, with random weights if its own are not
    here; everything else is counted up from that.
    """
    # the store takes a while to load, which other commands need not wait for
    from deepfishing import planning
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
            name, features, options.weights, resources.engine, sample, tell=say_note
        )
        if rates is not None:
            found.write(rates)
    else:
        for option, asked, had in (
            ("network", name, found.network),
            ("features", features, found.features),
        ):
            if asked != had:
                raise OptionError(
                    f"{rates} has rates for --{option} {had}, got --{option} {asked}; give "
                    f"--{option} {had}, or another file"
                )
    made = planning.make_plan(count, found, precision, cores, (workers or 1) if on == RAY else None)
    if as_json:
        say_json(asdict(made), indent=1)
    else:
        say(plan_text(made))


def plan_text(plan: Plan) -> str:
    """A plan as people read it, within 80 columns."""
    rates = plan.rates
    runs = {"local": plan.local, **({"ray": plan.ray} if plan.ray else {})}
    rows = [
        ("", [_where(name, run) for name, run in runs.items()]),
        ("time", [duration_text(run.wall_seconds) for run in runs.values()]),
        ("core-hours", [f"{run.core_hours:,.1f}" for run in runs.values()]),
        ("images per second", [f"{run.images_per_second:,.1f}" for run in runs.values()]),
        ("written per second", [size_text(run.written_per_second) for run in runs.values()]),
        ("memory of a worker", [size_text(run.worker_bytes) for run in runs.values()]),
        ("memory for the index", [size_text(run.index_bytes) for run in runs.values()]),
    ]
    lines = [f"{plan.images:,} images, {rates.network}, {rates.features}, {plan.precision}", ""]
    lines += [f"{name:<22}" + "".join(f"{c:>{WIDTH}}" for c in cells) for name, cells in rows]
    each = size_text(plan.bytes / plan.images)
    lines += [
        "",
        f"on disk               {size_text(plan.bytes)}, {each} per image",
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
    """A duration in the unit that people would use.

    >>> [duration_text(s) for s in (4.23, 300, 12_345, 5e5, 1e9)]
    ['4.2 s', '5.0 min', '3.4 h', '5.8 days', '31.7 years']
    """
    for unit, length, most in (
        ("s", 1, 120),
        ("min", 60, 7200),
        ("h", 3600, 172_800),
        ("days", 86_400, 730 * 86_400),
    ):
        if seconds < most:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / (365.25 * 86_400):,.1f} years"


def _where(name: str, run: Run) -> str:
    cores = f"{run.cores} core{'s' * (run.cores > 1)}"
    return f"{name}: {cores}" if name == LOCAL else f"{name}: {run.workers:,} x {cores}"
