"""Options that the commands of `deepfish curate` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
