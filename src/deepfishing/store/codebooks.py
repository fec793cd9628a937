"""Features on disk: several numbers in one byte (product quantisation), as the paper suggests.

Comes in: vectors of a factor, as rows. Goes out: one byte for every 2, 4 or 8 neighbouring numbers:
the nearest of 256 centres, which k-means (FAISS) found in a sample. The centres of one factor are
a table (256, d): number i of a vector is table[code of its group, i], times the vector's norm. So
a table and numpy are all that reading needs. Tables are in `codebooks-*.safetensors` beside
`store.json`, which has the hash of that file.

Centres are found, and the nearest is looked for, among signed square roots, see `precision`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from deepfishing.errors import StoreError
from deepfishing.files import replacing
from deepfishing.rank_one import Array
from deepfishing.store.precision import signed_root, unit

CENTRES = 256  # what a byte can tell apart
ROUNDS = 10  # of k-means
DIGITS = 16  # of the hash, in the name of the file
BLOCK_DISTANCES = 1 << 24


@dataclass(frozen=True, eq=False)
class Codebook:
    """The centres of one factor.

    Parameters
    ----------
    table : float32 array (256, d)
        Row j has the j-th centre of every group of neighbouring numbers.
    group : int
        Numbers in a group; the last group may have fewer.

    Examples
    --------
    >>> table = np.repeat(np.arange(256, dtype=np.float32)[:, None], 3, axis=1)
    >>> book = Codebook(table, group=2)
    >>> book.encode(np.array([[4.0, 4.0, 9.2]]))
    array([[4, 9]], dtype=uint8)
    >>> book.decode(np.array([[4, 9]], dtype=np.uint8))
    array([[4., 4., 9.]], dtype=float32)
    """

    table: Array
    group: int

    @property
    def d(self) -> int:
        """Numbers of a vector."""
        return int(self.table.shape[1])

    @property
    def width(self) -> int:
        """Codes of a vector."""
        return -(-self.d // self.group)

    @cached_property
    def _lines(self) -> Array:
        """The centres one below the other, (width * 256, group), for quick reading."""
        return np.ascontiguousarray(self._grouped(self.table).transpose(1, 0, 2)).reshape(
            -1, self.group
        )

    @cached_property
    def _centres(self) -> tuple[Array, Array]:
        """For the nearest one: -2 times the roots (width, group, 256), squares (width, 1, 256)."""
        roots = self._grouped(signed_root(self.table))
        squares = np.einsum("jwg,jwg->wj", roots, roots)[:, None]
        return np.ascontiguousarray(-2 * roots.transpose(1, 2, 0)), squares

    def _grouped(self, rows: Array) -> Array:
        """Rows (n, d) as groups (n, width, group), zeros behind the last number."""
        padded = np.zeros((len(rows), self.width * self.group), dtype=np.float32)
        padded[:, : self.d] = rows
        return padded.reshape(len(rows), self.width, self.group)

    def encode(self, rows: Array) -> Array:
        """Codes (n, width) of rows (n, d) of norm 1."""
        codes = np.empty((len(rows), self.width), dtype=np.uint8)
        centres, squares = self._centres
        step = max(1, BLOCK_DISTANCES // (CENTRES * self.width))
        for start in range(0, len(rows), step):
            roots = self._grouped(signed_root(rows[start : start + step]))
            # |r - c|^2 = |r|^2 - 2 <r, c> + |c|^2, and the first is the same for all centres
            distances = roots.transpose(1, 0, 2) @ centres
            distances += squares
            codes[start : start + step] = distances.argmin(axis=2).T
        return codes

    def decode(self, codes: Array) -> Array:
        """Rows (n, d) of codes (n, width)."""
        lines = codes.astype(np.intp)
        lines += np.arange(0, self.width * CENTRES, CENTRES)
        rows: Array = self._lines.take(lines, axis=0, mode="clip").reshape(len(codes), -1)
        return rows[:, : self.d]


class Quantised:
    """The codebooks of a store's factors, as a `Codec`; a vector's positions share one."""

    scale = "norm"
    dtype: np.dtype[Any] = np.dtype(np.uint8)

    def __init__(self, books: Mapping[str, Codebook], folder: Path) -> None:
        self.books, self.folder = dict(books), folder

    def check(self, factors: Iterable[str]) -> None:
        """Only factors that have a codebook can be written."""
        absent = [factor for factor in factors if factor not in self.books]
        if absent:
            raise StoreError(
                f"a compressed store takes the factors that it has codebooks for, "
                f"{', '.join(sorted(self.books))}, got {', '.join(absent)} for {self.folder}; "
                "extract into the store that it was made of and compress that into a new folder"
            )

    def width(self, factor: str, shape: tuple[int, ...]) -> int:
        """One code a group, at each position."""
        self.check([factor])
        book = self.books[factor]
        if shape[-1:] != (book.d,):
            raise StoreError(f"codebook of {factor} is for {book.d} numbers, got shape {shape}")
        return int(np.prod(shape[:-1])) * book.width

    def encode(self, factor: str, flat: Array, norm: Array) -> tuple[Array, Array]:
        """See `Codec`."""
        self.check([factor])
        book = self.books[factor]
        if flat.shape[1] % book.d:
            raise StoreError(
                f"{factor} must have {book.d} numbers at each position, got {flat.shape[1]} for "
                f"{self.folder}"
            )
        return book.encode(unit(flat, norm).reshape(-1, book.d)).reshape(len(flat), -1), norm

    def decode(self, factor: str, codes: Array, size: int) -> Array:
        """See `Codec`."""
        book = self.books[factor]
        return book.decode(codes.reshape(-1, book.width)).reshape(len(codes), -1)


def train_codebook(rows: Array, group: int) -> Codebook:
    """Find the centres for vectors like these.

    Parameters
    ----------
    rows : array (n, d)
        Vectors of norm 1, at least 256 of them.
    group : int
        Numbers that share a byte.
    """
    import faiss  # takes a while to load

    d = rows.shape[1]
    width = -(-d // group)
    roots = np.zeros((len(rows), width * group), dtype=np.float32)
    roots[:, :d] = signed_root(rows)
    quantiser = faiss.ProductQuantizer(width * group, width, 8)
    # the seed is FAISS's own, a constant; its warning about few rows would go to stderr
    quantiser.cp.niter, quantiser.cp.min_points_per_centroid = ROUNDS, 1
    quantiser.train(roots)
    centres = faiss.vector_to_array(quantiser.centroids).reshape(width, CENTRES, group)
    table = centres.transpose(1, 0, 2).reshape(CENTRES, -1)[:, :d]
    return Codebook(np.ascontiguousarray(table * np.abs(table)), group)


def save_codebooks(folder: Path, books: Mapping[str, Codebook]) -> str:
    """Write the tables of all factors beside a store's manifest; goes out the file's hash."""
    content = tensor_bytes({name: book.table for name, book in books.items()})
    sha256 = hashlib.sha256(content).hexdigest()
    with replacing(_path(folder, sha256)) as partial:
        partial.write_bytes(content)
    return sha256


def load_codebooks(folder: Path, sha256: object, group: int) -> Quantised:
    """The codebooks of a store, if they are those that its manifest names."""
    if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise StoreError(
            f"a compressed store must name the hash of its codebooks in store.json, got {sha256!r} "
            f"in {folder}; compress the original store again"
        )
    path = _path(folder, sha256)
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError(f"its hash is not {sha256}")
        tables = read_tensors(content)
        for name, table in tables.items():
            if table.dtype != np.float32 or table.ndim != 2 or len(table) != CENTRES:
                raise ValueError(f"{name} must be float32 of shape ({CENTRES}, d)")
            if not table.size or not np.isfinite(table).all():
                raise ValueError(f"{name} must have finite numbers")
    except (OSError, ValueError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(
            f"codebooks cannot be used: {path} ({reason}); copy the file from a whole copy of the "
            "store, or compress the original store again"
        ) from None
    return Quantised({name: Codebook(table, group) for name, table in tables.items()}, folder)


def _path(folder: Path, sha256: str) -> Path:
    return folder / f"codebooks-{sha256[:DIGITS]}.safetensors"
