"""`deepfish export`: a store as one file for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from deepfishing.cli.parameters import Json, StoreFolder
from deepfishing.cli.say import images_text, say, say_json


def export(
    store: StoreFolder,
    file: Annotated[Path, "A new .parquet, .csv, .npz or .h5 file."],
    features: Annotated[str | None, "Comma-separated names, such as x7,dW8. [default: all]"] = None,
    overwrite: Annotated[bool, "Replace the file if it exists."] = False,
    as_json: Json = False,
) -> None:
    """Write the features of a store into one file, decoded, a row per usable image.

    Example: deepfish export store features.parquet --features x7

    A gradient such as dW8 is exported as its two factors. CSV has a column per number, the others a
    vector per image.
    """
    from deepfishing.store import Store
    from deepfishing.store.export import export as write

    opened = Store.open(store)
    n = write(opened, file, features, overwrite=overwrite)
    columns = opened.columns_of(features)
    if as_json:
        say_json({"file": str(file), "images": n, "factors": columns})
    else:
        say(f"{file}: {images_text(n)}, {', '.join(columns)}")
