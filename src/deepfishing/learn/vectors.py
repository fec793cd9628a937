"""Features as vectors, for classifiers of very many images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from deepfishing.core.kernels import Combination, Comparable, KernelRBF, KernelSum
from deepfishing.core.projections import (
    MAX_LANDMARKS,
    Nystroem,
    Projection,
    fit_projection,
    restore,
)
from deepfishing.core.rank_one import Array, RankOne, l2_normalize
from deepfishing.core.recipes import Fitted

VECTORS = "vectors/"  # begins the names of their arrays in a fitted recipe's state


@dataclass(frozen=True, eq=False)
class Vectors:
    """Features as vectors whose dot products approximate the recipe's kernel.

    A sum is its parts side by side; a gradient, or the product of two kernels, is of rank 1 and
    keeps its largest principal entries (`Principal`); a Gaussian kernel has landmarks
    (`Nystroem`).
    """

    projections: tuple[Projection, ...]  # in the order of the features

    @classmethod
    def fit(cls, sample: Comparable, m: int, seed: int = 0) -> Vectors:
        """Find principal axes of these images; about m numbers per vector."""
        projections: list[Projection] = []
        # a product has m numbers; the gradients of a sum share them
        each = m
        if isinstance(sample, KernelSum):
            gradients = [part for part in sample.parts if isinstance(part, RankOne)]
            each = m // max(1, len(gradients))

        def project(gradients: RankOne, g: float | None = None) -> Array:
            projection: Projection
            if g is None:
                projection = fit_projection("principal", gradients, each, seed)
            else:
                landmarks = min(each, MAX_LANDMARKS)
                projection = Nystroem.fit(gradients, landmarks, seed, g)
            projections.append(projection)
            return projection(gradients)

        _vectors(sample, project)
        return cls(tuple(projections))

    def __call__(self, features: Comparable) -> Array:
        """Return vectors (n, m) in single precision."""
        projections = iter(self.projections)

        def project(gradients: RankOne, g: float | None = None) -> Array:
            return next(projections)(gradients)

        return _vectors(features, project)

    def state(self) -> dict[str, Array]:
        """Return all arrays, by names that begin with the number of their projection."""
        state = {}
        for number, projection in enumerate(self.projections):
            for name, values in projection.state().items():
                state[f"{number}/{name}"] = values
        return state

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> Vectors:
        """Return the map of a `state`."""
        states: dict[int, dict[str, Array]] = {}
        for key, values in state.items():
            number, _, name = key.partition("/")
            states.setdefault(int(number), {})[name] = values
        return cls(tuple(restore(states[number]) for number in sorted(states)))


def _vectors(value: Comparable, project: Callable[..., Array]) -> Array:
    """Return vectors of features; `project` projects gradients."""
    if isinstance(value, KernelRBF):
        inner = l2_normalize(_vectors(value.parts[0], project))
        ones = np.ones((len(inner), 1), dtype=np.float32)
        return l2_normalize(project(RankOne(inner, ones), value.g))
    if isinstance(value, Combination):
        parts = [_vectors(part, project) for part in value.parts]
        return value.vectors(parts, lambda a, b: l2_normalize(project(RankOne(a, b))))
    if isinstance(value, RankOne):
        return l2_normalize(project(value))
    return np.asarray(value, dtype=np.float32)


def on_vectors(fitted: Fitted, project: Vectors) -> Fitted:
    """A fitted recipe whose features are made into vectors."""
    state = {f"{VECTORS}{name}": values for name, values in project.state().items()}
    return Fitted(lambda arrays: project(fitted(arrays)), {**fitted.state, **state})
