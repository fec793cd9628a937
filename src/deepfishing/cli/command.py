"""Commands of click, made of the records in `deepfishing.cli.arguments`.

A command's record is imported when its help is shown or it is completed, the file that does its
work when it runs, so that help and completion are quick.
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click

from deepfishing.cli.arguments.shared import Fields, Parameter
from deepfishing.cli.help import write_help

TYPES: dict[Any, click.ParamType[Any]] = {
    str: click.STRING,
    int: click.INT,
    float: click.FLOAT,
    Path: click.Path(path_type=Path),
}


class Argument(click.Argument):
    """An argument with help."""

    def __init__(self, parameter: Parameter) -> None:
        number_of_values = 1
        if typing.get_origin(parameter.kind) is tuple:
            number_of_values = -1  # any number
        super().__init__(
            [parameter.field],
            type=_click_type(parameter.kind),
            required=parameter.required,
            nargs=number_of_values,
        )
        self.help = parameter.help


class Option(click.Option):
    """An option with a panel of the help."""

    def __init__(self, parameter: Parameter) -> None:
        names = parameter.names or (_option_name(parameter.field),)
        attributes: dict[str, Any] = {
            "help": parameter.help,
            "default": parameter.default,
        }
        members = typing.get_args(parameter.kind)
        if parameter.kind is bool:
            attributes["is_flag"] = True
        else:
            attributes["type"] = _click_type(parameter.kind)
        if Ellipsis in members:
            attributes |= {"multiple": True, "default": None}
        elif members:
            attributes["nargs"] = len(members)
        super().__init__([parameter.field, *names], **attributes)
        self.panel = parameter.panel


def _option_name(field: str) -> str:
    """Return the name of a field's option; `as_json` is --json, `n` is -n."""
    word = field.removeprefix("as_").strip("_").replace("_", "-")
    if len(word) == 1:
        return f"-{word}"
    return f"--{word}"


def _click_type(kind: Any) -> click.ParamType[Any]:
    """Return the type of one value."""
    members = typing.get_args(kind)
    if members:
        return TYPES[members[0]]
    return TYPES[kind]


class Command(click.Command):
    """A command that draws its own help."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help."""
        write_help(self, ctx, formatter)


class Group(click.Group):
    """A group of commands; those that are `Lazy` are imported when they are needed."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help."""
        write_help(self, ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C ends it without the empty line that click prints."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort from error

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return name, command and remaining arguments."""
        name, command, remaining = super().resolve_command(ctx, args)
        if isinstance(command, Lazy):
            command = command.load()
        return name, command, remaining


class Lazy(click.Command):
    """A command with only a name, a file and a first line; the rest is imported when needed."""

    def __init__(
        self, name: str, file: str, records: tuple[str, ...], about: str, panel: str
    ) -> None:
        super().__init__(name, help=about, short_help=about)
        self.file, self.records, self.panel = file, records, panel

    def load(self) -> click.Command:
        """Return the whole command, or the whole group if there are several records."""
        module = importlib.import_module(f"deepfishing.cli.arguments.{self.file}")
        commands = [
            make_command(getattr(module, record), self.file) for record in self.records
        ]
        if len(commands) == 1:
            return commands[0]
        named = {str(command.name): command for command in commands}
        return Group(self.name, named, help=self.help, no_args_is_help=True)


def make_command(record: type, file: str) -> click.Command:
    """Return the command of a record, whose work is `run_NAME` in `deepfishing.cli.FILE`."""
    hints = typing.get_type_hints(record, include_extras=True)
    parameters: list[Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for field in fields(record):
        kind, annotation, *_ = typing.get_args(hints[field.name])
        if isinstance(annotation, Fields):
            options = list(annotation.parameters(kind))
            groups[field.name] = kind, [option.field for option in options]
            parameters += options
            continue
        default, is_required = field.default, False
        if default is MISSING:
            default, is_required = None, True
        hint = hints[field.name]
        parameters.append(
            Parameter.from_annotation(field.name, hint, default, is_required)
        )
    words = _words(record.__name__)

    def run(**given: Any) -> Any:
        for name, (kind, names) in groups.items():
            members = {each: given.pop(each) for each in names}
            given[name] = _group_value(kind, members)
        module = importlib.import_module(f"deepfishing.cli.{file}")
        work: Callable[[Any], Any] = getattr(module, f"run_{'_'.join(words)}")
        return work(record(**given))

    params: list[click.Parameter] = []
    for parameter in parameters:
        if parameter.is_argument:
            params.append(Argument(parameter))
        else:
            params.append(Option(parameter))
    about = inspect.getdoc(record)
    return Command("-".join(words), callback=run, params=params, help=about)


def _words(name: str) -> list[str]:
    """Return the words of a class name: ExportModel is export, model."""
    return [word.lower() for word in re.findall("[A-Z][a-z]*", name)]


def _group_value(kind: Any, values: dict[str, Any]) -> Any:
    """Return the value of a field whose value is made of several options."""
    if typing.get_origin(kind) is not dict:
        return kind(**values)
    return {name: value for name, value in values.items() if value is not None}
