"""Projections: gradients as vectors of m numbers for linear classifiers and vector indexes.

The dot product of two vectors approximates the trace kernel (eq:tr) of factors x (d) and delta (D)
over any number of positions p:

- `TwoSided`: R G S^T = sum_p (R x_p)(S delta_p)^T with R (m1, d) and S (m2, D);
- `TensorSketch`: the circular convolution of count sketches of x and delta, through the FFT;
- `Principal`: the m largest entries of G in the principal axes of x and of delta;
- `Nystroem`: the exact kernel to m landmark images, times K_mm^(-1/2).

No projection builds the gradient G. `state` returns the arrays of a projection, and `restore` makes
it from them. docs/projections.md compares them. Extraction stores two-sided projections, see
`two_sided`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Self

import numpy as np

from deepfishing.core.kernels import gram
from deepfishing.core.rank_one import Array, RankOne
from deepfishing.errors import FeatureError, OptionError, check_choice

# Version of the drawing of two-sided projections. Vectors of two versions cannot be compared, so
# stores and models record it.
SCHEME = 2

# A block of images is so small that no temporary has more numbers than this (float32: 32 MB).
BLOCK_VALUES = 8_000_000

# `Principal.fit` looks at this many images and, in each factor, directions.
FIT_IMAGES = 4096
MAX_AXES = 512
MAX_LANDMARKS = 2048  # of a Gaussian kernel


@dataclass(frozen=True, eq=False)
class Projection(ABC):
    """A map from gradients (d, D) to vectors of m numbers; its fields are arrays."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """(m, d, D)."""

    @abstractmethod
    def _project(self, x: Array, delta: Array) -> Array:
        """Vectors (n, m) of factors (n, P, d) and (n, P, D) in single precision."""

    def __call__(self, gradients: RankOne) -> Array:
        """Vectors (n, m) in single precision, computed block by block."""
        m, d, D = self.shape
        if gradients.shape[1:] != (d, D):
            raise FeatureError(
                f"this projection takes factors of widths {d} and {D}, got "
                f"{gradients.shape[1]} and {gradients.shape[2]}; make one for this layer"
            )
        vectors: Array = np.empty((len(gradients), m), dtype=np.float32)
        positions = gradients.x.shape[1] if gradients.x.ndim == 3 else 1
        step = max(1, BLOCK_VALUES // max(positions * (d + D + 2 * m), 1))
        for start in range(0, len(gradients), step):
            rows = slice(start, start + step)
            vectors[rows] = self._project(*factors_of(gradients[rows]))
        return vectors

    def state(self) -> dict[str, Array]:
        """Return the arrays of this projection; their names begin with its kind."""
        kind = type(self).__name__
        state = {}
        for field in fields(self):
            state[f"{kind}.{field.name}"] = getattr(self, field.name)
        return state


@dataclass(frozen=True, eq=False)
class TwoSided(Projection):
    """R G S^T, flattened: m1 * m2 numbers."""

    R: Array
    S: Array

    @classmethod
    def draw(cls, d: int, D: int, m1: int, m2: int, seed: int = 0) -> Self:
        """Draw matrices with normal entries."""
        R, S = draw_matrices(d, D, m1, m2, seed)
        return cls(_single(R), _single(S))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m1 * m2, d, D)."""
        return len(self.R) * len(self.S), self.R.shape[1], self.S.shape[1]

    def _project(self, x: Array, delta: Array) -> Array:
        return project(x, delta, self.R, self.S)


