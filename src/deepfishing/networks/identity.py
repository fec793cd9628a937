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

MAX_OBJECTS = 20_000  # that are looked at
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
_IGNORED = {  # attributes of a class that do not change what it does
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
# Kinds of objects that consist of their parts alone, and the function that returns the parts.
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

# Names, numbers and bytes that describe an object, and its parts, if it has any.
_Description = tuple[Iterable[object], Iterable[Any] | None]


class _UnidentifiedError(Exception):
    """An object that cannot be distinguished from another one."""


def identity(function: Callable[..., Any]) -> str:
    """Return name and hash of a function; they are the same only if it computes the same."""
    hasher = _Hasher()
    try:
        hasher.add_thing(function)
    except (_UnidentifiedError, RecursionError):
        return UNIDENTIFIED
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} {hasher.digest.hexdigest()[:32]}"


def architecture(module: torch.nn.Module) -> bytes:
    """Return a hash of a module without its weights: its parts, their attributes and their code.

    Of attributes that cannot be identified, only the kind is included.
    """
    hasher = _Hasher()
    if isinstance(module, torch.jit.ScriptModule):
        # without places in files
        hasher.add(re.sub(r" # .*", "", str(module.inlined_graph)))
        return hasher.digest.digest()
    hasher.add(re.sub(r" at 0x[0-9a-f]+", "", repr(module)))
    kinds: dict[type, None] = {}
    for part in module.modules():
        kinds.update(dict.fromkeys(type(part).__mro__))
    for kind in kinds:
        if not _is_trusted(kind):
            for name, code in _methods(kind):
                hasher.add(name)
                hasher.add_new(code)
    for path, part in module.named_modules():
        hasher.add(path)
        for name, value in _attributes(part):
            hasher.add(name)
            with contextlib.suppress(_UnidentifiedError, RecursionError):
                hasher.add_thing(value)
    return hasher.digest.digest()


def _methods(kind: type) -> Iterator[tuple[str, types.CodeType]]:
    """Yield the code of the methods and properties of a class, by name."""
    for name, value in vars(kind).items():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            yield name, function.__code__


def _attributes(part: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes, buffers that are not among the weights, and hooks of a module."""
    for name, value in vars(part).items():
        if name not in _OF_ANY_MODULE:
            yield name, value
    for name, value in part._buffers.items():
        if name in part._non_persistent_buffers_set:
            yield name, value
    for hooks in (part._forward_pre_hooks, part._forward_hooks):
        yield "", list(hooks.values())


class _Hasher:
    """Writes the description of objects into a hash."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.seen: dict[int, int] = {}
        # referenced, so that no other object gets the address of one that was seen
        self.objects: list[Any] = []

    def add(self, *texts: object) -> None:
        for text in texts:
            if isinstance(text, bytes):
                content = text
            else:
                content = str(text).encode(errors="replace")
            self.digest.update(f"{len(content)}:".encode() + content)

    def add_thing(self, thing: Any) -> None:
        """Add an object by its kind; one that was added before is only referred to."""
        self.add(type(thing).__name__)
        if isinstance(thing, _PLAIN) and type(thing) in _PLAIN:
            self.add(repr(thing))
        elif id(thing) in self.seen:
            self.add("again", self.seen[id(thing)])
        elif len(self.seen) > MAX_OBJECTS:
            raise _UnidentifiedError
        else:
            self.seen[id(thing)] = len(self.seen)
            self.objects.append(thing)
            self.add_new(thing)

    def add_new(self, thing: Any) -> None:
        texts, parts = _describe(thing)
        self.add(*texts)
        if parts is not None:
            for part in parts:
                self.add_thing(part)
            self.add("end")


def _describe(thing: Any) -> _Description:
    """Return the description of an object by its kind."""
    for kind, parts in _WHOLES:
        if isinstance(thing, kind):
            return (), parts(thing)
    if isinstance(thing, types.ModuleType):
        return (thing.__name__,), None
    if isinstance(thing, torch.Tensor):
        return _describe_tensor(thing), None
    if isinstance(thing, np.ndarray | np.generic) and not thing.dtype.hasobject:
        return (thing.dtype, thing.shape, np.asarray(thing).tobytes()), None
    if isinstance(thing, _NAMED):
        return (repr(thing),), None
    if isinstance(thing, set | frozenset):
        return sorted(map(repr, thing)), None
    if isinstance(thing, types.CodeType):
        return _describe_code(thing), thing.co_consts
    if isinstance(thing, type):
        return _describe_class(thing)
    if isinstance(thing, types.FunctionType):
        return _describe_function(thing)
    if inspect.isroutine(thing):  # built in
        owner = getattr(thing, "__self__", None)
        name = (getattr(thing, "__module__", ""), thing.__qualname__)
        if owner is None or isinstance(owner, types.ModuleType):
            return name, ()
        return name, (owner,)
    return _describe_instance(thing)


def _describe_tensor(tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise _UnidentifiedError
    plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), plain.numpy().tobytes()


def _describe_code(code: types.CodeType) -> tuple[object, ...]:
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    variables = (*code.co_varnames, *code.co_freevars, *code.co_cellvars)
    return (code.co_code, *counts, *code.co_names, *variables)


def _describe_class(kind: type) -> _Description:
    if _is_trusted(kind):
        return (kind.__module__, kind.__qualname__), None
    attributes = [pair for pair in vars(kind).items() if pair[0] not in _IGNORED]
    return (kind.__qualname__,), [*kind.__bases__, *_flat(attributes)]


def _describe_function(function: types.FunctionType) -> _Description:
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [function.__defaults__, function.__kwdefaults__, *closure]
    if _is_trusted(function):
        return (function.__module__, function.__qualname__), values
    return (), [function.__code__, *_flat(_used_globals(function)), *values]


def _describe_instance(thing: Any) -> _Description:
    """Describe an instance by its class and attributes; compiled classes may hide some."""
    kind = type(thing)
    compiled = []
    for base in kind.__mro__[:-1]:
        if _is_trusted(base) and base.__module__ != "typing":
            compiled.append(base)
    if compiled and not isinstance(thing, torch.nn.Module):
        raise _UnidentifiedError
    if not hasattr(thing, "__dict__"):
        raise _UnidentifiedError
    attributes = [pair for pair in vars(thing).items() if pair[0] != "training"]
    return (), [kind, *_flat(attributes)]


def _flat(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [part for pair in pairs for part in pair]


def _is_trusted(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in TRUSTED


def _used_globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names of its module that a function, or one inside it, uses, with their values."""
    names: dict[str, None] = {}
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names |= dict.fromkeys(code.co_names)
        inner = [value for value in code.co_consts if isinstance(value, types.CodeType)]
        codes += inner
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if not isinstance(value, types.ModuleType):
            continue
        if value.__name__.partition(".")[0] in TRUSTED:
            continue
        for part in names:
            if hasattr(value, part):
                yield part, getattr(value, part)
