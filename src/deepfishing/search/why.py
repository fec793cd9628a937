"""Stage 7, search: why two images are near.

Comes in: features of images and of the query. Goes out: the forward and the backward similarity of
one gradient of the recipe, whose product is the trace kernel (eq:tr), and the classes that made
delta alike. With a uniform label delta_8 = (sigma - 1/P) / tau has one number per class, so
<delta_8, delta_8'> is a sum over classes, and the term of a class is large where both images are
given it. The terms are those of the very delta that `backward` is computed of, after the powers of
the recipe, so that all of them add up to it. Whitening mixes the classes: then there are no terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepfishing.errors import OptionError
from deepfishing.features import TOP
from deepfishing.kernels import Combination, Comparable, gram
from deepfishing.rank_one import Array, RankOne
from deepfishing.recipes import Recipe

TOP_CLASSES = 3
IMAGENET_CLASSES = 1000


@dataclass(frozen=True)
class ClassTerm:
    """How much a class adds to the backward similarity."""

    index: int
    name: str
    term: float


@dataclass(frozen=True)
class Explanation:
    """Which gradient of a recipe tells why: the first with classes, or the first of all.

    Parameters
    ----------
    gradient : int or None
        Its number among the gradients of the recipe; None if there are only forward features.
    has_classes : bool
        Whether its delta has one number per class.

    Examples
    --------
    >>> from deepfishing.recipes import parse_recipe
    >>> layers = {7: "fc7", 8: "fc8"}
    >>> Explanation.of(parse_recipe("whiten(dW8,0.5)+x7+pow(dW8,0.5)", layers))
    Explanation(gradient=1, has_classes=True)
    >>> Explanation.of(parse_recipe("x6*whiten(dW8,0.5)", layers))
    Explanation(gradient=0, has_classes=False)
    """

    gradient: int | None
    has_classes: bool

    @classmethod
    def of(cls, recipe: Recipe) -> Explanation:
        """How hits of this recipe are explained."""
        for number, factor in enumerate(recipe.gradients):
            if factor is not None and factor.layer == TOP:
                return cls(number, has_classes=True)
        return cls(0 if recipe.gradients else None, has_classes=False)

    def halves(self, features: Comparable) -> RankOne | None:
        """The gradient of these images, its positions pooled."""
        if self.gradient is None:
            return None
        return gradients_in(features)[self.gradient].pool().normalize()

    def similarities(self, images: Comparable, examples: Comparable) -> tuple[Array, Array | None]:
        """Forward similarities <x, x'> (n, m) and backward ones <delta, delta'> (n, m).

        Without any gradient the kernel itself is the forward similarity, and there is no backward
        one.

        Examples
        --------
        >>> a = RankOne(x=[[3.0, 4.0]], delta=[[1.0, 0.0]])
        >>> b = RankOne(x=[[1.0, 0.0]], delta=[[1.0, 1.0]])
        >>> [side.round(2).tolist() for side in Explanation(0, True).similarities(a, b)]
        [[[0.6]], [[0.71]]]
        """
        left, right = self.halves(images), self.halves(examples)
        if left is None or right is None:
            return gram(images, examples), None
        return gram(left.x, right.x), gram(left.delta, right.delta)

    def class_terms(self, images: Comparable, examples: Comparable) -> Array | None:
        """What each class adds to the mean backward similarity to the examples, (n, C).

        None where the similarity is no sum over classes.

        Examples
        --------
        >>> image = RankOne(x=[[1.0]], delta=[[0.6, 0.8]])
        >>> examples = RankOne(x=[[1.0], [1.0]], delta=[[1.0, 0.0], [0.0, 1.0]])
        >>> Explanation(0, True).class_terms(image, examples)
        array([[0.3, 0.4]])
        """
        left, right = self.halves(images), self.halves(examples)
        if left is None or right is None or not self.has_classes:
            return None
        terms: Array = left.delta * right.delta.mean(axis=0, dtype=np.float64)
        return terms


def gradients_in(features: Comparable) -> list[RankOne]:
    """The gradients of a recipe, in the order in which it names them.

    Examples
    --------
    >>> gradients_in(np.ones((2, 3)))
    []
    """
    if isinstance(features, RankOne):
        return [features]
    parts = features.parts if isinstance(features, Combination) else ()
    return [gradient for part in parts for gradient in gradients_in(part)]


def largest_terms(
    terms: Array, names: Sequence[str], top: int = TOP_CLASSES
) -> list[tuple[ClassTerm, ...]]:
    """The classes with the largest terms above 0, per image.

    Parameters
    ----------
    terms : ndarray of shape (n, C)
        From `Explanation.class_terms`.
    names : sequence of str
        One per class, or none: then a class is called by its number.

    Examples
    --------
    >>> largest_terms(np.array([[0.1, 0.8]]), ["cat", "dog"], top=1)
    [(ClassTerm(index=1, name='dog', term=0.8),)]
    """
    named = len(names) == terms.shape[1]
    found = []
    for row in terms:
        best = np.argpartition(-row, min(top, len(row) - 1))[:top]
        best = best[np.argsort(-row[best], kind="stable")]
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
