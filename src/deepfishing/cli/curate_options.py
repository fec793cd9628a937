"""What the commands of `deepfish curate` share: options, and a sheet of photos."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from deepfishing.search import Searcher

Features = Annotated[
    str | None,
    typer.Option(help="A recipe, such as x7 or pow(dW8,0.5). [default: by the store]"),
]
Out = Annotated[
    Path | None, typer.Option(help="Also write a table, .csv or .json, into this file.")
]
Sheet = Annotated[
    Path | None, typer.Option(help="Also draw the photos into this picture, .png or .jpg.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, nothing else.")]


def draw_sheet(path: Path, photos: Searcher, captions: Iterable[tuple[str, str]]) -> None:
    """Draw photos of the store, given by id, each with a caption above its name."""
    from deepfishing.images.item import Held
    from deepfishing.search.sheet import save_tiles

    found = ((id_, caption, photos.photo(id_)) for id_, caption in captions)
    save_tiles(
        path,
        [
            (None if photo is None else Held(id_, photo), caption, Path(id_).name)
            for id_, caption, photo in found
        ],
    )
