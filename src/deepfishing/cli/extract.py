"""`deepfish extract`: features of images into a store."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
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
    from deepfishing.extraction.to_store import Extraction
    from deepfishing.images.item import Item
    from deepfishing.store import Row


def run_extract(args: Extract) -> None:
    """Run `deepfish extract`."""
    items = find_images(args.images, every=args.every, albums=args.albums)
    if args.dry_run:
        _estimate(args, items)
        return
    start = time.monotonic()
    events = JsonEvents(len(items)) if args.as_json else None
    done = _extract(args, items, events)
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
        more = f", see `deepfish store info {shlex.quote(str(args.store))}`"
        print_left_out(done.failures.values(), more)
        print_ignored_files(passed_over)
        _print_summary(args, done, images=len(items), stored=len(rows))
        for line in labels_lines(items, args.images):
            print_line(line)
    problem = ""
    if args.strict and done.failures:
        problem = f"{images_text(len(done.failures))} cannot be used"
    if not any(done.keys):
        problem = f"none of {images_text(len(items))} can be used"
    if problem:
        if not events:
            print_note(f"deepfish: {problem}")
        sys.exit(1)
    if not events:
        _print_next_commands(args.store, rows)


def _extract(
    args: Extract, items: Sequence[Item], events: JsonEvents | None
) -> Extraction:
    """Extract with a progress bar, or with JSON events."""
    table = ""
    if is_table(args.images):
        table = str(args.images)
    with progress_bar(quiet=args.as_json) as bar:
        progress = events or bar
        return extract_to(
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
            table=table,
            progress=progress,
            on_failure=progress.failure,
            notice=print_note,
            **args.options,
        )


def _print_summary(
    args: Extract, done: Extraction, *, images: int, stored: int
) -> None:
    """Print what an extraction has done."""
    text = f"{args.store}: {images_text(images)}, {done.computed} computed now"
    if done.failures:
        text += f", {len(done.failures)} left out"
    usable = [key for key in done.keys if key is not None]
    copies = len(usable) - len(set(usable))
    if copies == 1:
        text += ", 1 the same as another"
    elif copies:
        text += f", {copies} the same as others"
    if stored != images:
        text += f"; the store holds {stored} now"
    print_line(text)
    if args.prune and done.removed:
        print_line(f"{len(done.removed)} dropped: {_first(done.removed)}")
    if done.replaced:
        number = len(done.replaced)
        print_line(f"{number} replaced by other files: {_first(done.replaced)}")
    print_line(f"factors: {', '.join(done.factors)}")
    if done.zero_gradients:
        number_text = images_text(len(done.zero_gradients))
        print_note(f"zero gradient: {number_text}: {_first(done.zero_gradients)}")
        print_note(
            "gradients cannot tell these apart: take forward features, or another --tau"
        )


def _first(ids: Sequence[str]) -> str:
    """Return the first ids of a list as text."""
    text = ", ".join(ids[:MAX_LISTED])
    if len(ids) > MAX_LISTED:
        text += " ..."
    return text


def _print_next_commands(store: Path, rows: Sequence[Row]) -> None:
    """Suggest to look at the store, and to train on it if it has several classes."""
    classes: set[str] = set()
    for row in rows:
        classes.update(row.labels or ())
    second = ("deepfish", "search", store, "PHOTO.jpg")
    if len(classes) > 1:
        second = ("deepfish", "train", store, "model")
    print_next(("deepfish", "serve", store), second)


def _estimate(args: Extract, items: Sequence[Item]) -> None:
    """Estimate time, disk and memory instead of extracting."""
    if args.on != LOCAL:
        raise OptionError(
            f"--dry-run measures this machine, got --on {args.on}; leave --on out"
        )
    needed = estimate(
        args.store,
        items,
        features=args.features,
        precision=args.precision,
        resources=args.resources,
        **args.options,
    )
    if args.as_json:
        print_json(asdict(needed))
        return
    images = images_text(needed.images)
    if not needed.to_compute:
        print_line(f"{args.store}: nothing to compute, all {images} are stored")
        return
    each = size_text(needed.bytes / needed.to_compute)
    print_line(f"{args.store}: {needed.to_compute:,} of {images} to compute")
    print_line(f"time    about {duration_text(needed.seconds)} on this machine")
    print_line(f"disk    about {size_text(needed.bytes)}, {each} per image")
    print_line(f"memory  about {size_text(needed.memory)}")


def duration_text(seconds: float) -> str:
    """Return a duration in a readable unit."""
    for unit, length, limit in (
        ("s", 1, 120),
        ("min", 60, 7200),
        ("h", 3600, 172_800),
        ("days", 86_400, 730 * 86_400),
    ):
        if seconds < limit:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / (365.25 * 86_400):,.1f} years"
