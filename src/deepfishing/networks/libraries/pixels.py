"""Check that our preprocessing gives the pixels of a library's own processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from deepfishing.errors import NetworkError
from deepfishing.images.preprocess import Preprocess

# of a normalised pixel; a value of 8 bits is 0.004 before it is divided by std
TOLERANCE = 1e-5
SIZES = ((97, 61), (64, 150))  # of the images that are compared: odd, wide and high


def check_pixels(
    preprocess: Preprocess, reference: Callable[[Any], Any], name: str
) -> None:
    """Refuse a model whose own processor gives other pixels than ours.

    `reference` takes a PIL image in RGB and returns pixels (3, size, size).
    """
    random = np.random.default_rng(0)
    for width, height in SIZES:
        noise = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = Image.fromarray(noise)
        expected = np.asarray(reference(image), dtype=np.float32)
        found = preprocess(image)
        if expected.shape != found.shape:
            raise _other(
                name, f"its processor gives {expected.shape}, ours {found.shape}"
            )
        difference = float(np.abs(expected - found).max())
        if not difference <= TOLERANCE:
            raise _other(name, f"pixels differ by {difference:.2g}")


def _other(name: str, problem: str) -> NetworkError:
    return NetworkError(
        f"{name} must have preprocessing that can be reproduced, but {problem}; load the module in "
        "Python and give wrap(module, preprocess=Preprocess(...))"
    )
