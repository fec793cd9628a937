"""Coarse alignment of two photos by their thumbnails.

One picture is the other with another frame around it: b(s x + t) for coordinates x in [-1, 1], a
scale and a shift for each axis, which covers re-encoding, resizing, cropping and borders. Both are
found by Gauss-Newton steps (Lucas and Kanade) at a quarter of the size and then at full size,
together with contrast and brightness; the warp is a matrix for each axis. The agreement of
thumbnails proposes pairs; `same_picture` decides at full detail.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy.ndimage import uniform_filter

from deepfishing.core.rank_one import Array

SIDE = 48  # of a thumbnail
# a fraction of the size, steps there, pixels of a mean
COARSE, FINE = (4, 6, 99), (1, 5, 11)
WORTH = 0.65  # correlation at the coarse size from which the fine one is looked at
LEAST_OVERLAP = 0.6  # of the area
EDGE = 0.14  # of half a side that does not count: borders of up to 7 %
FLAT = 1.0  # grey levels of deviation below which there is nothing to compare


def thumbnail(image: Image.Image) -> Array:
    """A photo of any shape as SIDE x SIDE grey bytes."""
    grey = image.convert("L").resize(
        (SIDE, SIDE), Image.Resampling.BOX, reducing_gap=3.0
    )
    return np.asarray(grey)


class Alignment(NamedTuple):
    """How m pairs of thumbnails fit: b, perhaps mirrored, is read at s x + t of a's coordinates."""

    score: Array  # (m,) correlation of details, up to 1
    mirrored: Array  # (m,)
    warp: Array  # (m, 4): s and t along x, then along y


def align(a: Array, b: Array) -> Alignment:
    """Fit two stacks of thumbnails (m, SIDE, SIDE), pair by pair."""
    left, right = (side.astype(np.float32) for side in (a, b))
    # either may be the one with a border, and either the mirror image
    ways = [
        (left, right),
        (right, left),
        (left, right[:, :, ::-1]),
        (right, left[:, :, ::-1]),
    ]
    tried = [_align(one, other, COARSE, _UNCHANGED) for one, other in ways]
    coarse = np.stack([correlation for correlation, _ in tried])
    best, score = coarse.argmax(axis=0), coarse.max(axis=0).astype(float)
    warp = np.stack([found for _, found in tried])[best, np.arange(len(a))]
    for way, (one, other) in enumerate(ways):
        pairs = np.flatnonzero((best == way) & (coarse[way] > WORTH))
        if len(pairs):
            score[pairs], warp[pairs] = _align(
                one[pairs], other[pairs], FINE, warp[pairs]
            )
    swapped = best % 2 == 1
    warp[swapped] = _inverse(warp[swapped])
    # b mirrored at s x + t of a: where a was mirrored instead, the shift along x changes its sign
    warp[best == 3, 1] *= -1
    return Alignment(score, best >= 2, warp)


def _inverse(warp: Array) -> Array:
    """Warps from b to a, of those from a to b."""
    s, t = warp[:, [0, 2]], warp[:, [1, 3]]
    return np.stack([1 / s, -t / s], axis=2).reshape(-1, 4)


def _align(
    a: Array, b: Array, stage: tuple[int, int, int], warp: Array
) -> tuple[Array, Array]:
    """Warp b to fit a; the correlation of the two (m,), and the warp (m, 4)."""
    fraction, steps, around = stage
    a, b = _shrunk(a, fraction), _shrunk(b, fraction)
    warp = np.broadcast_to(warp, (len(a), 4))
    for _ in range(steps):
        columns, weight = _columns(b, warp)
        # a = c b(x) + c (db/dx x ds + db/dx dt + ...) + brightness, by least squares
        weighted = columns * weight[:, None]
        normal = weighted @ columns.transpose(0, 2, 1)
        normal += 1e-3 * np.trace(normal, axis1=1, axis2=2)[:, None, None] * _RIDGE
        found = np.linalg.solve(normal, weighted @ a.reshape(len(a), -1, 1))[:, :, 0]
        contrast = found[:, 4:5]
        step = found[:, :4] / np.where(np.abs(contrast) < 0.2, 0.2, contrast)
        warp = np.clip(warp + np.clip(step, -0.1, 0.1), *_BOUNDS)
    columns, weight = _columns(b, warp)
    enough = weight.mean(axis=1) >= LEAST_OVERLAP
    # without the edges of either, where two different photos may have the same frame
    x = _centres(len(a[0]))
    inner = (np.abs(warp[:, [0, 2], None] * x + warp[:, [1, 3], None]) < 1 - EDGE) & (
        np.abs(x) < 1 - EDGE
    )
    weight = (inner[:, 1, :, None] & inner[:, 0, None]).astype(np.float32)
    seen = columns[:, 4].reshape(a.shape)
    score = _correlation(_detail(a, weight, around), _detail(seen, weight, around))
    return np.where(enough, score, -1.0), warp


