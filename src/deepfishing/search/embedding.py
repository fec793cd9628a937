"""Stage 7, search: images as short vectors whose dot product is nearly the recipe's kernel.

Comes in: features of a recipe, whatever it is made of. Goes out: vectors of norm 1. With landmark
images L and the eigenvectors V, w of their Gram matrix, phi(a) = w^(-1/2) V^T k(L, a) has the dot
product of the kernel's projection onto its leading axes (Nystroem, kernel PCA). It needs `gram`
only, so gradients, sums and products are all alike to it. An image that the landmarks describe
badly has a short vector and would never be proposed; dividing by the norm makes up for that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepfishing.kernels import Comparable, gram
from deepfishing.rank_one import Array, l2_normalize


@dataclass(frozen=True, eq=False)
class Embedding:
    """phi: features of the landmarks, and w^(-1/2) V^T as `root` (landmarks, m)."""

    landmarks: Comparable
    root: Array

    @classmethod
    def fit(cls, landmarks: Comparable, m: int) -> Embedding:
        """At most m leading axes of the landmarks' kernel.

        Examples
        --------
        >>> phi = Embedding.fit(np.eye(3), m=3)
        >>> (phi(np.eye(3)) @ phi(np.eye(3)).T).round(3) + 0.0
        array([[1., 0., 0.],
               [0., 1., 0.],
               [0., 0., 1.]], dtype=float32)
        """
        values, axes = np.linalg.eigh(gram(landmarks))
        values, axes = values[::-1][:m], axes[:, ::-1][:, :m]
        # what is below the rounding of single precision is noise that 1/sqrt would blow up
        kept = values > values.max(initial=0.0) * 10 * np.finfo(np.float32).eps
        kept[0] = True
        root = axes[:, kept] / np.sqrt(np.maximum(values[kept], 1e-12))
        return cls(landmarks, np.ascontiguousarray(root, dtype=np.float32))

    def __call__(self, features: Comparable) -> Array:
        """Vectors (n, m) of norm 1."""
        return l2_normalize(self.linear(features))

    def linear(self, features: Comparable) -> Array:
        """The same without the last division, so that a weighted sum of examples can be made."""
        vectors: Array = gram(features, self.landmarks).astype(np.float32) @ self.root
        return vectors
