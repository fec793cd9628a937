"""Stage 8, curate: which photos of a store to label first.

Comes in: a store, and the photos that are labelled already. Goes out: photos in the order in which
their labels are worth most. Photos with the same content are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.classify import train_svm
from deepfishing.curate.facility import choosing
from deepfishing.errors import DatasetError
from deepfishing.images.tables import TABLES, read_table
from deepfishing.progress import Progress, silent
from deepfishing.rank_one import Array
from deepfishing.search import Searcher
from deepfishing.search.collection import Collection
from deepfishing.search.compare import DEFAULTS, choose_recipe
from deepfishing.store import Store

# The first of these that a store has; docs/curate.md has the measurement.
RECIPES = ("pow(dW8,0.5)+x7", *DEFAULTS)
# With so many labelled photos in the median class, photos whose two best classes are close count
# more: exp(-SHARPNESS * the distance of their scores).
COLD, SHARPNESS = 5, 3.0
OWN = "store"  # in place of a file: labels of the store itself

Labels = Mapping[str, tuple[str, ...] | None]  # by id or path; None: labelled, but not known how


@dataclass(frozen=True)
class Pick:
    """A photo to label: where it is, and what it adds to how well all are stood for (a share)."""

    id: str
    path: str
    gain: float


def open_photos(store: Store | str | Path, features: str | None = None) -> Searcher:
    """The photos of a store as a recipe sees them; no network is loaded."""
    opened = store if isinstance(store, Store) else Store.open(store)
    return Searcher(opened, choose_recipe(opened, features, RECIPES).name, "exact")


def choose_photos(
    photos: Searcher, n: int, *, labelled: Labels | None = None, progress: Progress = silent
) -> Iterator[Pick]:
    """At most n photos of a store, the most useful to label first; see `facility.choose`.

    Photos from `open_photos`, those that are labelled already from `read_labelled`.
    """
    collection, given = photos.collection, labelled or {}
    numbers = collection.content[_rows_of(collection, given)]
    weights = _unsure(photos, numbers, list(given.values()))
    known = np.unique(numbers)
    for step in choosing(photos.features, n, labelled=known, weights=weights, progress=progress):
        picture = collection[int(collection.rows_of(step.number)[0])]
        yield Pick(picture.id, picture.path, step.gain)


def _unsure(
    photos: Searcher, numbers: Array, labels: Sequence[tuple[str, ...] | None]
) -> Array | None:
    """How much each content counts once there are labels; None, all alike, at a cold start."""
    known = {at: names for at, names in enumerate(labels) if names is not None}
    classes = sorted({name for names in known.values() for name in names})
    shown = np.array([[name in names for name in classes] for names in known.values()])
    if len(classes) < 2 or np.median(shown.sum(axis=0)) < COLD:
        return None
    labelled = photos.features.of(numbers[list(known)])
    svm = train_svm(labelled, np.where(shown, 1, -1), class_weight="balanced")
    scores = np.concatenate([svm.decision_function(block) for block in photos.features.blocks()])
    second, first = np.partition(scores[:, svm.trained], -2, axis=1)[:, -2:].T
    unsure: Array = np.exp(-SHARPNESS * (first - second))
    return unsure


def read_labelled(photos: Searcher, source: str | Path) -> Labels:
    """Photos that are labelled already, from a file, or the store's own labels by the word `store`.

    A table with a column `path` (or `id`) and `label` or `labels`, whose filled rows count; one
    without labels, or a text file with a path or an id per line, of which all count.
    """
    if str(source) == OWN:
        table = photos.collection.table
        has = table.filter(pc.is_valid(table.column("labels")))
        ids, labels = (has.column(name).to_pylist() for name in ("id", "labels"))
        return {id_: tuple(names) for id_, names in zip(ids, labels, strict=True)}
    path = Path(source)
    if path.suffix.lower() in TABLES:
        items = read_table(path)
        named = {item.id: item.labels for item in items if item.labels is not None}
        return named or dict.fromkeys((item.id for item in items), None)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DatasetError(
            f"photos that are labelled must be a table ({', '.join(TABLES)}), a text file with a "
            f"path per line, or the word {OWN}, got {path} ({reason})"
        ) from None
    return {line: None for line in lines if line}


def _rows_of(collection: Collection, labelled: Labels) -> Array:
    """The rows of these ids or paths; one that the store lacks is an error."""
    names = pa.array(list(labelled), pa.string())
    columns = [collection.table.column(name).combine_chunks() for name in ("id", "path")]
    rows = pc.coalesce(*(pc.index_in(names, value_set=column) for column in columns))
    if rows.null_count:
        first = names.filter(rows.is_null())[0].as_py()
        raise DatasetError(
            f"photos that are labelled must be in {collection.folder}, got {rows.null_count} that "
            f"are not, first {first!r}{collection.suggestion(first)}"
        )
    numbers: Array = rows.to_numpy(zero_copy_only=False).astype(np.intp)
    return numbers
