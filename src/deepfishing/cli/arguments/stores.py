"""Stores: `deepfish store` looks into one; `export` and `import` exchange it with other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from deepfishing.cli.arguments.shared import (
    Json,
    KeptPrecision,
    Precision,
    StoreFolder,
)


@dataclass(frozen=True, kw_only=True)
class Info:
    """Show what is inside: settings, images, factors, sizes, failures.

    Example: deepfish store info store
    """

    store: StoreFolder
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check every file: checksum, columns, values, keys; exit with 1 and name the bad ones.

    Example: deepfish store verify store
    """

    store: StoreFolder
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class Compress:
    """Write a smaller copy of a store, which every command takes as it takes the store itself.

    Example: deepfish store compress store small --precision int4

    Run again, it takes what is new in the store.
    """

    store: StoreFolder
    out: Annotated[Path, "Folder for the copy; made if absent."]
    precision: Precision = "int8"


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the features of a store into one file, decoded, a row per usable image.

    Example: deepfish export store features.parquet --features x7

    A gradient such as dW8 is exported as its two factors. CSV has a column per number, the others a
    vector per image.
    """

    store: StoreFolder
    file: Annotated[Path, "A new .parquet, .csv, .npz or .h5 file."]
    features: Annotated[
        str | None, "Comma-separated names, such as x7,dW8. [default: all]"
    ] = None


@dataclass(frozen=True, kw_only=True)
class Import:
    """Make a store of vectors that you have, to search, curate and train with.

    Example: deepfish import vectors.parquet store

    Columns called x7, delta8 and so on keep their names; other vectors are called x7. A Parquet
    file of `deepfish export` makes the same store again, which also encodes new photos.
    """

    file: Annotated[
        Path,
        "A .parquet, .csv, .npz, .npy or .h5 file with a vector per image and, if it has them, id, "
        "path or filename, sha256 and label or labels.",
    ]
    store: Annotated[Path, "Folder for the vectors; made if absent."]
    column: Annotated[
        str | None, "The column of the vectors, if there are several."
    ] = None
    paths: Annotated[
        Path | None,
        "A .txt list or a table with the image of each row, for a file without paths.",
    ] = None
    precision: KeptPrecision = None
    overwrite: Annotated[bool, "Replace images that the store has already."] = False
    as_json: Json = False
