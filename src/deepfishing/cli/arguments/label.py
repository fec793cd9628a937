"""`deepfish label`: correct the labels of a store, export them, undo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from deepfishing.cli.arguments.shared import (
    Json,
    OptionalArgument,
    StoreFolder,
)


@dataclass(frozen=True, kw_only=True)
class Label:
    """Correct the labels of a store, export them or undo a change.

    Example: deepfish label store fixes.csv

    Labels go to a log in the store's folder, also while an extraction runs. They belong to the
    content of a photo: they stay when its file is moved, or saved again with the same pixels.
    `train`, `curate`, `search` and `serve` use them before the names of folders. Rows that match
    no photo are listed and left out.
    """

    store: StoreFolder
    file: Annotated[
        Path | None,
        OptionalArgument("A .csv with the columns path and label or labels."),
    ] = None
    classes: Annotated[
        Path | None,
        "Names of classes, a line each: suggest one for each photo without a label, by words. "
        "The table goes to --out, to be looked through and given back. A line with {} is the text "
        "for a class.",
    ] = None
    out: Annotated[
        Path | None,
        "Write the current labels into this .csv or .json, or those that --classes suggests.",
    ] = None
    rename: Annotated[
        tuple[str, str] | None, "Rename a class, or merge it into another: OLD NEW."
    ] = None
    undo: Annotated[bool, "Undo the last change; again, the one before."] = False
    log: Annotated[bool, "List the changes, the last one at the end."] = False
    as_json: Json = False
