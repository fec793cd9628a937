"""The help of a command: what its docstring and its options say, word for word, in panels.

Comes in: a command or a group of them. Goes out: its help, in which a paragraph fills its lines
wherever the source breaks them, and options stand in panels. Drawn here, since typer's own help
takes four times as long to import as it takes to start.
"""

from __future__ import annotations

import importlib
import inspect
import keyword
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

# Panels of options, in this order, below the first one, which has those that most people need.
PANELS = PROTOCOL, NETWORK, WORK, MORE = (
    "The protocol",
    "The network and its error",
    "Where and how fast",
    "For experts",
)
WIDEST = 100
NAMES = 26  # the widest column of names; a longer one has a line of its own


class _AsWritten:
    """What commands and groups share: help as it is written, and no waiting for it."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        _write(self, ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        """Arguments and options; typer imports pydantic to look at one, so only where it must."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in parameters:
            if "process_value" not in vars(one):
                one.process_value = partial(_process, one, one.process_value)
        return parameters


def _process(parameter: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    # for a completion nothing runs; a flag that is not given says nothing
    unused = ctx.resilient_parsing or (value is None and getattr(parameter, "is_flag", False))
    return value if unused else process(ctx, value)


class Command(_AsWritten, TyperCommand):
    """One command."""


class Group(_AsWritten, TyperGroup):
    """Commands below a word; those that are `Lazy` are imported when they run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of a word."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Lazy) else command, rest


class Lazy(TyperCommand):
    """A command of which only name and first line are known until it runs."""

    def load(self) -> Any:
        """The whole command, imported now."""
        from deepfishing.cli.parameters import command as prepared

        word = str(self.name).replace("-", "_")
        word += "_" * keyword.iskeyword(word)
        module = importlib.import_module(f"deepfishing.cli.{word}")
        several: typer.Typer | None = getattr(module, f"{word}_app", None)
        app = several or typer.Typer(add_completion=False)
        if several is None:
            app.command()(getattr(module, word))
        app.info.cls, app.info.help = Group, self.short_help
        for info in app.registered_commands:
            info.cls, info.callback = Command, info.callback and prepared(info.callback)
        command: Any = get_group(app) if several else get_command(app)
        command.name = self.name
        return command


def _write(command: Any, ctx: Any) -> None:
    """Print the help of a command or a group."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    words = " ".join(command.collect_usage_pieces(ctx)).upper()
    usage = f"{ctx.command_path} {re.sub('[{}]', '', words)}"
    typer.echo("\n" + _paragraphs(f"Usage: {usage}\n\n{command.help or ''}", width))
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    panels |= {name: [] for name in PANELS}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        default = "Options" if parameter.opts[0].startswith("-") else "Arguments"
        if record:
            panels[getattr(parameter, "rich_help_panel", None) or default].append(record)
    for one in getattr(command, "commands", {}).values():
        about = one.short_help or _flowing(one.help or "").partition("\n\n")[0]
        panels.setdefault(one.rich_help_panel or "Commands", []).append((one.name, about))
    for title, rows in panels.items():
        if rows:
            typer.echo("\n".join(_panel(title, rows, width)))


def _panel(title: str, rows: Iterable[tuple[str, str]], width: int) -> Iterable[str]:
    """Two columns in a frame."""
    rows = [(name, " ".join(text.split())) for name, text in rows]
    left = max(len(name) for name, _ in rows if len(name) <= NAMES or len(rows) == 1)
    bar = typer.style("│", dim=True)
    yield typer.style(f"╭─ {title} ".ljust(width - 1, "─") + "╮", dim=True)
    for name, text in rows:
        lines = textwrap.wrap(text, width - left - 6, break_on_hyphens=False) or [""]
        if len(name) > left:
            lines.insert(0, "")
        for number, line in enumerate(lines):
            first = "" if number else name
            room = width - 4 - max(len(first), left)
            words = typer.style(first.ljust(left), fg="cyan", bold=True) + f"  {line}".ljust(room)
            yield f"{bar} {words} {bar}"
    yield typer.style("╰".ljust(width - 1, "─") + "╯", dim=True)


def _paragraphs(text: str, width: int) -> str:
    """Text within the width, a blank at its left, an empty line below each paragraph."""
    wrapped = (
        textwrap.fill(one, width - 1, initial_indent=" ", subsequent_indent=" ")
        for one in _flowing(text).split("\n\n")
    )
    return "".join(f"{one}\n\n" for one in wrapped if one).removesuffix("\n")


def _flowing(text: str) -> str:
    r"""Paragraphs without their line breaks.

    >>> _flowing("One\nline.\n\nTwo.")
    'One line.\n\nTwo.'
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