_UNCHANGED = np.array([1, 0, 1, 0], np.float32)  # s and t of x, then of y
_RIDGE = np.diag(np.array([1e-2] * 4 + [1e-6] * 2, np.float32))
_BOUNDS = np.array([[0.7, -0.3] * 2, [1.4, 0.3] * 2], np.float32)


def _columns(b: Array, warp: Array) -> tuple[Array, Array]:
    """What a is made of, (m, 6, pixels), and which pixels lie inside b, (m, pixels)."""
    side = b.shape[1]
    x = _centres(side)
    across, inside_x = _interpolation(x, warp[:, 0:1], warp[:, 1:2])
    down, inside_y = _interpolation(x, warp[:, 2:3], warp[:, 3:4])
    per_unit = side / 2  # pixels
    along_y, along_x = np.gradient(b, axis=(1, 2))
    seen, gx, gy = (down @ p @ across.transpose(0, 2, 1) for p in (b, along_x, along_y))
    gx, gy = gx * per_unit, gy * per_unit
    flat = [gx * x, gx, gy * x[:, None], gy, seen, np.ones_like(seen)]
    columns = np.stack(flat, axis=1).reshape(len(b), 6, -1)
    weight = (inside_y[:, :, None] * inside_x[:, None]).reshape(len(b), -1)
    return columns, weight


def _centres(side: int) -> Array:
    """Coordinates of a row of pixels, from -1 to 1."""
    centres: Array = (np.arange(side, dtype=np.float32) * 2 + 1) / side - 1
    return centres


def _interpolation(x: Array, s: Array, t: Array) -> tuple[Array, Array]:
    """Matrices (m, side, side) that read a row of pixels at s x + t, and which places are in it."""
    side = len(x)
    at = (s * x + t + 1) * side / 2 - 0.5  # in pixels
    matrix = np.maximum(
        0, 1 - np.abs(at[:, :, None] - np.arange(side, dtype=np.float32))
    )
    return matrix, ((at > -0.3) & (at < side - 0.7)).astype(np.float32)


def _detail(a: Array, weight: Array, around: int) -> Array:
    """What differs from the mean of the pixels around, where the weight is 1.

    Sky above land is alike in many photos; what is left without it is not.
    """
    size = (0, around, around)
    mean, seen = uniform_filter(a * weight, size), uniform_filter(weight, size)
    detail: Array = weight * (a - mean / np.maximum(seen, 1e-3))
    return detail


def _correlation(a: Array, b: Array) -> Array:
    """Of two stacks of pictures, pair by pair; 0 where one of them is all but flat."""
    length = np.sqrt([(side**2).sum(axis=(1, 2)) for side in (a, b)])
    enough = (length > FLAT * a.shape[1]).all(axis=0)
    product: Array = (a * b).sum(axis=(1, 2)) / np.maximum(length[0] * length[1], 1e-6)
    return np.where(enough, product, 0.0)


def _shrunk(a: Array, fraction: int) -> Array:
    """Means over squares of pixels."""
    side = a.shape[1] // fraction
    small: Array = a.reshape(len(a), side, fraction, side, fraction).mean(axis=(2, 4))
    return small
