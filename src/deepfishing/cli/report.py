"""`deepfish report`: the page of a folder of results, its tables, or the gains of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from deepfishing.cli.say import say
from deepfishing.errors import OptionError, check_choice

FORMATS = ("html", "markdown", "latex")


def report(
    folders: Annotated[
        list[Path], "Folder that holds results.jsonl; or several, or one with such folders."
    ],
    format_: Annotated[
        str,
        "html: the whole page, report.html. markdown, latex: its tables, report.md or report.tex.",
    ] = "html",
    images: Annotated[
        Path | None, "Where the test images are now, if they have moved; for html."
    ] = None,
    features: Annotated[str | None, "Only these gradients; of several folders."] = None,
) -> None:
    """Write report.html, report.md or report.tex for a folder of results.

    Example: deepfish report results/demo

    The page is one file that needs no network: tables beside the paper's, curves, and the images
    that features rank best, worst and differently. Of several folders, or of one that has folders
    of results in it, gains.html or gains.md is written: how much gradients gain on each data set,
    with intervals, and against the number of examples.
    """
    from deepfishing.report.html import write_report
    from deepfishing.report.overview import find_folders, write_overview
    from deepfishing.report.text import write_latex, write_markdown

    check_choice("--format", format_, FORMATS)
    found = find_folders(folders)
    if found != folders or len(found) > 1:
        if format_ == "latex" or images is not None:
            raise OptionError(
                "several folders of results are drawn as html or markdown, without --images; name "
                f"one of {', '.join(map(str, found[:5]))}"
            )
        page = "gains.html" if format_ == "html" else "gains.md"
        place = folders[0] if len(folders) == 1 else Path()
        say(write_overview(found, place / page, features))
    elif features is not None:
        raise OptionError(f"--features is for several folders of results, got one, {found[0]}")
    elif format_ == "html":
        say(write_report(found[0], images))
    else:
        say((write_markdown if format_ == "markdown" else write_latex)(found[0]))
