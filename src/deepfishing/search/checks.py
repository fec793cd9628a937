"""Stage 7, search: a checksum for every row, so that a few rows are checked without reading all.

Comes in: contents of a store. Goes out: the same with a CRC-32 of each row of each factor. A shard
is hashed whole before its rows get theirs, so what an index proves is what the store was written
with. An index keeps them: of a million images a query reads some hundred rows, and hashing every
shard that they lie in would be to read most of the store.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from deepfishing.rank_one import Array

if TYPE_CHECKING:
    from deepfishing.search.contents import Column, Contents

BLOCK_ROWS = 4096


def row_checks(codes: Array) -> Array:
    """CRC-32 of each row (n, width), as it lies in memory.

    Examples
    --------
    >>> row_checks(np.frombuffer(b"123456789", dtype=np.uint8)[None])
    array([3421780262], dtype=uint32)
    """
    rows = np.ascontiguousarray(codes)
    return np.fromiter((zlib.crc32(row) for row in rows), dtype=np.uint32, count=len(rows))


def with_checks(
    contents: Contents,
    state: Mapping[str, Array] | None = None,
    shards: Mapping[str, Sequence[str]] | None = None,
) -> Contents:
    """The contents with checksums of all rows.

    Parameters
    ----------
    contents : Contents
    state : mapping, optional
        The `state` of earlier contents, whose numbers come first: rows that lie where they lay
        keep their checksums and are not read.
    shards : mapping, optional
        By factor the names of the files that `state` counts.
    """
    columns = {
        factor: replace(column, checks=_checks(column, factor, state or {}, shards or {}))
        for factor, column in contents.columns.items()
    }
    return replace(contents, columns=columns)


def _checks(
    column: Column,
    factor: str,
    state: Mapping[str, Array],
    shards: Mapping[str, Sequence[str]],
) -> Array:
    checks = np.zeros(len(column.row), dtype=np.uint32)
    new = np.ones(len(column.row), dtype=bool)
    if f"{factor}/checks" in state and factor in shards:
        known, shard, row = (state[f"{factor}/{name}"] for name in ("checks", "shard", "row"))
        n = len(known)
        now = {path.name: number for number, path in enumerate(column.files)}
        moved = np.array([now.get(name, -1) for name in shards[factor]], dtype=np.int64)
        there = (row == column.row[:n]) & (moved[shard] == column.shard[:n])
        checks[:n][there] = known[there]
        new[:n] &= ~there
    numbers = np.flatnonzero(new)
    for start in range(0, len(numbers), BLOCK_ROWS):
        some = numbers[start : start + BLOCK_ROWS]
        checks[some] = row_checks(column.codes(some))
    return checks
