"""Factors of one image at a time by one ONNX model, without torch.

A program is an ONNX model of the forward and the backward pass for one input.
`record.make_program` makes it in the first run, which has torch; see `encoder`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from deepfishing.core.features import Factor
from deepfishing.core.rank_one import Array
from deepfishing.errors import ImageError
from deepfishing.extraction.batches import Batch, aggregate, finish
from deepfishing.extraction.engines import RunOnnx
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import ImageLike


class Program:
    """A network's work on one input at a time: `run` makes parts of factors by `part_name`."""

    def __init__(
        self, run: RunOnnx, settings: Settings, factors: Sequence[Factor]
    ) -> None:
        self.run = run
        self.factors = factors
        self.preprocess = settings.preprocessing()

    def __call__(self, images: Sequence[ImageLike]) -> Iterator[Batch]:
        """Compute the factors of some images, one by one."""
        for index, image in enumerate(images):
            try:
                inputs = self.preprocess(image)
            except ImageError as error:
                yield Batch([], {}, {index: str(error)})
                continue
            views = [self.factors_of(pixels[None]) for pixels in inputs]
            factors = {}
            for factor in self.factors:
                values = np.concatenate([view[factor] for view in views])
                factors[factor.name] = aggregate(factor, values, len(views))
            yield Batch([index], factors, {})

    def factors_of(self, pixels: Array) -> dict[Factor, Array]:
        """Return the factors of one input (1, 3, S, S)."""
        outputs = self.run(pixels)
        factors = {}
        for factor in self.factors:
            names = part_name(factor, 0), part_name(factor, 1)
            parts = [outputs[name] for name in names if name in outputs]
            factors[factor] = finish(factor, parts)
        return factors


def part_name(factor: Factor, number: int) -> str:
    """Return the name of a part of a factor in a program; a projection has two, x and delta."""
    return f"{factor.name}/{number}"
