"""What a command prints: text in which names are only names.

Comes in: lines and tables with names of files, classes and labels in them, which may be called what
a terminal takes for an order: clear the screen, change the title, show the rest backwards. Goes
out: the same with such characters spelled out. JSON needs none of it and stays as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ORDERS = (*range(0x20), *range(0x7F, 0xA0), *_DIRECTIONS)
_SPELLED = {code: ascii(chr(code))[1:-1] for code in _ORDERS if chr(code) not in "\n\t"}
# bytes of a name that is not UTF-8, which no terminal can show
_SPELLED |= {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}


def spelled(text: str) -> str:
    r"""Text without a character that a terminal obeys; line ends and tabs stay.

    >>> spelled("\x1b[2Jcat.jpg")
    '\\x1b[2Jcat.jpg'
    """
    return text.translate(_SPELLED)


def say(text: object = "", err: bool = False) -> None:
    """Print a line."""
    typer.echo(spelled(str(text)), err=err)


def say_note(line: str) -> None:
    """Print a line that is not part of the answer, so that what is piped stays as it is."""
    say(line, err=True)


def say_json(document: object, indent: int | None = None) -> None:
    """Print one JSON document."""
    import json

    typer.echo(json.dumps(document, indent=indent))


def images_text(n: int) -> str:
    """A number of images.

    >>> images_text(1), images_text(1200)
    ('1 image', '1,200 images')
    """
    return "1 image" if n == 1 else f"{n:,} images"


SHOWN = 20  # images left out that are named one by one


def say_left_out(
    reasons: Iterable[str], more: str = "", *, word: str = "left out", err: bool = True
) -> None:
    """Name the images that were left out, the first of them at least; `more` says where all are."""
    found = list(reasons)
    for reason in found[:SHOWN]:
        say(f"{word}: {reason}", err=err)
    if len(found) > SHOWN:
        say(f"{word}: {len(found) - SHOWN} more{more}", err=err)


def say_passed_over(counts: Mapping[str, int]) -> None:
    """Count the files of a folder that are no images."""
    if counts:
        from deepfishing.images.preprocess import passed_over_text

        say(f"passed over: {passed_over_text(counts)}", err=True)


def say_next(*commands: Iterable[object]) -> None:
    """Name the commands that are useful now; on stderr, so that what is piped stays as it is."""
    say("next: " + ", or ".join(shlex.join(map(str, words)) for words in commands), err=True)


class Spelled:
    """A table, or anything that rich draws: its own colours stay, orders inside its text do not."""

    def __init__(self, drawn: RenderableType) -> None:
        self.drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for segment in console.render(self.drawn, options):
            if segment.control:
                yield segment
            else:
                yield Segment(spelled(segment.text), segment.style)


def size_text(n: float) -> str:
    """Bytes for people.

    >>> size_text(999), size_text(12_345_678)
    ('999 B', '12.3 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"
