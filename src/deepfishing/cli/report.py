"""`deepfish report`: the HTML page of a results folder, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that holds results.jsonl.")],
) -> None:
    """Write report.html for a folder of results.

    Example: deepfish report results/demo
    """
    from deepfishing.report.html import write_report

    typer.echo(write_report(folder))
