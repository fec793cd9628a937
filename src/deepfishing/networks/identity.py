"""Identity of a user's function, so that features of another one are never mistaken for its own.

A user's own error (`head`), or function that takes the scores out of an output (`logits`), is
identified by its name with a hash of everything that determines its results: code, constants,
defaults, closures, and the globals that it uses. Python, torch and numpy are trusted by name. A
function that cannot be identified is `UNIDENTIFIED` and never reused.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import inspect
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from deepfishing.networks.reference import UNIDENTIFIED

MOST = 20_000  # things that are looked at
TRUSTED = {"torch", "numpy", "deepfishing", *sys.stdlib_module_names} - {"__main__"}
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    type(None),
    type(Ellipsis),
)
_NAMED = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    np.dtype,
    enum.Enum,
)
_SAYS_NOTHING = {  # of a class
    *(
        "__module__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__qualname__",
    ),
    *(
        "__firstlineno__",
        "__static_attributes__",
        "__annotate__",
        "__annotations_cache__",
    ),
    *(
        "__dataclass_fields__",
        "__dataclass_params__",
        "__abstractmethods__",
        "_abc_impl",
    ),
}
_OF_ANY_MODULE = frozenset(vars(torch.nn.Module()))  # its weights and parts among them
# What is nothing but its parts, and these.
_WHOLES: tuple[tuple[Any, Callable[[Any], Iterable[Any]]], ...] = (
    ((tuple, list), lambda whole: whole),
    (Mapping, lambda whole: _flat(whole.items())),
    (types.MethodType, lambda whole: (whole.__func__, whole.__self__)),
    (functools.partial, lambda whole: (whole.func, whole.args, whole.keywords)),
    ((staticmethod, classmethod), lambda whole: (whole.__func__,)),
    (property, lambda whole: (whole.fget, whole.fset)),
    (operator.itemgetter, lambda whole: whole.__reduce__()[1]),
    (operator.attrgetter, lambda whole: whole.__reduce__()[1]),
    (operator.methodcaller, lambda whole: whole.__reduce__()[1]),
)

# Names, numbers and bytes that say what a thing is, and what it is made of, if of anything.
_Description = tuple[Iterable[object], Iterable[Any] | None]


class _UnidentifiedError(Exception):
    """Something that cannot be told apart from something else."""


def identity(function: Callable[..., Any]) -> str:
    """Name and hash of a function; the same only if it computes the same."""
    hasher = _Hasher()
    try:
        hasher.add_thing(function)
    except (_UnidentifiedError, RecursionError):
        return UNIDENTIFIED
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} {hasher.digest.hexdigest()[:32]}"


def architecture(module: torch.nn.Module) -> bytes:
    """A hash of what a module computes, beside its weights: its parts, what they hold, their code.

    Of what cannot be identified, the kind alone counts.
    """
    hasher = _Hasher()
    if isinstance(module, torch.jit.ScriptModule):
        # without places in files
        hasher.add(re.sub(r" # .*", "", str(module.inlined_graph)))
        return hasher.digest.digest()
    hasher.add(re.sub(r" at 0x[0-9a-f]+", "", repr(module)))
    kinds = dict.fromkeys(
        base for part in module.modules() for base in type(part).__mro__
    )
    for kind in kinds:
        if not _is_trusted(kind):
            for name, value in vars(kind).items():
                function = getattr(value, "fget", None) or getattr(
                    value, "__func__", value
                )
                if isinstance(function, types.FunctionType):
                    hasher.add(name)
                    hasher.add_new(function.__code__)
    for path, part in module.named_modules():
        # among the weights
        kept = part._buffers.keys() - part._non_persistent_buffers_set
        hooks = [part._forward_pre_hooks, part._forward_hooks]
        own = {
            name: value
            for name, value in vars(part).items()
            if name not in _OF_ANY_MODULE
        }
        changing = {
            name: value for name, value in part._buffers.items() if name not in kept
        }
        hasher.add(path)
        for name, value in [
            *own.items(),
            *changing.items(),
            *(("", [*h.values()]) for h in hooks),
        ]:
            hasher.add(name)
            with contextlib.suppress(_UnidentifiedError, RecursionError):
                hasher.add_thing(value)
    return hasher.digest.digest()


class _Hasher:
    """Writes into a hash what a thing is made of."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.seen: dict[int, int] = {}
        # so that no other thing gets the address of one that was seen
        self.kept: list[Any] = []

    def add(self, *texts: object) -> None:
        for text in texts:
            content = (
                text if isinstance(text, bytes) else str(text).encode(errors="replace")
            )
            self.digest.update(f"{len(content)}:".encode() + content)

    def add_thing(self, thing: Any) -> None:
        """A thing by its kind; what is met again is only counted."""
        self.add(type(thing).__name__)
        if isinstance(thing, _PLAIN) and type(thing) in _PLAIN:
            self.add(repr(thing))
        elif id(thing) in self.seen:
            self.add("again", self.seen[id(thing)])
        elif len(self.seen) > MOST:
            raise _UnidentifiedError
        else:
            self.seen[id(thing)] = len(self.seen)
            self.kept.append(thing)
            self.add_new(thing)

    def add_new(self, thing: Any) -> None:
        texts, parts = _describe(thing)
        self.add(*texts)
        if parts is not None:
            for part in parts:
                self.add_thing(part)
            self.add("end")


