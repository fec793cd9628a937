"""Features on disk: a smaller copy of a store.

Comes in: a store and a precision. Goes out: another store, in another folder, with the same images,
labels and errors. Codebooks are trained on a seeded sample of the store's own contents. A copy that
was interrupted goes on, and one of a store that has grown since takes what is new, with the
codebooks that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from deepfishing.errors import OptionError, StoreError
from deepfishing.rank_one import Array, l2_normalize
from deepfishing.store.codebooks import CENTRES, Codebook, save_codebooks, train_codebook
from deepfishing.store.manifest import MANIFEST
from deepfishing.store.precision import TRAINED, check_precision
from deepfishing.store.store import Store

SAMPLE = 8192  # contents that codebooks are trained on
SAMPLE_VALUES = 1 << 27  # and numbers of them, 512 MB
BLOCK_VALUES = 1 << 24  # numbers on their way from store to store
SEED = 0

Progress = Callable[[str, int, int], None]  # stage, done, to do


def compress(
    source: Store, folder: str | Path, precision: str, progress: Progress | None = None
) -> Store:
    """Write all of a store into another one, in another precision.

    Parameters
    ----------
    source : Store
        Is only read.
    folder : path
        Of the copy; made if absent.
    precision : str
        int4, int8, float16 or float32, or pq2, pq4 or pq8: one byte for 2, 4 or 8 numbers.
    progress : callable
        Called with a stage, how much of it is done and how much there is.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(Path(folder, "large"), {"network": "toy"}, "float32")
    ...     store.append(["k1", "k2"], {"x7": np.array([[-4.0, 1.0], [0, 2]])})
    ...     small = compress(store, Path(folder, "small"), "int8")
    ...     print(small.precision, small.read(["k2", "k1"], "x7").round(1).tolist())
    int8 [[0.0, 2.0], [-4.0, 1.0]]
    """
    tell = progress or (lambda stage, done, total: None)
    folder = Path(folder)
    check_precision(precision)
    if folder.resolve() == source.folder.resolve():
        raise OptionError(f"a compressed copy must be another folder, got {folder} for both")
    if precision == source.precision:
        raise OptionError(
            f"a compressed copy must have another precision than {source.folder}, got {precision} "
            "for both; choose one of int4, pq2, pq4 or pq8 to make it smaller"
        )
    settings = {k: v for k, v in source.settings.items() if k not in ("dtype", "codebooks")}
    if precision in TRAINED and not (folder / MANIFEST).exists():
        books = _train(source, TRAINED[precision], tell)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            settings["codebooks"] = save_codebooks(folder, books)
        except OSError as error:
            raise StoreError(
                f"store cannot be made: {folder} ({error.strerror}); choose another folder"
            ) from None
    copy = Store(folder, settings, precision)
    with copy.writing():
        copy.codec.check(source.factors())
        work = {name: copy.missing(source.shards(name).keys(), [name]) for name in source.factors()}
        total, done = sum(map(len, work.values())), 0
        for name, keys in work.items():
            for some in _blocks(source, name, keys):
                copy.append(some, {name: source.read(some, name)})
                done += len(some)
                tell("copying", done, total)
        copy.append([], {}, source.errors())
        rows = {**copy.rows(), **source.rows()}
        copy.write_rows(rows.values())
        there = (source.shards(name).keys() for name in source.factors())
        copy.compact({row.sha256 for row in rows.values() if row.sha256}.union(*there))
    return copy


def _blocks(source: Store, name: str, keys: list[str]) -> list[list[str]]:
    """The keys in the order of the shards, some at a time."""
    if not keys:
        return []
    size = source.read(keys[:1], name).size
    step = max(1, min(4096, BLOCK_VALUES // max(size, 1)))
    return [keys[start : start + step] for start in range(0, len(keys), step)]


def _train(source: Store, group: int, tell: Progress) -> dict[str, Codebook]:
    """A codebook for every factor."""
    books = {}
    factors = source.factors()
    if not factors:
        raise StoreError(f"a store must have features to be compressed, got none: {source.folder}")
    for number, name in enumerate(factors):
        tell("training", number, len(factors))
        books[name] = train_codebook(_sample(source, name), group)
    tell("training", len(factors), len(factors))
    return books


def _sample(source: Store, name: str) -> Array:
    """Vectors of some contents and all of their positions, as rows (n, d) of norm 1 per image."""
    keys = sorted(source.shards(name).keys())
    shape = source.read(keys[:1], name).shape[1:] if keys else (1,)
    n = min(len(keys), SAMPLE, max(CENTRES, SAMPLE_VALUES // max(int(np.prod(shape)), 1)))
    positions = int(np.prod(shape[:-1]))
    if n * positions < CENTRES:
        raise StoreError(
            f"codebooks must be trained on at least {CENTRES} different images, got {len(keys)} "
            f"with {name} in {source.folder}; use --precision int8"
        )
    chosen = np.random.default_rng(SEED).choice(len(keys), n, replace=False)
    values = source.read([keys[i] for i in np.sort(chosen)], name)
    return l2_normalize(values.reshape(n, -1)).reshape(n * positions, shape[-1])
