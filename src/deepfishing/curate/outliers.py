"""Unusual photos, and photos that the network is not sure of.

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
# The first of these that a store has, and which neighbour's distance counts: beyond as many odd
# ones as may be of a kind, which are each other's neighbours: benchmarks/CURATION.md.
RECIPES = (X, *DEFAULTS)
LEAST_K, MOST_K, SHARE_K = 10, 50, 20
COMPARED = 64  # contents by which the scores of the network are compared with y8


def _flat(values: Array) -> Array:
    return values.reshape(len(values), -1).astype(np.float64)


def _l1_norm(values: Array) -> Array:
    norm: Array = np.abs(_flat(values)).sum(axis=1)
    return norm


DEFAULT = "knn"
# name -> the factors that the score is made of, and how; knn is made of the nearest photos
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
    """A photo and how odd it is."""

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
    """All photos of a store, the oddest first; see `oddness`."""
    odd = oddness(photos, score, k=k, progress=progress)[photos.collection.content]
    table = photos.collection.table
    ids, paths = (table.column(name).to_pylist() for name in ("id", "path"))
    order = np.argsort(-odd, kind="stable").tolist()
    return [OddPhoto(ids[row], paths[row], round(float(odd[row]), 6)) for row in order]


def oddness(
    photos: Searcher,
    score: str = DEFAULT,
    *,
    k: int | None = None,
    progress: Progress = silent,
) -> Array:
    """How odd each content of a store is, (n,), by one of `SCORES`; recipe and k are for `knn`.

    k says which neighbour's distance counts: by default a twentieth of the photos, from 10 to 50.
    """
    check_choice("score", score, SCORES)
    if k is None:
        k = min(max(len(photos.contents) // SHARE_K, LEAST_K), MOST_K)
    if k < 1:
        raise OptionError(f"k must be at least 1, got {k}")
    factors, made_of = SCORES[score]
    if made_of is None:
        near = nearest(photos, k, progress=progress).kernel
        last = np.where(np.isfinite(near), near, 1.0).min(axis=1, initial=1.0)
        # of features of norm 1: |a - b|^2 = 2 - 2 K(a, b)
        distance: Array = np.sqrt(np.maximum(2 - 2 * last, 0))
        return distance
    store = photos.store
    if lacking := [name for name in factors if not _sources(store, name)]:
        if Y in lacking and Y in store.factors():
            raise StoreError(
                f"{score} needs the scores of a softmax, got {store.folder}, whose network has "
                f"other scores than {Y}; take another --score, such as {DEFAULT}"
            )
        wanted = f"dW{TOP}" if DELTA in lacking else ",".join(lacking)
        raise StoreError(
            f"{score} needs {' and '.join(lacking)} of a softmax, which {store.folder} lacks; add "
            f"with `deepfish extract IMAGES {store.folder} --features {wanted}`, or take another "
            "--score"
        )
    blocks = read_blocks(store, photos.contents.keys, factors, progress)
    return np.concatenate([made_of(*arrays) for _, arrays in blocks])


def read_blocks(
    store: Store, keys: pa.Array, factors: Sequence[str], progress: Progress = silent
) -> Iterator[tuple[Array, list[Array]]]:
    """Numbers of the keys and their factors with the lengths that they had, a block at a time.

    The probabilities x8 are made of y8 or delta8 where they are not stored; nothing is yielded if a
    factor cannot be had.
    """
    sources = {name: _sources(store, name) for name in factors}
    for start in range(0, len(keys) if all(sources.values()) else 0, BLOCK_ROWS):
        some = keys[start : start + BLOCK_ROWS].to_pylist()
        arrays = []
        for name, (source, *_) in sources.items():
            values = store.read(some, source)
            if name == P and source == Y:
                values = softmax(values, axis=1)
            elif name == P and source == DELTA:
                # (sigma - 1/C) / tau, so probabilities at tau
                values = values * store.settings["tau"] + 1 / values.shape[1]
            arrays.append(values)
        yield np.arange(start, start + len(some)), arrays
        progress("reading", start + len(some), len(keys))


def _sources(store: Store, name: str) -> list[str]:
    """The stored factors that one can be made of, the best first."""
    settings = store.settings
    usual = settings.get("head", "softmax") == "softmax"
    uniform = (
        usual and settings.get("label", "uniform") == "uniform" and "tau" in settings
    )
    may = {
        X: [X],
        Y: [Y] * usual,
        P: [P, Y] * usual + [DELTA] * uniform,
        DELTA: [DELTA] * uniform,
    }
    if (
        (Y in may[name] or DELTA in may[name])
        and name != DELTA
        and not _scores_are_y8(store)
    ):
        may |= {Y: [], P: [P] * usual}
    return [one for one in may[name] if one in store.factors()]


def _scores_are_y8(store: Store) -> bool:
    """Whether the probabilities are the softmax of y8; not so with a scale behind layer 8.

    By the stored x8 or delta8 of some contents; where there is neither, by whether the scores are
    said to be elsewhere in the network's output.
    """
    settings, held = store.settings, store.factors()
    if Y not in held:
        return not settings.get("scores")
    for name in (P, DELTA):
        keys = sorted(store.shards(Y).keys() & store.shards(name).keys())[:COMPARED]
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
