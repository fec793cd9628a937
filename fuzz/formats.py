"""Changes that keep a format's lengths and checksums, so that a reader gets behind its first check.

Comes in: a file in a format, sound or not. Goes out: a changed one whose frame is right. Also makes
a Parquet file of a description in JSON, which can be changed more freely than the file itself.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from deepfishing.util.files import SEAL, sealed
from fuzz.mutate import other_value

_BLOCK = 512  # of a tar
_CHECKSUM = slice(148, 156)
# where a tar's header has what: name, mode, size, mtime, type, link, magic, prefix
_FIELDS = (
    (0, 100),
    (100, 8),
    (124, 12),
    (136, 12),
    (156, 1),
    (157, 100),
    (257, 8),
    (345, 155),
)
_ODD = (
    b"",
    b"../up",
    b"/abs",
    b"a/../../b",
    b"\xff" * 12,
    b"\x80" + b"\xff" * 11,
    b"7" * 11,
)
_ODD += (
    b"-1",
    b"00000001000",
    b"a.png",
    b"a.json",
    b"a.cls",
    b"..",
    b"x" * 100,
    b"\\up",
    b"\0\0a",
)
_TYPES = (
    b"0",
    b"\0",
    b"1",
    b"2",
    b"3",
    b"5",
    b"6",
    b"7",
    b"g",
    b"x",
    b"L",
    b"K",
    b"S",
    b"V",
    b"M",
)

_PARQUET_TYPES = {
    **{
        name: getattr(pa, name)()
        for name in ("string", "binary", "large_string", "null", "bool_")
    },
    **{
        name: getattr(pa, name)()
        for name in ("int8", "int64", "uint64", "float32", "float64")
    },
    "float16": pa.float16(),
    "date": pa.date64(),
    "time": pa.timestamp("ns"),
    "far": pa.timestamp("s", "UTC"),
    "strings": pa.list_(pa.string()),
    "numbers": pa.list_(pa.float16()),
    "pair": pa.list_(pa.float32(), 2),
    "halves": pa.list_(pa.float16(), 2),
    "words": pa.dictionary(pa.int32(), pa.string()),
    "struct": pa.struct([("a", pa.string())]),
}


def resealed(data: bytes) -> bytes:
    """A JSON file with the seal that belongs to it, if it had one at all."""
    try:
        facts = json.loads(data)
        if not isinstance(facts, dict) or SEAL not in facts:
            return data
        return json.dumps(
            sealed({n: v for n, v in facts.items() if n != SEAL})
        ).encode()
    except (ValueError, RecursionError):
        return data


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Another value in the header, whose length is then right."""
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.dumps(other_value(json.loads(data[8 : 8 + size]), rng)).encode()
    except (ValueError, RecursionError):
        return data
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def mutate_tar(data: bytes, rng: random.Random) -> bytes:
    """Another field in some header, or another block, and all checksums right."""
    blocks = [data[i : i + _BLOCK] for i in range(0, len(data), _BLOCK)]
    heads = [n for n, block in enumerate(blocks) if block[257:262] == b"ustar"]
    if not heads:
        return data
    place = rng.choice(heads)
    way = rng.randrange(6)
    if way == 0:
        blocks.insert(rng.randint(0, len(blocks)), blocks[place])
    elif way == 1:
        del blocks[rng.randrange(len(blocks))]
    else:
        begin, width = rng.choice(_FIELDS)
        new = rng.choice(_TYPES if width == 1 else _ODD)[:width].ljust(width, b"\0")
        blocks[place] = blocks[place][:begin] + new + blocks[place][begin + width :]
    return b"".join(map(_with_checksum, blocks))


def _with_checksum(block: bytes) -> bytes:
    if block[257:262] != b"ustar":
        return block
    blank = bytearray(block)
    blank[_CHECKSUM] = b" " * 8
    blank[_CHECKSUM] = f"{sum(blank):06o}\0 ".encode()
    return bytes(blank)


def mutate_png(data: bytes, rng: random.Random) -> bytes:
    """Another chunk in a PNG, and its checksum right; other formats stay as they are."""
    if data[:4] != b"\x89PNG":
        return data
    chunks, place = [], 8
    while place + 8 <= len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + size]))
        place += 12 + size
    if not chunks:
        return data
    number, way = rng.randrange(len(chunks)), rng.randrange(4)
    kind, content = chunks[number]
    if way == 0:
        del chunks[number]
    elif way == 1:
        chunks.insert(rng.randint(0, len(chunks)), chunks[number])
    elif way == 2 and content:
        at = rng.randrange(len(content))
        new = rng.choice((b"\0", b"\xff", rng.randbytes(1), b"\0\0\x20\0"))
        chunks[number] = kind, content[:at] + new + content[at + len(new) :]
    else:
        names = (
            b"tRNS",
            b"PLTE",
            b"tEXt",
            b"zTXt",
            b"iTXt",
            b"eXIf",
            b"iCCP",
            b"acTL",
            b"fcTL",
        )
        chunks[number] = (
            rng.choice((*names, b"fdAT", b"gAMA", b"cHRM", b"pHYs")),
            content,
        )
    out = data[:8]
    for kind, content in chunks:
        checksum = zlib.crc32(kind + content)
        out += (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", checksum)
        )
    return out


def describe(columns: list[Any], metadata: dict[str, str] | None = None) -> bytes:
    """A Parquet file as JSON: [name, type, values, metadata of the column] of each column."""
    return json.dumps([metadata or {}, *columns]).encode()


def parquet_of(data: bytes) -> bytes:
    """The file that a description stands for; any other input as it is.

    Strings that are not text become bytes that are not UTF-8, where Parquet says they are.
    """
    if data[:1] != b"[":
        return data
    try:
        metadata, *columns = json.loads(data)
        arrays, fields = [], []
        for name, kind, values, facts in columns:
            arrays.append(_array(kind, values))
            fields.append(pa.field(name, arrays[-1].type, metadata=facts or None))
        table = pa.table(arrays, schema=pa.schema(fields, metadata or None))
        out = io.BytesIO()
        pq.write_table(
            table,
            out,
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
        )
    except (
        pa.ArrowException,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
    ):
        return data  # a description that nothing can be made of
    except RecursionError:
        return data
    return out.getvalue()


def _array(kind: str, values: Any) -> pa.Array:
    if kind != "string":
        return pa.array(values, _PARQUET_TYPES[kind])
    raw = [v if v is None else v.encode("utf-8", "surrogatepass") for v in values]
    array = pa.array(raw, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())
