"""The vectors of `FewLabels` for a store, computed once and kept in its folder.

`make_label_pool` takes seconds for a thousand photos and minutes for a hundred thousand;
`open_label_pool` maps what it wrote into memory, so that a label becomes scores for all photos in a
fraction of a second. Vectors are shortened to their main axes and kept in half precision.

Of more than `MAX_CONTENTS` photos an even sample is described.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.errors import StoreError
from deepfishing.learn.few_labels import BLOCK_ROWS, FewLabels
from deepfishing.store import Store
from deepfishing.store.contents import Contents
from deepfishing.store.side_files import pack_keys, read_side, unpack_keys, write_side
from deepfishing.util.machine import release_pages
from deepfishing.util.progress import Progress, silent

EMBEDDING = "x7"
NAME = "labels"
FORMAT = 1
DIMENSIONS = 256  # on VOC 2007 and the embedded photographs as accurate as all 2,304
AXES_SAMPLE = 20_000  # vectors that the main axes are found from
MAX_CONTENTS = 200_000


@dataclass(frozen=True, eq=False)
class LabelPool:
    """A collection that is ready for labels: content hashes (n,) and their `FewLabels`."""

    keys: pa.Array
    few: FewLabels

    def __len__(self) -> int:
        return len(self.keys)

    def release(self) -> None:
        """Let go of the memory of vectors that are mapped; they are read again when needed."""
        if isinstance(self.few.vectors, np.memmap):
            release_pages(self.few.vectors)

    def numbers_of(self, keys: pa.Array) -> Array:
        """Return the row of each content; -1 for one that is not in the pool."""
        found = pc.index_in(keys, value_set=self.keys)
        numbers: Array = (
            pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        return numbers


def open_label_pool(store: Store) -> LabelPool | None:
    """Return the pool that was kept for a store; None if there is none of these features."""
    found = read_side(store.folder, NAME)
    if found is None:
        return None
    facts, arrays = found
    if facts.get("format") != FORMAT or facts.get("settings") != _settings(store):
        return None
    vectors, packed = arrays["vectors"], arrays["keys"]
    if (
        vectors.ndim != 2
        or packed.ndim != 2
        or len(vectors) != len(packed)
        or not len(vectors)
    ):
        return None
    return LabelPool(unpack_keys(packed), FewLabels(vectors))


def make_label_pool(
    store: Store, progress: Progress = silent, *, keep: bool = True
) -> LabelPool:
    """Describe the photos of a store and keep the vectors in its folder."""
    if EMBEDDING not in store.factors():
        raise StoreError(
            f"suggestions need {EMBEDDING}, which {store.folder} lacks; add it with `deepfish "
            f"extract IMAGES {store.folder} --features {EMBEDDING}`"
        )
    contents = Contents.of(store, [EMBEDDING])
    numbers = np.arange(len(contents))
    if len(numbers) > MAX_CONTENTS:
        numbers = (
            np.linspace(0, len(contents) - 1, MAX_CONTENTS).round().astype(np.int64)
        )
    x = read_embeddings(contents, numbers, progress)
    progress("neighbours", 0, 1)
    vectors = shortened(FewLabels.prepare(x).vectors)
    keys = contents.keys.take(pa.array(numbers))
    arrays = {"vectors": vectors, "keys": pack_keys(keys)}
    if keep:
        write_side(
            store.folder, NAME, {"format": FORMAT, "settings": _settings(store)}, arrays
        )
    return LabelPool(keys, FewLabels(vectors))


def work(folder: Path, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Make the pool of a store as a task of the server."""
    pool = make_label_pool(Store.open(folder), progress)
    return {"photos": len(pool)}


def shortened(vectors: Array, dimensions: int = DIMENSIONS) -> Array:
    """Return unit vectors (n, m) along their main axes, in half precision.

    Dot products, which are all that `FewLabels` uses, stay nearly the same.
    """
    if vectors.shape[1] <= dimensions:
        return vectors.astype(np.float16)
    chosen = np.linspace(0, len(vectors) - 1, min(len(vectors), AXES_SAMPLE)).round()
    sample = vectors[chosen.astype(np.int64)].astype(np.float32)
    axes = np.linalg.eigh(sample.T @ sample)[1][:, ::-1][:, :dimensions]
    short = np.empty((len(vectors), axes.shape[1]), dtype=np.float16)
    for start in range(0, len(vectors), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        short[rows] = l2_normalize(vectors[rows].astype(np.float32) @ axes)
    return short


def read_embeddings(
    contents: Contents, numbers: Array, progress: Progress = silent
) -> Array:
    """Embeddings (n, d); several positions of a photo are averaged."""
    parts = []
    for start in range(0, len(numbers), BLOCK_ROWS):
        progress("reading", start, len(numbers))
        values = contents.read(numbers[start : start + BLOCK_ROWS], [EMBEDDING])[
            EMBEDDING
        ]
        parts.append(values if values.ndim == 2 else values.mean(axis=1))
    return np.concatenate(parts)


def _settings(store: Store) -> str:
    """What decides the features of a store, in words that can be compared."""
    shown = {name: value for name, value in store.settings.items() if name != "source"}
    return repr(sorted(shown.items()))
