"""Stores: `deepfish store` looks into one; `export` and `import` exchange it with other tools."""

from __future__ import annotations

import json
import sys

from deepfishing.cli.arguments.stores import Compress, Export, Import, Info, Verify
from deepfishing.cli.printing import (
    images_text,
    print_json,
    print_line,
    print_next,
    print_note,
    size_text,
)
from deepfishing.cli.progress import progress_bar
from deepfishing.cli.summaries import (
    print_left_out,
)
from deepfishing.core.features import features_of
from deepfishing.extraction.imported import import_vectors
from deepfishing.extraction.texts import EMBEDDING
from deepfishing.store import Store
from deepfishing.store.check import info as facts_of
from deepfishing.store.check import verify as problems_of
from deepfishing.store.export import compress as copy_smaller
from deepfishing.store.export import export as write
from deepfishing.store.precision import DEFAULT


def run_info(args: Info) -> None:
    """Run `deepfish store info`."""
    facts = facts_of(Store.open(args.store))
    if args.as_json:
        print_json(facts, indent=1)
        return
    counts = f"{facts['ok']} ok, {facts['error']} unusable"
    counts += f", {facts['pending']} to do" if facts["pending"] else ""
    sizes = facts["bytes"], facts["bytes_per_image"]
    lines = {
        "store": facts["store"],
        "made": f"{facts['created']} by deepfishing {facts['version']}",
        "images": f"{facts['images']} ({counts}), {facts['contents']} different",
        "labels": facts["labels"] or "none",
        "size": "{}, {} per image".format(*map(size_text, sizes)),
    }
    for name, value in facts["settings"].items():
        text = value if isinstance(value, str) else json.dumps(value)
        if text:
            lines[name] = text if len(text) <= 62 else f"{text[:59]}..."
    for name, value in lines.items():
        print_line(f"{name:<15} {value}")
    print_line("\nfactor            shape  contents  per image")
    for name, factor in facts["factors"].items():
        shape = "x".join(map(str, factor["shape"]))
        size = size_text(factor["bytes_per_image"])
        print_line(f"{name:<14} {shape:>8} {factor['contents']:>9} {size:>10}")
    print_left_out(
        facts["failures"].values(), ", see --json", word="unusable", err=False
    )


def run_verify(args: Verify) -> None:
    """Run `deepfish store verify`."""
    problems = problems_of(Store.open(args.store))
    if args.as_json:
        print_json(
            {"store": str(args.store), "sound": not problems, "problems": problems}
        )
    elif not problems:
        print_line(f"{args.store}: sound")
    for problem in problems if not args.as_json else ():
        print_note(f"deepfish: {problem}")
    if problems:
        sys.exit(1)


def run_compress(args: Compress) -> None:
    """Run `deepfish store compress`."""
    source = Store.open(args.store)
    with progress_bar() as bar:
        copy = copy_smaller(source, args.out, args.precision, bar)
    before, after = facts_of(source), facts_of(copy)
    small, large = (
        size_text(after["bytes_per_image"]),
        size_text(before["bytes_per_image"]),
    )
    print_line(
        f"{args.out}: {after['images']} images, {small} per image instead of {large}"
    )


def run_export(args: Export) -> None:
    """Run `deepfish export`."""
    opened = Store.open(args.store)
    n = write(opened, args.file, args.features)
    columns = opened.columns_of(args.features)
    print_line(f"{args.file}: {images_text(n)}, {', '.join(columns)}")


def run_import(args: Import) -> None:
    """Run `deepfish import`."""
    store = import_vectors(
        args.file,
        args.store,
        column=args.column,
        precision=args.precision,
        overwrite=args.overwrite,
        paths=args.paths,
    )
    n, factors = len(store.rows()), store.factors()
    if args.as_json:
        print_json({"store": str(args.store), "images": n, "factors": factors})
    else:
        print_line(f"{args.store}: {images_text(n)}, {', '.join(factors)}")
        if args.precision is None and store.precision != DEFAULT:
            print_note(
                f"{DEFAULT} would spoil them, they are kept in {store.precision}"
            )
        train: tuple[object, ...] = ("deepfish", "train", args.store, "model")
        if EMBEDDING not in factors:  # which the default makes do with
            train = (*train, "--features", features_of(factors)[-1].name)
        print_next(("deepfish", "serve", args.store), train)
