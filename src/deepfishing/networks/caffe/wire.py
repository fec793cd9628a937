"""Stage 2, networks: Caffe's binary files (`.caffemodel`, `.binaryproto`) -> `Message`.

Comes in: the bytes of a protocol-buffer message, untrusted. Goes out: a `Message` whose numbers
are still where they were in the file: weights are slices of the memory-mapped file.

Why a reader of our own instead of the protobuf runtime: the wire format is five rules; the
runtime would add a dependency whose generated code must match its version, and it copies every
weight into objects of its own before we can look at it. Here a length is compared with the bytes
that are really there before it is used, a message nests no deeper than the tables in `schema`,
and the number of fields is bounded, so a hostile file costs seconds at most and no memory.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from deepfishing.errors import WeightsError
from deepfishing.networks.caffe.schema import ENUMS, FIELDS, MAX_NAME, Field, Message

# Fields decoded at most; a message counts as ten. ResNet-152's caffemodel has some 60,000.
MAX_FIELDS = 1_000_000

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BY_NUMBER = {
    kind: {field.number: field for field in fields.values()} for kind, fields in FIELDS.items()
}
# kind -> wire type of one value; several numbers may also be packed into one run of bytes
_WIRE_TYPES = {"int": _VARINT, "bool": _VARINT, "float": _FIXED32, "string": _BYTES}
_WIRE_TYPES |= {"float32s": _FIXED32, "float64s": _FIXED64} | dict.fromkeys(ENUMS, _VARINT)


def read_binary(path: Path, kind: str) -> Message:
    """Read a binary file that holds one message of this kind.

    Examples
    --------
    >>> read_binary(Path("bvlc_alexnet.caffemodel"), "NetParameter")
    Traceback (most recent call last):
    deepfishing.errors.WeightsError: file not found: bvlc_alexnet.caffemodel; check the path
    """
    try:
        if not path.exists():
            raise WeightsError(f"file not found: {path}; check the path")
        if not path.is_file() or path.stat().st_size == 0:
            what = "an empty file" if path.is_file() else "no file"
            raise WeightsError(f"{path} must be a binary Caffe file, got {what}; check the path")
        with path.open("rb") as file:
            # pages come in when a weight is read, and are not counted as this process's memory
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise WeightsError(f"file cannot be read: {path} ({error.strerror})") from None
    return decode(data, kind, str(path))


def decode(data: memoryview, kind: str, source: str) -> Message:
    """Decode one message.

    Parameters
    ----------
    data : memoryview of bytes
        The whole message.
    kind : str
        One of `schema.FIELDS`.
    source : str
        Name of the file, for error messages.

    Examples
    --------
    >>> shape = decode(memoryview(bytes([0x0A, 2, 3, 5])), "BlobShape", "a.binaryproto")
    >>> shape.many("dim")
    [3, 5]
    >>> decode(memoryview(bytes([0x0A, 200, 3])), "BlobShape", "a.binaryproto")
    Traceback (most recent call last):
    deepfishing.errors.WeightsError: a.binaryproto is damaged or not of this format: at byte 0 a
        field of 456 bytes begins, but 0 are left; get the file again
    """
    return _Decoder(data, source).message(kind, 0, len(data))


class _Decoder:
    def __init__(self, data: memoryview, source: str) -> None:
        self.data = data
        self.source = source
        self.fields_left = MAX_FIELDS

    def message(self, kind: str, position: int, end: int) -> Message:
        found = Message(kind, f"{self.source}, byte {position}")
        self.spend(10, position)
        while position < end:
            start = position
            tag, position = self.varint(position, end)
            number, wire_type = tag >> 3, tag & 7
            if number == 0:
                raise self.damaged(f"at byte {start} a field has the number 0")
            position, content = self.content(start, position, end, wire_type)
            self.spend(1, start)
            field = _BY_NUMBER[kind].get(number)
            if field is None:
                found.unknown.append(f"field {number}")
            else:
                values = found.values.setdefault(field.name, [])
                values += self.values(field, wire_type, content, start)
        return found

    def content(
        self, start: int, position: int, end: int, wire_type: int
    ) -> tuple[int, tuple[int, int]]:
        """Where a field's content begins and ends, and where the next field begins."""
        if wire_type == _VARINT:
            after = self.varint(position, end)[1]
        elif wire_type in (_FIXED32, _FIXED64):
            after = position + (4 if wire_type == _FIXED32 else 8)
        elif wire_type == _BYTES:
            length, position = self.varint(position, end)
            after = position + length
        else:  # groups, which Caffe never had, and numbers without a meaning
            raise self.damaged(f"at byte {start} a field has the type {wire_type}")
        if after > end:
            raise self.damaged(
                f"at byte {start} a field of {after - position} bytes begins, "
                f"but {end - position} are left"
            )
        return after, (position, after)

    def values(
        self, field: Field, wire_type: int, content: tuple[int, int], start: int
    ) -> list[Any]:
        position, end = content
        if field.kind == "skip":
            return [None]
        expected = _WIRE_TYPES.get(field.kind, _BYTES)
        if wire_type != expected and (wire_type != _BYTES or field.kind == "string"):
            raise self.damaged(
                f"at byte {start} {field.name} must have the wire type {expected}, got {wire_type}"
            )
        if field.kind in FIELDS:
            return [self.message(field.kind, position, end)]
        if field.kind == "string":
            if end - position > MAX_NAME:
                raise self.damaged(f"at byte {start} {field.name} has {end - position} bytes")
            # names need not be valid UTF-8; the text reader turns the same bytes into the same name
            return [bytes(self.data[position:end]).decode("utf-8", "backslashreplace")]
        if field.kind in ("float32s", "float64s"):
            width = 4 if field.kind == "float32s" else 8
            if (end - position) % width:
                raise self.damaged(f"at byte {start} {field.name} ends within a number")
            return [self.data[position:end]]
        if field.kind == "float":
            if (end - position) % 4:
                raise self.damaged(f"at byte {start} {field.name} ends within a number")
            self.spend((end - position) // 4, start)
            return list(struct.unpack(f"<{(end - position) // 4}f", self.data[position:end]))
        return self.integers(field, position, end)

    def integers(self, field: Field, position: int, end: int) -> list[Any]:
        found: list[Any] = []
        while position < end:
            value, position = self.varint(position, end)
            self.spend(1, position)
            if field.kind == "bool":
                found.append(bool(value))
            elif field.kind in ENUMS:
                names = ENUMS[field.kind]
                found.append(names[value] if value < len(names) else f"number {value}")
            else:
                found.append(value - (1 << 64) if value >> 63 else value)
        return found

    def varint(self, position: int, end: int) -> tuple[int, int]:
        """Seven bits a byte, the lowest first; the eighth says that more follow."""
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
            raise self.damaged(f"more than {MAX_FIELDS:,} fields before byte {position}")

    def damaged(self, what: str) -> WeightsError:
        return WeightsError(
            f"{self.source} is damaged or not of this format: {what}; get the file again"
        )
