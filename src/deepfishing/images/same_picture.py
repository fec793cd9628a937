"""Whether two photos are copies of one picture, decided at full detail and in colour.

The two are aligned (a scale and a shift, one of them perhaps mirrored), laid over each other at the
size of the coarser one, and subtracted without any change of brightness or contrast. A copy differs
by the noise of its encoding only, which is small in every neighbourhood. So the worst neighbourhood
decides, in luma and in both chromas, not the mean: a garment in another colour, a digit in a page
or a bird that has moved is one bad neighbourhood.

`compare_pictures` says no wherever it cannot decide: photos that are too small or too flat, and
copies at less than two fifths of the size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageOps
from scipy.ndimage import gaussian_filter, uniform_filter

from deepfishing.core.rank_one import Array
from deepfishing.images.alignment import align, thumbnail

IDENTICAL_FILE = "identical file"
IDENTICAL_PIXELS = "identical pixels"
RE_ENCODED = "re-encoded or resized"
CROPPED = "cropped"
MIRRORED = "mirrored"
BORDER = "border added"
KINDS = (IDENTICAL_FILE, IDENTICAL_PIXELS, RE_ENCODED, CROPPED, MIRRORED, BORDER)

# agreement of the thumbnails below which two photos are not aligned further
MIN_SCORE = 0.7
# pixels of the shorter side below which text and prints cannot be compared
MIN_SIDE = 100
# pixels of the longer side at which photos are compared; text is readable
MAX_SIDE = 2000
COARSEST_SIDE = 128  # pixels at which most pairs are refused
ALIGN_SIDE = 800  # pixels at which the alignment is refined
# of one photo against the other; beyond, details of the larger are lost
MAX_REDUCTION = 2.5
MAX_STRETCH = 0.03  # logarithm of the ratio of the two axes' scales
MIN_OVERLAP = 0.6  # share of either photo that the other shows
WHOLE = 0.012  # share of a side that may be missing in a photo that is not cropped
# Gaussian radii in pixels, and how much two copies may differ after such smoothing: at most a
# number of grey levels, and at most a multiple of the pair's usual difference where it has details,
# which is the noise of the encoding. Luma, then chroma; benchmarks/CURATION.md has more.
FINE, COARSE = 2.0, 8.0
MAX_LEVELS = {(FINE, 0): 16.0, (FINE, 1): 16.0, (COARSE, 0): 4.0, (COARSE, 1): 5.0}
MAX_MULTIPLE = {(FINE, 0): 8.0, (FINE, 1): 10.0, (COARSE, 0): 4.0, (COARSE, 1): 5.0}
# The share of the structure in a small neighbourhood that differs, of what varies in either photo;
# SOFTEN is the variance that encoding removes from a neighbourhood that is all but flat.
MAX_CHANGED, CHANGED_RADIUS, SOFTEN = 0.3, 3.0, 32.0
SHARP = 0.7  # radius of the smoothing before that, far below that of a letter
# A smaller copy has less noise, and its letters are smaller, so that less is allowed.
# the first a logarithm of the scale
RESIZED, RESIZED_MULTIPLE, RESIZED_CHANGED = 0.25, 4.0, 0.04
MAX_MEAN_CHANGED = 0.35  # of all that varies, at the coarsest side
ROUNDING = {FINE: 1.0, COARSE: 0.5}  # grey levels that always are allowed
LEAST_NOISE = 0.25  # grey levels, of rounding to bytes
MARGIN = 3  # pixels along the edges that do not count: both photos end there
# share of blocks with details, below which a photo is too flat to compare
MIN_STRUCTURE = 0.02
BLOCK, DETAIL = 16, 5.0  # pixels of such a block, grey levels of its deviation
FLAT_BORDER = 6.0  # grey levels of deviation of a border
# difference of a cropped copy; two frames of a burst of pears had 0.95
MAX_CROPPED = 0.8
# share of a picture's edge that may have the colour of the border around it
MAX_CONTINUED = 0.2
# finest details against those twice as large; less in an enlarged photo
REAL_DETAIL = 0.3

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


@dataclass(frozen=True)
class Likeness:
    """Two photos that are one picture: how b differs from a."""

    kind: str
    difference: float  # of the worst neighbourhood; 1 is the most that a copy may have
    keep: int = 0  # 0: both show the same; 1: a shows more or has no border; 2: b


def compare_pictures(a: Image.Image, b: Image.Image) -> Likeness | None:
    """Return how b is a copy of a, or None if it is not, or if that cannot be decided.

    Both as `open_image` gives them: RGB and upright.
    """
    if a.size == b.size and a.tobytes() == b.tobytes():
        return Likeness(IDENTICAL_PIXELS, 0.0)
    if min(*a.size, *b.size) < MIN_SIDE:
        return None
    found = align(thumbnail(a)[None], thumbnail(b)[None])
    if found.score[0] >= MIN_SCORE:
        is_mirrored = bool(found.mirrored[0])
        other = ImageOps.mirror(b) if is_mirrored else b
        likeness = _verified(_Fit.from_thumbnails(a, other, found.warp[0]), is_mirrored)
        if likeness is not None:
            return likeness
    frames = without_border(a), without_border(b)
    if frames == (_whole(a), _whole(b)):
        return None
    return _verified(_Fit.from_boxes(a, b, *frames), False)


def _verified(fit: _Fit, is_mirrored: bool) -> Likeness | None:
    """Refine a map until photos lie over each other, and compare them.

    Most pairs that differ are refused at a small size, which takes least time.
    """
    colour_a, colour_b = fit.a, fit.b
    grey_a, grey_b = fit.a.convert("L"), fit.b.convert("L")
    difference = 0.0
    for side in (COARSEST_SIDE, 320, ALIGN_SIDE, MAX_SIDE):
        if side <= ALIGN_SIDE:
            fit = replace(fit, a=grey_a, b=grey_b).refined(side)
            fit = replace(fit, a=colour_a, b=colour_b)
        if not fit.is_plausible():
            return None
        measure = fit.mean_difference if side == COARSEST_SIDE else fit.difference
        difference = max(difference, measure(side))
        if difference >= 1:
            return None
    kind, keep = fit.frame()
    if kind == CROPPED and (difference > MAX_CROPPED or not keep):
        return None  # where neither shows all of the other, both are needed
    return Likeness(MIRRORED if is_mirrored else kind, round(difference, 3), keep)


def has_real_detail(image: Image.Image, smaller: tuple[int, int]) -> bool:
    """Whether a photo has details that a smaller copy of this size cannot have.

    An enlarged photo has next to none: its finest band is far weaker than the band below it.
    """
    size = (min(image.width, smaller[0]), min(image.height, smaller[1]))
    finest = _lost(image, size)
    coarser = _lost(image, (max(1, size[0] // 2), max(1, size[1] // 2)))
    band = np.sqrt(max(coarser**2 - finest**2, 1e-6))
    return bool(finest > REAL_DETAIL * band)


def _lost(image: Image.Image, size: tuple[int, int]) -> float:
    """Root mean square of the grey levels that are lost at a smaller size."""
    grey = image.convert("L")
    back = grey.resize(size, Image.Resampling.LANCZOS).resize(
        grey.size, Image.Resampling.BICUBIC
    )
    return float(np.sqrt(((_floats(grey) - _floats(back)) ** 2).mean()))


@dataclass(frozen=True)
class _Fit:
    """Two photos, and the map from pixels of a to pixels of b: x_b = scale x_a + shift."""

    a: Image.Image
    b: Image.Image
    scale: tuple[float, float]
    shift: tuple[float, float]

    @classmethod
    def from_thumbnails(cls, a: Image.Image, b: Image.Image, warp: Array) -> _Fit:
        """The map in pixels, of one in coordinates from -1 to 1."""
        scales, shifts = [], []
        for s, t, from_, to in zip(warp[::2], warp[1::2], a.size, b.size, strict=True):
            scale = float(s) * to / from_
            scales.append(scale)
            shifts.append((float(t) + 1 - float(s)) * to / 2)
        return cls(a, b, (scales[0], scales[1]), (shifts[0], shifts[1]))

    @classmethod
    def from_boxes(cls, a: Image.Image, b: Image.Image, in_a: Box, in_b: Box) -> _Fit:
        """The map that takes one box to the other."""
        scales, shifts = [], []
        for axis in range(2):
            scale = (in_b[axis + 2] - in_b[axis]) / (in_a[axis + 2] - in_a[axis])
            scales.append(scale)
            shifts.append(in_b[axis] - scale * in_a[axis])
        return cls(a, b, (scales[0], scales[1]), (shifts[0], shifts[1]))

    def boxes(self) -> tuple[Box, Box]:
        """What both photos show, in pixels of a and in pixels of b."""
        low, high = [], []
        for scale, shift, wide, other in zip(
            self.scale, self.shift, self.a.size, self.b.size, strict=True
        ):
            low.append(max(0.0, -shift / scale))
            high.append(min(float(wide), (other - shift) / scale))
        box = (low[0], low[1], high[0], high[1])
        return box, self._in_b(box)

    def _in_b(self, box: Box) -> Box:
        ends = []
        for at, value in enumerate(box):
            axis = at % 2
            limit = float(self.b.size[axis])
            ends.append(
                min(max(value * self.scale[axis] + self.shift[axis], 0.0), limit)
            )
        return ends[0], ends[1], ends[2], ends[3]

    def is_plausible(self) -> bool:
        """Whether the map is one that copies have."""
        across, down = self.scale
        if abs(np.log(across / down)) > MAX_STRETCH:
            return False
        if not 1 / MAX_REDUCTION <= across <= MAX_REDUCTION:
            return False
        return all(
            _area(box) >= MIN_OVERLAP * image.width * image.height
            for box, image in zip(self.boxes(), (self.a, self.b), strict=True)
        )

    def grid(self, side: int) -> tuple[int, int]:
        """Width and height at which the common part is compared: that of the coarser photo."""
        left, top, right, bottom = self.boxes()[0]
        wide, high = right - left, bottom - top
        zoom = min(1.0, *self.scale, side / max(wide, high))
        return max(8, round(wide * zoom)), max(8, round(high * zoom))

    def views(self, side: int, mode: str) -> tuple[Array, Array]:
        """The common part of both, resampled alike."""
        size = self.grid(side)
        first, second = (
            _resampled(image, mode, size, box)
            for image, box in zip((self.a, self.b), self.boxes(), strict=True)
        )
        return first, second

    def refined(self, side: int, steps: int = 3) -> _Fit:
        """Improve the map by Gauss-Newton steps at a size; outliers hardly count."""
        fit = self
        for _ in range(steps):
            if _area(fit.boxes()[0]) <= 0:
                return fit
            box = fit.boxes()[0]
            a, b = fit.views(side, "L")
            high, wide = a.shape
            gap = a - b
            down, across = np.gradient((a + b) / 2)
            x = (np.arange(wide) + 0.5) / wide - 0.5
            y = (np.arange(high) + 0.5) / high - 0.5
            weight = 1 / (1 + (gap / max(4.0, 2 * float(np.median(np.abs(gap))))) ** 2)
            columns = np.stack([across, across * x, down, down * y[:, None]]).reshape(
                4, -1
            )
            weighted = columns * weight.ravel()
            normal = weighted @ columns.T
            normal += 1e-4 * np.trace(normal) * np.eye(4) / 4
            # a(x) = b(x + d): in pixels of the grid, d = offset + stretch * x
            step = np.linalg.solve(normal, weighted @ gap.ravel())
            step = np.clip(step, -4, 4)
            fit = fit._moved(box, (wide, high), step)
            if float(np.abs(step).max()) < 0.01:
                break
        return fit

    def _moved(self, box: Box, grid: tuple[int, int], step: Array) -> _Fit:
        """The map after a step that was found on the grid."""
        scales, shifts = [], []
        for axis in range(2):
            low, high = box[axis], box[axis + 2]
            # of b, for one of the grid
            per_pixel = (high - low) / grid[axis] * self.scale[axis]
            offset, stretch = step[2 * axis], step[2 * axis + 1]
            more = stretch * per_pixel / (high - low)
            middle = (low + high) / 2
            scales.append(float(self.scale[axis] + more))
            shifts.append(float(self.shift[axis] + offset * per_pixel - more * middle))
        return _Fit(self.a, self.b, (scales[0], scales[1]), (shifts[0], shifts[1]))

    def difference(self, side: int) -> float:
        """The worst neighbourhood's difference; from 1, the two are no copies or too flat."""
        if min(self.grid(side)) < 0.75 * MIN_SIDE:
            return np.inf
        a, b = self.views(side, "YCbCr")
        if min(_structure(a), _structure(b)) < MIN_STRUCTURE:
            return np.inf
        inner = slice(MARGIN, -MARGIN)
        gap = (a - b)[inner, inner]
        details = _details(((a + b) / 2)[inner, inner, 0])
        is_resized = abs(np.log(self.scale[0])) > RESIZED
        most_changed = RESIZED_CHANGED if is_resized else MAX_CHANGED
        worst = (
            _changed_structure(a[inner, inner, 0], b[inner, inner, 0]) / most_changed
        )
        for channel in range(3):
            for radius in (FINE, COARSE):
                key = (radius, min(channel, 1))
                levels = np.abs(gaussian_filter(gap[:, :, channel], radius))
                noise = (
                    float(np.sqrt((levels[details] ** 2).mean()))
                    if details.any()
                    else 0.0
                )
                multiple = MAX_MULTIPLE[key]
                if key == (FINE, 0) and is_resized:
                    multiple = RESIZED_MULTIPLE
                limit = ROUNDING[radius] + multiple * (noise + LEAST_NOISE)
                worst = max(worst, float(levels.max()) / min(limit, MAX_LEVELS[key]))
        return worst

    def mean_difference(self, side: int) -> float:
        """How far the structure of all of the common part differs; from 1, too far for a copy."""
        a, b = (_band_pass(view) for view in self.views(side, "L"))
        varied = float(np.sqrt((a**2).mean() + (b**2).mean()))
        gap = float(np.sqrt(((a - b) ** 2).mean()))
        return gap / max(varied, LEAST_NOISE) / MAX_MEAN_CHANGED

    def frame(self) -> tuple[str, int]:
        """What the frames make of the pair, and which photo to keep because of it."""
        box_a, box_b = self.boxes()
        whole_a, whole_b = _is_whole(box_a, self.a), _is_whole(box_b, self.b)
        if whole_a and whole_b:
            return RE_ENCODED, 0
        if whole_a:  # b has something around it
            return (BORDER, 1) if _is_border(self.b, box_b) else (CROPPED, 2)
        if whole_b:
            return (BORDER, 2) if _is_border(self.a, box_a) else (CROPPED, 1)
        return CROPPED, 0


