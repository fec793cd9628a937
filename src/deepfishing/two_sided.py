"""Stage 4, projections: whole gradients from both sides, R G S^T, as extraction stores them.

Comes in: factors x (d) and delta (D), over any number of positions, or blocks of a block-diagonal
gradient. Goes out: vectors sum_p (R x_p)(S delta_p)^T with R (m1, d) and S (m2, D), whose dot
product approximates the trace kernel (eq:tr).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deepfishing.rank_one import Array, RankOne

# How two-sided projections are drawn. Vectors of one scheme say nothing about those of another, so
# stores and models record it.
SCHEME = 2


def two_sided(gradients: RankOne | Array, m1: int, m2: int, seed: int = 0) -> Array:
    """Project one batch to vectors of m1 * m2 numbers, in its own precision.

    An array (n, groups, D / groups, d / groups) holds the blocks of block-diagonal gradients
    (d, D), transposed.

    >>> two_sided(RankOne(x=np.ones((4, 100)), delta=np.ones((4, 50))), 8, 4).shape
    (4, 32)
    """
    if isinstance(gradients, RankOne):
        _, d, D = gradients.shape
        dtype = gradients.x.dtype
    else:
        n, groups, D_g, d_g = gradients.shape
        d, D, dtype = groups * d_g, groups * D_g, gradients.dtype
    R, S = (matrix.astype(dtype) for matrix in draw_matrices(d, D, m1, m2, seed))
    if isinstance(gradients, RankOne):
        return project(*factors_of(gradients, dtype), R, S)
    # R G S^T = sum_g R_g G_g S_g^T, where R_g and S_g are the columns that group g sees
    left = gradients @ R.reshape(m1, groups, d_g).transpose(1, 2, 0)  # (n, groups, D_g, m1)
    projected: Array = left.reshape(n, D, m1).swapaxes(1, 2) @ S.T
    return projected.reshape(n, -1)


def draw_matrices(
    d: int, D: int, m1: int, m2: int, seed: int = 0, orthogonal: bool = False
) -> tuple[Array, Array]:
    """R (m1, d) and S (m2, D) of one seed: no other seed or shape has one of them again."""
    both = np.random.SeedSequence([seed, m1, d, m2, D]).spawn(2)
    make = _orthogonal_matrix if orthogonal else _normal_matrix
    for_x, for_delta = (np.random.default_rng(one) for one in both)
    return make(m1, d, for_x), make(m2, D, for_delta)


def project(x: Array, delta: Array, R: Array, S: Array) -> Array:
    """sum_p (R x_p)(S delta_p)^T, flattened, of x (n, P, d) and delta (n, P, D)."""
    projected: Array = times(x, R).swapaxes(1, 2) @ times(delta, S)
    return projected.reshape(len(x), -1)


def times(values: Array, R: Array) -> Array:
    """R times every row, (n, P, d) -> (n, P, m), as one matrix product instead of n small ones."""
    flat: Array = values.reshape(-1, values.shape[-1]) @ R.T
    return flat.reshape(*values.shape[:-1], len(R))


def factors_of(gradients: RankOne, dtype: Any = np.float32) -> tuple[Array, Array]:
    """x (n, P, d) and delta (n, P, D), with P = 1 where there is no position."""
    x, delta = (f.astype(dtype, copy=False) for f in (gradients.x, gradients.delta))
    return (x[:, None], delta[:, None]) if x.ndim == 2 else (x, delta)


def _normal_matrix(m: int, d: int, random: np.random.Generator) -> Array:
    """(m, d) normal entries of variance 1/m: E[R^T R] = I, so <R a, R b> is <a, b> on average."""
    R: Array = random.normal(size=(m, d)) / np.sqrt(m)
    return R


def _orthogonal_matrix(m: int, d: int, random: np.random.Generator) -> Array:
    """The same on average, with rows orthogonal in groups of d: no direction is repeated."""
    groups = []
    for start in range(0, m, d):
        Q, upper = np.linalg.qr(random.normal(size=(d, min(d, m - start))))
        groups.append((Q * np.sign(np.diag(upper))).T)  # the signs make it uniform
    R: Array = np.concatenate(groups) * np.sqrt(d / m)
    return R
