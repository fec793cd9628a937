"""Classifier heads made of unlabelled photos.

Embeddings of a pool are clustered; the centroids become the columns of a weight matrix W, as if the
network had been trained to tell the clusters apart. The gradient of the uniform-label loss with
respect to W is x delta^T (eq:y_derivative), of rank 1 like any other, and needs neither labels nor
a classifier of the network's own:

    z = (x - c) / |x - c|,    p = softmax(z W / T),    delta = p - 1 / P,

with x (n, d) of unit length, c their mean over the pool, and W (d, P) the centred, normalised
centroids. One clustering is a matter of chance, so there are several heads, of different random
starts; their deltas, each of unit length, are side by side, which averages their kernels.
docs/recipes.md has the measurements behind the constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepfishing.core.rank_one import Array, RankOne, l2_normalize
from deepfishing.errors import FeatureError

HEADS = 4
MAX_FIT_ROWS = 50_000  # photos of the pool that the clustered ones are drawn from
MIN_ROWS_PER_PROTOTYPE = 3
MAX_ROWS_PER_PROTOTYPE = 64  # photos that a head is fitted to, drawn anew for each
ITERATIONS = 10
TEMPERATURE = 0.2
DEFAULT_COUNT = 256


@dataclass(frozen=True, eq=False)
class Prototypes:
    """H heads of P prototypes each, for embeddings of d numbers.

    Parameters
    ----------
    centre : ndarray (d,)
        Mean of the pool's unit vectors.
    W : ndarray (H, d, P)
        Prototypes of each head, centred and of unit length.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> pool = np.concatenate([rng.normal(m, 0.1, (30, 4)) for m in (np.eye(4)[0], np.eye(4)[2])])
    >>> head = fit_prototypes(pool, 2)
    >>> gradients = head.gradients(pool)
    >>> gradients.x.shape, gradients.delta.shape
    ((60, 4), (60, 8))
    >>> bool((gradients.delta[:30] * gradients.delta[30:] < 0).all())  # two kinds, two signs
    True
    """

    centre: Array
    W: Array

    def deltas(self, x: Array) -> Array:
        """Return delta (n, H P) of embeddings (n, d) of any length, unit length for each head."""
        z = l2_normalize(l2_normalize(self._checked(x)) - self.centre)
        found = []
        for W in self.W:
            scores = z @ W / TEMPERATURE
            scores -= scores.max(axis=1, keepdims=True)
            p = np.exp(scores)
            p /= p.sum(axis=1, keepdims=True)
            found.append(l2_normalize(p - 1 / W.shape[1]))
        return np.concatenate(found, axis=1).astype(self.W.dtype)

    def gradients(self, x: Array) -> RankOne:
        """Return the gradients x delta^T, both factors of unit length."""
        return RankOne(self._checked(x), self.deltas(x)).normalize()

    def _checked(self, x: Array) -> Array:
        x = np.asarray(x)
        if x.ndim != 2 or x.shape[1] != len(self.centre):
            raise FeatureError(
                f"embeddings must be (n, {len(self.centre)}) as in the pool of these prototypes, "
                f"got {x.shape}; fit prototypes to this feature"
            )
        return x.astype(self.W.dtype, copy=False)


def fit_prototypes(
    pool: Array, count: int = DEFAULT_COUNT, seed: int = 0, heads: int = HEADS
) -> Prototypes:
    """Cluster the embeddings (n, d) of unlabelled photos, for each head into `count` prototypes.

    A small pool has fewer, a third of its photos. At most 50,000 photos, drawn at random, are
    used; the same pool, count and seed give the same prototypes.
    """
    pool = np.asarray(pool)
    if pool.ndim != 2 or not len(pool):
        raise FeatureError(
            f"a pool must be embeddings (n, d) of photos, got {pool.shape}"
        )
    rows = np.random.default_rng(seed).permutation(len(pool))[:MAX_FIT_ROWS]
    x = l2_normalize(pool[np.sort(rows)].astype(np.float32))
    if not np.isfinite(x).all():
        raise FeatureError("embeddings of a pool must be finite, got NaN or infinity")
    count = max(1, min(int(count), len(x) // MIN_ROWS_PER_PROTOTYPE))
    centre = x.mean(axis=0)
    W = []
    for head in range(heads):
        centroids = _cluster(x, count, seed * heads + head)
        W.append(l2_normalize(centroids - centre).T)
    return Prototypes(centre, np.ascontiguousarray(W))


def _cluster(x: Array, count: int, seed: int) -> Array:
    """Centroids (count, d) of unit vectors, by k-means."""
    # half a second to load, which readers of a recipe's name need not wait for
    import faiss

    kmeans = faiss.Kmeans(
        x.shape[1],
        count,
        niter=ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=MAX_ROWS_PER_PROTOTYPE,  # of more rows faiss draws a sample
    )
    kmeans.train(np.ascontiguousarray(x))
    return np.asarray(kmeans.centroids)
