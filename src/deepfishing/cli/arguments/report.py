"""`deepfish report`: a page or tables from folders of results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write report.html, report.md or report.tex for a folder of results.

    Example: deepfish report results/demo

    The page is one file that needs no network: tables beside the paper's, curves, and the images
    that features rank best, worst and differently. Of several folders, or of one that has folders
    of results in it, gains.html or gains.md is written: how much gradients gain on each data set,
    with intervals, and against the number of examples.
    """

    folders: Annotated[
        tuple[Path, ...],
        "Folder with results.jsonl; or several, or one with such folders.",
    ]
    format_: Annotated[
        str,
        "html: the whole page, report.html. markdown, latex: its tables, report.md or report.tex.",
    ] = "html"
