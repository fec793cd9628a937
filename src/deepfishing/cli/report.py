"""`deepfish report`: the page of a results folder, or its tables for a paper, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepfishing.cli.say import say
from deepfishing.errors import OptionError, did_you_mean

FORMATS = ("html", "markdown", "latex")


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that holds results.jsonl.")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="html: the whole page, report.html. markdown, latex: its tables, report.md or "
            "report.tex.",
        ),
    ] = "html",
    images: Annotated[
        Path | None,
        typer.Option(help="Where the test images are now, if they have moved; for html."),
    ] = None,
) -> None:
    """Write report.html, report.md or report.tex for a folder of results.

    Example: deepfish report results/demo

    The page is one file that needs no network: tables beside the paper's, curves, and the images
    that features rank best, worst and differently.
    """
    from deepfishing.report.html import write_report
    from deepfishing.report.text import write_latex, write_markdown

    if format_ not in FORMATS:
        raise OptionError(
            f"--format must be one of {', '.join(FORMATS)}, got {format_!r}"
            f"{did_you_mean(format_, FORMATS)}"
        )
    if format_ == "html":
        say(write_report(folder, images))
    else:
        say((write_markdown if format_ == "markdown" else write_latex)(folder))
