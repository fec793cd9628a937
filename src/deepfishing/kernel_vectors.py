"""Stage 4, projections: the kernel of any recipe as plain vectors, for linear classifiers.

Comes in: what a fitted recipe makes of factors, sums and products of kernels of norm 1. Goes out:
vectors whose dot products approximate that kernel. A sum is its parts side by side; a gradient, or
the product of two kernels, is of rank 1 and keeps its largest principal entries (`Principal`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from deepfishing.kernels import Combination, Comparable, KernelSum
from deepfishing.projections import Projection, fit_projection, restore
from deepfishing.rank_one import Array, RankOne, l2_normalize


@dataclass(frozen=True, eq=False)
class Vectors:
    """The map from features to vectors; its projections are in the order in which they are met.

    >>> g = RankOne(x=np.eye(3), delta=np.ones((3, 1)))
    >>> both = KernelSum((g, np.ones((3, 1))), weights=(3.0, 1.0))
    >>> v = Vectors.fit(both, 4)(both)
    >>> (v @ v.T).round(2) + 0.0
    array([[1.  , 0.25, 0.25],
           [0.25, 1.  , 0.25],
           [0.25, 0.25, 1.  ]], dtype=float32)
    """

    projections: tuple[Projection, ...]

    @classmethod
    def fit(cls, sample: Comparable, m: int, seed: int = 0) -> Vectors:
        """Find principal axes of these images; about m numbers per vector."""
        found: list[Projection] = []
        # a product keeps m numbers of what is below it; the parts of a sum share them
        shared = max(1, sum(isinstance(part, RankOne) for part in getattr(sample, "parts", ())))
        each = m // shared if isinstance(sample, KernelSum) else m

        def project(gradients: RankOne) -> Array:
            found.append(fit_projection("principal", gradients, each, seed))
            return found[-1](gradients)

        _vectors(sample, project)
        return cls(tuple(found))

    def __call__(self, features: Comparable) -> Array:
        """Vectors (n, m) in single precision."""
        left = iter(self.projections)
        return _vectors(features, lambda gradients: next(left)(gradients))

    def state(self) -> dict[str, Array]:
        """All arrays, by names that say which projection they are of."""
        return {
            f"{number}/{name}": values
            for number, project in enumerate(self.projections)
            for name, values in project.state().items()
        }

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> Vectors:
        """The map whose `state` this is."""
        found: dict[int, dict[str, Array]] = {}
        for key, values in state.items():
            number, _, name = key.partition("/")
            found.setdefault(int(number), {})[name] = values
        return cls(tuple(restore(found[number]) for number in sorted(found)))


def _vectors(value: Comparable, project: Callable[[RankOne], Array]) -> Array:
    if isinstance(value, Combination):
        parts = [_vectors(part, project) for part in value.parts]
        return value.vectors(parts, lambda a, b: l2_normalize(project(RankOne(a, b))))
    if isinstance(value, RankOne):
        return l2_normalize(project(value))
    return np.asarray(value, dtype=np.float32)
