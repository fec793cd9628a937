"""Annotations of the fields of commands, and options that several commands have."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

# Panels of options, in this order, below the first one, which has those that most people need.
PANELS = PROTOCOL, NETWORK, WORK, MORE = (
    "The protocol",
    "The network and its error",
    "Where and how fast",
    "For experts",
)


# fields of the records that are no options, since few need them
PYTHON_ONLY = ("dtype",)


@dataclass(frozen=True)
class OptionalArgument:
    """Help of an argument that may be left out."""

    help: str


@dataclass(frozen=True)
class Names:
    """Names of an option that do not follow from its field: `--print0/-0`, `--exact/--index`."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Parameter:
    """One argument or option of a command."""

    field: str
    kind: Any  # str, int, float, bool, Path, or a tuple of them
    help: str
    default: Any = None
    required: bool = False
    is_argument: bool = False
    panel: str | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def from_annotation(
        cls, field: str, hint: Any, default: Any, required: bool
    ) -> Parameter:
        """Read `Annotated[kind, help]`, with a panel or `Names` after the help."""
        kind, help_, *annotations = typing.get_args(hint)
        panels = [other for other in annotations if isinstance(other, str)]
        names = [other.names for other in annotations if isinstance(other, Names)]
        is_optional_argument = isinstance(help_, OptionalArgument)
        return cls(
            field=field,
            kind=_first_type(kind),
            help=help_.help if is_optional_argument else help_,
            default=default,
            required=required,
            is_argument=required or is_optional_argument,
            panel=panels[0] if panels else None,
            names=names[0] if names else (),
        )


def _first_type(kind: Any) -> Any:
    """Return the type that the command line reads: the first of several."""
    if typing.get_origin(kind) not in (typing.Union, UnionType):
        return kind
    first = next(each for each in typing.get_args(kind) if each is not NoneType)
    return str if typing.get_origin(first) is Literal else first


@dataclass(frozen=True)
class Fields:
    """Fields of records that are options of a command, and their panel.

    A field of type dict takes the fields of `records`; its value has those that were given.
    """

    panel: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    records: tuple[Any, ...] = ()

    def parameters(self, kind: Any) -> Iterator[Parameter]:
        """Yield the options."""
        if is_dataclass(kind):
            yield from self._parameters_of(kind, as_dict=False)
            return
        for record in self.records:
            yield from self._parameters_of(record, as_dict=True)

    def _parameters_of(self, record: Any, *, as_dict: bool) -> Iterator[Parameter]:
        hints = typing.get_type_hints(record, include_extras=True)
        for name, hint in hints.items():
            if name in self.without or (self.only and name not in self.only):
                continue
            kind, help_ = typing.get_args(hint)
            default = getattr(record, name, None)
            if as_dict and default is not None:
                # a value that is not given stays out of the dict
                default_text = f"{default:g}" if isinstance(default, float) else default
                help_ = f"{help_} [default: {default_text}]"
                default = None
            yield Parameter(name, _first_type(kind), help_, default, panel=self.panel)


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
