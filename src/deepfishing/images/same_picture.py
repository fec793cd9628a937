"""Whether two photos are copies of one picture, decided at full detail and in colour.

The two are aligned (a scale and a shift, one of them perhaps mirrored), laid over each other at the
size of the coarser one, and compared without any change of brightness or contrast: the worst
neighbourhood decides (`difference`). Photos of one scene that were taken one after the other differ
in their noise, even where nothing has moved.

`compare_pictures` says no wherever it cannot decide: photos that are too small or too flat, and
copies at less than two fifths of the size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from deepfishing.core.rank_one import Array
from deepfishing.images.alignment import align, thumbnail
from deepfishing.images.difference import (
    has_other_grain,
    mean_difference,
    worst_difference,
)
from deepfishing.images.overlay import Box, Overlay

IDENTICAL_FILE = "identical file"
IDENTICAL_PIXELS = "identical pixels"
RE_ENCODED = "re-encoded or resized"
CROPPED = "cropped"
MIRRORED = "mirrored"
BORDER = "border added"
KINDS = (IDENTICAL_FILE, IDENTICAL_PIXELS, RE_ENCODED, CROPPED, MIRRORED, BORDER)

# Agreement of the thumbnails below which two photos are not aligned further.
MIN_SCORE = 0.7
# Pixels of the shorter side below which text and prints cannot be compared: of the larger photo,
# and of the smaller one and of what both show.
MIN_SIDE = 100
MIN_COMMON_SIDE = 75
# Pixels of the longer side: most pairs are refused at the first, which takes least time; text is
# readable at the last.
COARSEST_SIDE = 128
MIDDLE_SIDES = (320, 800)
MAX_SIDE = 2000
WHOLE = 0.012  # share of a side that may be missing in a photo that is not cropped
# Difference of a cropped copy: two frames of a burst of pears had 0.95.
MAX_CROPPED = 0.8
FLAT_BORDER = 6.0  # grey levels of deviation of a border
EDGE_PIXELS = 1.5  # on either side of a frame, that are its edge
MIN_INK = 4  # pixels of another colour than the ground, from which there is an object
# Share of a picture's edge that may have the colour of the border around it.
MAX_CONTINUED = 0.2
# Finest details against those twice as large; less in an enlarged photo.
REAL_DETAIL = 0.3


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
    sides = sorted((min(a.size), min(b.size)))
    if sides[0] < MIN_COMMON_SIDE or sides[1] < MIN_SIDE:
        return None
    aligned = align(thumbnail(a)[None], thumbnail(b)[None])
    if aligned.score[0] >= MIN_SCORE:
        is_mirrored = bool(aligned.mirrored[0])
        other = ImageOps.mirror(b) if is_mirrored else b
        overlay = Overlay.from_thumbnails(a, other, aligned.warp[0])
        likeness = _likeness(overlay, is_mirrored=is_mirrored)
        if likeness is not None:
            return likeness
    frame_a, frame_b = without_border(a), without_border(b)
    if frame_a == _whole(a) and frame_b == _whole(b):
        return None
    return _likeness(Overlay.from_boxes(a, b, frame_a, frame_b), is_mirrored=False)


def _likeness(overlay: Overlay, *, is_mirrored: bool) -> Likeness | None:
    """Refine an overlay at growing sizes; return the likeness if it is one of copies at all."""
    grey = overlay.in_grey().refined(COARSEST_SIDE)
    if not grey.is_plausible or mean_difference(*grey.views(COARSEST_SIDE, "L")) >= 1:
        return None
    difference = 0.0
    for side in MIDDLE_SIDES:
        grey = grey.refined(side)
        overlay = Overlay(overlay.a, overlay.b, grey.scale, grey.shift)
        if not overlay.is_plausible:
            return None
        difference = max(difference, _difference(overlay, side))
        if difference >= 1:
            return None
    if overlay.grid(MAX_SIDE) != overlay.grid(MIDDLE_SIDES[-1]):
        difference = max(difference, _difference(overlay, MAX_SIDE))
    if difference >= 1 or has_other_grain(*grey.views(MAX_SIDE, "L")):
        return None
    kind, keep = _kind(overlay)
    if kind == CROPPED and (difference > MAX_CROPPED or not keep):
        return None  # where neither shows all of the other, both are needed
    if kind == CROPPED and _lacks_an_object(overlay, keep):
        return None
    return Likeness(MIRRORED if is_mirrored else kind, round(difference, 3), keep)


def _difference(overlay: Overlay, side: int) -> float:
    """The worst neighbourhood's difference at a size; infinity if the common part is too small."""
    if min(overlay.grid(side)) < MIN_COMMON_SIDE:
        return np.inf
    a, b = overlay.views(side, "YCbCr")
    return worst_difference(a, b, is_resized=overlay.is_resized)


