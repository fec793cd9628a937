"""Shards: the Parquet files of one factor, and access to any of their rows.

A file `shard-<checksum>.parquet` has three columns, such as `sha256`, `x7`, and `x7_norm` or
`x7_scale`: the key of each image, its values (n, d) or (n, P, d) in the codes of a codec
(`precision`), and their scale. `Store.read` multiplies by the scale; search does not, since every
recipe normalises.

A shard never changes, and its name contains the first digits of its SHA-256, so a flipped bit is
detected before any of its numbers is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deepfishing.core.features import is_projected
from deepfishing.core.projections import SCHEME
from deepfishing.core.rank_one import Array, l2_norm
from deepfishing.errors import StoreError
from deepfishing.store.journal import Journal, check_no_link
from deepfishing.store.precision import Codec
from deepfishing.util.files import check_regular, file_sha256

PATTERN = "shard-*.parquet"
DIGITS = 16  # of the checksum: 64 bits

# other programs may write shards, too, whose names have no checksum
_NAMED = re.compile(rf"shard-[0-9a-f]{{{DIGITS}}}")

# Every column of a shard is one uncompressed page, so its values are contiguous in the file and can
# be mapped into memory (`stored`). A page cannot have 2 GB.
MAX_ROWS, MAX_BYTES = 4096, 1 << 28
ONE_PAGE = {b"pages": b"one a column"}

# The metadata of a projected factor has the scheme by which its matrices were drawn.
PROJECTED = {b"projection": str(SCHEME).encode()}

BYTES = ("int8", "uint8")
BLOCK_VALUES = 1 << 18  # decoded at a time, so that they stay in the processor's cache

# what json, numpy and pyarrow raise for a damaged file
_BROKEN = (OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError)

# Every float16 number as float32. Features have many numbers below 6e-5, which numpy converts ten
# times slower than others; looking them up is equally quick for all.
_SINGLE = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


class Shards(dict[str, int]):
    """The shards of a folder: the number of the row by key; a missing folder is empty."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.files: list[Path] = []
        self._starts: list[int] = []  # number of each file's first row
        self._count = 0
        for path in shard_files(folder):
            with undamaged(path):  # keys may be damaged, too
                self._index(path, read_keys(path).to_pylist())

    def add(self, table: pa.Table, journal: Journal) -> None:
        """Write a table as one shard; its keys must be new."""
        keys = table.column("sha256").to_pylist()
        self._index(write_shard(self.folder, table, journal), keys)

    def find(self, keys: Iterable[str]) -> tuple[Array, Array]:
        """Return the number of each key's file, and its row there."""
        rows = np.fromiter((self[key] for key in keys), dtype=np.int64)
        starts = np.array(self._starts, dtype=np.int64)
        shard = np.searchsorted(starts, rows, side="right") - 1
        return shard, rows - starts[shard]

    def compact(self, keep: Collection[str], journal: Journal) -> None:
        """Drop the rows of all other keys; this object is out of date afterwards."""
        for path in self.files:
            keys = read_keys(path).to_pylist()
            rows = [row for row, key in enumerate(keys) if key in keep]
            if len(rows) < len(keys):
                check_shard(path)  # or a damaged row would get a new checksum
                if rows:
                    write_shard(self.folder, read_table(path).take(rows), journal)
                journal.remove(path)

    def _index(self, path: Path, keys: list[str]) -> None:
        self.files.append(path)
        self._starts.append(self._count)
        self.update(zip(keys, range(self._count, self._count + len(keys)), strict=True))
        self._count += len(keys)


def shard_files(folder: Path) -> list[Path]:
    """Return the shards of a folder in order; refuse anything but regular files."""
    check_no_link(folder)
    files = sorted(folder.glob(PATTERN))
    for path in files:
        with undamaged(path):
            check_regular(path)
    return files


def encode(keys: Sequence[str], name: str, values: Array, codec: Codec) -> pa.Table:
    """Return the table of one factor of n images."""
    flat = values.reshape(len(keys), -1)
    norm = l2_norm(flat)
    if not np.isfinite(norm).all():
        bad = int(np.flatnonzero(~np.isfinite(norm))[0])
        raise StoreError(f"{name} must be finite, got NaN or infinity for {keys[bad]}")
    codes, scale = codec.encode(flat, norm)
    metadata = {"shape": json.dumps(values.shape[1:])}
    if codec.dtype.name in BYTES:
        # one block per row: each byte of a list takes four in Parquet
        metadata["numbers"] = codec.dtype.name
        block = pa.py_buffer(np.ascontiguousarray(codes))
        kind = pa.binary(codes.shape[1])
        column = pa.FixedSizeBinaryArray.from_buffers(kind, len(keys), [None, block])
    else:
        # not nullable: readers then do not look for nulls, which is most of their time
        item = pa.field("element", pa.from_numpy_dtype(codec.dtype), nullable=False)
        kind = pa.list_(item, codes.shape[1])
        column = pa.FixedSizeListArray.from_arrays(pa.array(codes.ravel()), type=kind)
    fields = [
        pa.field("sha256", pa.string(), nullable=False),
        pa.field(name, column.type, nullable=False, metadata=metadata),
        pa.field(f"{name}_{codec.scale}", pa.float64(), nullable=False),
    ]
    return pa.table(
        [pa.array(keys, pa.string()), column, scale], schema=pa.schema(fields)
    )


