"""`deepfish import`: vectors that were made elsewhere, as a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from deepfishing.cli.help import MORE
from deepfishing.cli.parameters import Json
from deepfishing.cli.say import images_text, say, say_json, say_next


def import_(
    file: Annotated[
        Path,
        "A .parquet, .csv, .npz or .h5 file with a vector per image and, if it has them, id, path, "
        "sha256 and label or labels.",
    ],
    store: Annotated[Path, "Folder for the vectors; made if absent."],
    column: Annotated[str | None, "The column of the vectors, if there are several."] = None,
    network: Annotated[str | None, "What made them, to be read. [default: the file's name]"] = None,
    precision: Annotated[
        str | None,
        "Numbers on disk: int4, int8, float16 or float32; a new store has int8.",
        MORE,
    ] = None,
    overwrite: Annotated[bool, "Replace images that the store has already."] = False,
    as_json: Json = False,
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
        say_json({"store": str(store), "images": n, "factors": factors})
    else:
        say(f"{store}: {images_text(n)}, {', '.join(factors)}")
        by = features_of(factors)[-1].name  # the default needs more than most vectors have
        train = ("deepfish", "train", store, "model", "--features", by)
        say_next(("deepfish", "serve", store), train)