@dataclass(frozen=True, eq=False)
class TensorSketch(Projection):
    """Count sketch of the gradient: entry (i, j) goes to bucket hx[i] + hd[j] mod m, with a sign.

    The cost is d + D + m log m instead of m (d + D).
    """

    m: Array  # one integer, as an array because arrays are what is saved
    bucket_x: Array
    sign_x: Array
    bucket_delta: Array
    sign_delta: Array

    @classmethod
    def draw(cls, d: int, D: int, m: int, seed: int = 0) -> Self:
        """Draw a bucket below m and a sign for every entry of x and delta."""
        random = np.random.default_rng([seed, m, d, D])
        bucket_x = random.integers(m, size=d, dtype=np.int32)
        sign_x = _draw_signs(random, d)
        bucket_delta = random.integers(m, size=D, dtype=np.int32)
        sign_delta = _draw_signs(random, D)
        count = np.array([m], dtype=np.int32)
        return cls(count, bucket_x, sign_x, bucket_delta, sign_delta)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, d, D)."""
        return int(self.m[0]), len(self.bucket_x), len(self.bucket_delta)

    def _project(self, x: Array, delta: Array) -> Array:
        from scipy import fft

        m = int(self.m[0])
        sketch_x = _count_sketch(x, self.bucket_x, self.sign_x, m)
        sketch_delta = _count_sketch(delta, self.bucket_delta, self.sign_delta, m)
        spectrum = fft.rfft(sketch_x)
        spectrum *= fft.rfft(sketch_delta)
        vectors: Array = fft.irfft(spectrum.sum(axis=1), n=m)
        return vectors


@dataclass(frozen=True, eq=False)
class Principal(Projection):
    """The m entries of the gradient that are largest on the training images, in principal axes.

    In the axes R of x and S of delta the gradient is (R x)(S delta)^T, as exact as before; of its
    entries (i, j), the m with the largest mean square are kept. Without a random error, but what
    is left out is lost: the norm shrinks, so normalise the vectors before training on them.
    """

    R: Array
    S: Array
    i: Array
    j: Array

    @classmethod
    def fit(cls, gradients: RankOne, m: int, seed: int = 0) -> Self:
        """Find principal axes, and the entries to keep, on at most `FIT_IMAGES` of the images."""
        random = np.random.default_rng(seed)
        chosen = np.sort(random.permutation(len(gradients))[:FIT_IMAGES])
        x, delta = factors_of(gradients[chosen])
        R = _principal_axes(x, m, seed)
        S = _principal_axes(delta, m, seed)
        # The mean square of sum_p (R x_p)_i (S delta_p)_j; exact for one position, and for several
        # as if they were independent, which is enough to order the entries.
        squares_x = np.square(times(x, R)).reshape(-1, len(R))
        squares_delta = np.square(times(delta, S)).reshape(-1, len(S))
        energy = squares_x.T @ squares_delta
        largest = np.sort(np.argsort(energy, axis=None)[::-1][:m])
        i, j = np.unravel_index(largest, energy.shape)
        used_i, i = np.unique(i, return_inverse=True)
        used_j, j = np.unique(j, return_inverse=True)
        return cls(R[used_i], S[used_j], i.astype(np.int32), j.astype(np.int32))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, d, D)."""
        return len(self.i), self.R.shape[1], self.S.shape[1]

    def _project(self, x: Array, delta: Array) -> Array:
        vectors: Array = np.take(times(x, self.R), self.i, axis=2)
        vectors *= np.take(times(delta, self.S), self.j, axis=2)
        if vectors.shape[1] == 1:
            return vectors[:, 0]
        return np.asarray(vectors.sum(axis=1))


