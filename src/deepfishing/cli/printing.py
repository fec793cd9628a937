"""Printing of lines, tables and JSON.

Names of files, classes and labels may contain control characters, which clear a terminal's screen,
change its title or reverse its text. They are escaped. JSON needs no escaping.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from json import dumps

import click

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), *_DIRECTIONS)
_ESCAPES = {code: ascii(chr(code)).strip("'") for code in _CONTROLS}
del _ESCAPES[ord("\n")], _ESCAPES[ord("\t")]
# bytes of a name that is not UTF-8, which no terminal can show
_ESCAPES |= {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}


def escape_controls(text: str) -> str:
    """Escape control characters except line ends and tabs."""
    return text.translate(_ESCAPES)


def print_line(text: object = "", err: bool = False) -> None:
    """Print a line."""
    click.echo(escape_controls(str(text)), err=err)


def print_note(text: str) -> None:
    """Print a line on stderr, so that the output on a pipe is the answer alone."""
    print_line(text, err=True)


def print_cells(values: Iterable[object]) -> None:
    """Print one row with tabs between complete cells."""
    cells = []
    for value in values:
        cells.append(str(value).replace("\t", "\\t").replace("\n", "\\n"))
    print_line("\t".join(cells))


def print_json(document: object, indent: int | None = None) -> None:
    """Print one JSON document."""
    click.echo(dumps(document, indent=indent))


def count_text(n: int, noun: str) -> str:
    """Return a number with its noun: 1 photo, 2 photos."""
    if n == 1:
        return f"1 {noun}"
    return f"{n:,} {noun}s"


def images_text(n: int) -> str:
    """Return a number of images in words."""
    return count_text(n, "image")


def print_next(*commands: Iterable[object]) -> None:
    """Suggest the next commands, on stderr."""
    lines = [shlex.join(map(str, words)) for words in commands]
    print_note("next: " + ", or ".join(lines))


def size_text(n: float) -> str:
    """Return a size in a readable unit."""
    if n < 1000:
        return f"{n:.0f} B"
    for unit in ("kB", "MB", "GB"):
        n /= 1000
        if n < 1000:
            return f"{n:.1f} {unit}"
    return f"{n / 1000:.1f} TB"
