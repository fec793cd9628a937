"""Two photos laid over each other: a scale and a shift for each axis, refined at several sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from deepfishing.core.rank_one import Array

# Scale of one photo against the other; beyond, details of the larger are lost.
MAX_REDUCTION = 2.5
MAX_STRETCH = 0.03  # logarithm of the ratio of the two axes' scales
MIN_OVERLAP = 0.6  # share of either photo that the other shows
RESIZED = 0.25  # logarithm of the scale from which a photo is clearly smaller
MAX_STEP = 4.0  # pixels that one step of the refinement may move
LAST_STEP = 0.01  # pixels of a step after which there is nothing to refine
RIDGE = 1e-4

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


@dataclass(frozen=True)
class Overlay:
    """Two photos, and the map from pixels of a to pixels of b: x_b = scale x_a + shift."""

    a: Image.Image
    b: Image.Image
    scale: tuple[float, float]
    shift: tuple[float, float]

    @classmethod
    def from_thumbnails(cls, a: Image.Image, b: Image.Image, warp: Array) -> Overlay:
        """Return the map in pixels, of one (4,) in coordinates from -1 to 1."""
        scales, shifts = [], []
        for axis in range(2):
            s, t = float(warp[2 * axis]), float(warp[2 * axis + 1])
            side = b.size[axis]
            scales.append(s * side / a.size[axis])
            shifts.append((t + 1 - s) * side / 2)
        return cls(a, b, (scales[0], scales[1]), (shifts[0], shifts[1]))

    @classmethod
    def from_boxes(
        cls, a: Image.Image, b: Image.Image, in_a: Box, in_b: Box
    ) -> Overlay:
        """Return the map that takes one box to the other."""
        scales, shifts = [], []
        for axis in range(2):
            scale = (in_b[axis + 2] - in_b[axis]) / (in_a[axis + 2] - in_a[axis])
            scales.append(scale)
            shifts.append(in_b[axis] - scale * in_a[axis])
        return cls(a, b, (scales[0], scales[1]), (shifts[0], shifts[1]))

    @property
    def is_plausible(self) -> bool:
        """Whether the map is one that copies have."""
        across, down = self.scale
        if min(across, down) <= 0 or abs(np.log(across / down)) > MAX_STRETCH:
            return False
        if not 1 / MAX_REDUCTION <= across <= MAX_REDUCTION:
            return False
        for box, image in zip(self.boxes(), (self.a, self.b), strict=True):
            if _area(box) < MIN_OVERLAP * image.width * image.height:
                return False
        return True

    @property
    def is_resized(self) -> bool:
        """Whether one photo is clearly smaller than the other."""
        return bool(abs(np.log(self.scale[0])) > RESIZED)

    def boxes(self) -> tuple[Box, Box]:
        """Return the part that both photos show, in pixels of a and in pixels of b."""
        low, high = [], []
        for axis in range(2):
            scale, shift = self.scale[axis], self.shift[axis]
            low.append(max(0.0, -shift / scale))
            high.append(
                min(float(self.a.size[axis]), (self.b.size[axis] - shift) / scale)
            )
        box = (low[0], low[1], high[0], high[1])
        return box, self._in_b(box)

    def _in_b(self, box: Box) -> Box:
        ends = []
        for corner, value in enumerate(box):
            axis = corner % 2
            end = value * self.scale[axis] + self.shift[axis]
            ends.append(min(max(end, 0.0), float(self.b.size[axis])))
        return ends[0], ends[1], ends[2], ends[3]

    def grid(self, side: int) -> tuple[int, int]:
        """Return width and height of the views: those of the coarser photo, at most `side`."""
        left, top, right, bottom = self.boxes()[0]
        wide, high = right - left, bottom - top
        zoom = min(1.0, *self.scale, side / max(wide, high))
        return max(8, round(wide * zoom)), max(8, round(high * zoom))

    def views(self, side: int, mode: str) -> tuple[Array, Array]:
        """Return what both show, resampled to one grid, in a mode of Pillow."""
        size = self.grid(side)
        in_a, in_b = self.boxes()
        return _resampled(self.a, mode, size, in_a), _resampled(
            self.b, mode, size, in_b
        )

    def in_grey(self) -> Overlay:
        """Return the overlay of the photos without colour."""
        return replace(self, a=self.a.convert("L"), b=self.b.convert("L"))

    def refined(self, side: int, steps: int = 3) -> Overlay:
        """Improve the map of grey photos by Gauss-Newton steps; outliers hardly count."""
        overlay = self
        for _ in range(steps):
            box = overlay.boxes()[0]
            if _area(box) <= 0:
                return overlay
            a, b = overlay.views(side, "L")
            step = _gauss_newton_step(a, b)
            overlay = overlay._moved(box, (a.shape[1], a.shape[0]), step)
            if float(np.abs(step).max()) < LAST_STEP:
                break
        return overlay

    def _moved(self, box: Box, grid: tuple[int, int], step: Array) -> Overlay:
        """Return the overlay after a step that was found on the grid."""
        scales, shifts = [], []
        for axis in range(2):
            low, high = box[axis], box[axis + 2]
            offset, stretch = float(step[2 * axis]), float(step[2 * axis + 1])
            # pixels of b for one pixel of the grid
            per_pixel = (high - low) / grid[axis] * self.scale[axis]
            more = stretch * per_pixel / (high - low)
            scales.append(self.scale[axis] + more)
            shifts.append(
                self.shift[axis] + offset * per_pixel - more * (low + high) / 2
            )
        return replace(self, scale=(scales[0], scales[1]), shift=(shifts[0], shifts[1]))


def _gauss_newton_step(a: Array, b: Array) -> Array:
    """Return offset and stretch along x, then along y, that bring b nearer to a, in pixels.

    a(x) = b(x + d) with d = offset + stretch x, for x from -1/2 to 1/2; least squares in which a
    pixel counts the less the more it differs.
    """
    high, wide = a.shape
    gap = a - b
    down, across = np.gradient((a + b) / 2)
    x = (np.arange(wide) + 0.5) / wide - 0.5
    y = (np.arange(high) + 0.5) / high - 0.5
    usual = 2 * float(np.median(np.abs(gap)))
    weight = 1 / (1 + (gap / max(4.0, usual)) ** 2)
    parts = [across, across * x, down, down * y[:, None]]
    columns = np.stack(parts).reshape(4, -1)
    weighted = columns * weight.ravel()
    normal = weighted @ columns.T
    if np.trace(normal) <= 0:
        return np.zeros(4)  # one of both is flat at this size
    normal += RIDGE * np.trace(normal) * np.eye(4) / 4
    step = np.linalg.solve(normal, weighted @ gap.ravel())
    return np.asarray(np.clip(step, -MAX_STEP, MAX_STEP))


def _resampled(image: Image.Image, mode: str, size: tuple[int, int], box: Box) -> Array:
    """Return a part of a photo at another size."""
    part = image.resize(size, Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
    return np.asarray(part.convert(mode), dtype=np.float32)


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])