def _resampled(image: Image.Image, mode: str, size: tuple[int, int], box: Box) -> Array:
    """A part of a photo at another size."""
    part = image.resize(size, Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
    return _floats(part.convert(mode))


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _is_whole(box: Box, image: Image.Image) -> bool:
    """Whether a box is all of a photo, but for a pixel or two."""
    for axis, side in enumerate(image.size):
        if box[axis] + side - box[axis + 2] > max(1.5, WHOLE * side):
            return False
    return True


def _is_border(image: Image.Image, box: Box) -> bool:
    """Whether what is outside a box was added: it has one colour, and the picture ends at it.

    A photo on a white ground that was cropped looks like one with a white border. So where the
    ground goes on inside the box, the pair counts as cropped, and the larger photo is kept.
    """
    pixels = _floats(image)
    left, top = int(box[0]) - 2, int(box[1]) - 2
    right, bottom = int(box[2]) + 3, int(box[3]) + 3
    outside = np.ones(pixels.shape[:2], bool)
    outside[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = False
    if not outside.any():
        return False
    if pixels[outside].std(axis=0).max() >= FLAT_BORDER:
        return False
    inner = pixels[top + 5 : bottom - 5, left + 5 : right - 5]
    edge = np.concatenate([inner[0], inner[-1], inner[:, 0], inner[:, -1]])
    distance = np.abs(edge - pixels[outside].mean(axis=0)).max(axis=1)
    continued = (distance < 2 * FLAT_BORDER).mean()
    return bool(continued <= MAX_CONTINUED)


def _whole(image: Image.Image) -> Box:
    return 0.0, 0.0, float(image.width), float(image.height)


def without_border(image: Image.Image) -> Box:
    """The part of a photo inside a border of one colour, all of it if there is none."""
    pixels = _floats(image)
    differs = np.abs(pixels - pixels[0, 0]).max(axis=2) > 3 * FLAT_BORDER
    columns = np.flatnonzero(differs.mean(axis=0) > WHOLE)
    rows = np.flatnonzero(differs.mean(axis=1) > WHOLE)
    if not len(columns) or not len(rows):
        return _whole(image)
    return float(columns[0]), float(rows[0]), columns[-1] + 1.0, rows[-1] + 1.0


def _band_pass(luma: Array) -> Array:
    """What differs from the pixels around."""
    return np.asarray(luma - gaussian_filter(luma, COARSE))


def _changed_structure(a: Array, b: Array) -> float:
    """The largest share of the structure of a neighbourhood in which two photos differ."""
    a, b = gaussian_filter(a, SHARP), gaussian_filter(b, SHARP)
    changed = _local_variance(a - b)
    structure = _local_variance(a) + _local_variance(b)
    return float((changed / (structure + SOFTEN)).max())


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


def _floats(image: Image.Image) -> Array:
    return np.asarray(image, dtype=np.float32)
