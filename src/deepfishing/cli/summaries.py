"""Parts of a summary that several commands print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from deepfishing.cli.printing import (
    escape_controls,
    images_text,
    print_line,
)
from deepfishing.images.item import Item
from deepfishing.images.preprocess import passed_over_text
from deepfishing.images.sources import is_photo_folder

MAX_LISTED = 20  # images that are named one by one
MAX_CLASSES_LISTED = 3


def print_left_out(
    reasons: Iterable[str], more: str = "", *, word: str = "left out", err: bool = True
) -> None:
    """List the first images that were left out; `more` is the command that lists all."""
    lines = list(reasons)
    for reason in lines[:MAX_LISTED]:
        print_line(f"{word}: {reason}", err=err)
    if len(lines) > MAX_LISTED:
        print_line(f"{word}: {len(lines) - MAX_LISTED} more{more}", err=err)


def print_ignored_files(counts: Mapping[str, int]) -> None:
    """Print how many files of a folder are not images."""
    if counts:
        print_line(f"passed over: {passed_over_text(counts)}", err=True)


def labels_lines(items: Sequence[Item], source: str | Path) -> list[str]:
    """Return how many images have labels, of which classes; nothing where none has."""
    labelled = [item.labels for item in items if item.labels]
    if not labelled:
        return []
    classes = sorted(set(chain.from_iterable(labelled)))
    listed = ", ".join(classes[:MAX_CLASSES_LISTED])
    if len(classes) > MAX_CLASSES_LISTED:
        listed += " ..."
    number = f"{len(classes):,} classes"
    if len(classes) == 1:
        number = "1 class"
    lines = [f"labels: {images_text(len(labelled))} of {number}: {listed}"]
    if is_photo_folder(source):
        lines.append("these are names of folders; if they are albums, add --albums")
    return lines


class Escaped:
    """Something that rich draws, with the control characters in its text escaped."""

    def __init__(self, renderable: RenderableType) -> None:
        self.drawn = renderable

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        for segment in console.render(self.drawn, options):
            if segment.control:
                yield segment
            else:
                yield Segment(escape_controls(segment.text), segment.style)
