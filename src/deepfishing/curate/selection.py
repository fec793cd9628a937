"""Selection of the photos to label first, by greedy facility location.

With the kernel K, F(S) = sum_i w_i max(0, max_{s in S} K(i, s)) measures how well the images S
represent all. F is monotone and submodular, so the greedy choice reaches at least 1 - 1/e of the
best one, and a gain that was measured for a smaller S is an upper bound: only images whose bound is
above the best gain so far are measured again (lazy greedy, the same choice as measuring all).

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
MAX_GRAM_BYTES = 1 << 30  # of a Gram matrix in memory; else rows are computed again
BLOCK_VALUES = 1 << 22  # of a block of it
MIN_BATCH, MAX_BATCH = 32, 1024  # images whose gain is measured at a time
# share of all images; with a smaller gain the other images are copies of chosen ones
MIN_GAIN = 1e-6

# The first of these that a store has; benchmarks/CURATION.md has the measurement.
RECIPES = ("pow(dW8,0.5)+x7", *DEFAULTS)
# Before them where there are enough photos to make a head of: the embedding and gradients of a head
# made of the photos.
WITH_PROTOTYPES = OWN_HEAD
# From this many labelled photos in the median class on, photos whose two best classes are close
# count more: exp(-SHARPNESS * the distance of their scores).
MIN_LABELLED = 5
SHARPNESS = 3.0
OWN = "store"  # in place of a file: labels of the store itself

# by id or path; None for a photo that is labelled elsewhere
Labels = Mapping[str, tuple[str, ...] | None]


@dataclass(frozen=True)
class Step:
    """One image that was chosen: its number, and its gain of F, as a share of all images."""

    number: int
    gain: float


def choose_rows(features: Comparable | Features, n: int, **options: Any) -> list[Step]:
    """Return at most n images that represent all, the most useful first; options as `choosing`.

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

    Features have norm 1, so that an image represents itself with 1. `labelled` ones are in the set
    already; `weights` are the w_i of F. All images are compared with all if `exact`, by default up
    to `EXACT_IMAGES`. Fewer are chosen where all others are the same as one of them.
    """
    total = len(features)
    if n < 1:
        raise OptionError(f"n must be at least 1 image, got {n}")
    if weights is None:
        weights = np.ones(total)
    weights = np.asarray(weights, dtype=float)
    if weights.shape != (total,) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise OptionError(
            f"weights must be {total} numbers from 0, got shape {weights.shape}"
        )
    read: Callable[[Array], Comparable]
    if isinstance(features, Features):
        read = features.of
    else:
        read = features.__getitem__
    if exact is None:
        exact = total <= EXACT_IMAGES
    if exact:
        clients = np.arange(total)
        items = read(clients)
    else:
        clients = sample(total, CLIENTS)
        items = short_vectors(read, total, progress)
    # a row of the kernel has NaN wherever features have
    check_finite(gram(items[:1], items))
    cover = _Cover(items, clients, weights[clients], progress)
    in_set = np.fromiter(labelled, dtype=np.intp)
    cover.add(in_set)
    bounds = np.full(total, np.inf)
    bounds[in_set] = -np.inf
    total_weight = max(float(weights[clients].sum()), np.finfo(float).tiny)
    for done in range(min(n, int((bounds > 0).sum()))):
        progress("choosing", done, n)
        best, gain = _next(bounds, cover)
        if gain <= MIN_GAIN * total_weight:
            break
        bounds[best] = -np.inf
        cover.add(np.array([best]))
        yield Step(best, gain / total_weight)
    progress("choosing", n, n)


def check_finite(values: Array) -> Array:
    """Return values that were computed of features; refuse NaN or infinity."""
    if not np.isfinite(values).all():
        raise FeatureError(
            "features must be finite, got NaN or infinity; leave such images out"
        )
    return values


def _next(bounds: Array, cover: _Cover) -> tuple[int, float]:
    """Return the image with the largest gain, and the gain; measured bounds are lowered."""
    is_stale = bounds > -np.inf
    batch = MIN_BATCH
    best, best_gain = -1, -np.inf
    while True:
        numbers = np.flatnonzero(is_stale & (bounds >= best_gain))
        if not len(numbers):
            return best, best_gain
        if len(numbers) > batch:
            largest = np.argpartition(-bounds[numbers], batch)[:batch]
            numbers = np.sort(numbers[largest])
        bounds[numbers] = cover.gains(numbers)
        is_stale[numbers] = False
        number = int(numbers[bounds[numbers].argmax()])
        gain = float(bounds[number])
        if gain > best_gain or (gain == best_gain and number < best):
            best, best_gain = number, gain
        batch = min(2 * batch, MAX_BATCH)


class _Cover:
    """The kernel between some images (clients) and the nearest image that was added."""

    def __init__(
        self, items: Comparable, clients: Array, weights: Array, progress: Progress
    ) -> None:
        self.items = items
        self.clients = items[clients]
        self.weights = weights
        self.best = np.zeros(len(clients))  # max(0, max_s K(client, s))
        self.step = max(1, BLOCK_VALUES // len(clients))
        self.gram: Array | None = None
        n = len(items)
        if 4 * n * len(clients) <= MAX_GRAM_BYTES:
            K = np.empty((n, len(clients)), dtype=np.float32)
            for rows in self.blocks(np.arange(n)):
                progress("comparing", int(rows[0]), n)
                K[rows] = self.kernel(rows)
            progress("comparing", n, n)
            self.gram = K

    def blocks(self, numbers: Array) -> list[Array]:
        return [numbers[i : i + self.step] for i in range(0, len(numbers), self.step)]

    def kernel(self, numbers: Array) -> Array:
        """Return K of these images with the clients."""
        if self.gram is not None:
            return self.gram[numbers]
        return gram(self.items[numbers], self.clients)

    def add(self, numbers: Array) -> None:
        for block in self.blocks(numbers):
            np.maximum(self.best, self.kernel(block).max(axis=0), out=self.best)

    def gains(self, numbers: Array) -> Array:
        """Return the gain of F by each of these images."""
        gains = []
        for block in self.blocks(numbers):
            gain_of_clients = np.maximum(self.kernel(block) - self.best, 0)
            gains.append(gain_of_clients @ self.weights)
        return np.concatenate(gains)


def short_vectors(
    read: Callable[[Array], Comparable], n: int, progress: Progress
) -> Array:
    """Return short vectors (n, m) whose dot product is nearly the kernel, in half precision."""
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
    """A photo to label, with its gain of F as a share of all photos."""

    id: str
    path: str
    gain: float


def open_photos(store: Store | str | Path, features: str | None = None) -> Searcher:
    """Open the photos of a store for `choose_photos`; no network is loaded."""
    if not isinstance(store, Store):
        store = Store.open(store)
    defaults = choose_defaults(count_rows(store.folder))
    return Searcher(store, choose_recipe(store, features, defaults).name, "exact")


def choose_defaults(photos: int) -> tuple[str, ...]:
    """Return the default recipes for this many photos; the first that a store has is used."""
    if photos >= MIN_PHOTOS_FOR_PROTOTYPES:
        return (WITH_PROTOTYPES, *RECIPES)
    return RECIPES


def choose_photos(
    photos: Searcher,
    n: int,
    *,
    labelled: Labels | None = None,
    progress: Progress = silent,
) -> Iterator[Pick]:
    """Yield at most n photos from `open_photos`, the most useful to label first; see `choosing`."""
    collection = photos.collection
    labels = labelled or {}
    numbers = collection.content[_rows_of(collection, labels)]
    steps = choosing(
        photos.features,
        n,
        labelled=np.unique(numbers),
        weights=_uncertainty(photos, numbers, list(labels.values())),
        progress=progress,
    )
    for step in steps:
        picture = collection[int(collection.rows_of(step.number)[0])]
        yield Pick(picture.id, picture.path, step.gain)


def _uncertainty(
    photos: Searcher, numbers: Array, labels: Sequence[tuple[str, ...] | None]
) -> Array | None:
    """Return the weight of each content by its scores; None while there are few labels."""
    labelled = []  # numbers of the contents with labels
    labels_of: list[tuple[str, ...]] = []
    for number, names in zip(numbers.tolist(), labels, strict=True):
        if names is not None:
            labelled.append(number)
            labels_of.append(names)
    classes = sorted(set().union(*labels_of))
    presence = np.array([[name in names for name in classes] for names in labels_of])
    if len(classes) < 2 or np.median(presence.sum(axis=0)) < MIN_LABELLED:
        return None
    features = photos.features.of(np.array(labelled))
    svm = train_svm(features, np.where(presence, 1, -1), class_weight="balanced")
    blocks = [svm.decision_function(block) for block in photos.features.blocks()]
    scores = np.concatenate(blocks)[:, svm.trained]
    second, first = np.partition(scores, -2, axis=1)[:, -2:].T
    return np.asarray(np.exp(-SHARPNESS * (first - second)))


def read_labelled(photos: Searcher, source: str | Path) -> Labels:
    """Return the photos that a file lists as labelled, or for `store` the store's own labels.

    The file is a table with a column `path` (or `id`) and `label` or `labels`, whose filled rows
    count; or one without labels, or a text file with a path or an id per line, of which all count.
    """
    if str(source) == OWN:
        table = photos.collection.table
        labelled = table.filter(pc.is_valid(table.column(CURRENT)))
        ids = labelled.column("id").to_pylist()
        labels = map(tuple, labelled.column(CURRENT).to_pylist())
        return dict(zip(ids, labels, strict=True))
    path = Path(source)
    if path.suffix.lower() in TABLES:
        labels_of: dict[str, tuple[str, ...] | None] = {}
        for item in read_table(path):
            labels_of[item.id] = item.labels
        filled = {id_: names for id_, names in labels_of.items() if names is not None}
        return filled or labels_of
    what = (
        f"photos that are labelled must be a table ({', '.join(TABLES)}), a text file in UTF-8 "
        f"with a path per line, or the word {OWN}, got {path}"
    )
    with reraise_as(DatasetError, what, of=(OSError, UnicodeDecodeError)):
        lines = path.read_text(encoding="utf-8").splitlines()
    return {line: None for line in lines if line}


def _rows_of(collection: Collection, labelled: Labels) -> Array:
    """Return the rows of these ids or paths; refuse one that the store lacks."""
    names = pa.array(list(labelled), pa.string())
    ids = collection.table.column("id").combine_chunks()
    paths = collection.table.column("path").combine_chunks()
    by_id = pc.index_in(names, value_set=ids)
    rows = pc.coalesce(by_id, pc.index_in(names, value_set=paths))
    if rows.null_count:
        first = names.filter(rows.is_null())[0].as_py()
        raise DatasetError(
            f"photos that are labelled must be in {collection.folder}, got {rows.null_count} that "
            f"are not, first {first!r}{collection.suggestion(first)}"
        )
    numbers: Array = rows.to_numpy(zero_copy_only=False).astype(np.intp)
    return numbers