@dataclass(frozen=True, eq=False)
class Nystroem(Projection):
    """k(image, landmarks) K_mm^(-1/2): exact between landmarks, onto their span elsewhere.

    k is the trace kernel K or, with g above 0 and unit vectors, exp(2 g (K - 1)).
    """

    x: Array
    delta: Array
    root: Array  # (landmarks, m), columns of K_mm^(-1/2) in its own axes
    g: Array  # (1,), 0 for the trace kernel itself

    @classmethod
    def fit(cls, gradients: RankOne, m: int, seed: int = 0, g: float = 0.0) -> Self:
        """Take m of these images as landmarks; landmarks that are alike give fewer numbers."""
        random = np.random.default_rng(seed)
        chosen = np.sort(random.permutation(len(gradients))[:m])
        x, delta = _single(gradients.x[chosen]), _single(gradients.delta[chosen])
        landmarks = RankOne(x, delta)
        root = inverse_root(_gaussian(gram(landmarks), g))
        return cls(landmarks.x, landmarks.delta, root, _single(np.array([g])))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, d, D)."""
        return self.root.shape[1], self.x.shape[-1], self.delta.shape[-1]

    def _project(self, x: Array, delta: Array) -> Array:
        if self.x.ndim == 2 and x.shape[1] == 1:
            x, delta = x[:, 0], delta[:, 0]
        K = gram(RankOne(x, delta), RankOne(self.x, self.delta))
        vectors: Array = _gaussian(K, float(self.g[0])).astype(np.float32) @ self.root
        return vectors


def _gaussian(K: Array, g: float) -> Array:
    """Return exp(2 g (K - 1)), or K itself if g is 0."""
    if not g:
        return K
    return np.exp(2 * g * (K - 1))


def inverse_root(K: Array, m: int | None = None) -> Array:
    """Return K^(-1/2) in its own axes (n, m): the m leading ones, without those that are noise."""
    values, axes = np.linalg.eigh(K)
    values, axes = values[::-1][:m], axes[:, ::-1][:, :m]
    # what is below the rounding of single precision is noise that 1/sqrt would blow up
    used = values > values.max(initial=0.0) * 10 * np.finfo(np.float32).eps
    used[0] = True
    return _single(axes[:, used] / np.sqrt(np.maximum(values[used], 1e-12)))


_KINDS = (TwoSided, TensorSketch, Principal, Nystroem)
_CLASSES = {kind.__name__: kind for kind in _KINDS}
_FIT: dict[str, Callable[[RankOne, int, int], Projection]] = {
    "two-sided": lambda g, m, seed: TwoSided.draw(*g.shape[1:], *_sides(g, m), seed),
    "tensor-sketch": lambda g, m, seed: TensorSketch.draw(*g.shape[1:], m, seed),
    "principal": Principal.fit,
}
KINDS = tuple(_FIT)


def fit_projection(kind: str, gradients: RankOne, m: int, seed: int = 0) -> Projection:
    """Make a projection of these gradients to at most m numbers, by name.

    "principal" looks at the gradients, so give the training images only; the others look at their
    widths. A two-sided one has about sqrt(m) rows on each side.
    """
    check_choice("projection", kind, KINDS)
    if not isinstance(m, Integral) or m < 1:
        raise OptionError(f"m must be a whole number, at least 1, got {m!r}")
    if not isinstance(seed, Integral) or seed < 0:
        raise OptionError(f"a seed must be a whole number from 0 on, got {seed!r}")
    return _FIT[kind](gradients, m, seed)


def restore(state: dict[str, Array]) -> Projection:
    """Return the projection of a `state()`."""
    kinds = set()
    values = {}
    for name, value in state.items():
        kind_name, _, field_name = name.partition(".")
        kinds.add(kind_name)
        values[field_name] = np.asarray(value)
    kind = None
    if len(kinds) == 1:
        kind = _CLASSES.get(kinds.pop())
    if kind is None or set(values) != {field.name for field in fields(kind)}:
        raise FeatureError(
            f"a projection's arrays must be those of one of {', '.join(_CLASSES)}, "
            f"got {sorted(state)}; save it again"
        )
    return kind(**values)


def _sides(gradients: RankOne, m: int) -> tuple[int, int]:
    """Return the numbers of rows of the two matrices for at most m numbers."""
    _, d, D = gradients.shape
    m1 = min(d, max(math.isqrt(m), m // D))
    return m1, min(D, m // m1)


def _principal_axes(factor: Array, m: int, seed: int) -> Array:
    """Return at most m leading directions of a factor (n, P, d), not centred: rows (r, d)."""
    from sklearn.utils.extmath import randomized_svd

    rows = factor.reshape(-1, factor.shape[-1])
    r = min(*rows.shape, m, MAX_AXES)
    return _single(randomized_svd(rows, r, n_iter=2, random_state=seed)[2])


def _count_sketch(values: Array, bucket: Array, sign: Array, m: int) -> Array:
    """Add up the signed entries of each bucket, (n, P, d) -> (n, P, m)."""
    signed = (values * sign).reshape(-1, values.shape[-1])
    sketch: Array = np.empty((len(signed), m), dtype=np.float32)
    for row, weights in zip(sketch, signed, strict=True):
        # faster than a sparse product
        row[:] = np.bincount(bucket, weights=weights, minlength=m)
    return sketch.reshape(*values.shape[:-1], m)


def _draw_signs(random: np.random.Generator, count: int) -> Array:
    """Return numbers that are 1 or -1."""
    bits = random.integers(2, size=(count,), dtype=np.int8)
    signs: Array = bits * np.float32(2) - np.float32(1)
    return signs


def _single(values: Array) -> Array:
    return np.ascontiguousarray(values, dtype=np.float32)


def two_sided(gradients: RankOne | Array, m1: int, m2: int, seed: int = 0) -> Array:
    """Project one batch to vectors of m1 * m2 numbers, in its own precision.

    An array (n, groups, D / groups, d / groups) holds the blocks of block-diagonal gradients
    (d, D), transposed.
    """
    if isinstance(gradients, RankOne):
        _, d, D = gradients.shape
        dtype = gradients.x.dtype
    else:
        n, groups, D_g, d_g = gradients.shape
        d, D, dtype = groups * d_g, groups * D_g, gradients.dtype
    R, S = draw_matrices(d, D, m1, m2, seed)
    R, S = R.astype(dtype), S.astype(dtype)
    if isinstance(gradients, RankOne):
        return project(*factors_of(gradients, dtype), R, S)
    # R G S^T = sum_g R_g G_g S_g^T, where R_g and S_g are the columns of group g
    # (n, groups, D_g, m1)
    left = gradients @ R.reshape(m1, groups, d_g).transpose(1, 2, 0)
    projected: Array = left.reshape(n, D, m1).swapaxes(1, 2) @ S.T
    return projected.reshape(n, -1)


def draw_matrices(
    d: int, D: int, m1: int, m2: int, seed: int = 0
) -> tuple[Array, Array]:
    """Draw R (m1, d) and S (m2, D), which differ for every seed and shape."""
    seed_x, seed_delta = np.random.SeedSequence([seed, m1, d, m2, D]).spawn(2)
    R = _draw_matrix(m1, d, np.random.default_rng(seed_x))
    S = _draw_matrix(m2, D, np.random.default_rng(seed_delta))
    return R, S


def project(x: Array, delta: Array, R: Array, S: Array) -> Array:
    """Return sum_p (R x_p)(S delta_p)^T, flattened, of x (n, P, d) and delta (n, P, D)."""
    projected: Array = times(x, R).swapaxes(1, 2) @ times(delta, S)
    return projected.reshape(len(x), -1)


def times(values: Array, R: Array) -> Array:
    """R times every row, (n, P, d) -> (n, P, m), as one matrix product instead of n small ones."""
    flat: Array = values.reshape(-1, values.shape[-1]) @ R.T
    return flat.reshape(*values.shape[:-1], len(R))


def factors_of(gradients: RankOne, dtype: Any = np.float32) -> tuple[Array, Array]:
    """Return x (n, P, d) and delta (n, P, D), with P = 1 where there is no position."""
    x = gradients.x.astype(dtype, copy=False)
    delta = gradients.delta.astype(dtype, copy=False)
    if x.ndim == 2:
        return x[:, None], delta[:, None]
    return x, delta


def _draw_matrix(m: int, d: int, random: np.random.Generator) -> Array:
    """Draw R (m, d) with E[R^T R] = I, so <R a, R b> is <a, b> on average."""
    R: Array = random.normal(size=(m, d)) / np.sqrt(m)
    return R
