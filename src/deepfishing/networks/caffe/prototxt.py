"""Stage 2, networks: Caffe's text files (`.prototxt`) -> `Message`.

Comes in: protocol-buffer text, untrusted. Goes out: the same `Message` that the binary reader
makes. Every rule of the text format that protocol buffers print or people write is known:
comments, `:` left out before `{`, `<` for `{`, lists in brackets, strings in either quote and
in several parts. What the tables in `schema` do not know is read over, in bounded depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from deepfishing.errors import NetworkError, did_you_mean
from deepfishing.networks.caffe.schema import ENUMS, FIELDS, MAX_NAME, Message

MAX_BYTES = 1_000_000  # ResNet-152's deploy.prototxt has 150,000
MAX_DEPTH = 32

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[A-Za-z_]\w*)
      | (?P<number>[-+]?\.?\d(?:[\w.]|(?<=[eE])[-+])*)
      | (?P<mark>[{}<>\[\]:,;-])""",
    re.VERBOSE | re.ASCII,
)

_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class _Token(NamedTuple):  # lighter than a dataclass: there are hundreds of thousands
    kind: str
    text: str
    line: int

    @property
    def shown(self) -> str:
        """For an error message, which a hostile text must not make endless."""
        return repr(self.text[:40] or "the end")


def read_prototxt(path: Path) -> Message:
    """Read a network definition.

    Examples
    --------
    >>> read_prototxt(Path("deploy.prototxt"))
    Traceback (most recent call last):
    deepfishing.errors.NetworkError: prototxt not found: deploy.prototxt; check the path
    """
    try:
        if not path.exists():
            raise NetworkError(f"prototxt not found: {path}; check the path")
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise NetworkError(f"prototxt must be a file of at most {MAX_BYTES:,} bytes: {path}")
        text = path.read_bytes().decode("utf-8-sig", "backslashreplace")
    except OSError as error:
        raise NetworkError(f"prototxt cannot be read: {path} ({error.strerror})") from None
    return parse(text, "NetParameter", str(path))