def _describe(thing: Any) -> _Description:
    if whole := next(
        (parts for kind, parts in _WHOLES if isinstance(thing, kind)), None
    ):
        return (), whole(thing)
    if isinstance(thing, types.ModuleType):
        return (thing.__name__,), None
    if isinstance(thing, torch.Tensor):
        if thing.layout != torch.strided or thing.device.type == "meta":
            raise _UnidentifiedError
        plain = thing.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return (thing.dtype, tuple(thing.shape), plain.numpy().tobytes()), None
    if isinstance(thing, np.ndarray | np.generic) and not thing.dtype.hasobject:
        return (thing.dtype, thing.shape, np.asarray(thing).tobytes()), None
    if isinstance(thing, _NAMED):
        return (repr(thing),), None
    if isinstance(thing, set | frozenset):
        return sorted(map(repr, thing)), None
    if isinstance(thing, types.CodeType):
        names = (
            *thing.co_names,
            *thing.co_varnames,
            *thing.co_freevars,
            *thing.co_cellvars,
        )
        counts = (thing.co_argcount, thing.co_kwonlyargcount, thing.co_flags)
        return (thing.co_code, *counts, *names), thing.co_consts
    if isinstance(thing, type):
        if _is_trusted(thing):
            return (thing.__module__, thing.__qualname__), None
        says = [pair for pair in vars(thing).items() if pair[0] not in _SAYS_NOTHING]
        return (thing.__qualname__,), [*thing.__bases__, *_flat(says)]
    if isinstance(thing, types.FunctionType):
        held = [cell.cell_contents for cell in thing.__closure__ or ()]
        rest = [thing.__defaults__, thing.__kwdefaults__, *held]
        if _is_trusted(thing):
            return (thing.__module__, thing.__qualname__), rest
        return (), [thing.__code__, *_flat(_found_by_name(thing)), *rest]
    if inspect.isroutine(thing):  # built in
        owner = getattr(thing, "__self__", None)
        owners = (
            () if owner is None or isinstance(owner, types.ModuleType) else (owner,)
        )
        return (getattr(thing, "__module__", ""), thing.__qualname__), owners
    # an instance by its class and what it holds, if nothing of it is hidden in compiled code
    kind, is_module = type(thing), isinstance(thing, torch.nn.Module)
    hidden = [
        c for c in kind.__mro__[:-1] if _is_trusted(c) and c.__module__ != "typing"
    ]
    if (hidden and not is_module) or not hasattr(thing, "__dict__"):
        raise _UnidentifiedError
    return (), [
        kind,
        *_flat(pair for pair in vars(thing).items() if pair[0] != "training"),
    ]


def _flat(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [part for pair in pairs for part in pair]


def _is_trusted(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in TRUSTED


def _found_by_name(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function, or one inside it, finds among the names of its module."""
    names: dict[str, None] = {}
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names |= dict.fromkeys(code.co_names)
        codes += [
            value for value in code.co_consts if isinstance(value, types.CodeType)
        ]
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, types.ModuleType):
            root = value.__name__.partition(".")[0]
            parts = (
                ()
                if root in TRUSTED
                else (part for part in names if hasattr(value, part))
            )
            yield from ((part, getattr(value, part)) for part in parts)
