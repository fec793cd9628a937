"""Sound inputs become odd ones.

Comes in: an input and random numbers. Goes out: another input, the same for the same numbers. One
to four changes: of bits, bytes and numbers, of runs of bytes and lines, of figures in text, of
values in JSON, words of the format, a piece of another input; or the target's own change, which
keeps lengths and checksums so that readers get further.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from fuzz.parts import join, split
from fuzz.target import Target

_NUMBERS = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    256,
    1 << 15,
    (1 << 16) - 1,
    1 << 31,
    (1 << 31) - 1,
)
_NUMBERS += (-(1 << 31), (1 << 32) - 1, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
_FIGURES = (
    b"0",
    b"-1",
    b"1",
    b"3",
    b"255",
    b"65536",
    b"2147483648",
    b"9223372036854775808",
)
_FIGURES += (
    b"1e400",
    b"-1e-400",
    b"0.5",
    b"nan",
    b"1" * 30,
    b"9" * 5000,
    b"\xd9\xa7",
    b"007",
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    0.5,
    1e308,
    -1.0,
    1 << 31,
    1 << 62,
    10**20,
    10**400,
)
_VALUES += (
    "",
    "x",
    "8",
    "nan",
    "a\nb",
    "a\0b",
    "\ud800",
    "../up",
    "/etc/x",
    [],
    {},
    [[]],
    [0],
)
_VALUES += ({"": 0}, ["a"], float("nan"), float("inf"), "x7", {"8": 1}, [[[[]]]])
_LONGEST = 1 << 14  # bytes


class Mutator:
    """Changes inputs of a target."""

    def __init__(self, target: Target, seeds: Sequence[bytes]) -> None:
        self.target = target
        self.seeds = seeds
        self.changes: tuple[Callable[[bytes, random.Random], bytes], ...] = (
            *(_bit, _byte, _number, _cut, _copy, _noise, _lines, _figure, _json, _nest),
            *(self._token, self._token, self._splice),
        )

    def __call__(self, data: bytes, rng: random.Random) -> bytes:
        """One of the many inputs next to this one."""
        if self.target.parts == 1:
            return self._changed(data, rng)
        parts = split(data, self.target.parts)
        which = rng.randrange(len(parts))
        parts[which] = self._changed(parts[which], rng)
        return join(parts)

    def _changed(self, data: bytes, rng: random.Random) -> bytes:
        own = self.target.mutate
        for _ in range(rng.choice((1, 1, 2, 4))):
            if own is not None and rng.random() < 0.5:
                data = own(data, rng)
            else:
                data = rng.choice(self.changes)(data, rng)
            # before the next change makes it ten times as long again
            data = data[:_LONGEST]
        return data

    def _token(self, data: bytes, rng: random.Random) -> bytes:
        if not self.target.tokens:
            return _byte(data, rng)
        token, (begin, end) = rng.choice(self.target.tokens), _span(data, rng)
        return data[:begin] + token + data[end if rng.random() < 0.5 else begin :]

    def _splice(self, data: bytes, rng: random.Random) -> bytes:
        other = rng.choice(self.seeds)
        if self.target.parts > 1:
            other = rng.choice(split(other, self.target.parts))
        begin, end = _span(other, rng)
        place = rng.randint(0, len(data))
        return (
            data[:place]
            + other[begin:end]
            + data[place + rng.choice((0, end - begin)) :]
        )


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    """Begin and end of a run of bytes, most often a short one."""
    begin = rng.randint(0, len(data))
    longest = len(data) - begin
    return begin, begin + min(longest, rng.choice((1, 2, 4, 8, 16, 64, longest)))


def _replaced(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def _bit(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\0"
    place = rng.randrange(len(data))
    return _replaced(data, place, bytes([data[place] ^ 1 << rng.randrange(8)]))


def _byte(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data)) if data else 0
    return _replaced(
        data, place, rng.choice((b"\0", b"\xff", b"\x80", rng.randbytes(1)))
    )


def _number(data: bytes, rng: random.Random) -> bytes:
    width = rng.choice((1, 2, 4, 8))
    order = rng.choice(("little", "big"))
    number = rng.choice((*_NUMBERS, len(data), rng.randint(0, 300)))
    new = (number % (1 << 8 * width)).to_bytes(width, order)
    return _replaced(data, rng.randint(0, max(0, len(data) - width)), new)


def _cut(data: bytes, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    return data[:begin] + data[end:]


def _copy(data: bytes, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    place = rng.randint(0, len(data))
    return data[:place] + data[begin:end] * rng.choice((1, 1, 2, 9)) + data[place:]


def _noise(data: bytes, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    return data[:begin] + rng.randbytes(rng.choice((1, 4, end - begin))) + data[end:]


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    way = rng.randrange(3)
    if way == 0:
        lines.insert(place, lines[other])
    elif way == 1:
        lines[place], lines[other] = lines[other], lines[place]
    else:
        del lines[place]
    return b"\n".join(lines)


def _figure(data: bytes, rng: random.Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?", data[:20_000]))
    if not found:
        return _byte(data, rng)
    begin, end = rng.choice(found).span()
    return data[:begin] + rng.choice(_FIGURES) + data[end:]


def _nest(data: bytes, rng: random.Random) -> bytes:
    """Brackets in brackets, deeper than a reader that calls itself can follow."""
    if rng.random() < 0.9:
        return _cut(data, rng)
    opening = rng.choice((b"[", b'{"a":', b"(", b"{", b"<a>"))
    place = rng.randint(0, len(data))
    return data[:place] + opening * rng.choice((3, 40, 3000)) + data[place:]


def _json(data: bytes, rng: random.Random) -> bytes:
    """Another value somewhere in a JSON text, or in a line that is one."""
    lines = data.split(b"\n") if data[:1] == b"{" and b"\n{" in data else [data]
    number = rng.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except (ValueError, RecursionError):
        return _byte(data, rng)
    lines[number] = json.dumps(other_value(value, rng)).encode()
    return b"\n".join(lines)


def other_value(value: Any, rng: random.Random) -> Any:
    """A JSON value of which one part, at any depth, is another."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.02:
        return rng.choice(_VALUES)
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    way = rng.random()
    if way < 0.15:
        del value[key]
    elif way < 0.25 and isinstance(value, dict):
        value[rng.choice(("", "x", "7", "a\nb", str(key) * 2))] = value[key]
    elif way < 0.25:
        value.append(value[key])
    else:
        value[key] = other_value(value[key], rng)
    return value