def write_shard(folder: Path, table: pa.Table, journal: Journal) -> Path:
    """Write a table as one file, whatever else is in the folder."""
    sink = pa.BufferOutputStream()
    metadata = dict(ONE_PAGE)
    if is_projected(unquote(folder.name)):
        metadata |= PROJECTED
    pq.write_table(
        table.replace_schema_metadata(metadata),
        sink,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        data_page_size=2 * MAX_BYTES,
    )
    content = sink.getvalue()
    path = folder / f"shard-{checksum(content)}.parquet"
    journal.write(path, content)
    return path


def checksum(content: Any) -> str:
    """Return the digits of the checksum in a shard's name."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def check_shard(path: Path) -> None:
    """Refuse a shard whose content does not match the checksum in its name.

    A process hashes a file once, as long as it stays the same.
    """
    if not _NAMED.fullmatch(path.stem):
        return
    with undamaged(path):
        stat = path.stat()
        digits = _digits(
            path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
        )
        if path.stem != f"shard-{digits}":
            raise ValueError(f"its checksum is {digits}")


def check_content(path: Path, content: Any) -> None:
    """Refuse bytes that do not match the checksum in the name of a shard."""
    digits = checksum(content)
    if _NAMED.fullmatch(path.stem) and path.stem != f"shard-{digits}":
        with undamaged(path):
            raise ValueError(f"its checksum is {digits}")


@lru_cache(maxsize=1 << 16)
def _digits(path: Path, *same: int) -> str:
    return file_sha256(path)[:DIGITS]


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Re-raise every error of a damaged shard as one StoreError."""
    try:
        yield
    except StoreError:
        raise  # it is more precise
    except (*_BROKEN, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        do = "delete it to compute it again"
        raise StoreError(f"shard is damaged: {path} ({reason}); {do}") from None


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Return all rows of a shard."""
    with undamaged(path), pq.ParquetFile(path, memory_map=True) as file:
        return file.read(columns=columns, use_threads=False)


def read_keys(path: Path) -> pa.Array:
    """Return the keys of all rows of a shard; refuse an outdated projection."""
    table = read_table(path, ["sha256"])
    text_types = [pa.string()], [pa.large_string()]  # the second of other programs
    with undamaged(path):
        if table.schema.names != ["sha256"] or table.schema.types not in text_types:
            raise ValueError("it must have a column sha256 of text")
    check_projection(path, table.schema)
    return table.column(0).combine_chunks().cast(pa.string())


def check_projection(path: Path, schema: pa.Schema) -> None:
    """Refuse a shard that was projected by the matrices of an earlier version."""
    if not is_projected(unquote(path.parent.name)):
        return
    metadata = schema.metadata or {}
    if not PROJECTED.items() <= metadata.items():
        raise StoreError(
            f"{path.parent} was projected by an earlier version, with matrices other than today's; "
            "delete this folder and run `deepfish extract` again"
        )


def stored(path: Path, name: str, codec: Codec) -> tuple[Array, Array, tuple[int, ...]]:
    """Return a shard's codes (n, width), their scales (n,), and the shape of one image.

    The codes are a view of the file: our shards have one uncompressed page per column, which ends
    with all codes, contiguous. A shard of another program is decoded by pyarrow.
    """
    with undamaged(path), pq.ParquetFile(path, memory_map=True) as file:
        schema = file.schema_arrow
        check_projection(path, schema)
        scale_name = f"{name}_{codec.scale}"
        table = file.read(columns=["sha256", scale_name], use_threads=False)
        scale = table.column(scale_name).to_numpy()
        field = schema.field(name)
        shape = tuple(int(n) for n in json.loads(field.metadata[b"shape"]))
        dtype, width = codec.dtype, codec.width(shape)
        stored_dtype, stored_width = _numbers(field)
        if (stored_dtype, stored_width) != (dtype, width):
            raise ValueError(
                f"values must be {width} x {dtype}, got {stored_width} x {stored_dtype}"
            )
        if not ONE_PAGE.items() <= (schema.metadata or {}).items():
            return decoded(path), scale, shape
        types = [pa.string(), pa.float64()]
        if schema.names != ["sha256", name, scale_name] or table.schema.types != types:
            raise ValueError(f"columns must be sha256, {name} and {scale_name}")
        # The codes are between the two columns that were just read. Asking for the metadata of a
        # column that was not read could end the process: pyarrow does not catch Parquet's errors.
        keys = file.metadata.row_group(0).column(0)
        scales = file.metadata.row_group(0).column(2)
        start = scales.data_page_offset - len(scale) * width * dtype.itemsize
        if start < keys.data_page_offset + keys.total_compressed_size:
            raise ValueError("it has fewer values than rows")
        codes = np.memmap(
            path, dtype, mode="r", offset=start, shape=(len(scale), width)
        )
        return codes, scale, shape


def decoded(path: Path) -> Array:
    """Return the codes of a shard as pyarrow reads them: slower, for any program's shards."""
    with undamaged(path), pq.ParquetFile(path) as file:
        dtype, width = _numbers(file.schema_arrow.field(1))
        column = file.read(use_threads=False).column(1).combine_chunks()
        if pa.types.is_fixed_size_binary(column.type):
            values = np.frombuffer(b"".join(column.to_pylist()), dtype)
        else:
            values = column.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(column), width)


