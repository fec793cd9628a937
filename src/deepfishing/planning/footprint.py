"""Before the work: how many bytes and files a store of so many images has.

Comes in: the shape of each factor, a number of images, a precision. Goes out: bytes and shards.
Nothing here knows the file format: a few rows of each factor are written by the store itself and
the rest is counted up, since shards are not compressed and each row takes the same room.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepfishing.errors import OptionError, did_you_mean
from deepfishing.gradients.to_store import SHARD_IMAGES
from deepfishing.store import Row, Store
from deepfishing.store.index import INDEX, OK
from deepfishing.store.precision import CODECS
from deepfishing.store.shards import MAX_BYTES

FEW_VALUES = 1_000_000  # that are written to find out what a row takes
INDEX_ROWS = 2048


@dataclass(frozen=True)
class Footprint:
    """What a store takes on disk.

    Parameters
    ----------
    factors : dict
        Bytes of all shards of each factor.
    index : int
        Bytes of the list of images, about: it depends on their names.
    shards : int
        Files, of all factors.
    """

    factors: dict[str, int]
    index: int
    shards: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(self.factors.values()) + self.index


def footprint(
    images: int, factors: Mapping[str, tuple[int, ...]], precision: str = "int8"
) -> Footprint:
    """Bytes and files of a store of so many different images, none of them unusable.

    Parameters
    ----------
    images : int
    factors : mapping from str to tuple of int
        The shape of each factor for one image, (d,) or (P, d).
    precision : str
        Of the numbers on disk, as for `Store`.

    Examples
    --------
    >>> small = footprint(1000, {"x7": (1280,), "delta8": (1000,)})
    >>> small.shards, round(small.factors["x7"] / 1000, -1)
    (4, 1360.0)
    """
    if precision not in CODECS:
        raise OptionError(
            f"precision must be one that extraction writes, {', '.join(CODECS)}, got {precision!r}"
            f"{did_you_mean(precision, CODECS)}"
        )
    sizes, shards = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, {}, precision)
        for name, shape in factors.items():
            fixed, row = _costs(store, name, shape)
            images_a_file = max(1, min(SHARD_IMAGES, int(MAX_BYTES // row)))
            whole, rest = divmod(images, SHARD_IMAGES)
            files = whole * math.ceil(SHARD_IMAGES / images_a_file) + math.ceil(
                rest / images_a_file
            )
            sizes[name] = round(files * fixed + images * row)
            shards += files
        index = _index_bytes(store, images, tuple(factors))
    return Footprint(sizes, index, shards)


def _costs(store: Store, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Bytes of a shard without rows, and of each row, from two that are written."""
    n = max(1, min(SHARD_IMAGES // 2, FEW_VALUES // math.prod(shape)))
    values = np.random.default_rng(0).standard_normal((2 * n, *shape), dtype=np.float32)
    sizes: list[int] = []
    for rows in (n, 2 * n):
        store.append([f"{rows:032}{row:032}" for row in range(rows)], {name: values[:rows]})
        sizes.append(_size(store.shards_folder(name)) - sum(sizes))
    row = (sizes[1] - sizes[0]) / n
    return sizes[0] - n * row, row


def _index_bytes(store: Store, images: int, factors: tuple[str, ...]) -> int:
    """Bytes of the index, if paths are of usual length: as written for few, and counted up."""
    random = np.random.default_rng(0)

    def written(count: int) -> int:
        rows = []
        for size, mtime in random.integers((1 << 20, 1 << 60), size=(count, 2)).tolist():
            id_ = f"{random.bytes(2).hex()}/{random.bytes(5).hex()}.jpg"
            key = random.bytes(32).hex()
            rows.append(Row(id_, f"photos/{id_}", key, size, mtime, None, OK, None, factors))
        store.write_rows(rows)
        return (store.folder / INDEX).stat().st_size

    few = written(min(images, INDEX_ROWS))
    if images <= INDEX_ROWS:
        return few
    row = (written(2 * INDEX_ROWS) - few) / INDEX_ROWS
    return round(few + (images - INDEX_ROWS) * row)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
