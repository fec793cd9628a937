"""How much two aligned views of equal size differ at their worst place.

A copy differs from its original by the noise of its encoding alone, which is small in every
neighbourhood. So the worst neighbourhood decides, in luma and in both chromas, not the mean: a
garment in another colour, a digit on a page or a bird that has moved is one bad neighbourhood.

All measures are relative to what a copy may have, so that 1 is the limit. The limits were set on
photographs of VOC 2007 and on photographs with a small change; benchmarks/CURATION.md has more.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter, laplace, uniform_filter

from deepfishing.core.rank_one import Array

# Pixels along the edges that do not count: both photos end there.
MARGIN = 3
# Share of blocks with details, below which a photo is too flat to compare.
MIN_STRUCTURE = 0.02
BLOCK = 16  # pixels of the side of such a block
DETAIL = 5.0  # grey levels of its standard deviation

# Smoothed differences: Gaussian radii in pixels; how much two copies may differ after such
# smoothing, in grey levels and as a multiple of the pair's usual difference where it has details,
# which is the noise of the encoding. The second key is 0 for luma and 1 for chroma.
FINE, COARSE = 2.0, 8.0
STRIDE = 4  # pixels whose mean is taken before the coarse smoothing, which saves most of its time
MAX_LEVELS = {(FINE, 0): 16.0, (FINE, 1): 16.0, (COARSE, 0): 4.0, (COARSE, 1): 5.0}
MAX_MULTIPLE = {(FINE, 0): 8.0, (FINE, 1): 10.0, (COARSE, 0): 4.0, (COARSE, 1): 5.0}
MAX_MULTIPLE_RESIZED = 5.0  # of the key (FINE, 0): a smaller copy has less noise
# Grey levels of the mean difference of all: encoding shifts a picture by 1.5, another tint by more.
MAX_SHIFT = 2.5
ROUNDING = {FINE: 1.0, COARSE: 0.5}  # grey levels that always are allowed
LEAST_NOISE = 0.25  # grey levels, of rounding to bytes

# Changed structure: the share of the variance in a neighbourhood that differs.
MAX_CHANGED = 0.3
MAX_CHANGED_RESIZED = 0.08  # letters are smaller in a smaller copy
CHANGED_RADIUS = 3.0
SOFTEN = (
    32.0  # variance that encoding removes from a neighbourhood that is all but flat
)
SHARP = 0.7  # radius of the smoothing before that, far below that of a letter

# Energy: the squared difference of a neighbourhood, as a multiple of what the noise of encoding,
# an error of the alignment and the filter of a reduction explain.
ENERGY_RADIUS = 1.5
MAX_ENERGY, MAX_ENERGY_RESIZED = 3.8, 1.7
ALIGNMENT_ERROR = 0.1  # pixels
# Share of the second derivative, by which the filters of two programs that resize may differ.
FILTER_ERROR = 0.15

# Grain: the finest details where a photo is smooth, which are the noise of its sensor. It is the
# same in two copies and another in two photographs of one scene.
GRAIN_RADIUS = 2.0
SMOOTH_SHARE = 0.4  # of the pixels, those with the least structure
MIN_COMMON_GRAIN = (
    0.3  # share of the grain of the smoother photo that the other one has, too
)
MIN_GRAIN = (
    0.4  # variance in grey levels, below which there is only the noise of rounding
)

MAX_MEAN_CHANGED = 0.35  # share of all that varies, in `mean_difference`


def worst_difference(a: Array, b: Array, *, is_resized: bool) -> float:
    """Return the difference of the worst neighbourhood; from 1 on, the views are no copies.

    Parameters
    ----------
    a, b : ndarray of shape (height, width, 3)
        Luma and both chromas, aligned. Infinity if either is too flat to compare.
    is_resized : bool
        Whether one of the photos is clearly smaller than the other. Less is allowed then.
    """
    if min(_structure(a), _structure(b)) < MIN_STRUCTURE:
        return np.inf
    inner = slice(MARGIN, -MARGIN)
    a, b = a[inner, inner], b[inner, inner]
    luma_a, luma_b = a[:, :, 0], b[:, :, 0]
    return max(
        _changed_structure(luma_a, luma_b, is_resized=is_resized),
        _smoothed_difference(a, b, is_resized=is_resized),
        _energy(luma_a, luma_b, is_resized=is_resized),
    )


def mean_difference(a: Array, b: Array) -> float:
    """Return how far the structure of two grey views differs as a whole; from 1 on, too far."""
    a, b = _band_pass(a), _band_pass(b)
    varied = float(np.sqrt((a**2).mean() + (b**2).mean()))
    gap = float(np.sqrt(((a - b) ** 2).mean()))
    return gap / max(varied, LEAST_NOISE) / MAX_MEAN_CHANGED


def has_other_grain(a: Array, b: Array) -> bool:
    """Whether two grey views are two photographs: their noise is not the same.

    False where a view has too little noise to tell, as in a drawing.
    """
    inner = slice(MARGIN, -MARGIN)
    a, b = a[inner, inner], b[inner, inner]
    down, across = np.gradient(gaussian_filter((a + b) / 2, ENERGY_RADIUS))
    slope = gaussian_filter(np.hypot(down, across), GRAIN_RADIUS)
    is_smooth = slope <= np.quantile(slope, SMOOTH_SHARE)
    grain_a = (a - gaussian_filter(a, GRAIN_RADIUS))[is_smooth]
    grain_b = (b - gaussian_filter(b, GRAIN_RADIUS))[is_smooth]
    # encoding removes grain: what is left of it is a part of the other's
    least = min(float((grain_a**2).mean()), float((grain_b**2).mean()))
    if least < MIN_GRAIN:
        return False
    return float((grain_a * grain_b).mean()) < MIN_COMMON_GRAIN * least


def _changed_structure(a: Array, b: Array, *, is_resized: bool) -> float:
    """The largest share of the structure of a neighbourhood in which two lumas differ."""
    a, b = gaussian_filter(a, SHARP), gaussian_filter(b, SHARP)
    changed = _local_variance(a - b)
    structure = _local_variance(a) + _local_variance(b)
    worst = float((changed / (structure + SOFTEN)).max())
    return worst / (MAX_CHANGED_RESIZED if is_resized else MAX_CHANGED)


def _smoothed_difference(a: Array, b: Array, *, is_resized: bool) -> float:
    """The largest difference of smoothed luma and chromas, and of their means."""
    details = _details((a + b)[:, :, 0] / 2)
    details_of_means = _means(details, STRIDE) >= 0.5
    shift = (a - b).mean(axis=(0, 1))
    worst = max(abs(float(shift[0])), float(np.hypot(shift[1], shift[2]))) / MAX_SHIFT
    for channel in range(3):
        gap = a[:, :, channel] - b[:, :, channel]
        fine = np.abs(gaussian_filter(gap, FINE))
        coarse = np.abs(gaussian_filter(_means(gap, STRIDE), COARSE / STRIDE))
        for radius, levels, details_there in (
            (FINE, fine, details),
            (COARSE, coarse, details_of_means),
        ):
            key = (radius, min(channel, 1))
            multiple = MAX_MULTIPLE[key]
            if key == (FINE, 0) and is_resized:
                multiple = MAX_MULTIPLE_RESIZED
            allowed = ROUNDING[radius] + multiple * _noise(levels, details_there)
            worst = max(worst, float(levels.max()) / min(allowed, MAX_LEVELS[key]))
    return worst


def _energy(a: Array, b: Array, *, is_resized: bool) -> float:
    """The largest squared difference of two lumas that encoding does not explain, as a root."""
    gap, mean = a - b, (a + b) / 2
    down, across = np.gradient(mean)
    steepness = gaussian_filter(down**2 + across**2, ENERGY_RADIUS)
    noise = _noise(gap, _details(mean))
    expected = noise**2 + ALIGNMENT_ERROR**2 * steepness
    if is_resized:
        curvature = gaussian_filter(laplace(mean) ** 2, ENERGY_RADIUS)
        expected += FILTER_ERROR**2 * curvature
    worst = float(np.sqrt((gaussian_filter(gap**2, ENERGY_RADIUS) / expected).max()))
    return worst / (MAX_ENERGY_RESIZED if is_resized else MAX_ENERGY)


def _noise(gap: Array, details: Array) -> float:
    """The usual difference where there are details, at least that of rounding to bytes."""
    if not details.any():
        return LEAST_NOISE
    return float(np.sqrt((gap[details] ** 2).mean())) + LEAST_NOISE


def _means(values: Array, size: int) -> Array:
    """Means over squares of pixels; what is left over at the right and the bottom is dropped."""
    high, wide = (side // size for side in values.shape)
    squares = values[: high * size, : wide * size].reshape(high, size, wide, size)
    return np.asarray(squares.mean(axis=(1, 3)))


def _band_pass(luma: Array) -> Array:
    """What differs from the pixels around."""
    return np.asarray(luma - gaussian_filter(luma, COARSE))


def _local_variance(luma: Array) -> Array:
    """Variance in the neighbourhood of each pixel."""
    mean = gaussian_filter(luma, CHANGED_RADIUS)
    variance = gaussian_filter(luma**2, CHANGED_RADIUS) - mean**2
    return np.asarray(np.maximum(variance, 0))


def _details(luma: Array) -> Array:
    """Which pixels have details around them."""
    mean = uniform_filter(luma, BLOCK)
    variance = uniform_filter(luma**2, BLOCK) - mean**2
    return np.asarray(variance > DETAIL**2)


def _structure(view: Array) -> float:
    """Share of the blocks that have details in luma."""
    luma = view[:, :, 0]
    high, wide = (side // BLOCK * BLOCK for side in luma.shape)
    blocks = luma[:high, :wide].reshape(high // BLOCK, BLOCK, wide // BLOCK, BLOCK)
    return float((blocks.std(axis=(1, 3)) > DETAIL).mean())
