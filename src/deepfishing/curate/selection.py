"""Selection of the photos to label first, by greedy facility location.

With the kernel K, F(S) = sum_i w_i max(0, max_{s in S} K(i, s)) measures how well the images S
represent all. F is monotone and submodular, so the greedy choice reaches at least 1 - 1/e of the
best one, and a gain that was measured for a smaller S bounds the gain now: only images whose bound
is above the best known gain are measured again (lazy greedy, the same choice as measuring all).

Up to `EXACT_IMAGES` K is the kernel itself, in blocks of rows. Beyond, images are the short vectors
of the search's index (`Embedding`), and F is a mean over `CLIENTS` of them, drawn once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.core.kernels import Comparable, gram
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes.language import OWN_HEAD
from deepfishing.errors import DatasetError, FeatureError, OptionError, reraise_as
from deepfishing.images.tables import TABLES, read_table
from deepfishing.learn.svm import train_svm
from deepfishing.search import Searcher
from deepfishing.search.collection import CURRENT, Collection
from deepfishing.search.compare import (
    DEFAULTS,
    MIN_PHOTOS_FOR_PROTOTYPES,
    Features,
    choose_recipe,
    sample,
)
from deepfishing.search.index import DIMENSIONS, LANDMARKS, Embedding
from deepfishing.store import Store
from deepfishing.store.manifest import count_rows
from deepfishing.util.progress import Progress, silent

EXACT_IMAGES = 16_000  # whose Gram matrix, in single precision, is kept
CLIENTS = 10_000
KEEP_BYTES = 1 << 30  # of a Gram matrix that is kept; else rows are computed again
BLOCK_VALUES = 1 << 22  # of a block of it
# share of all images that a gain is worth less than: the rest is the same
NOTHING = 1e-6

# The first of these that a store has; benchmarks/CURATION.md has the measurement.
RECIPES = ("pow(dW8,0.5)+x7", *DEFAULTS)
# Before them where there are enough photos to make a head of: the embedding and gradients of a head
# made of the photos.
WITH_PROTOTYPES = OWN_HEAD
# With so many labelled photos in the median class, photos whose two best classes are close count
# more: exp(-SHARPNESS * the distance of their scores).
COLD, SHARPNESS = 5, 3.0
OWN = "store"  # in place of a file: labels of the store itself

# by id or path; None: labelled, but not known how
Labels = Mapping[str, tuple[str, ...] | None]


@dataclass(frozen=True)
class Step:
    """One image that was chosen: its number, and what it adds to F, as a share of all images."""

    number: int
    gain: float


def choose_rows(features: Comparable | Features, n: int, **options: Any) -> list[Step]:
    """At most n images that stand for all, the most useful first; options are those of `choosing`.

    >>> x = np.array([[1.0, 0.0], [0.8, 0.6], [0.96, 0.28], [0.0, 1.0]])
    >>> [step.number for step in choose_rows(x, 2)]
    [1, 3]
    >>> [step.number for step in choose_rows(x, 1, labelled=[1, 3])]
    [0]
    """
    return list(choosing(features, n, **options))


def choosing(
    features: Comparable | Features,
    n: int,
    *,
    labelled: Iterable[int] = (),
    weights: Array | None = None,
    exact: bool | None = None,
    progress: Progress = silent,
) -> Iterator[Step]:
    """Yield the images of `choose_rows` one by one; it may be stopped at any time.

    Features of norm 1, so that an image stands for itself with 1. `labelled` ones are in the set
    already; `weights` say how much it counts that an image is stood for. All images are compared
    with all if `exact`, by default up to `EXACT_IMAGES`. Fewer are chosen where the rest is the
    same as one of them.
    """
    total = len(features)
    if n < 1:
        raise OptionError(f"n must be at least 1 image, got {n}")
    weights = np.ones(total) if weights is None else np.asarray(weights, dtype=float)
    if weights.shape != (total,) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise OptionError(
            f"weights must be {total} numbers from 0, got shape {weights.shape}"
        )
    read = features.of if isinstance(features, Features) else features.__getitem__
    if total <= EXACT_IMAGES if exact is None else exact:
        items, clients = read(np.arange(total)), np.arange(total)
    else:
        items, clients = short_vectors(read, total, progress), sample(total, CLIENTS)
    # a row of the kernel has NaN wherever features have
    check_finite(gram(items[:1], items))
    cover = _Cover(items, clients, weights[clients], progress)
    known = np.fromiter(labelled, dtype=np.intp)
    cover.add(known)
    bounds = np.full(total, np.inf)
    bounds[known] = -np.inf
    share = max(float(weights[clients].sum()), np.finfo(float).tiny)
    for done in range(min(n, int((bounds > 0).sum()))):
        progress("choosing", done, n)
        best, gain = _next(bounds, cover)
        if gain <= NOTHING * share:
            break
        bounds[best] = -np.inf
        cover.add(np.array([best]))
        yield Step(best, gain / share)
    progress("choosing", n, n)


def check_finite(values: Array) -> Array:
    """Return what was computed of features, or refuse features with NaN or infinity."""
    if not np.isfinite(values).all():
        raise FeatureError(
            "features must be finite, got NaN or infinity; leave such images out"
        )
    return values


def _next(bounds: Array, cover: _Cover) -> tuple[int, float]:
    """The image with the largest gain; bounds are made as small as is known by then."""
    stale, batch = bounds > -np.inf, 32
    best, gain = -1, -np.inf
    while len(waiting := np.flatnonzero(stale & (bounds >= gain))):
        if len(waiting) > batch:
            waiting = np.sort(waiting[np.argpartition(-bounds[waiting], batch)[:batch]])
        bounds[waiting] = cover.gains(waiting)
        stale[waiting] = False
        at = int(waiting[bounds[waiting].argmax()])
        if bounds[at] > gain or (bounds[at] == gain and at < best):
            best, gain = at, float(bounds[at])
        batch = min(2 * batch, 1024)
    return best, gain


class _Cover:
    """How well some images (clients) are stood for by those that were added so far."""

    def __init__(
        self, items: Comparable, clients: Array, weights: Array, progress: Progress
    ) -> None:
        self.items, self.clients, self.weights = items, items[clients], weights
        self.best = np.zeros(len(clients))  # max(0, max_s K(client, s))
        self.step = max(1, BLOCK_VALUES // len(clients))
        self.kept: Array | None = None
        n = len(items)
        if 4 * n * len(clients) <= KEEP_BYTES:
            kept = np.empty((n, len(clients)), dtype=np.float32)
            for rows in self.blocks(np.arange(n)):
                progress("comparing", int(rows[0]), n)
                kept[rows] = self.kernel(rows)
            progress("comparing", n, n)
            self.kept = kept

    def blocks(self, numbers: Array) -> list[Array]:
        return [numbers[i : i + self.step] for i in range(0, len(numbers), self.step)]

    def kernel(self, numbers: Array) -> Array:
        """K of these images with the clients."""
        return (
            gram(self.items[numbers], self.clients)
            if self.kept is None
            else self.kept[numbers]
        )

    def add(self, numbers: Array) -> None:
        for some in self.blocks(numbers):
            np.maximum(self.best, self.kernel(some).max(axis=0), out=self.best)

    def gains(self, numbers: Array) -> Array:
        """What each of these images would add."""
        return np.concatenate(
            [
                np.maximum(self.kernel(some) - self.best, 0) @ self.weights
                for some in self.blocks(numbers)
            ]
        )


def short_vectors(
    read: Callable[[Array], Comparable], n: int, progress: Progress
) -> Array:
    """Short vectors (n, m) whose dot product is nearly the kernel, in half precision."""
    embedding = Embedding.fit(read(sample(n, LANDMARKS)), DIMENSIONS)
    vectors = np.empty((n, embedding.root.shape[1]), dtype=np.float16)
    for start in range(0, n, LANDMARKS):
        progress("embedding", start, n)
        numbers = np.arange(start, min(start + LANDMARKS, n))
        vectors[numbers] = check_finite(embedding(read(numbers)))
    progress("embedding", n, n)
    return vectors


@dataclass(frozen=True)
class Pick:
    """A photo to label: where it is, and what it adds to how well all are stood for (a share)."""

    id: str
    path: str
    gain: float


def open_photos(store: Store | str | Path, features: str | None = None) -> Searcher:
    """The photos of a store as a recipe sees them; no network is loaded."""
    opened = store if isinstance(store, Store) else Store.open(store)
    defaults = choose_defaults(count_rows(opened.folder))
    return Searcher(opened, choose_recipe(opened, features, defaults).name, "exact")


def choose_defaults(photos: int) -> tuple[str, ...]:
    """Return the recipes by which so many photos are chosen, the first one that a store has."""
    return (
        (WITH_PROTOTYPES, *RECIPES) if photos >= MIN_PHOTOS_FOR_PROTOTYPES else RECIPES
    )


def choose_photos(
    photos: Searcher,
    n: int,
    *,
    labelled: Labels | None = None,
    progress: Progress = silent,
) -> Iterator[Pick]:
    """At most n photos from `open_photos`, the most useful to label first; see `choosing`."""
    collection, given = photos.collection, labelled or {}
    numbers = collection.content[_rows_of(collection, given)]
    weights = _unsure(photos, numbers, list(given.values()))
    known = np.unique(numbers)
    for step in choosing(
        photos.features, n, labelled=known, weights=weights, progress=progress
    ):
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
    scores = np.concatenate(
        [svm.decision_function(block) for block in photos.features.blocks()]
    )
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
        has = table.filter(pc.is_valid(table.column(CURRENT)))
        ids, labels = (has.column(name).to_pylist() for name in ("id", CURRENT))
        return {id_: tuple(names) for id_, names in zip(ids, labels, strict=True)}
    path = Path(source)
    if path.suffix.lower() in TABLES:
        items = read_table(path)
        named = {item.id: item.labels for item in items if item.labels is not None}
        return named or dict.fromkeys((item.id for item in items), None)
    what = (
        f"photos that are labelled must be a table ({', '.join(TABLES)}), a text file in UTF-8 "
        f"with a path per line, or the word {OWN}, got {path}"
    )
    with reraise_as(DatasetError, what, of=(OSError, UnicodeDecodeError)):
        lines = path.read_text(encoding="utf-8").splitlines()
    return {line: None for line in lines if line}


def _rows_of(collection: Collection, labelled: Labels) -> Array:
    """The rows of these ids or paths; one that the store lacks is an error."""
    names = pa.array(list(labelled), pa.string())
    columns = [
        collection.table.column(name).combine_chunks() for name in ("id", "path")
    ]
    rows = pc.coalesce(*(pc.index_in(names, value_set=column) for column in columns))
    if rows.null_count:
        first = names.filter(rows.is_null())[0].as_py()
        raise DatasetError(
            f"photos that are labelled must be in {collection.folder}, got {rows.null_count} that "
            f"are not, first {first!r}{collection.suggestion(first)}"
        )
    numbers: Array = rows.to_numpy(zero_copy_only=False).astype(np.intp)
    return numbers