def _numbers(field: pa.Field) -> tuple[np.dtype[Any], int]:
    """Return the type of the codes and their number per image; a file may come from anywhere."""
    if pa.types.is_fixed_size_binary(field.type):
        name = field.metadata[b"numbers"].decode()
        if name in BYTES:
            return np.dtype(name), int(field.type.byte_width)
    elif pa.types.is_fixed_size_list(field.type) and pa.types.is_floating(
        field.type.value_type
    ):
        return np.dtype(field.type.value_type.to_pandas_dtype()), int(
            field.type.list_size
        )
    raise ValueError(f"values must be lists of floats or bytes, got {field.type}")


@dataclass(frozen=True, eq=False)
class Column:
    """One factor of n contents: the number of the file of each, and its row there.

    `shape` is that of one image.
    """

    files: Sequence[Path]
    shard: Array
    row: Array
    codec: Codec
    factor: str
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls, files: Sequence[Path], shard: Array, row: Array, codec: Codec, factor: str
    ) -> Column:
        """Return a column with the shape in the file of the first content."""
        first = files[int(shard[0]) if len(shard) else 0]
        check_shard(first)
        _, _, shape = stored(first, factor, codec)
        return cls(files, shard, row, codec, factor, shape)

    def codes(self, numbers: Array) -> Array:
        """Return rows (m, width) of these contents as they are in the shards."""
        out = np.empty((len(numbers), self.codec.width(self.shape)), self.codec.dtype)

        def take(places: Array, rows: Array, codes: Array, _: Array) -> None:
            out[places] = codes[rows]

        self._each_shard(numbers, take)
        return out

    def read(self, numbers: Array) -> Array:
        """Return values (m, d) or (m, P, d) of these contents as float32, without their scale."""
        return self.decode(self.codes(numbers))

    def decode(self, codes: Array) -> Array:
        """Return rows (m, width) of codes as float32 (m, *shape), without their scale."""
        if codes.dtype == np.float16:
            values: Array = _SINGLE.take(codes.view(np.uint16), mode="clip")
        else:
            size = int(np.prod(self.shape))
            values = self.codec.decode(codes, size).astype(np.float32, copy=False)
        return values.reshape(len(codes), *self.shape)

    def read_scaled(self) -> Array:
        """Return the values of all contents as float32, multiplied by their scale."""
        n, size = len(self.row), int(np.prod(self.shape))
        out = np.empty((n, size), dtype=np.float32)
        step = max(1, BLOCK_VALUES // max(size, 1))

        def take(places: Array, rows: Array, codes: Array, scale: Array) -> None:
            factor = scale.astype(np.float32)[:, None]
            for start in range(0, len(rows), step):
                block = rows[start : start + step]
                decoded = self.codec.decode(codes[block], size)
                scaled = np.multiply(decoded, factor[block], dtype=np.float32)
                out[places[start : start + step]] = scaled

        self._each_shard(np.arange(n), take)
        return out.reshape(n, *self.shape)

    def _each_shard(
        self, numbers: Array, take: Callable[[Array, Array, Array, Array], None]
    ) -> None:
        """Call `take` with places, rows, codes and scales of each shard, several shards at once.

        A shard is hashed before; numpy decodes in several threads at once.
        """
        shard, row = self.shard[numbers], self.row[numbers]
        order = np.lexsort((row, shard))
        files, first = np.unique(shard[order], return_index=True)

        def work(file: int, places: Array) -> None:
            path = self.files[file]
            check_shard(path)
            codes, scale, shape = stored(path, self.factor, self.codec)
            with undamaged(path):
                if shape != self.shape:
                    raise ValueError(
                        f"one image must have shape {self.shape}, got {shape}"
                    )
                if row[places[-1]] >= len(codes):
                    raise ValueError("it has fewer values than keys")
            take(places, row[places], np.asarray(codes), scale)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(work, files.tolist(), np.split(order, first[1:])))
