"""What a command is: from its signature to what typer takes, and to its help.

A parameter is written `Annotated[kind, "its help", PANEL]`. One whose kind is a dataclass stands
for the fields of it, which carry their own help; the command gets one value of them. The help says
what docstrings and options say, word for word; a paragraph fills its lines wherever the source
breaks them, and options stand in panels. It is drawn here, since typer's own help takes four times
as long to import as it takes to start.
"""

from __future__ import annotations

import importlib
import inspect
import keyword
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import partial, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

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


@dataclass(frozen=True)
class Fields:
    """Fields of records that are options of a command, and their panel.

    A parameter of type dict takes the fields of `records`: the command gets those that were given.
    """

    panel: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    records: tuple[Any, ...] = ()

    def options_of(self, kind: Any) -> Iterator[tuple[str, Any, str, Any]]:
        """Yield name, type, help and default of each option."""
        as_dict = not is_dataclass(kind)
        for record in self.records if as_dict else (kind,):
            hints = typing.get_type_hints(record, include_extras=True)
            for name, annotated in hints.items():
                if name in self.without or (self.only and name not in self.only):
                    continue
                inner, text = typing.get_args(annotated)
                default = getattr(record, name, None)
                if not as_dict:
                    yield name, inner, text, default
                    continue
                if isinstance(default, float):
                    default = f"{default:g}"
                if default is not None:
                    text = f"{text} [default: {default}]"
                yield name, inner | None, text, None


# Parameters that several commands have.
StoreFolder = Annotated[Path, "Folder that `deepfish extract` made."]
ModelFolder = Annotated[Path, "Folder that `deepfish train` wrote."]
MovedWeights = Annotated[
    Path | None, "The network's weight file, if it is elsewhere now.", MORE
]
Precision = Annotated[str, "Numbers on disk: int8, int4, float16 or float32."]
KeptPrecision = Annotated[
    str | None,
    "Numbers on disk: int8, int4, float16 or float32; a store that exists keeps its own, a new one "
    "has int8.",
    MORE,
]
Strict = Annotated[bool, "Stop before the work if an image cannot be used."]
Json = Annotated[bool, "Print JSON, nothing else."]


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


def _process(
    parameter: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any
) -> Any:
    # for a completion nothing runs; a flag that is not given says nothing
    unused = ctx.resilient_parsing or (
        value is None and getattr(parameter, "is_flag", False)
    )
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
    """A command of which only name, file and first line are known until it runs.

    In the file its name is a function's, or that of a tuple of functions, which are the commands of
    a group.
    """

    def __init__(self, name: str, file: str, about: str, panel: str) -> None:
        super().__init__(name, short_help=about, rich_help_panel=panel)
        self.file = file

    def load(self) -> Any:
        """The whole command, imported now."""
        word = str(self.name).replace("-", "_")
        word += "_" * keyword.iskeyword(word)
        found = getattr(importlib.import_module(f"deepfishing.cli.{self.file}"), word)
        is_group = isinstance(found, tuple)
        app = typer.Typer(
            cls=Group, help=self.short_help, no_args_is_help=True, add_completion=False
        )
        for one in found if is_group else (found,):
            app.command(one.__name__.strip("_"), cls=Command)(_prepared(one))
        command: Any = get_group(app) if is_group else get_command(app)
        command.name = self.name
        return command


def _write(command: Any, ctx: Any) -> None:
    """Print the help of a command or a group."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    words = " ".join(command.collect_usage_pieces(ctx)).upper()
    usage = f"{ctx.command_path} {re.sub('[{}]', '', words)}"
    typer.echo()
    wrapped = textwrap.TextWrapper(width - 1, initial_indent=" ", subsequent_indent=" ")
    for paragraph in _paragraphs(f"Usage: {usage}\n\n{command.help or ''}"):
        typer.echo(wrapped.fill(paragraph) + "\n")
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    panels |= {name: [] for name in PANELS}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        default = "Options" if parameter.opts[0].startswith("-") else "Arguments"
        if record:
            panels[getattr(parameter, "rich_help_panel", None) or default].append(
                record
            )
    for one in getattr(command, "commands", {}).values():
        about = one.short_help or _paragraphs(one.help)[0]
        panels.setdefault(one.rich_help_panel or "Commands", []).append(
            (one.name, about)
        )
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
            words = typer.style(
                first.ljust(left), fg="cyan", bold=True
            ) + f"  {line}".ljust(room)
            yield f"{bar} {words} {bar}"
    yield typer.style("╰".ljust(width - 1, "─") + "╯", dim=True)


def _paragraphs(text: str) -> list[str]:
    """Paragraphs without their line breaks."""
    return [
        " ".join(one.split()) for one in inspect.cleandoc(text).split("\n\n") if one
    ]


def _prepared(function: Callable[..., Any]) -> Callable[..., None]:
    """The function with a signature that typer understands."""
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *about = typing.get_args(hints[name])
        if about and isinstance(about[0], Fields):
            chosen = about[0]
            groups[name] = kind, []
            for option, inner, text, default in chosen.options_of(kind):
                groups[name][1].append(option)
                parameters.append(
                    _parameter(option, inner, [text, chosen.panel], default)
                )
        else:
            parameters.append(_parameter(name, kind, about, parameter.default))

    @wraps(function)
    def run(**given: Any) -> None:
        for name, (kind, names) in groups.items():
            values = {option: given.pop(option) for option in names}
            if typing.get_origin(kind) is dict:
                given[name] = {
                    key: value for key, value in values.items() if value is not None
                }
            else:
                given[name] = kind(**values)
        function(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parameter(name: str, kind: Any, about: Any, default: Any) -> inspect.Parameter:
    """One that typer takes; of several kinds the command line reads the first."""
    info, *panel = about
    if typing.get_origin(kind) in (typing.Union, UnionType):
        first, *others = typing.get_args(kind)
        first = str if typing.get_origin(first) is Literal else first
        kind = first | None if NoneType in others else first
    if isinstance(info, str) and default is inspect.Parameter.empty:
        info = typer.Argument(help=info)
    elif isinstance(info, str):
        word = name.removeprefix("as_").strip("_").replace("_", "-")
        dashes = "-" if len(word) == 1 else "--"
        info = typer.Option(
            dashes + word, help=info, rich_help_panel=panel[0] if panel else None
        )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info],
    )
