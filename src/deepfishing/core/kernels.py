"""Kernels: the similarity of images as one Gram matrix.

The trace kernel of two gradients (eq:tr) is the product of a forward and a backward dot product, so
it costs as much as two linear kernels. A kernel made of others is a `Combination`.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from deepfishing.core.rank_one import Array, RankOne, l2_normalize
from deepfishing.errors import FeatureError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# How much counter-examples count in a search beside the examples; measured in docs/search.md.
UNLIKE = 0.25


@dataclass(frozen=True, eq=False, repr=False)
class Combination(ABC):
    """Several features of the same images, whose kernels become one."""

    parts: tuple[Comparable, ...]

    @abstractmethod
    def combine(self, grams: Iterable[Array]) -> Array:
        """Return one matrix made of those of the parts, which may be overwritten."""

    def vectors(
        self, parts: Sequence[Array], join: Callable[[Array, Array], Array]
    ) -> Array:
        """Return vectors with this kernel as dot product; `join` multiplies those of two parts."""
        raise FeatureError(
            f"{type(self).__name__} has no vectors; train on fewer images"
        )

    def __repr__(self) -> str:
        parts = []
        for part in self.parts:
            if isinstance(part, np.ndarray):
                parts.append(f"array {part.shape}")
            else:
                parts.append(repr(part))
        return f"{type(self).__name__}({', '.join(parts)})"

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, index: Any) -> Self:
        return replace(self, parts=tuple(part[index] for part in self.parts))

    @property
    def shape(self) -> tuple[Any, ...]:
        """The number of images, then the shapes of the parts without it."""
        return len(self), *(part.shape[1:] for part in self.parts)


@dataclass(frozen=True, eq=False, repr=False)
class KernelSum(Combination):
    """Compared with the mean of the kernels of its parts, weighted if weights are given."""

    weights: tuple[float, ...] | None = None

    @property
    def shares(self) -> list[float]:
        """Weights of the parts, which sum to 1."""
        weights = self.weights or (1.0,) * len(self.parts)
        return [weight / sum(weights) for weight in weights]

    def combine(self, grams: Iterable[Array]) -> Array:
        """Return their weighted mean, with at most two of them in memory."""
        scaled = (K * share for K, share in zip(grams, self.shares, strict=True))
        return functools.reduce(operator.iadd, scaled)

    def vectors(
        self, parts: Sequence[Array], join: Callable[[Array, Array], Array]
    ) -> Array:
        """Put the vectors of the parts side by side."""
        scaled = []
        for part, share in zip(parts, self.shares, strict=True):
            scaled.append(part * np.float32(share**0.5))
        return np.concatenate(scaled, axis=1)


@dataclass(frozen=True, eq=False, repr=False)
class KernelProduct(Combination):
    """Compared with the product of the kernels of its parts."""

    def combine(self, grams: Iterable[Array]) -> Array:
        """Multiply the matrices, with at most two of them in memory."""
        return functools.reduce(operator.imul, grams)

    def vectors(
        self, parts: Sequence[Array], join: Callable[[Array, Array], Array]
    ) -> Array:
        """Multiply the first by the second, by the third..."""
        return functools.reduce(join, parts)


@dataclass(frozen=True, eq=False, repr=False)
class KernelRBF(Combination):
    """Compared with exp(2 g (K - 1)) of the kernel K of its one part, whose diagonal is 1.

    For unit vectors u and v it is exp(-g |u - v|^2), the Gaussian kernel.
    """

    g: float = 1.0

    def combine(self, grams: Iterable[Array]) -> Array:
        """Compute the exponential in place."""
        (K,) = grams
        K -= 1
        K *= 2 * self.g
        return np.exp(K, out=K)


@dataclass(frozen=True, eq=False, repr=False)
class KernelAverage(Combination):
    """Images that are each an average of several rows of the one part, of unit length.

    Row i is the sum of `weights[i, j]` times row `numbers[i, j]` of the part, in the space of its
    kernel. `average_rows` makes it.
    """

    numbers: Array  # (n, k), rows of the part
    weights: Array  # (n, k), scaled to unit length

    def combine(self, grams: Iterable[Array]) -> Array:
        """Refuse: `gram` computes it, since it is not a function of the parts' matrices."""
        raise FeatureError("the kernel of averages is computed by gram")

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of the rows that are averaged: both can be compared with each other."""
        return len(self), *self.parts[0].shape[1:]

    def __getitem__(self, index: Any) -> Self:
        return replace(self, numbers=self.numbers[index], weights=self.weights[index])

    def vectors(
        self, parts: Sequence[Array], join: Callable[[Array, Array], Array]
    ) -> Array:
        """Return the weighted sums of the rows of the part."""
        (rows,) = parts
        return weighted_sum(rows, self.numbers, self.weights)

    def used_rows(self) -> tuple[Comparable, csr_array]:
        """Return the rows of the part that are used, and sparse weights (n, rows) of them."""
        # takes longer to load than a command's help to show
        from scipy.sparse import csr_array

        used, place = np.unique(self.numbers, return_inverse=True)
        n, k = self.numbers.shape
        rows = np.repeat(np.arange(n), k)
        entries = (self.weights.ravel(), (rows, place.ravel()))
        return self.parts[0][used], csr_array(entries, shape=(n, len(used)))


Comparable = Array | RankOne | Combination

# A block of the Gram matrix holds at most this many numbers per operand (float32: 128 MB).
BLOCK_VALUES = 32_000_000
AVERAGE_BLOCK = 128  # images whose averages are normalised together


def linear_kernel(a: Array, b: Array) -> Array:
    """Similarity of two sets of forward features: K[i, j] = <a_i, b_j>.

    Examples
    --------
    >>> linear_kernel(np.eye(2), np.array([[2.0, 3.0]]))
    array([[2.],
           [3.]])
    """
    return a @ b.T


def trace_kernel(a: RankOne, b: RankOne) -> Array:
    """Similarity of two sets of gradients (eq:tr).

    Parameters
    ----------
    a, b : RankOne
        n and m images; factors x (n, d) and delta (n, D), same d and D. With P positions,
        K is the sum over pairs of positions, which is exact.

    Returns
    -------
    K : ndarray of shape (n, m), K[i, j] = <x_i, x_j> * <delta_i, delta_j>

    Examples
    --------
    >>> a = RankOne(x=np.eye(2), delta=np.ones((2, 3)))
    >>> trace_kernel(a, a)
    array([[3., 0.],
           [0., 3.]])
    """
    if a.x.ndim == 2 and b.x.ndim == 2:
        K: Array = (a.x @ b.x.T) * (a.delta @ b.delta.T)
        return K
    ax, ad = _with_positions(a)
    bx, bd = _with_positions(b)
    K = np.empty((len(a), len(b)), dtype=np.result_type(ax, bx))
    flat_x = bx.reshape(-1, bx.shape[-1]).T
    flat_delta = bd.reshape(-1, bd.shape[-1]).T
    for i in range(len(a)):
        # (P, d) @ (d, m P): one image against all, so memory is m P^2
        pairs = (ax[i] @ flat_x) * (ad[i] @ flat_delta)
        K[i] = pairs.sum(axis=0).reshape(len(b), -1).sum(axis=1)
    return K


def _with_positions(a: RankOne) -> tuple[Array, Array]:
    """Return x (n, P, d) and delta (n, P, D)."""
    if a.x.ndim == 3:
        return a.x, a.delta
    return a.x[:, None], a.delta[:, None]


def gram(a: Comparable, b: Comparable | None = None, dtype: str = "float64") -> Array:
    """Gram matrix of forward features (linear kernel), gradients (trace kernel), or several.

    Computed block by block, so that beyond the result only two blocks are in memory. Without
    `b` the matrix is that of `a` with itself, and only half of it is computed.

    Parameters
    ----------
    a, b : ndarray of shape (n, d), RankOne, KernelSum or KernelProduct
        Both of one kind, but that images can also be compared with averages of such images. Half
        precision is computed in single precision.
    dtype : str
        Of the result (n, m); in single precision it is made in half the time.

    Examples
    --------
    >>> gram(np.array([[1.0, 0.0], [1.0, 1.0]]))
    array([[1., 1.],
           [1., 2.]])
    """
    a = a if isinstance(a, RankOne | Combination) else np.asarray(a)
    b = b if isinstance(b, RankOne | Combination | None) else np.asarray(b)
    other: Any = a if b is None else b
    if isinstance(other, KernelAverage):
        return _average_gram(a, other, dtype)
    _check_alike(a, other)
    if isinstance(a, Combination):
        others = (None,) * len(a.parts) if b is None else other.parts
        return a.combine(
            gram(p, q, dtype) for p, q in zip(a.parts, others, strict=True)
        )
    K = np.empty((len(a), len(other)), dtype)
    step = _block_length(a)
    for top in range(0, len(a), step):
        rows = slice(top, min(top + step, len(a)))
        left = _single(a[rows])
        for start in range(0 if b is not None else top, len(other), step):
            columns = slice(start, min(start + step, len(other)))
            right = left if b is None and start == top else _single(other[columns])
            if isinstance(left, RankOne) and isinstance(right, RankOne):
                K[rows, columns] = trace_kernel(left, right)
            else:
                K[rows, columns] = linear_kernel(left, right)  # type: ignore[arg-type]
            if b is None and start != top:
                K[columns, rows] = K[rows, columns].T
    return K


def _average_gram(a: Comparable, b: KernelAverage, dtype: str) -> Array:
    """Return the Gram matrix of averages: W_a K W_b^T, with K between the averaged rows."""
    right, V = b.used_rows()
    if a is b:
        half = V @ gram(right, None, "float32")
    elif isinstance(a, KernelAverage):
        left, W = a.used_rows()
        half = W @ gram(left, right, "float32")
    else:
        half = gram(a, right, "float32")
    return np.asarray((V @ half.T).T, dtype)


def average_rows(
    features: Comparable, numbers: Array, weights: Array
) -> Array | KernelAverage:
    """Average rows of features with weights (n, k), numbers (n, k), to unit length.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> average_rows(rows, np.array([[0, 1]]), np.array([[3.0, 4.0]]))
    array([[0.6, 0.8]])
    """
    if isinstance(features, np.ndarray):
        return l2_normalize(weighted_sum(features, numbers, weights))
    scaled: Array = np.empty(weights.shape, dtype=np.float32)
    for start in range(0, len(numbers), AVERAGE_BLOCK):
        block = slice(start, start + AVERAGE_BLOCK)
        K = _group_grams(features, numbers[block])
        w = weights[block]
        squares = np.einsum("ni,nij,nj->n", w, K, w)
        scaled[block] = w / np.sqrt(np.maximum(squares, 1e-12))[:, None]
    return KernelAverage((features,), numbers, scaled)


def weighted_sum(rows: Array, numbers: Array, weights: Array) -> Array:
    """Sum weights[i, j] times row numbers[i, j] over j, a column at a time."""
    total: Array = weights[:, :1] * rows[numbers[:, 0]]
    for column in range(1, numbers.shape[1]):
        total += weights[:, column, None] * rows[numbers[:, column]]
    return total


def _group_grams(features: Comparable, numbers: Array) -> Array:
    """Return kernels (n, k, k) among the rows (n, k) of each group."""
    if isinstance(features, KernelAverage):
        raise FeatureError("averages cannot be averaged again; use smooth once")
    if isinstance(features, Combination):
        return features.combine(_group_grams(part, numbers) for part in features.parts)
    K: Array = np.ones((1, 1, 1), dtype=np.float32)
    for values in arrays_of(features):
        rows = _upcast(values[numbers])
        K = K * (rows @ rows.swapaxes(1, 2))
    return K


def nearest_columns(K: Array, k: int) -> tuple[Array, Array]:
    """Return the columns of the k largest values of each row, and these values, largest first.

    Examples
    --------
    >>> nearest_columns(np.array([[0.1, 0.9, 0.5]]), 2)
    (array([[1, 2]]), array([[0.9, 0.5]]))
    """
    columns = np.argpartition(-K, k - 1, axis=1)[:, :k]
    values = np.take_along_axis(K, columns, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    columns = np.take_along_axis(columns, order, axis=1)
    return columns, np.take_along_axis(values, order, axis=1)


def finite_gram(a: Comparable, b: Comparable | None = None) -> Array:
    """Return the Gram matrix; refuse features with NaN or infinity."""
    K = gram(a, b)
    if not np.isfinite(K).all():
        raise FeatureError(
            "features must be finite, got NaN or infinity in the Gram matrix"
        )
    return K


def leaves(features: Comparable) -> list[Array | RankOne]:
    """Return the single features that a combination is made of, in order."""
    if not isinstance(features, Combination):
        return [features]
    single: list[Array | RankOne] = []
    for part in features.parts:
        single += leaves(part)
    return single


def arrays_of(features: Comparable) -> list[Array]:
    """Return the arrays of features, in order; gradients have two."""
    arrays: list[Array] = []
    for feature in leaves(features):
        if isinstance(feature, RankOne):
            arrays += [feature.x, feature.delta]
        else:
            arrays.append(feature)
    return arrays


def _check_alike(a: Comparable, b: Comparable) -> None:
    """Refuse two sides of a kernel that differ in kind or width."""
    is_same_kind = type(a) is type(b)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        is_same_kind = True
    if not is_same_kind or a.shape[1:] != b.shape[1:]:
        raise FeatureError(
            "both sides of a kernel must be of one kind and width, got "
            f"{type(a).__name__} of shape {a.shape} and {type(b).__name__} of shape {b.shape}"
        )


def _block_length(a: Array | RankOne) -> int:
    """Return the number of images in a block."""
    per_image = sum(values.size for values in arrays_of(a)) // max(len(a), 1)
    return max(1, min(4096, BLOCK_VALUES // max(per_image, 1)))


def _single(a: Array | RankOne) -> Array | RankOne:
    if isinstance(a, RankOne):
        return RankOne(_upcast(a.x), _upcast(a.delta))
    return _upcast(a)


def _upcast(a: Array) -> Array:
    """Convert half precision to single, and whole numbers, which would overflow, to double."""
    if a.dtype.kind != "f":
        return a.astype(np.float64)
    if a.dtype == np.float16:
        return a.astype(np.float32)
    return a
