"""Stage 8, curate: the few images that stand for all, by greedy facility location.

Comes in: features that `gram` compares. Goes out: numbers of images, the most useful first. With
the kernel K, F(S) = sum_i w_i max(0, max_{s in S} K(i, s)) is how well the images S stand for all.
F is monotone and submodular, so the greedy choice reaches 1 - 1/e of the best one at least, and a
gain that was measured for a smaller S bounds the gain now: only images whose bound is above the
best gain found are measured again (lazy greedy, the same choice as measuring all).

Up to `EXACT_IMAGES` K is the kernel itself, in blocks of rows. Beyond, images are the short vectors
of the search's index (`Embedding`), and F is a mean over `CLIENTS` of them, drawn once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from deepfishing.errors import OptionError
from deepfishing.kernels import Comparable, gram
from deepfishing.progress import Progress, silent
from deepfishing.rank_one import Array
from deepfishing.search.compare import Features, sample
from deepfishing.search.index import DIMENSIONS, LANDMARKS, Embedding

EXACT_IMAGES = 16_000  # whose Gram matrix, in single precision, is kept
CLIENTS = 10_000
KEEP_BYTES = 1 << 30  # of a Gram matrix that is kept; else rows are computed again
BLOCK_VALUES = 1 << 22  # of a block of it
NOTHING = 1e-6  # share of all images that a gain is worth less than: the rest is the same


@dataclass(frozen=True)
class Step:
    """One image that was chosen: its number, and what it adds to F, as a share of all images."""

    number: int
    gain: float


def choose(
    features: Comparable | Features,
    n: int,
    *,
    labelled: Iterable[int] = (),
    weights: Array | None = None,
    exact: bool | None = None,
    progress: Progress | None = None,
) -> list[Step]:
    """At most n images that stand for all, the most useful first.

    Parameters
    ----------
    features : ndarray, RankOne, KernelSum or KernelProduct of N images, or search's Features
        Normalised, so that an image stands for itself with 1.
    n : int
        How many; fewer are given where the rest is the same as one of them.
    labelled : iterable of int
        Images that are in the set already, and are not chosen.
    weights : ndarray (N,), optional
        How much it counts that an image is stood for; 1 each by default.
    exact : bool, optional
        Compare all images with all; by default up to `EXACT_IMAGES`.
    progress : callable, optional
        Called with a stage, how much of it is done and how much there is.

    Examples
    --------
    >>> x = np.array([[1.0, 0.0], [0.8, 0.6], [0.96, 0.28], [0.0, 1.0]])
    >>> [step.number for step in choose(x, 2)]
    [1, 3]
    >>> [step.number for step in choose(x, 1, labelled=[1, 3])]
    [0]
    """
    return list(choosing(features, n, labelled, weights, exact, progress))


def choosing(
    features: Comparable | Features,
    n: int,
    labelled: Iterable[int] = (),
    weights: Array | None = None,
    exact: bool | None = None,
    progress: Progress | None = None,
) -> Iterator[Step]:
    """The images of `choose` one by one; those there are when it is stopped are a choice, too."""
    total, tell = len(features), progress or silent
    if n < 1:
        raise OptionError(f"n must be at least 1 image, got {n}")
    weights = np.ones(total) if weights is None else np.asarray(weights, dtype=float)
    if weights.shape != (total,) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise OptionError(f"weights must be {total} numbers from 0, got shape {weights.shape}")
    read = features.of if isinstance(features, Features) else features.__getitem__
    if total <= EXACT_IMAGES if exact is None else exact:
        items, clients = read(np.arange(total)), np.arange(total)
    else:
        items, clients = short_vectors(read, total, tell), sample(total, CLIENTS)
    cover = _Cover(items, clients, weights[clients], tell)
    open_ = np.ones(total, dtype=bool)
    known = np.fromiter(labelled, dtype=np.intp)
    open_[known] = False
    cover.add(known)
    bounds = np.where(open_, np.inf, -np.inf)
    share = max(float(weights[clients].sum()), np.finfo(float).tiny)
    for done in range(min(n, int(open_.sum()))):
        tell("choosing", done, n)
        best, gain = _next(bounds, cover)
        if gain <= NOTHING * share:
            break
        bounds[best] = -np.inf
        cover.add(np.array([best]))
        yield Step(best, gain / share)
    tell("choosing", n, n)


def _next(bounds: Array, cover: _Cover) -> tuple[int, float]:
    """The image with the largest gain; bounds are made as small as is known by then."""
    stale, batch = bounds > -np.inf, 32
    best, gain = -1, -np.inf
    while stale.any():
        waiting = np.flatnonzero(stale & (bounds >= gain))
        if not len(waiting):
            break
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

    def __init__(self, items: Comparable, clients: Array, weights: Array, tell: Progress) -> None:
        self.items, self.clients, self.weights = items, items[clients], weights
        self.best = np.zeros(len(clients))  # max(0, max_s K(client, s))
        self.step = max(1, BLOCK_VALUES // len(clients))
        self.kept: Array | None = None
        n = len(items)
        if 4 * n * len(clients) <= KEEP_BYTES:
            kept = np.empty((n, len(clients)), dtype=np.float32)
            for start in range(0, n, self.step):
                tell("comparing", start, n)
                kept[start : start + self.step] = self.rows(np.arange(n)[start : start + self.step])
            tell("comparing", n, n)
            self.kept = kept

    def rows(self, numbers: Array) -> Array:
        """K of these images with the clients."""
        return gram(self.items[numbers], self.clients) if self.kept is None else self.kept[numbers]

    def add(self, numbers: Array) -> None:
        for start in range(0, len(numbers), self.step):
            rows = self.rows(numbers[start : start + self.step])
            np.maximum(self.best, rows.max(axis=0), out=self.best)

    def gains(self, numbers: Array) -> Array:
        """What each of these images would add."""
        found = np.empty(len(numbers))
        for start in range(0, len(numbers), self.step):
            some = slice(start, start + self.step)
            found[some] = np.maximum(self.rows(numbers[some]) - self.best, 0) @ self.weights
        return found


def short_vectors(read: Callable[[Array], Comparable], n: int, tell: Progress) -> Array:
    """Short vectors (n, m) whose dot product is nearly the kernel, in half precision."""
    embedding = Embedding.fit(read(sample(n, LANDMARKS)), DIMENSIONS)
    vectors = np.empty((n, embedding.root.shape[1]), dtype=np.float16)
    for start in range(0, n, LANDMARKS):
        tell("embedding", start, n)
        numbers = np.arange(start, min(start + LANDMARKS, n))
        vectors[numbers] = embedding(read(numbers))
    tell("embedding", n, n)
    return vectors


def coverage(features: Comparable, chosen: Sequence[int]) -> float:
    """F of the images chosen, as a share of all: the mean similarity to the nearest of them.

    Examples
    --------
    >>> coverage(np.eye(4), [0, 2])
    0.5
    """
    best = np.maximum(gram(features, features[np.asarray(chosen)]).max(axis=1), 0)
    return float(best.mean())
