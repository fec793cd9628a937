"""Readers of Caffe's binary and text files.

Protocol buffers, the bytes of a `.caffemodel` or `.binaryproto` or the text of a `.prototxt`,
become a `Message`; weights are read-only arrays in the mapped file. CONTRIBUTING.md explains why
protobuf's own readers are not used. The files are untrusted: in bytes, every length and shape is
compared with the data that follow before it is used. In text, every form that protocol buffers
print or people write is read: comments, `:` left out before `{`, `<` for `{`, lists in brackets,
strings in either quote and in several parts. Fields that are not in `schema` are skipped; depth and
number of fields are bounded.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deepfishing.errors import (
    NetworkError,
    OptionError,
    WeightsError,
    did_you_mean,
    reraise_as,
)
from deepfishing.networks.caffe.schema import (
    ENUMS,
    FIELDS,
    MAX_NAME,
    Message,
    blob_array,
)

# Fields decoded at most; a message counts as ten. ResNet-152's caffemodel has some 60,000.
MAX_FIELDS = 1_000_000

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# kind -> wire type of one value; several numbers may also be packed into one run of bytes
_WIRE_TYPES = {"int": _VARINT, "bool": _VARINT, "float": _FIXED32, "float32s": _FIXED32}
_WIRE_TYPES |= {"float64s": _FIXED64} | dict.fromkeys(ENUMS, _VARINT)
_WIDTHS = {"float": 4, "float32s": 4, "float64s": 8}
_BY_NUMBER = {
    message: {number: (name, kind) for name, (number, kind) in fields.items()}
    for message, fields in FIELDS.items()
}

MAX_BYTES = 1_000_000  # ResNet-152's deploy.prototxt has 150,000
MAX_DEPTH = 32
MAX_QUOTED = 40  # characters of an untrusted text in an error message

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[A-Za-z_]\w*)
      | (?P<number>[-+]?\.?\d(?:[\w.]|(?<=[eE])[-+])*)
      | (?P<mark>[{}<>\[\]:,;-])
      | (?P<other>.)""",
    re.VERBOSE | re.ASCII,
)
_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
}
_BOOLS = dict.fromkeys(("true", "True", "t", "1"), True)
_BOOLS |= dict.fromkeys(("false", "False", "f", "0"), False)


def read_binary(path: Path, kind: str) -> Message:
    """Read a binary file that holds one message of this kind."""
    with reraise_as(WeightsError, f"file cannot be read: {path}", of=OSError):
        if not path.exists():
            raise WeightsError(f"file not found: {path}; check the path")
        if not path.is_file() or path.stat().st_size == 0:
            kind_of_file = "no file"
            if path.is_file():
                kind_of_file = "an empty file"
            raise WeightsError(
                f"{path} must be a binary Caffe file, got {kind_of_file}; check the path"
            )
        with path.open("rb") as file:
            # pages come in when a weight is read, and are not counted as this process's memory
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return decode(data, kind, str(path))


def decode(data: memoryview, kind: str, source: str) -> Message:
    """Decode one message of a kind of `schema.FIELDS`; `source` is the file's name for errors."""
    return _Decoder(data, source).message(kind, 0, len(data))