def parse(text: str, kind: str, source: str) -> Message:
    """Parse the text of one message.

    Parameters
    ----------
    text : str
        All of the message's fields.
    kind : str
        One of `schema.FIELDS`.
    source : str
        Name of the file, for error messages.

    Examples
    --------
    >>> net = parse("layer { name: 'fc8' type: 'InnerProduct' }  # the classifier",
    ...             "NetParameter", "net.prototxt")
    >>> net.many("layer")[0].one("name", "")
    'fc8'
    >>> parse("input_dim: ten", "NetParameter", "net.prototxt")
    Traceback (most recent call last):
    deepfishing.errors.NetworkError: net.prototxt, line 1: input_dim must be an integer, got 'ten'
    """
    return _Parser(text, source).message(kind, end="", depth=0, line=1)


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.tokens = self.tokenize(text)
        self.token = next(self.tokens)

    def tokenize(self, text: str) -> Iterator[_Token]:
        position, line = 0, 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise NetworkError(
                    f"{self.source}, line {line}: text of a network expected, got "
                    f"{text[position : position + 20]!r}; is this a prototxt?"
                )
            if match.lastgroup != "space":
                yield _Token(str(match.lastgroup), match[0], line)
            line += match[0].count("\n")
            position = match.end()
        yield _Token("end", "", line)

    def next(self) -> _Token:
        """The present token; the one after it becomes present."""
        token = self.token
        if token.kind != "end":
            self.token = next(self.tokens)
        return token

    def take(self, *marks: str) -> str:
        """Step over the present token if it is one of these marks."""
        return self.next().text if self.token.kind == "mark" and self.token.text in marks else ""

    def message(self, kind: str, end: str, depth: int, line: int) -> Message:
        """Fields up to the closing mark, or to the end of the text."""
        if depth > MAX_DEPTH:
            raise self.error(f"messages must nest at most {MAX_DEPTH} deep")
        found = Message(kind, f"{self.source}, line {line}")
        known = FIELDS.get(kind, {})
        while not (self.take(end) if end else self.token.kind == "end"):
            name = self.next()
            if name.kind != "word":
                raise self.error(f"a field's name expected, got {name.shown}", name)
            field = known.get(name.text)
            if field is None:
                found.unknown.append(name.text[:40])
            values = self.field(name, "skip" if field is None else field.kind, depth)
            if field is not None:
                found.values.setdefault(field.name, []).extend(values)
            self.take(",", ";")
        return found

    def field(self, name: _Token, kind: str, depth: int) -> list[Any]:
        colon = self.take(":")
        if colon and self.take("["):
            values = []
            while not self.take("]"):
                values.append(self.value(name, kind, depth))
                if not self.take(",") and self.token.text != "]":
                    raise self.error(f"a comma or ] expected in the list of {name.text[:40]}")
            return values
        if not colon and self.token.text not in ("{", "<"):
            raise self.error(f"a colon expected after {name.text[:40]}, got {self.token.shown}")
        return [self.value(name, kind, depth)]

    def value(self, name: _Token, kind: str, depth: int) -> Any:
        opened = self.take("{", "<")
        if opened:
            if kind not in FIELDS and kind != "skip":
                raise self.error(f"{name.text[:40]} must be a single value, got a message", name)
            found = self.message(kind, "}" if opened == "{" else ">", depth + 1, name.line)
            return None if kind == "skip" else found
        if kind in FIELDS:
            raise self.error(
                f"{name.text[:40]} must be a message in braces, got {self.token.shown}"
            )
        return self.scalar(name, kind)

    def scalar(self, name: _Token, kind: str) -> Any:
        sign = self.take("-")  # stands alone before inf, or before a blank
        token = self.next()
        text = sign + token.text
        if kind == "string" or token.kind == "string":
            return self.string(name, kind, token)
        if token.kind not in ("word", "number"):
            raise self.error(f"{name.text[:40]} must have a value, got {token.shown}", token)
        if kind == "skip":
            return None
        if kind == "bool":
            if text in ("true", "True", "t", "1", "false", "False", "f", "0"):
                return text in ("true", "True", "t", "1")
            raise self.error(f"{name.text[:40]} must be true or false, got {token.shown}", token)
        if kind in ENUMS:
            return self.enum(name, kind, token)
        what, convert = ("an integer", _integer) if kind == "int" else ("a number", _number)
        try:
            return convert(text)
        except ValueError:
            raise self.error(f"{name.text[:40]} must be {what}, got {text[:40]!r}", token) from None

    def string(self, name: _Token, kind: str, token: _Token) -> str | None:
        if token.kind != "string" or kind not in ("string", "skip"):
            expected = "a text in quotes" if kind == "string" else "given without quotes"
            raise self.error(f"{name.text[:40]} must be {expected}, got {token.shown}", token)
        parts = [token.text]
        while self.token.kind == "string":
            parts.append(self.next().text)
        if kind == "skip":
            return None
        text = "".join(map(_unquoted, parts))
        if len(text.encode()) > MAX_NAME:
            raise self.error(f"{name.text[:40]} must have at most {MAX_NAME} bytes", token)
        return text

    def enum(self, name: _Token, kind: str, token: _Token) -> str:
        names = ENUMS[kind]
        if token.text in names:
            return token.text
        if token.text.isdecimal() and int(token.text[:9]) < len(names):
            return names[int(token.text[:9])]
        few = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        hint = did_you_mean(token.text[:40], names)
        raise self.error(f"{name.text[:40]} must be one of {few}, got {token.shown}{hint}", token)

    def error(self, text: str, token: _Token | None = None) -> NetworkError:
        """What is wrong at this token or the present one."""
        return NetworkError(f"{self.source}, line {(token or self.token).line}: {text}")


def _unquoted(text: str) -> str:
    def plain(match: re.Match[bytes]) -> bytes:
        hexadecimal, octal, letter = match.groups()
        if letter is not None:
            return _ESCAPES.get(letter, letter)
        return bytes([(int(hexadecimal, 16) if hexadecimal else int(octal, 8)) & 0xFF])

    # escapes stand for bytes: several of them may be one letter
    raw = re.sub(rb"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", plain, text[1:-1].encode())
    return raw.decode("utf-8", "backslashreplace")


def _integer(text: str) -> int:
    if len(text) > 24 or "_" in text:  # more than 64 bits; Python's own way to group digits
        raise ValueError(text)
    octal = re.fullmatch(r"-?0[0-7]+", text)
    value = int(text, 8 if octal else 0)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(text)
    return value


def _number(text: str) -> float:
    if len(text) > 400 or "_" in text:
        raise ValueError(text)
    return float(text.removesuffix("f") if text.lower().strip("+-") != "inf" else text)
