"""RankOne, the value that all stages share: the gradients of n images, as their factors.

The gradient of image i with respect to a layer's weights is x_i delta_i^T (eq:weight_derivative).
It is never built: every stage works on x (n, d) and delta (n, D). A layer that is applied at P
positions, such as a convolution, has the sum over p of x_ip delta_ip^T; then x is (n, P, d)
and delta (n, P, D).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfishing.errors import FeatureError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False, repr=False)
class RankOne:
    """Gradients of n images as factors: sum over positions of x delta^T.

    Parameters
    ----------
    x : ndarray of shape (n, d) or (n, P, d)
        Input of the layer, forward.
    delta : ndarray of shape (n, D) or (n, P, D)
        dE/dy of the layer, backward.

    Examples
    --------
    >>> g = RankOne(x=np.eye(2), delta=np.ones((2, 3)))
    >>> len(g), g.dense().shape
    (2, (2, 2, 3))
    >>> g[1:].x
    array([[0., 1.]])
    """

    x: Array
    delta: Array

    def __post_init__(self) -> None:
        for name in ("x", "delta"):
            object.__setattr__(self, name, np.asarray(getattr(self, name)))
        x, delta = self.x.shape, self.delta.shape
        if len(x) not in (2, 3) or len(x) != len(delta) or x[:-1] != delta[:-1]:
            raise FeatureError(
                "x and delta must be (n, d) and (n, D), or (n, P, d) and (n, P, D), "
                f"got {x} and {delta}"
            )

    def __repr__(self) -> str:
        n, d, D = self.shape
        positions = f", {self.x.shape[1]} positions" if self.x.ndim == 3 else ""
        return f"RankOne({n:,} gradients of {d} x {D}{positions}, {self.x.dtype})"

    def __len__(self) -> int:
        return len(self.x)

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        """Refuse: an array would hold all numbers of the gradients, which are never built."""
        raise FeatureError(
            "gradients are not one array: take their factors .x and .delta, or .dense() for all "
            f"{self.shape} numbers, or deepfishing.estimators.Project for vectors"
        )

    def __getitem__(self, index: Any) -> RankOne:
        """Choose images by slice, mask or index array; one integer gives one image."""
        if isinstance(index, int | np.integer):
            index = [index]
        return RankOne(self.x[index], self.delta[index])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, d, D), the shape that `dense()` would have."""
        return len(self), self.x.shape[-1], self.delta.shape[-1]

    def normalize(self) -> RankOne:
        """Give every gradient the Frobenius norm 1; a zero gradient stays zero.

        With one position this is the l2 normalisation of x and delta on their own, since
        ||x delta^T||_F = ||x|| ||delta||. With several, the norm is that of the sum.
        """
        if self.x.ndim == 2:
            return RankOne(l2_normalize(self.x), l2_normalize(self.delta))
        # ||sum_p x_p delta_p^T||^2 = sum_pq <x_p, x_q> <delta_p, delta_q>
        x = l2_normalize(self.x.reshape(len(self), -1)).reshape(self.x.shape)
        delta = l2_normalize(self.delta.reshape(len(self), -1)).reshape(
            self.delta.shape
        )
        squared = ((x @ x.swapaxes(1, 2)) * (delta @ delta.swapaxes(1, 2))).sum(
            axis=(1, 2)
        )
        norm = np.sqrt(np.maximum(squared, 0))[:, None, None]
        return RankOne(
            x, np.divide(delta, norm, out=np.zeros_like(delta), where=norm > 0)
        )

    def pool(self) -> RankOne:
        """Average x and sum delta over the positions: one rank-1 term per image.

        An approximation of the sum over positions, exact when x is the same at each of them.
        """
        if self.x.ndim == 2:
            return self
        return RankOne(self.x.mean(axis=1), self.delta.sum(axis=1))

    def dense(self) -> Array:
        """Build the gradients (n, d, D) that all else avoids: for tests and small layers."""
        x, delta = self.x, self.delta
        if x.ndim == 2:
            x, delta = x[:, None], delta[:, None]
        gradients: Array = np.einsum("npd,npe->nde", x, delta)
        return gradients


def l2_normalize(rows: Array, out: Array | None = None) -> Array:
    """Divide each row by its l2 norm; a zero row stays zero. `out` may be `rows` itself."""
    if rows.dtype.kind != "f":
        rows = rows.astype(np.float64)
    # a norm may be larger than any number of half precision
    norm = l2_norm(rows)[:, None].astype(np.promote_types(rows.dtype, np.float32))
    unit: Array = np.zeros_like(rows) if out is None else out
    if (norm > 0).all():  # without a mask it is twice as quick
        np.divide(rows, norm, out=unit, casting="same_kind")
    else:
        np.divide(rows, norm, out=unit, where=norm > 0, casting="same_kind")
    return unit


def l2_norm(rows: Array) -> Array:
    """The l2 norm of each row (n, d), safe from overflow in half precision."""
    norm: Array = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))
    return norm
