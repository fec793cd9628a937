"""`deepfish import`: vectors that were made elsewhere, as a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from deepfishing.cli.help import MORE
from deepfishing.cli.say import images_text, say, say_next


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            help="A .parquet, .csv, .npz or .h5 file with a vector per image and, if it has them, "
            "id, path, sha256 and label or labels."
        ),
    ],
    store: Annotated[Path, typer.Argument(help="Folder for the vectors; made if absent.")],
    column: Annotated[
        str | None, typer.Option(help="The column of the vectors, if there are several.")
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="What made them, to be read. [default: the file's name]")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Numbers on disk: int4, int8, float16 or float32; a new store has int8.",
            rich_help_panel=MORE,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace images that the store has already.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
) -> None:
    """Make a store of vectors that were made elsewhere: search, curate and train as with others.

    Example: deepfish import vectors.parquet store

    Columns called x7, delta8 and so on keep their names; other vectors are called x7. A Parquet
    file of `deepfish export` makes the same store again, which also encodes new photos.
    """
    from deepfishing.features import features_of
    from deepfishing.vectors import import_vectors

    made = import_vectors(
        file, store, column=column, network=network, precision=precision, overwrite=overwrite
    )
    n, factors = len(made.rows()), made.factors()
    if as_json:
        say(json.dumps({"store": str(store), "images": n, "factors": factors}))
    else:
        say(f"{store}: {images_text(n)}, {', '.join(factors)}")
        by = features_of(factors)[-1].name  # the default needs more than most vectors have
        train = ("deepfish", "train", store, "model", "--features", by)
        say_next(("deepfish", "serve", store), train)
