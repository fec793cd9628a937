"""The help of a command: what its docstring and its options say, word for word.

Comes in: a command. Goes out: its help, in which brackets are brackets and not an order to rich,
a paragraph fills its lines wherever the source breaks them, and options stand in panels.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

from rich.markup import escape
from typer.core import TyperCommand

# Panels of options, in this order, below the first one, which has those that most people need.
PANELS = PROTOCOL, NETWORK, WORK, MORE = (
    "The protocol",
    "The network and its error",
    "Where and how fast",
    "For experts",
)


class Command(TyperCommand):
    """A command with help as it is written."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        shown = copy.copy(self)
        shown.help = escape(_flowing(self.help or ""))
        shown.params = sorted(map(_as_written, self.params), key=_place)
        TyperCommand.format_help(shown, ctx, formatter)


def _as_written(parameter: Any) -> Any:
    shown = copy.copy(parameter)
    shown.help = escape(parameter.help or "")
    return shown


def _place(parameter: Any) -> int:
    panel = getattr(parameter, "rich_help_panel", None)
    return 1 + PANELS.index(panel) if panel in PANELS else 0


def _flowing(text: str) -> str:
    r"""Paragraphs without their line breaks.

    Examples
    --------
    >>> _flowing("One\nline.\n\nTwo.")
    'One line.\n\nTwo.'
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
