"""Stage 2, networks: Caffe's binary files (`.caffemodel`, `.binaryproto`) -> `Message`, arrays.

Comes in: the bytes of a protocol-buffer message, untrusted. Goes out: a `Message`, and its weights
as read-only arrays that still lie in the mapped file; docs/house.md says why protobuf's own reader
is not used. A length or a shape is compared with the bytes that really follow before it is used; a
message nests no deeper than the table in `schema`, and the number of fields is bounded.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.errors import OptionError, WeightsError
from deepfishing.networks.caffe.schema import ENUMS, FIELDS, MAX_NAME, Message

# Fields decoded at most; a message counts as ten. ResNet-152's caffemodel has some 60,000.
MAX_FIELDS = 1_000_000
MOST_NUMBERS = 2**31 - 1  # of a blob, as in Caffe

Array = np.ndarray[Any, Any]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# kind -> wire type of one value; several numbers may also be packed into one run of bytes
_WIRE_TYPES = {"int": _VARINT, "bool": _VARINT, "float": _FIXED32, "float32s": _FIXED32}
_WIRE_TYPES |= {"float64s": _FIXED64} | dict.fromkeys(ENUMS, _VARINT)
_WIDTHS = {"float": 4, "float32s": 4, "float64s": 8}
_BY_NUMBER = {
    message: {number: (name, kind) for name, (number, kind) in fields.items()}
    for message, fields in FIELDS.items()
}


def read_binary(path: Path, kind: str) -> Message:
    """Read a binary file that holds one message of this kind."""
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
    """Decode one message of a kind of `schema.FIELDS`; `source` is the file's name for errors."""
    return _Decoder(data, source).message(kind, 0, len(data))


class _Decoder:
    def __init__(self, data: memoryview, source: str) -> None:
        self.data = data
        self.source = source
        self.fields_left = MAX_FIELDS

    def message(self, kind: str, position: int, end: int) -> Message:
        found = Message(f"{self.source}, byte {position}")
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
                found.unknown.append(f"field {number}")
                continue
            name, field_kind = _BY_NUMBER[kind][number]
            values = self.values(f"{place} {name}", field_kind, wire_type, begin, position)
            found.values.setdefault(name, []).extend(values)
        return found

    def content(self, place: str, position: int, end: int, wire_type: int) -> tuple[int, int]:
        """Where a field's content begins and ends."""
        if wire_type == _VARINT:
            after = self.varint(position, end)[1]
        elif wire_type in (_FIXED32, _FIXED64):
            after = position + (4 if wire_type == _FIXED32 else 8)
        elif wire_type == _BYTES:
            length, position = self.varint(position, end)
            after = position + length
        else:  # groups, which Caffe never had, and numbers without a meaning
            raise self.damaged(f"{place} a field has the type {wire_type}")
        if after > end:
            size, left = after - position, end - position
            raise self.damaged(f"{place} a field of {size} bytes begins, but {left} are left")
        return position, after

    def values(self, field: str, kind: str, wire_type: int, begin: int, end: int) -> list[Any]:
        if kind == "skip":
            return [None]
        expected = _WIRE_TYPES.get(kind, _BYTES)
        if wire_type not in (expected, _BYTES):
            raise self.damaged(f"{field} must have the wire type {expected}, got {wire_type}")
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
        found: list[Any] = []
        names = ENUMS.get(kind, ())
        while position < end:
            value, position = self.varint(position, end)
            self.spend(1, position)
            if kind == "bool":
                found.append(bool(value))
            elif names:
                found.append(names[value] if value < len(names) else f"number {value}")
            else:
                found.append(value - (1 << 64) if value >> 63 else value)
        return found

    def varint(self, position: int, end: int) -> tuple[int, int]:
        """Seven bits per byte, the lowest first; the eighth says that more follow."""
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


def blob_array(blob: Message) -> Array:
    """View a blob as an array of float32, or of float64 where the file has that."""
    name, dtype = ("double_data", "<f8") if blob.many("double_data") else ("data", "<f4")
    chunks = blob.many(name)
    # one chunk is what Caffe writes; unpacked numbers come one per chunk
    values = np.frombuffer(chunks[0] if len(chunks) == 1 else b"".join(chunks), dtype)
    shape = _shape(blob, values.size)
    if math.prod(max(size, 1) for size in shape) > MOST_NUMBERS:  # an empty one may claim any
        raise WeightsError(
            f"{blob.where}: a blob must have at most {MOST_NUMBERS:,} numbers, as in Caffe, got "
            f"shape {shape}; get the file again"
        )
    if any(size < 0 for size in shape) or math.prod(shape) != values.size:
        raise WeightsError(
            f"{blob.where}: a blob of shape {shape} must hold {math.prod(shape):,} numbers, "
            f"got {values.size:,}; get the file again"
        )
    return values.reshape(shape)


def _shape(blob: Message, count: int) -> tuple[int, ...]:
    if blob.many("shape"):
        shape = tuple(blob.child("shape").many("dim"))
        if len(shape) > 32:  # Caffe's limit
            raise WeightsError(f"{blob.where}: a blob must have at most 32 axes, got {len(shape)}")
        return shape
    old = ("num", "channels", "height", "width")  # the first generation's four axes
    return tuple(blob.one(name, 0) for name in old) if any(map(blob.many, old)) else (count,)


def given_mean(mean: str | Path) -> tuple[float, float, float]:
    """The mean pixel that a user gives: blue,green,red, or the file of a mean image."""
    if not is_mean_pixel(mean):
        return mean_pixel(Path(mean))
    pixel = [float(number) for number in str(mean).split(",")]
    if len(pixel) != 3 or not all(map(math.isfinite, pixel)):
        raise OptionError(
            "a mean must be three finite numbers, blue,green,red, or a .binaryproto file, got "
            f"{str(mean)!r}"
        )
    return pixel[0], pixel[1], pixel[2]


def is_mean_pixel(mean: str | Path) -> bool:
    """Whether a user gave numbers, not the name of a file."""
    try:
        return bool([float(number) for number in str(mean).split(",")])
    except ValueError:
        return False


def mean_pixel(path: Path) -> tuple[float, float, float]:
    """Read a mean image (`.binaryproto`) and average it over its pixels: blue, green, red.

    Caffe's own tools subtract the image; the pixel is what its users subtract when the crop is
    not the training one, and differs by a few grey levels at the borders.
    """
    mean = blob_array(read_binary(path, "BlobProto"))
    image = mean[0] if mean.ndim == 4 and len(mean) == 1 else mean
    if image.ndim not in (1, 3) or len(image) != 3 or image.size == 0:
        raise WeightsError(
            f"{path} must hold a mean image of 3 channels, got a blob of shape {mean.shape}"
        )
    with np.errstate(all="ignore"):
        blue, green, red = image.reshape(3, -1).mean(axis=1, dtype=np.float64).tolist()
    if not all(map(math.isfinite, (blue, green, red))):
        raise WeightsError(f"{path} must hold finite numbers, got NaN or infinity")
    return blue, green, red
