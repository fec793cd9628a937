"""Stores: `deepfish store` looks into one; `export` and `import` exchange it with other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from deepfishing.cli import say
from deepfishing.cli.command import Json, KeptPrecision, Precision, StoreFolder


def info(store: StoreFolder, as_json: Json = False) -> None:
    """Show what is inside: settings, images, factors, sizes, failures.

    Example: deepfish store info store
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.store import Store
    from deepfishing.store.check import info as facts_of

    facts = facts_of(Store.open(store))
    if as_json:
        say.json(facts, indent=1)
        return
    counts = f"{facts['ok']} ok, {facts['error']} unusable"
    counts += f", {facts['pending']} to do" if facts["pending"] else ""
    sizes = facts["bytes"], facts["bytes_per_image"]
    lines = {
        "store": facts["store"],
        "made": f"{facts['created']} by deepfishing {facts['version']}",
        "images": f"{facts['images']} ({counts}), {facts['contents']} different",
        "labels": facts["labels"] or "none",
        "size": "{}, {} per image".format(*map(say.size_text, sizes)),
    }
    for name, value in facts["settings"].items():
        text = value if isinstance(value, str) else json.dumps(value)
        if text:
            lines[name] = text if len(text) <= 62 else f"{text[:59]}..."
    for name, value in lines.items():
        say.line(f"{name:<15} {value}")
    say.line("\nfactor            shape  contents  per image")
    for name, factor in facts["factors"].items():
        shape = "x".join(map(str, factor["shape"]))
        size = say.size_text(factor["bytes_per_image"])
        say.line(f"{name:<14} {shape:>8} {factor['contents']:>9} {size:>10}")
    say.left_out(facts["failures"].values(), ", see --json", word="unusable", err=False)


def verify(store: StoreFolder, as_json: Json = False) -> None:
    """Check every file: checksum, columns, values, keys; exit with 1 and name the bad ones.

    Example: deepfish store verify store
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.store import Store
    from deepfishing.store.check import verify as problems_of

    problems = problems_of(Store.open(store))
    if as_json:
        say.json({"store": str(store), "sound": not problems, "problems": problems})
    elif not problems:
        say.line(f"{store}: sound")
    for problem in problems if not as_json else ():
        say.note(f"deepfish: {problem}")
    if problems:
        raise typer.Exit(1)


def compress(
    store: StoreFolder,
    out: Annotated[Path, "Folder for the copy; made if absent."],
    precision: Precision = "int8",
    as_json: Json = False,
) -> None:
    """Write a smaller copy of a store, which every command takes as it takes the store itself.

    Example: deepfish store compress store small --precision int4

    Run again, it takes what is new in the store.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.store import Store
    from deepfishing.store.check import info as facts_of
    from deepfishing.store.export import compress as copy_smaller

    source = Store.open(store)
    with say.progress_bar(quiet=as_json) as bar:
        copy = copy_smaller(source, out, precision, bar)
    before, after = facts_of(source), facts_of(copy)
    sizes = [facts["bytes_per_image"] for facts in (after, before)]
    if as_json:
        facts = {
            "store": str(out),
            "precision": copy.precision,
            "images": after["images"],
        }
        say.json(
            {**facts, "bytes_per_image": sizes[0], "bytes_per_image_before": sizes[1]}
        )
    else:
        small, large = map(say.size_text, sizes)
        say.line(
            f"{out}: {after['images']} images, {small} per image instead of {large}"
        )


store = (info, verify, compress)


def export(
    store: StoreFolder,
    file: Annotated[Path, "A new .parquet, .csv, .npz or .h5 file."],
    features: Annotated[
        str | None, "Comma-separated names, such as x7,dW8. [default: all]"
    ] = None,
    overwrite: Annotated[bool, "Replace the file if it exists."] = False,
    as_json: Json = False,
) -> None:
    """Write the features of a store into one file, decoded, a row per usable image.

    Example: deepfish export store features.parquet --features x7

    A gradient such as dW8 is exported as its two factors. CSV has a column per number, the others a
    vector per image.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.store import Store
    from deepfishing.store.export import export as write

    opened = Store.open(store)
    n = write(opened, file, features, overwrite=overwrite)
    columns = opened.columns_of(features)
    if as_json:
        say.json({"file": str(file), "images": n, "factors": columns})
    else:
        say.line(f"{file}: {say.images_text(n)}, {', '.join(columns)}")


def import_(
    file: Annotated[
        Path,
        "A .parquet, .csv, .npz, .npy or .h5 file with a vector per image and, if it has them, id, "
        "path or filename, sha256 and label or labels.",
    ],
    store: Annotated[Path, "Folder for the vectors; made if absent."],
    column: Annotated[
        str | None, "The column of the vectors, if there are several."
    ] = None,
    network: Annotated[
        str | None, "What made them, to be read. [default: the file's name]"
    ] = None,
    paths: Annotated[
        Path | None,
        "A .txt list or a table with the image of each row, for a file without paths.",
    ] = None,
    precision: KeptPrecision = None,
    overwrite: Annotated[bool, "Replace images that the store has already."] = False,
    as_json: Json = False,
) -> None:
    """Make a store of vectors that were made elsewhere: search, curate and train as with others.

    Example: deepfish import vectors.parquet store

    Columns called x7, delta8 and so on keep their names; other vectors are called x7. A Parquet
    file of `deepfish export` makes the same store again, which also encodes new photos.
    """
    # loaded when the command runs, so that help and completion are quick
    from deepfishing.core.features import features_of
    from deepfishing.extraction.imported import import_vectors
    from deepfishing.extraction.texts import EMBEDDING
    from deepfishing.store.precision import DEFAULT

    made = import_vectors(
        file,
        store,
        column=column,
        network=network,
        precision=precision,
        overwrite=overwrite,
        paths=paths,
    )
    n, factors = len(made.rows()), made.factors()
    if as_json:
        say.json({"store": str(store), "images": n, "factors": factors})
    else:
        say.line(f"{store}: {say.images_text(n)}, {', '.join(factors)}")
        if precision is None and made.precision != DEFAULT:
            say.note(f"{DEFAULT} would spoil them, they are kept in {made.precision}")
        train: tuple[object, ...] = ("deepfish", "train", store, "model")
        if EMBEDDING not in factors:  # which the default makes do with
            train = (*train, "--features", features_of(factors)[-1].name)
        say.what_next(("deepfish", "serve", store), train)
