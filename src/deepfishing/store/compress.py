"""Features on disk: a smaller copy of a store.

Comes in: a store and a precision. Goes out: another store, in another folder, with the same images,
labels and errors. A copy that was interrupted goes on, and one of a store that has grown since
takes what is new.
"""

from __future__ import annotations

import math
from pathlib import Path

from deepfishing.errors import OptionError
from deepfishing.progress import Progress, silent
from deepfishing.store.precision import check_precision
from deepfishing.store.store import Store

BLOCK_VALUES = 1 << 24  # numbers on their way from store to store


def compress(
    source: Store, folder: str | Path, precision: str, progress: Progress | None = None
) -> Store:
    """Write all of a store into another one, in another precision; the source is only read."""
    tell = progress or silent
    folder = Path(folder)
    check_precision(precision)
    if folder.resolve() == source.folder.resolve():
        raise OptionError(f"a compressed copy must be another folder, got {folder} for both")
    if precision == source.precision:
        raise OptionError(
            f"a compressed copy must have another precision than {source.folder}, got {precision} "
            "for both; int4 is the smallest"
        )
    settings = {k: v for k, v in source.settings.items() if k != "dtype"}
    copy = Store(folder, settings, precision)
    with copy.writing():
        work = {name: copy.missing(source.shards(name).keys(), [name]) for name in source.factors()}
        total, done = sum(map(len, work.values())), 0
        for name, keys in work.items():
            step = max(1, min(4096, BLOCK_VALUES // max(math.prod(source.shape(name)), 1)))
            for start in range(0, len(keys), step):
                some = keys[start : start + step]
                copy.append(some, {name: source.read(some, name)})
                done += len(some)
                tell("copying", done, total)
        copy.append([], {}, source.errors())
        rows = {**copy.rows(), **source.rows()}
        copy.write_rows(rows.values())
        there = (source.shards(name).keys() for name in source.factors())
        copy.compact({row.sha256 for row in rows.values() if row.sha256}.union(*there))
    return copy
