"""Stage 2, networks: Caffe's text files (`.prototxt`) -> `Message`.

Comes in: protocol-buffer text, untrusted. Goes out: the same `Message` that the binary reader
makes. Every rule of the text format that protocol buffers print or people write is known: comments,
`:` left out before `{`, `<` for `{`, lists in brackets, strings in either quote and in several
parts. What the table in `schema` does not know is read over, in bounded depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deepfishing.errors import NetworkError, did_you_mean
from deepfishing.networks.caffe.schema import ENUMS, FIELDS, MAX_NAME, Message

MAX_BYTES = 1_000_000  # ResNet-152's deploy.prototxt has 150,000
MAX_DEPTH = 32
MAX_SHOWN = 40  # of what a hostile text brings into an error message

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[A-Za-z_]\w*)
      | (?P<number>[-+]?\.?\d(?:[\w.]|(?<=[eE])[-+])*)
      | (?P<mark>[{}<>\[\]:,;-])""",
    re.VERBOSE | re.ASCII,
)
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_BOOLS = dict.fromkeys(("true", "True", "t", "1"), True)
_BOOLS |= dict.fromkeys(("false", "False", "f", "0"), False)


class _Token(NamedTuple):  # lighter than a dataclass: there are hundreds of thousands
    kind: str
    text: str
    line: int

    @property
    def shown(self) -> str:
        return repr(self.text[:MAX_SHOWN] or "the end")


def read_prototxt(path: Path) -> Message:
    """Read a network definition."""
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
    """Parse one message of a kind of `schema.FIELDS`; `source` is the file's name for errors."""
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
        found = Message(f"{self.source}, line {line}")
        known = FIELDS.get(kind, {})
        while not (self.take(end) if end else self.token.kind == "end"):
            token = self.next()
            if token.kind != "word":
                raise self.error(f"a field's name expected, got {token.shown}", token)
            name = token.text[:MAX_SHOWN]  # longer than any name that is known
            values = self.field(name, known[name][1] if name in known else "skip", depth)
            if name in known:
                found.values.setdefault(name, []).extend(values)
            else:
                found.unknown.append(name)
            self.take(",", ";")
        return found

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
            raise self.error(f"a colon expected after {name}, got {self.token.shown}")
        return [self.value(name, kind, depth)]

    def value(self, name: str, kind: str, depth: int) -> Any:
        line = self.token.line
        if opened := self.take("{", "<"):
            if kind not in FIELDS and kind != "skip":
                raise self.error(f"{name} must be a single value, got a message")
            found = self.message(kind, "}" if opened == "{" else ">", depth + 1, line)
            return None if kind == "skip" else found
        if kind in FIELDS:
            raise self.error(f"{name} must be a message in braces, got {self.token.shown}")
        sign = self.take("-")  # stands alone before inf, or before a blank
        token = self.next()
        if kind == "string" or token.kind == "string":
            return self.string(name, kind, token)
        if token.kind not in ("word", "number"):
            raise self.error(f"{name} must have a value, got {token.shown}", token)
        return None if kind == "skip" else self.scalar(name, kind, token, sign + token.text)

    def scalar(self, name: str, kind: str, token: _Token, text: str) -> Any:
        what, convert = _SCALARS.get(kind, ("a number", _number))
        try:
            return convert(text)
        except (ValueError, KeyError):
            hint = did_you_mean(text[:MAX_SHOWN], ENUMS.get(kind, ()))
            got = f"{text[:MAX_SHOWN]!r}{hint}"
            raise self.error(f"{name} must be {what}, got {got}", token) from None

    def string(self, name: str, kind: str, token: _Token) -> str | None:
        if token.kind != "string" or kind not in ("string", "skip"):
            expected = "a text in quotes" if kind == "string" else "given without quotes"
            raise self.error(f"{name} must be {expected}, got {token.shown}", token)
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
    value = int(text, 8 if re.fullmatch(r"-?0[0-7]+", text) else 0)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(text)
    return value


def _number(text: str) -> float:
    if len(text) > 400 or "_" in text:
        raise ValueError(text)
    return float(text.removesuffix("f") if text.lower().strip("+-") != "inf" else text)


def _enum(names: tuple[str, ...]) -> tuple[str, Callable[[str], str]]:
    known = {str(number): name for number, name in enumerate(names)} | {n: n for n in names}
    few = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"one of {few}", known.__getitem__


_SCALARS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "bool": ("true or false", _BOOLS.__getitem__),
    "int": ("an integer", _integer),
    **{kind: _enum(names) for kind, names in ENUMS.items()},
}
