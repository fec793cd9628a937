"""Stage 7, search: why two images are near.

Comes in: features of images and of the query. Goes out: the forward and the backward similarity,
whose product is the trace kernel (eq:tr), and the classes that made delta alike. With a uniform
label delta_8 = (sigma - 1/P) / tau, so the term of class c in <delta_8, delta_8'> is large where
both images are given that class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepfishing.errors import OptionError
from deepfishing.kernels import Comparable, KernelProduct, KernelSum, gram
from deepfishing.rank_one import Array, RankOne, l2_normalize

TOP_CLASSES = 3
IMAGENET_CLASSES = 1000


@dataclass(frozen=True)
class ClassTerm:
    """How much a class adds to the backward similarity."""

    index: int
    name: str
    term: float


def first_gradient(features: Comparable) -> RankOne | None:
    """The first gradient of a recipe, its positions pooled; None if it has only forward features.

    Examples
    --------
    >>> first_gradient(np.ones((2, 3))) is None
    True
    """
    if isinstance(features, RankOne):
        return features.pool().normalize()
    parts = features.parts if isinstance(features, KernelSum | KernelProduct) else ()
    found = (first_gradient(part) for part in parts)
    return next((gradient for gradient in found if gradient is not None), None)


def forward_backward(a: Comparable, b: Comparable) -> tuple[Array, Array | None]:
    """Forward similarities <x, x'> (n, m) and backward ones <delta, delta'> (n, m).

    Of a recipe with several parts they are those of its first gradient. Without any gradient the
    kernel itself is the forward similarity, and there is no backward one.

    Examples
    --------
    >>> a = RankOne(x=[[3.0, 4.0]], delta=[[1.0, 0.0]])
    >>> b = RankOne(x=[[1.0, 0.0]], delta=[[1.0, 1.0]])
    >>> [side.round(2).tolist() for side in forward_backward(a, b)]
    [[[0.6]], [[0.71]]]
    """
    left, right = first_gradient(a), first_gradient(b)
    if left is None or right is None:
        return gram(a, b), None
    return gram(left.x, right.x), gram(left.delta, right.delta)


def class_terms(
    query: Array, images: Array, names: Sequence[str], top: int = TOP_CLASSES
) -> list[tuple[ClassTerm, ...]]:
    """The classes with the largest terms of <delta_8, delta_8'>, per image.

    Parameters
    ----------
    query : ndarray of shape (m, C)
        delta_8 of the examples that are looked for; their mean counts.
    images : ndarray of shape (n, C)
        delta_8 of the images found.
    names : sequence of str
        One per class, or none: then a class is called by its number.

    Examples
    --------
    >>> class_terms(np.array([[0.0, 2.0]]), np.array([[3.0, 4.0]]), ["cat", "dog"], top=1)
    [(ClassTerm(index=1, name='dog', term=0.8),)]
    """
    terms = l2_normalize(query.astype(np.float64)).mean(axis=0) * l2_normalize(
        images.astype(np.float64)
    )
    named = len(names) == terms.shape[1]
    found = []
    for row in terms:
        best = np.argsort(-row, kind="stable")[:top]
        found.append(
            tuple(
                ClassTerm(int(c), names[c] if named else f"class {c}", round(float(row[c]), 6))
                for c in best
                if row[c] > 0
            )
        )
    return found


def read_class_names(path: Path) -> list[str]:
    """Names of the classes, one a line in the order of the network's outputs."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"class names must be a text file with one name a line, got {path} ({error})"
        ) from None
    return [line.strip() for line in lines]


def imagenet_names() -> list[str]:
    """Names of ImageNet's 1,000 classes, in the order of a network's outputs.

    Examples
    --------
    >>> names = imagenet_names()
    >>> len(names), names[208]
    (1000, 'Labrador retriever')
    """
    lines = (Path(__file__).parent / "imagenet_names.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]
