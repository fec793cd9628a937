"""Stage 2, networks: which function it is, so that features of another one are not taken for its.

Comes in: an error of one's own (`head`) or a function that takes the scores out of an output
(`logits`). Goes out: its name with a hash of all that decides what it computes: code, constants,
defaults, what it closes over, and what it finds by name. Python, torch and numpy are trusted by
name. What cannot be told gives `UNTOLD`, and is never reused.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import operator
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from deepfishing.networks.reference import UNTOLD

MOST = 20_000  # things that are looked at
TRUSTED = {"torch", "numpy", "deepfishing", *sys.stdlib_module_names} - {"__main__"}
_PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), type(Ellipsis))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype)
_SAYS_NOTHING = {  # of a class
    *("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__"),
    *("__firstlineno__", "__static_attributes__", "__annotate__", "__annotations_cache__"),
    *("__dataclass_fields__", "__dataclass_params__", "__abstractmethods__", "_abc_impl"),
}
# What is nothing but its parts, and these.
_WHOLES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((tuple, list), lambda whole: whole),
    (Mapping, lambda whole: [part for pair in whole.items() for part in pair]),
    (types.MethodType, lambda whole: (whole.__func__, whole.__self__)),
    (functools.partial, lambda whole: (whole.func, whole.args, whole.keywords)),
    ((staticmethod, classmethod), lambda whole: (whole.__func__,)),
    (property, lambda whole: (whole.fget, whole.fset)),
    (
        (operator.itemgetter, operator.attrgetter, operator.methodcaller),
        lambda whole: whole.__reduce__()[1],
    ),
)


class _UntoldError(Exception):
    """Something that cannot be told from another one."""


def identity(function: Callable[..., Any]) -> str:
    """Name and hash of a function; the same only if it computes the same.

    Examples
    --------
    >>> def error(power):
    ...     return lambda y: (y ** power).sum()
    >>> identity(error(2)) == identity(error(2)), identity(error(2)) == identity(error(3))
    (True, False)
    >>> identity(iter([1]).__next__)  # what it gives depends on who has asked before
    '?'
    """
    teller = _Teller()
    try:
        teller.tell(function)
    except (_UntoldError, RecursionError):
        return UNTOLD
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} {teller.digest.hexdigest()[:32]}"


def architecture(module: torch.nn.Module) -> bytes:
    """A hash of what a module computes, beside its weights: its parts, and the code of each."""
    teller = _Teller()
    teller.add(re.sub(r" at 0x[0-9a-f]+", "", repr(module)))
    for kind in dict.fromkeys(type(part) for part in module.modules()):
        forward = getattr(kind.forward, "__code__", None)
        if not _is_trusted(kind) and forward is not None:
            teller.code(forward)
    return teller.digest.digest()


class _Teller:
    """Writes into a hash what a thing is made of."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.seen: dict[int, int] = {}
        self.kept: list[Any] = []  # so that no other thing gets the address of one that was seen

    def add(self, *texts: object) -> None:
        for text in texts:
            content = text if isinstance(text, bytes) else str(text).encode(errors="replace")
            self.digest.update(f"{len(content)}:".encode() + content)

    def tell(self, thing: Any) -> None:
        """A thing by its kind; what is met again is only counted."""
        self.add(type(thing).__name__)
        if isinstance(thing, _PLAIN) and type(thing) in _PLAIN:
            self.add(repr(thing))
            return
        if id(thing) in self.seen:
            self.add("again", self.seen[id(thing)])
            return
        if len(self.seen) > MOST:
            raise _UntoldError
        self.seen[id(thing)] = len(self.seen)
        self.kept.append(thing)
        self.new(thing)

    def new(self, thing: Any) -> None:
        if parts := next((parts for kind, parts in _WHOLES if isinstance(thing, kind)), None):
            self.all(parts(thing))
        elif isinstance(thing, types.ModuleType):
            self.add(thing.__name__)
        elif isinstance(thing, torch.Tensor):
            self.tensor(thing)
        elif isinstance(thing, np.ndarray | np.generic) and not thing.dtype.hasobject:
            self.add(thing.dtype, thing.shape, np.asarray(thing).tobytes())
        elif isinstance(thing, _NAMED):
            self.add(repr(thing))
        elif isinstance(thing, enum.Enum):
            self.add(type(thing).__qualname__, thing.name)
        elif isinstance(thing, set | frozenset):
            self.add(*sorted(map(repr, thing)))
        elif isinstance(thing, types.CodeType):
            self.code(thing)
        elif isinstance(thing, type):
            self.kind(thing)
        elif isinstance(thing, types.FunctionType):
            self.function(thing)
        elif inspect.isroutine(thing):
            self.built_in(thing)
        else:
            self.instance(thing)

    def all(self, things: Any) -> None:
        for thing in things:
            self.tell(thing)
        self.add("end")

    def tensor(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            raise _UntoldError
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        self.add(tensor.dtype, tuple(tensor.shape), plain.view(torch.uint8).numpy().tobytes())

    def built_in(self, thing: Any) -> None:
        self.add(getattr(thing, "__module__", ""), thing.__qualname__)
        owner = getattr(thing, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.tell(owner)

    def function(self, function: types.FunctionType) -> None:
        if _is_trusted(function):
            self.add(function.__module__, function.__qualname__)
        else:
            self.code(function.__code__)
            for name, value in _found_by_name(function):
                self.add(name)
                self.tell(value)
        cells = function.__closure__ or ()
        self.all((function.__defaults__, function.__kwdefaults__))
        self.all(cell.cell_contents for cell in cells)

    def code(self, code: types.CodeType) -> None:
        self.add(code.co_code, code.co_argcount, code.co_kwonlyargcount, code.co_flags)
        self.add(*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
        self.all(code.co_consts)

    def kind(self, kind: type) -> None:
        self.add(kind.__module__ if _is_trusted(kind) else "", kind.__qualname__)
        if not _is_trusted(kind):
            self.all(kind.__bases__)
            for name, value in vars(kind).items():
                if name not in _SAYS_NOTHING:
                    self.add(name)
                    self.tell(value)

    def instance(self, thing: Any) -> None:
        """By its class and what it holds, if nothing of it is hidden in compiled code."""
        kind, is_module = type(thing), isinstance(thing, torch.nn.Module)
        hidden = [c for c in kind.__mro__[:-1] if _is_trusted(c) and c.__module__ != "typing"]
        if (hidden and not is_module) or not hasattr(thing, "__dict__"):
            raise _UntoldError
        self.kind(kind)
        state = vars(thing).items()
        self.all(part for pair in state if pair[0] != "training" for part in pair)


def _is_trusted(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in TRUSTED


def _found_by_name(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function, or one inside it, finds among the names of its module."""
    names: dict[str, None] = {}
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names |= dict.fromkeys(code.co_names)
        codes += [value for value in code.co_consts if isinstance(value, types.CodeType)]
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, types.ModuleType):
            root = value.__name__.partition(".")[0]
            parts = () if root in TRUSTED else (part for part in names if hasattr(value, part))
            yield from ((part, getattr(value, part)) for part in parts)
