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
    results = find_folders(args.folders)
    if results != list(args.folders) or len(results) > 1:
        if args.format_ == "latex":
            raise OptionError(
                "several folders of results are drawn as html or markdown, got latex; name "
                f"one of {', '.join(map(str, results[:5]))}"
            )
        page = "gains.md"
        if args.format_ == "html":
            page = "gains.html"
        folder = Path()
        if len(args.folders) == 1:
            folder = args.folders[0]
        print_line(write_overview(results, folder / page))
    elif args.format_ == "html":
        print_line(write_report(results[0]))
    elif args.format_ == "markdown":
        print_line(write_markdown(results[0]))
    else:
        print_line(write_latex(results[0]))