def _kind(overlay: Overlay) -> tuple[str, int]:
    """What the frames make of two photos, and which of them to keep because of it."""
    box_a, box_b = overlay.boxes()
    is_whole_a, is_whole_b = _is_whole(box_a, overlay.a), _is_whole(box_b, overlay.b)
    if is_whole_a and is_whole_b:
        return RE_ENCODED, 0
    if is_whole_a:  # b has something around it
        return (BORDER, 1) if _is_border(overlay.b, box_b) else (CROPPED, 2)
    if is_whole_b:
        return (BORDER, 2) if _is_border(overlay.a, box_a) else (CROPPED, 1)
    return CROPPED, 0


def _lacks_an_object(overlay: Overlay, keep: int) -> bool:
    """Whether the smaller frame leaves out a whole object and cuts through nothing.

    So does a letter against the same letter with an accent, on a plain ground: another picture.
    """
    whole = overlay.a if keep == 1 else overlay.b
    left, top, right, bottom = overlay.boxes()[keep - 1]
    pixels = _floats(whole)
    x = np.arange(whole.width) + 0.5
    y = np.arange(whole.height)[:, None] + 0.5
    # pixels from the edge of the frame, positive outside
    beyond = np.maximum(
        np.maximum(left - x, x - right), np.maximum(top - y, y - bottom)
    )
    is_outside = beyond > EDGE_PIXELS
    if not is_outside.any():
        return False
    ground = np.median(pixels[is_outside], axis=0)
    is_ink = np.abs(pixels - ground).max(axis=2) > 3 * FLAT_BORDER
    left_out = int((is_ink & is_outside).sum())
    cut = int((is_ink & (np.abs(beyond) <= EDGE_PIXELS)).sum())
    return left_out >= MIN_INK and cut < MIN_INK


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
    small = grey.resize(size, Image.Resampling.LANCZOS)
    back = small.resize(grey.size, Image.Resampling.BICUBIC)
    return float(np.sqrt(((_floats(grey) - _floats(back)) ** 2).mean()))


def _is_whole(box: Box, image: Image.Image) -> bool:
    """Whether a box is all of a photo, but for a pixel or two."""
    for axis, side in enumerate(image.size):
        missing = box[axis] + side - box[axis + 2]
        if missing > max(1.5, WHOLE * side):
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
    is_outside = np.ones(pixels.shape[:2], bool)
    is_outside[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = False
    if not is_outside.any():
        return False
    if pixels[is_outside].std(axis=0).max() >= FLAT_BORDER:
        return False
    inner = pixels[top + 5 : bottom - 5, left + 5 : right - 5]
    edge = np.concatenate([inner[0], inner[-1], inner[:, 0], inner[:, -1]])
    distance = np.abs(edge - pixels[is_outside].mean(axis=0)).max(axis=1)
    continued = (distance < 2 * FLAT_BORDER).mean()
    return bool(continued <= MAX_CONTINUED)


def without_border(image: Image.Image) -> Box:
    """Return the part of a photo inside a border of one colour, all of it if there is none."""
    pixels = _floats(image)
    differs = np.abs(pixels - pixels[0, 0]).max(axis=2) > 3 * FLAT_BORDER
    columns = np.flatnonzero(differs.mean(axis=0) > WHOLE)
    rows = np.flatnonzero(differs.mean(axis=1) > WHOLE)
    if not len(columns) or not len(rows):
        return _whole(image)
    return float(columns[0]), float(rows[0]), columns[-1] + 1.0, rows[-1] + 1.0


def _whole(image: Image.Image) -> Box:
    return 0.0, 0.0, float(image.width), float(image.height)


def _floats(image: Image.Image) -> Array:
    return np.asarray(image, dtype=np.float32)
