"""Stage 1, images: the views of an image that together describe it.

Comes in: the name of a set of views. Goes out: the views, each a square of the resized image,
mirrored or not. The paper takes one, the central square. With several, the network sees each of
them and the descriptors are averaged (`gradients.extract`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepfishing.errors import check_choice


@dataclass(frozen=True)
class View:
    """One square that the network sees."""

    scale: float = 1.0  # of the short side, which for the central square is 1; at least 1
    x: float = 0.5  # where the square lies: 0 at the left edge, 1 at the right
    y: float = 0.5  # 0 at the upper edge, 1 at the lower
    mirrored: bool = False  # left and right exchanged, after the square was cut out


def _with_mirror_images(*views: View) -> tuple[View, ...]:
    return tuple(
        View(view.scale, view.x, view.y, mirrored) for view in views for mirrored in (False, True)
    )


# Scales in steps of a quarter: at 1.5 the square still shows two thirds of the short side. Corners
# at 1.15, near the usual 256 pixels for squares of 224: each shows 87 % of the short side.
VIEWS: Mapping[str, tuple[View, ...]] = {
    "centre": (View(),),
    "flip": _with_mirror_images(View()),
    "scales": _with_mirror_images(View(1.0), View(1.25), View(1.5)),
    "crops": _with_mirror_images(
        *(View(1.15, x, y) for x, y in [(0.5, 0.5), (0, 0), (1, 0), (0, 1), (1, 1)])
    ),
}


def find_views(name: str) -> tuple[View, ...]:
    """The views that a name stands for.

    `centre` is the central square, `flip` it and its mirror image, `scales` central squares at
    three scales, `crops` the centre and the four corners; the last two with mirror images.

    >>> [len(find_views(name)) for name in VIEWS]
    [1, 2, 6, 10]
    >>> find_views("scale")
    Traceback (most recent call last):
    deepfishing.errors.OptionError: views must be one of centre, flip, scales, crops, got 'scale';
        did you mean scales?
    """
    check_choice("views", name, VIEWS)
    return VIEWS[name]
