"""From the signature of a command to what typer takes.

A parameter is written `Annotated[kind, "its help", PANEL]`. One whose kind is a dataclass stands
for the fields of it, which carry their own help; the command gets one value of them.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

import typer

from deepfishing.cli.help import MORE


@dataclass(frozen=True)
class Fields:
    """Which fields of a dataclass are options of a command, and in which panel they stand."""

    panel: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


# Parameters that several commands have.
StoreFolder = Annotated[Path, "Folder that `deepfish extract` made."]
MovedWeights = Annotated[Path | None, "The network's weight file, if it is elsewhere now.", MORE]
Strict = Annotated[bool, "Stop before the work if an image cannot be used."]
Json = Annotated[bool, "Print JSON, nothing else."]


def command(function: Callable[..., Any]) -> Callable[..., None]:
    """The function with a signature that typer understands."""
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *about = typing.get_args(hints[name])
        if is_dataclass(kind):
            (chosen,) = about
            taken = [
                one
                for one in fields(kind)
                if one.name in (chosen.only or (one.name,)) and one.name not in chosen.without
            ]
            groups[name] = kind, [one.name for one in taken]
            of_fields = typing.get_type_hints(kind, include_extras=True)
            for one in taken:
                inner, text = typing.get_args(of_fields[one.name])
                parameters.append(_parameter(one.name, inner, (text, chosen.panel), one.default))
        else:
            parameters.append(_parameter(name, kind, about, parameter.default))

    @functools.wraps(function)
    def run(**given: Any) -> None:
        for name, (kind, names) in groups.items():
            given[name] = kind(**{one: given.pop(one) for one in names})
        function(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parameter(name: str, kind: Any, about: Any, default: Any) -> inspect.Parameter:
    info, *panel = about
    if isinstance(info, str) and default is inspect.Parameter.empty:
        info = typer.Argument(help=info)
    elif isinstance(info, str):
        word = name.removeprefix("as_").strip("_").replace("_", "-")
        dashes = "-" if len(word) == 1 else "--"
        info = typer.Option(dashes + word, help=info, rich_help_panel=panel[0] if panel else None)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[_typed(kind), info],
    )


def _typed(kind: Any) -> Any:
    """What the command line reads: of several kinds the first, or nothing where None is one."""
    if typing.get_origin(kind) not in (typing.Union, UnionType):
        return kind
    first, *others = typing.get_args(kind)
    first = str if typing.get_origin(first) is Literal else first
    return first | None if NoneType in others else first
