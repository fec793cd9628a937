"""`deepfish extract`: features of images into a store."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from deepfishing.cli.arguments.extract import Extract
from deepfishing.cli.printing import (
    images_text,
    print_json,
    print_line,
    print_next,
    print_note,
    size_text,
)
from deepfishing.cli.progress import JsonEvents, progress_bar
from deepfishing.cli.summaries import (
    MAX_LISTED,
    labels_lines,
    print_ignored_files,
    print_left_out,
)
from deepfishing.errors import OptionError
from deepfishing.extraction.estimate import estimate
from deepfishing.extraction.options import LOCAL
from deepfishing.extraction.pipeline import extract_to
from deepfishing.images.sources import find_images, passed_over_in
from deepfishing.images.tables import is_table
from deepfishing.store import Store

if TYPE_CHECKING:
    from deepfishing.extraction.estimate import Estimate
    from deepfishing.extraction.to_store import Extraction


def run_extract(args: Extract) -> None:
    """Run `deepfish extract`."""
    items = find_images(args.images, every=args.every, albums=args.albums)
    if args.dry_run:
        if args.on != LOCAL:
            raise OptionError(
                f"--dry-run measures this machine, got --on {args.on}; leave --on out"
            )
        found = estimate(
            args.store,
            items,
            features=args.features,
            precision=args.precision,
            resources=args.resources,
            **args.options,
        )
        _print_estimate(args.store, found, args.as_json)
        return
    start = time.monotonic()
    events = JsonEvents(len(items)) if args.as_json else None
    with progress_bar(quiet=args.as_json) as bar:
        watch = events or bar
        done = extract_to(
            args.store,
            items,
            features=args.features,
            precision=args.precision,
            resources=args.resources,
            on=args.on,
            retry=args.retry,
            prune=args.prune,
            strict=args.strict,
            keep_labels=not args.albums,
            table=str(args.images) if is_table(args.images) else "",
            progress=watch,
            on_failure=watch.failure,
            notice=print_note,
            **args.options,
        )
    passed_over = passed_over_in(args.images)
    rows = Store.open(args.store).labelled_rows()
    if events:
        events.emit(
            "end",
            store=str(args.store),
            images=len(items),
            computed=done.computed,
            factors=list(done.factors),
            failures=done.failures,
            zero_gradients=list(done.zero_gradients),
            removed=list(done.removed),
            replaced=list(done.replaced),
            pruned=args.prune,
            stored=len(rows),
            passed_over=passed_over,
            seconds=round(time.monotonic() - start, 3),
        )
    else:
        print_left_out(
            done.failures.values(),
            f", see `deepfish store info {shlex.quote(str(args.store))}`",
        )
        print_ignored_files(passed_over)
        _summary(args.store, len(items), done, len(rows), args.prune)
        for line in labels_lines(items, args.images):
            print_line(line)
    problem = ""
    if args.strict and done.failures:
        problem = f"{images_text(len(done.failures))} cannot be used"
    if not any(done.keys):
        problem = f"none of {images_text(len(items))} can be used"
    if problem:
        if not events:
            print_line(f"deepfish: {problem}", err=True)
        sys.exit(1)
    if not events:
        train, search = (
            ("train", args.store, "model"),
            ("search", args.store, "PHOTO.jpg"),
        )
        several = len({label for row in rows for label in row.labels or ()}) > 1
        print_next(
            ("deepfish", "serve", args.store),
            ("deepfish", *(train if several else search)),
        )


def _summary(
    store: Path, images: int, done: Extraction, stored: int, prune: bool
) -> None:
    left_out = f", {len(done.failures)} left out" if done.failures else ""
    usable = [key for key in done.keys if key is not None]
    if copies := len(usable) - len(set(usable)):
        left_out += f", {copies} the same as {'others' if copies > 1 else 'another'}"
    holds = f"; the store holds {stored} now" if stored != images else ""
    print_line(
        f"{store}: {images_text(images)}, {done.computed} computed now{left_out}{holds}"
    )
    told = {
        "dropped": done.removed if prune else (),
        "replaced by other files": done.replaced,
    }
    for what, ids in told.items():
        if ids:
            some = ", ".join(ids[:MAX_LISTED]) + (
                " ..." if len(ids) > MAX_LISTED else ""
            )
            print_line(f"{len(ids)} {what}: {some}")
    print_line(f"factors: {', '.join(done.factors)}")
    if zero := done.zero_gradients:
        some = ", ".join(zero[:MAX_LISTED]) + (" ..." if len(zero) > MAX_LISTED else "")
        print_note(f"zero gradient: {images_text(len(zero))}: {some}")
        print_note(
            "gradients cannot tell these apart: take forward features, or another --tau"
        )


def _print_estimate(store: Path, found: Estimate, as_json: bool) -> None:
    if as_json:
        print_json(asdict(found))
        return
    if not found.to_compute:
        print_line(
            f"{store}: nothing to compute, all {images_text(found.images)} are stored"
        )
        return
    each = size_text(found.bytes / found.to_compute)
    print_line(
        f"{store}: {found.to_compute:,} of {images_text(found.images)} to compute"
    )
    print_line(f"time    about {duration_text(found.seconds)} on this machine")
    print_line(f"disk    about {size_text(found.bytes)}, {each} per image")
    print_line(f"memory  about {size_text(found.memory)}")


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