class _Decoder:
    def __init__(self, data: memoryview, source: str) -> None:
        self.data = data
        self.source = source
        self.fields_left = MAX_FIELDS

    def message(self, kind: str, position: int, end: int) -> Message:
        message = Message(f"{self.source}, byte {position}")
        self.spend(10, position)
        while position < end:
            place = f"at byte {position}"
            self.spend(1, position)
            tag, position = self.varint(position, end)
            number, wire_type = tag >> 3, tag & 7
            if number == 0:
                raise self.damaged(f"{place} a field has the number 0")
            begin, position = self.content(place, position, end, wire_type)
            if number not in _BY_NUMBER[kind]:
                message.unknown.append(f"field {number}")
                continue
            name, field_kind = _BY_NUMBER[kind][number]
            values = self.values(
                f"{place} {name}", field_kind, wire_type, begin, position
            )
            message.values.setdefault(name, []).extend(values)
        return message

    def content(
        self, place: str, position: int, end: int, wire_type: int
    ) -> tuple[int, int]:
        """Return the begin and the end of a field's content."""
        if wire_type == _VARINT:
            after = self.varint(position, end)[1]
        elif wire_type == _FIXED32:
            after = position + 4
        elif wire_type == _FIXED64:
            after = position + 8
        elif wire_type == _BYTES:
            length, position = self.varint(position, end)
            after = position + length
        else:  # groups, which Caffe never had, and undefined numbers
            raise self.damaged(f"{place} a field has the type {wire_type}")
        if after > end:
            raise self.damaged(
                f"{place} a field of {after - position} bytes begins, but {end - position} are left"
            )
        return position, after

    def values(
        self, field: str, kind: str, wire_type: int, begin: int, end: int
    ) -> list[Any]:
        if kind == "skip":
            return [None]
        expected = _WIRE_TYPES.get(kind, _BYTES)
        if wire_type not in (expected, _BYTES):
            raise self.damaged(
                f"{field} must have the wire type {expected}, got {wire_type}"
            )
        if kind in FIELDS:
            return [self.message(kind, begin, end)]
        content = self.data[begin:end]
        if kind == "string":
            if len(content) > MAX_NAME:
                raise self.damaged(f"{field} has {len(content)} bytes")
            # names need not be valid UTF-8; the text reader turns the same bytes into the same name
            return [bytes(content).decode("utf-8", "backslashreplace")]
        if kind not in _WIDTHS:
            return self.integers(kind, begin, end)
        if len(content) % _WIDTHS[kind]:
            raise self.damaged(f"{field} ends within a number")
        if kind != "float":
            return [content]
        self.spend(len(content) // 4, begin)
        return [value for (value,) in struct.iter_unpack("<f", content)]

    def integers(self, kind: str, position: int, end: int) -> list[Any]:
        """Return the integers, truth values or names of an enum between two positions."""
        values: list[Any] = []
        names = ENUMS.get(kind, ())
        while position < end:
            value, position = self.varint(position, end)
            self.spend(1, position)
            if kind == "bool":
                values.append(bool(value))
            elif value < len(names):
                values.append(names[value])
            elif names:
                values.append(f"number {value}")
            elif value >> 63:  # negative
                values.append(value - (1 << 64))
            else:
                values.append(value)
        return values

    def varint(self, position: int, end: int) -> tuple[int, int]:
        """Read seven bits per byte, the lowest first; the eighth is set if more follow."""
        start, value = position, 0
        while position < end and position - start < 10:
            byte = self.data[position]
            value |= (byte & 0x7F) << 7 * (position - start)
            position += 1
            if byte < 0x80:
                return value & (1 << 64) - 1, position
        raise self.damaged(f"at byte {start} a number does not end")

    def spend(self, fields: int, position: int) -> None:
        self.fields_left -= fields
        if self.fields_left < 0:
            raise self.damaged(
                f"more than {MAX_FIELDS:,} fields before byte {position}"
            )

    def damaged(self, what: str) -> WeightsError:
        return WeightsError(
            f"{self.source} is damaged or not of this format: {what}; get the file again"
        )


class _Token(NamedTuple):  # lighter than a dataclass: there are hundreds of thousands
    kind: str
    text: str
    line: int

    @property
    def quoted(self) -> str:
        """The text for an error message."""
        return repr(self.text[:MAX_QUOTED] or "the end")


def read_prototxt(path: Path) -> Message:
    """Read a network definition."""
    with reraise_as(NetworkError, f"prototxt cannot be read: {path}", of=OSError):
        if not path.exists():
            raise NetworkError(f"prototxt not found: {path}; check the path")
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise NetworkError(
                f"prototxt must be a file of at most {MAX_BYTES:,} bytes: {path}"
            )
        text = path.read_bytes().decode("utf-8-sig", "backslashreplace")
    return parse(text, "NetParameter", str(path))


def parse(text: str, kind: str, source: str) -> Message:
    """Parse one message of a kind of `schema.FIELDS`; `source` is the file's name for errors."""
    return _Parser(text, source).message(kind, end="", depth=0, line=1)


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.tokens = self.tokenize(text)
        self.token = next(self.tokens)

    def tokenize(self, text: str) -> Iterator[_Token]:
        line = 1
        for match in _TOKEN.finditer(text):
            token = _Token(str(match.lastgroup), match[0], line)
            if token.kind == "other":
                got = text[match.start() : match.start() + 20]
                raise self.error(
                    f"text of a network expected, got {got!r}; is this a prototxt?",
                    token,
                )
            if token.kind != "space":
                yield token
            line += match[0].count("\n")
        yield _Token("end", "", line)

    def next(self) -> _Token:
        """Return the current token and move to the next one."""
        token = self.token
        if token.kind != "end":
            self.token = next(self.tokens)
        return token

    def take(self, *marks: str) -> str:
        """Move past the current token if it is one of these marks, and return it, or ''."""
        if self.token.kind == "mark" and self.token.text in marks:
            return self.next().text
        return ""

    def at_end(self, end: str) -> bool:
        """Move past the closing mark if it is next; without a mark, whether the text ends."""
        if end:
            return bool(self.take(end))
        return self.token.kind == "end"

    def message(self, kind: str, end: str, depth: int, line: int) -> Message:
        """Read fields up to the closing mark, or to the end of the text."""
        if depth > MAX_DEPTH:
            raise self.error(f"messages must nest at most {MAX_DEPTH} deep")
        message = Message(f"{self.source}, line {line}")
        fields = FIELDS.get(kind, {})
        while not self.at_end(end):
            token = self.next()
            if token.kind != "word":
                raise self.error(f"a field's name expected, got {token.quoted}", token)
            name = token.text[:MAX_QUOTED]  # longer than any name that is known
            if name in fields:
                values = self.field(name, fields[name][1], depth)
                message.values.setdefault(name, []).extend(values)
            else:
                self.field(name, "skip", depth)
                message.unknown.append(name)
            self.take(",", ";")
        return message

    def field(self, name: str, kind: str, depth: int) -> list[Any]:
        colon = self.take(":")
        if colon and self.take("["):
            values = []
            while not self.take("]"):
                values.append(self.value(name, kind, depth))
                if not self.take(",") and self.token.text != "]":
                    raise self.error(f"a comma or ] expected in the list of {name}")
            return values
        if not colon and self.token.text not in ("{", "<"):
            raise self.error(f"a colon expected after {name}, got {self.token.quoted}")
        return [self.value(name, kind, depth)]

    def value(self, name: str, kind: str, depth: int) -> Any:
        """Read a message in braces, or a single value; return None for a field to skip."""
        line = self.token.line
        opening = self.take("{", "<")
        if opening:
            if kind not in FIELDS and kind != "skip":
                raise self.error(f"{name} must be a single value, got a message")
            closing = {"{": "}", "<": ">"}[opening]
            message = self.message(kind, closing, depth + 1, line)
            if kind == "skip":
                return None
            return message
        if kind in FIELDS:
            raise self.error(
                f"{name} must be a message in braces, got {self.token.quoted}"
            )
        sign = self.take("-")  # alone before inf, or before a blank
        token = self.next()
        if kind == "string" or token.kind == "string":
            return self.string(name, kind, token)
        if token.kind not in ("word", "number"):
            raise self.error(f"{name} must have a value, got {token.quoted}", token)
        if kind == "skip":
            return None
        return self.scalar(name, kind, token, sign + token.text)

    def scalar(self, name: str, kind: str, token: _Token, text: str) -> Any:
        what, convert = _SCALARS.get(kind, ("a number", _number))
        try:
            return convert(text)
        except (ValueError, KeyError):
            few = text[:MAX_QUOTED]
            got = f"{few!r}{did_you_mean(few, ENUMS.get(kind, ()))}"
            raise self.error(f"{name} must be {what}, got {got}", token) from None

    def string(self, name: str, kind: str, token: _Token) -> str | None:
        if token.kind != "string" or kind not in ("string", "skip"):
            expected = "given without quotes"
            if kind == "string":
                expected = "a text in quotes"
            raise self.error(f"{name} must be {expected}, got {token.quoted}", token)
        parts = [token.text]
        while self.token.kind == "string":
            parts.append(self.next().text)
        if kind == "skip":
            return None
        text = "".join(map(_unquoted, parts))
        if len(text.encode()) > MAX_NAME:
            raise self.error(f"{name} must have at most {MAX_NAME} bytes", token)
        return text

    def error(self, text: str, token: _Token | None = None) -> NetworkError:
        """Return an error about this token or the current one."""
        return NetworkError(f"{self.source}, line {(token or self.token).line}: {text}")


def _unquoted(text: str) -> str:
    def plain(match: re.Match[bytes]) -> bytes:
        hexadecimal, octal, letter = match.groups()
        if letter is not None:
            return _ESCAPES.get(letter, letter)
        code = int(hexadecimal, 16) if hexadecimal else int(octal, 8)
        return bytes([code & 0xFF])

    # an escape is a byte: several of them may be one letter
    raw = re.sub(
        rb"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", plain, text[1:-1].encode()
    )
    return raw.decode("utf-8", "backslashreplace")


def _integer(text: str) -> int:
    if len(text) > 24 or "_" in text:
        # more than 64 bits; Python's own way to group digits
        raise ValueError(text)
    base = 0
    if re.fullmatch(r"-?0[0-7]+", text):
        base = 8
    value = int(text, base)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(text)
    return value


def _number(text: str) -> float:
    if len(text) > 400 or "_" in text:
        raise ValueError(text)
    if text.lower().strip("+-") != "inf":
        text = text.removesuffix("f")
    return float(text)


def _enum(names: tuple[str, ...]) -> tuple[str, Callable[[str], str]]:
    """Return the description of an enum, and the function from a name or number to the name."""
    name_of = {}
    for number, name in enumerate(names):
        name_of[str(number)] = name
        name_of[name] = name
    listed = ", ".join(names[:3])
    if len(names) > 3:
        listed += ", ..."
    return f"one of {listed}", name_of.__getitem__


_SCALARS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "bool": ("true or false", _BOOLS.__getitem__),
    "int": ("an integer", _integer),
    **{kind: _enum(names) for kind, names in ENUMS.items()},
}


