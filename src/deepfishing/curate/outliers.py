"""Unusual photos, and photos for which the network is uncertain.

Each content has a score by one of `SCORES`, which have their names from the literature; higher is
more unusual. All scores are computed from stored factors: a store keeps vectors with their lengths,
and `Store.read` restores them, so the norms of x and delta need no network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.special import logsumexp, softmax

from deepfishing.core.features import TOP
from deepfishing.core.rank_one import Array, l2_norm
from deepfishing.curate.neighbours import nearest
from deepfishing.errors import OptionError, StoreError, check_choice
from deepfishing.learn.auto import OTHER_SCORES
from deepfishing.search import Searcher
from deepfishing.search.compare import DEFAULTS
from deepfishing.store import Store
from deepfishing.util.progress import Progress, silent

BLOCK_ROWS = 4096
X, Y, P, DELTA = f"x{TOP - 1}", f"y{TOP}", f"x{TOP}", f"delta{TOP}"
# The first of these that a store has.
RECIPES = (X, *DEFAULTS)
# Rank of the neighbour whose distance is the score: a share of the photos, within limits. It must
# be above the number of odd photos of one kind, which are each other's neighbours
# (benchmarks/CURATION.md).
MIN_K, MAX_K, SHARE_K = 10, 50, 20
MAX_COMPARED = 64  # contents on which stored scores are compared with y8


def _flat(values: Array) -> Array:
    return values.reshape(len(values), -1).astype(np.float64)


def _l1_norm(values: Array) -> Array:
    norm: Array = np.abs(_flat(values)).sum(axis=1)
    return norm


DEFAULT = "knn"
# name -> the factors of a score, and the function of them; knn uses the nearest photos instead
SCORES: Mapping[str, tuple[tuple[str, ...], Callable[..., Array] | None]] = {
    # distance to the k-th nearest photo under the recipe (Sun 2022)
    DEFAULT: ((), None),
    # 1 - the largest probability of a class (Hendrycks 2017)
    "msp": ((P,), lambda p: 1 - p.max(axis=1)),
    # - log sum exp of the scores y (Liu 2020)
    "energy": ((Y,), lambda y: -logsumexp(_flat(y), axis=1)),
    # - the norm of delta, which is large where the network is sure
    "delta": ((DELTA,), lambda delta: -l2_norm(_flat(delta))),
    # - the L1 norm of the gradient, |x| |delta| (Huang 2021)
    "gradnorm": ((X, DELTA), lambda x, delta: -(_l1_norm(x) * _l1_norm(delta))),
}


@dataclass(frozen=True)
class OddPhoto:
    """A photo and its score."""

    id: str
    path: str
    score: float


def odd_photos(
    photos: Searcher,
    score: str = DEFAULT,
    *,
    k: int | None = None,
    progress: Progress = silent,
) -> list[OddPhoto]:
    """Return all photos of a store, the oddest first; see `oddness`."""
    of_contents = oddness(photos, score, k=k, progress=progress)
    odd = of_contents[photos.collection.content]
    ids = photos.collection.table.column("id").to_pylist()
    paths = photos.collection.table.column("path").to_pylist()
    ranking = []
    for row in np.argsort(-odd, kind="stable").tolist():
        ranking.append(OddPhoto(ids[row], paths[row], round(float(odd[row]), 6)))
    return ranking


def oddness(
    photos: Searcher,
    score: str = DEFAULT,
    *,
    k: int | None = None,
    progress: Progress = silent,
) -> Array:
    """Return the oddness of each content of a store (n,), by one of `SCORES`.

    For `knn`, k is the rank of the neighbour whose distance is the score: by default a twentieth of
    the photos, from 10 to 50.
    """
    check_choice("score", score, SCORES)
    if k is None:
        k = min(max(len(photos.contents) // SHARE_K, MIN_K), MAX_K)
    if k < 1:
        raise OptionError(f"k must be at least 1, got {k}")
    factors, compute = SCORES[score]
    if compute is None:
        near = nearest(photos, k, progress=progress).kernel
        last = np.where(np.isfinite(near), near, 1.0).min(axis=1, initial=1.0)
        # of features of norm 1: |a - b|^2 = 2 - 2 K(a, b)
        distance: Array = np.sqrt(np.maximum(2 - 2 * last, 0))
        return distance
    store = photos.store
    lacking = [name for name in factors if not _sources(store, name)]
    if lacking:
        if Y in lacking and Y in store.factors():
            raise StoreError(
                f"{score} needs the scores of a softmax, got {store.folder}, whose network has "
                f"other scores than {Y}; take another --score, such as {DEFAULT}"
            )
        features = ",".join(lacking)
        if DELTA in lacking:
            features = f"dW{TOP}"
        raise StoreError(
            f"{score} needs {' and '.join(lacking)} of a softmax, which {store.folder} lacks; add "
            f"with `deepfish extract IMAGES {store.folder} --features {features}`, or take another "
            "--score"
        )
    blocks = read_blocks(store, photos.contents.keys, factors, progress)
    return np.concatenate([compute(*arrays) for _, arrays in blocks])


def read_blocks(
    store: Store, keys: pa.Array, factors: Sequence[str], progress: Progress = silent
) -> Iterator[tuple[Array, list[Array]]]:
    """Yield numbers of the keys and their factors, not normalised, a block at a time.

    The probabilities x8 are computed from y8 or delta8 where they are not stored. Nothing is
    yielded if the store lacks a factor and its sources.
    """
    sources = {name: _sources(store, name) for name in factors}
    if not all(sources.values()):
        return
    for start in range(0, len(keys), BLOCK_ROWS):
        block = keys[start : start + BLOCK_ROWS].to_pylist()
        arrays = []
        for name, (source, *_) in sources.items():
            values = store.read(block, source)
            if name == P and source == Y:
                values = softmax(values, axis=1)
            elif name == P and source == DELTA:
                # (sigma - 1/C) / tau, so probabilities at tau
                values = values * store.settings["tau"] + 1 / values.shape[1]
            arrays.append(values)
        yield np.arange(start, start + len(block)), arrays
        progress("reading", start + len(block), len(keys))


def _sources(store: Store, name: str) -> list[str]:
    """Return the stored factors that a factor can be computed from, the best first."""
    settings = store.settings
    if name == X:
        candidates = [X]
    elif settings.get("head", "softmax") != "softmax":
        candidates = []
    else:
        is_uniform = settings.get("label", "uniform") == "uniform"
        deltas = [DELTA] if is_uniform and "tau" in settings else []
        if name == DELTA:
            candidates = deltas
        elif name == P:
            candidates = [P]
            if _scores_are_y8(store):
                candidates += [Y, *deltas]
        else:
            candidates = [Y] if _scores_are_y8(store) else []
    return [factor for factor in candidates if factor in store.factors()]


def _scores_are_y8(store: Store) -> bool:
    """Whether the probabilities are the softmax of y8; not so with a scale behind layer 8.

    By the stored x8 or delta8 of some contents; where there is neither, by whether the scores are
    said to be elsewhere in the network's output.
    """
    settings, held = store.settings, store.factors()
    if Y not in held:
        return not settings.get("scores")
    for name in (P, DELTA):
        keys = sorted(store.shards(Y).keys() & store.shards(name).keys())[:MAX_COMPARED]
        if name not in held or not keys:
            continue
        y, stored = _flat(store.read(keys, Y)), _flat(store.read(keys, name))
        made = softmax(y, axis=1)
        if name == DELTA:
            if settings.get("label", "uniform") != "uniform" or "tau" not in settings:
                continue
            made = (softmax(y / settings["tau"], axis=1) - 1 / y.shape[1]) / settings[
                "tau"
            ]
        return bool(
            np.median(l2_norm(made - stored))
            < OTHER_SCORES * np.median(l2_norm(stored))
        )
    return not settings.get("scores")
