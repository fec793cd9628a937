"""`deepfish report`: a page or tables from folders of results."""

from __future__ import annotations

from pathlib import Path

from deepfishing.cli.arguments.report import Report
from deepfishing.cli.printing import (
    print_line,
)
from deepfishing.errors import OptionError, check_choice
from deepfishing.evaluation.report.html import write_report
from deepfishing.evaluation.report.overview import find_folders, write_overview
from deepfishing.evaluation.report.text import write_latex, write_markdown

FORMATS = ("html", "markdown", "latex")


def run_report(args: Report) -> None:
    """Run `deepfish report`."""
    check_choice("--format", args.format_, FORMATS)
    found = find_folders(args.folders)
    if found != list(args.folders) or len(found) > 1:
        if args.format_ == "latex":
            raise OptionError(
                "several folders of results are drawn as html or markdown, got latex; name "
                f"one of {', '.join(map(str, found[:5]))}"
            )
        page = "gains.html" if args.format_ == "html" else "gains.md"
        place = args.folders[0] if len(args.folders) == 1 else Path()
        print_line(write_overview(found, place / page))
    elif args.format_ == "html":
        print_line(write_report(found[0]))
    else:
        print_line(
            (write_markdown if args.format_ == "markdown" else write_latex)(found[0])
        )