def given_mean(mean: str | Path) -> tuple[float, float, float]:
    """Return the mean pixel of an option: blue,green,red, or the file of a mean image."""
    if not is_mean_pixel(mean):
        return mean_pixel(Path(mean))
    pixel = [float(number) for number in str(mean).split(",")]
    if len(pixel) != 3 or not all(map(math.isfinite, pixel)):
        raise OptionError(
            "a mean must be three finite numbers, blue,green,red, or a .binaryproto file, got "
            f"{str(mean)!r}"
        )
    return pixel[0], pixel[1], pixel[2]


def is_mean(mean: str | Path) -> bool:
    """Whether a user gave a mean image or its numbers, no other preprocessing."""
    return is_mean_pixel(mean) or str(mean).endswith(".binaryproto")


def is_mean_pixel(mean: str | Path) -> bool:
    """Whether an option has numbers, not the name of a file."""
    try:
        return bool([float(number) for number in str(mean).split(",")])
    except ValueError:
        return False


def mean_pixel(path: Path) -> tuple[float, float, float]:
    """Read a mean image (`.binaryproto`) and average it over its pixels: blue, green, red."""
    # Caffe's own tools subtract the image, which differs by a few grey levels at the borders
    mean = blob_array(read_binary(path, "BlobProto"))
    image = mean
    if mean.ndim == 4 and len(mean) == 1:
        image = mean[0]
    if image.ndim not in (1, 3) or len(image) != 3 or image.size == 0:
        raise WeightsError(
            f"{path} must hold a mean image of 3 channels, got a blob of shape {mean.shape}"
        )
    with np.errstate(all="ignore"):
        blue, green, red = image.reshape(3, -1).mean(axis=1, dtype=np.float64).tolist()
    if not all(map(math.isfinite, (blue, green, red))):
        raise WeightsError(f"{path} must hold finite numbers, got NaN or infinity")
    return blue, green, red
