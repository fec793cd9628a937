"""Precisions: how the numbers of a vector are stored, in half a byte to four bytes each.

A codec turns the vectors of images into codes, one row per image, and one scale per image;
`decode(codes)` times the scale is the vector again. Each precision is a record of `CODECS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deepfishing.core.features import is_forward_vector
from deepfishing.core.rank_one import Array, l2_norm
from deepfishing.errors import check_choice


class Floats:
    """Vectors of norm 1 in half or single precision; the scale is the norm.

    So half precision keeps three digits of any vector, however small (delta is about 1e-6) or
    large it is. `dtype` is that of the codes; `scale` ends the name of the scales' column.
    """

    scale = "norm"

    def __init__(self, name: str) -> None:
        self.dtype: np.dtype[Any] = np.dtype(name)

    def width(self, shape: tuple[int, ...]) -> int:
        """Codes per image."""
        return int(np.prod(shape))

    def encode(self, flat: Array, norm: Array) -> tuple[Array, Array]:
        """Codes (n, width) and scales (n,) of finite rows (n, P * d) and their l2 norms (n,)."""
        return unit(flat, norm).astype(self.dtype), norm

    def decode(self, codes: Array, size: int) -> Array:
        """Numbers (n, size) of any dtype, which times the scales are the rows; size is P * d."""
        return codes


class Roots:
    """Signed square roots in one byte each, or two in a byte: the first in its lower half.

    Most numbers of a gradient are far below its largest one, and recipes take roots of them. So a
    code q is sign(v) sqrt(|v| / peak) in steps of 1/127, or 1/7; its value is q |q| times the
    scale. Bytes then keep numbers down to a 65,000th of the largest one.

    >>> codes, scale = Roots(8).encode(np.array([[-8.0, 2.0, 0.001]]), np.array([8.2]))
    >>> codes, (Roots(8).decode(codes, 3) * scale[:, None]).round(2)
    (array([[-127,   64,    1]], dtype=int8), array([[-8.  ,  2.03,  0.  ]]))
    """

    scale = "scale"

    def __init__(self, bits: int) -> None:
        self.top = 2 ** (bits - 1) - 1
        self.in_byte = 8 // bits
        self.dtype: np.dtype[Any] = np.dtype(np.int8 if bits == 8 else np.uint8)

    def width(self, shape: tuple[int, ...]) -> int:
        """Codes, which are bytes, per image."""
        return -(-int(np.prod(shape)) // self.in_byte)

    def encode(self, flat: Array, norm: Array) -> tuple[Array, Array]:
        """Return codes and scales, see `Floats.encode`."""
        peak = np.abs(flat).max(axis=1, initial=0.0).astype(np.float64)
        codes = np.rint(self.top * signed_root(unit(flat, peak))).astype(np.int8)
        if self.in_byte == 2:
            even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
            halves = (even + 8).astype(np.uint8)
            codes = halves[:, ::2] | halves[:, 1::2] << 4
        return codes, peak / self.top**2

    def decode(self, codes: Array, size: int) -> Array:
        """Return numbers, see `Floats.decode`."""
        if self.in_byte == 2:
            pairs = _PAIRS.take(codes, axis=0, mode="clip")
            return pairs.reshape(len(codes), 2 * codes.shape[1])[:, :size]
        wide = codes.astype(np.int16)  # 127^2 fits
        wide *= np.abs(wide)
        return wide


# Values of the two halves of every byte, (256, 2).
_HALVES = np.stack([np.arange(256) % 16, np.arange(256) // 16], axis=1) - 8
_PAIRS: Array = (_HALVES * np.abs(_HALVES)).astype(np.float32)

Codec = Floats | Roots
CODECS: dict[str, Codec] = {
    "int8": Roots(8),
    "int4": Roots(4),
    "float16": Floats("float16"),
    "float32": Floats("float32"),
}
FINER = "float16"  # where int8 would change a kernel by more than `MAX_KERNEL_ERROR`
MAX_KERNEL_ERROR = 0.01
MIN_VECTORS = 8  # with fewer a kernel is not measured
MAX_VECTORS = 32  # that are looked at
SAME = 1e-5  # distance of unit vectors below which they are rounding errors of one
DEFAULT = "int8"  # the smallest that loses nothing, docs/store.md


def check_precision(name: object) -> str:
    """Return the name of a precision; refuse one that does not exist."""
    check_choice("precision of a store", str(name), CODECS)
    return str(name)


def unit(rows: Array, size: Array) -> Array:
    """Rows (n, d) divided by their sizes (n,); a zero row stays zero."""
    return np.asarray(rows / np.where(size > 0, size, 1)[:, None])


def signed_root(values: Array) -> Array:
    """sign(v) sqrt(|v|), which recipes take too."""
    return np.asarray(np.copysign(np.sqrt(np.abs(values)), values))


def kernel_error(x: Array, precision: str = DEFAULT) -> float:
    """Return by how much a precision changes the kernel of some vectors.

    The kernel is that of a head made of photos: vectors of unit length minus their mean, of unit
    length again. Where a few channels are far above the others in all images, as in transformers,
    the mean has most of a vector, and the rest is kept with few digits.

    Parameters
    ----------
    x : ndarray (n, d)
        Vectors of some images.
    precision : str
        One of `CODECS`.

    Returns
    -------
    error : float
        |K' - K| / |K|, Frobenius norms; 0 where all vectors are the same.
    """
    x = np.asarray(x, dtype=np.float32)
    codec = CODECS[precision]
    codes, scale = codec.encode(x, l2_norm(x))
    decoded = codec.decode(codes, x.shape[1]) * scale[:, None]
    exact, changed = _centred(x), _centred(decoded.astype(np.float32))
    K, other = exact @ exact.T, changed @ changed.T
    size = float(np.linalg.norm(K))
    return float(np.linalg.norm(other - K)) / size if size > 0 else 0.0


def suited_precision(factors: Mapping[str, Array]) -> tuple[str, str]:
    """Return the precision for a new store, and why it is not the default, or ''.

    Parameters
    ----------
    factors : mapping from str to ndarray (n, d)
        Vectors of some images by the name of their factor. Gradients are not looked at.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(20, 50))
    >>> suited_precision({"x7": x})[0]
    'int8'
    >>> x[:, 0] = 500 + x[:, 0]
    >>> suited_precision({"x7": x})[0]
    'float16'
    """
    for name, x in factors.items():
        problem = precision_problem(name, x, DEFAULT)
        if problem:
            return FINER, f"{problem}: numbers are kept in {FINER}"
    return DEFAULT, ""


def precision_problem(name: str, x: Array, precision: str) -> str:
    """Return why a precision does not suit the vectors of a factor, '' if it does."""
    if not is_forward_vector(name) or x.ndim != 2 or len(x) < MIN_VECTORS:
        return ""
    chosen = np.linspace(0, len(x) - 1, min(len(x), MAX_VECTORS)).round().astype(int)
    error = kernel_error(x[chosen], precision)
    if error <= MAX_KERNEL_ERROR:
        return ""
    return (
        f"{name} has channels far above the others, {precision} would change its kernel by "
        f"{100 * error:.1f} %"
    )


def _centred(x: Array) -> Array:
    """Unit vectors of what distinguishes unit vectors from their mean; zero where nothing does."""
    rows = unit(x, l2_norm(x))
    rest = rows - rows.mean(axis=0)
    size = l2_norm(rest)
    return unit(rest, np.where(size > SAME, size, np.inf))
