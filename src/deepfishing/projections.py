"""Stage 4, projections: gradients as plain vectors.

Comes in: factors x (d) and delta (D), over any number of positions. Goes out: vectors whose dot
product approximates the trace kernel. The two-sided projection of a gradient G is R G S^T with
random R (m1, d) and S (m2, D). It never builds G: R G S^T = sum_p (R x_p)(S delta_p)^T.
"""

from __future__ import annotations

import numpy as np

from deepfishing.rank_one import Array, RankOne


def projection_matrix(m: int, d: int, seed: int = 0) -> Array:
    """A random (m, d) matrix R with E[R^T R] = I, so that <R a, R b> is <a, b> on average.

    Entries are normal with variance 1/m. The same numbers come out for the same arguments.

    Examples
    --------
    >>> projection_matrix(2, 3).shape
    (2, 3)
    """
    random = np.random.default_rng([seed, m, d])
    R: Array = random.normal(size=(m, d)) / np.sqrt(m)
    return R


def two_sided(gradients: RankOne, m1: int, m2: int, seed: int = 0) -> Array:
    """Project gradients to vectors of m1 * m2 numbers (n, m1 * m2).

    The dot product of two such vectors is the trace kernel on average over seeds; its relative
    error falls as 1/sqrt(m1) + 1/sqrt(m2).

    Examples
    --------
    >>> g = RankOne(x=np.ones((4, 100)), delta=np.ones((4, 50)))
    >>> two_sided(g, 8, 4).shape
    (4, 32)
    """
    x, delta = gradients.x, gradients.delta
    if x.ndim == 2:
        x, delta = x[:, None], delta[:, None]
    R = projection_matrix(m1, x.shape[-1], seed).astype(x.dtype)
    S = projection_matrix(m2, delta.shape[-1], seed + 1).astype(delta.dtype)
    projected: Array = np.einsum("npa,npb->nab", x @ R.T, delta @ S.T, optimize=True)
    return projected.reshape(len(x), -1)
