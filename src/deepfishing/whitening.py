"""Whitening: features measured in units of their own spread on the training images.

Comes in: rows v (n, d) of training images. Goes out: the root L of a linear map v -> L^-1 v, with
L L^T = (1 - s) A + s tr(A)/d I, where A is the second moment of the rows and s the shrinkage.
For both factors of a gradient this gives K = (x^T A^-1 x')(delta^T G^-1 delta'), the Fisher kernel
(eqn:fk) with its information matrix approximated by a Kronecker product, and it stays rank-1.
"""

from __future__ import annotations

import numpy as np

from deepfishing.rank_one import Array


def second_moment_root(rows: Array, shrinkage: float | None = None) -> Array:
    """L of rows (n, d) or (n, P, d), shrunk by a given value or Ledoit and Wolf's.

    >>> rows = np.random.default_rng(0).normal(size=(5000, 2)) * [10.0, 0.1]
    >>> np.cov(whiten(second_moment_root(rows, shrinkage=1e-9), rows).T).round(1) + 0.0
    array([[1., 0.],
           [0., 1.]])
    """
    # a second to load, which commands that only read a recipe's name need not wait for
    from scipy.linalg import cholesky

    flat = np.asarray(rows, dtype=np.float64).reshape(-1, rows.shape[-1])
    if shrinkage is None:
        from sklearn.covariance import ledoit_wolf_shrinkage

        # rounding can bring it below 0 where all rows are the same
        shrinkage = max(0.0, float(ledoit_wolf_shrinkage(flat, assume_centered=True)))
    A = flat.T @ flat / len(flat)
    level = np.trace(A) / len(A)
    A *= 1 - shrinkage
    # a floor for directions without any spread, far below what counts
    A[np.diag_indices_from(A)] += max(shrinkage, 1e-10) * level + 1e-30
    root: Array = cholesky(A, lower=True, overwrite_a=True).astype(rows.dtype)
    return root


def whiten(root: Array, rows: Array) -> Array:
    """L^-1 v of rows (n, d) or (n, P, d)."""
    from scipy.linalg import solve_triangular

    flat = rows.reshape(-1, rows.shape[-1])
    white: Array = solve_triangular(root, flat.T, lower=True, check_finite=False).T
    return np.ascontiguousarray(white).reshape(rows.shape)
