"""Stage 7, search: why two images are near.

Comes in: features of images and of the query. Goes out: the forward and the backward similarity of
one gradient of the recipe, whose product is the trace kernel (eq:tr), and the classes that made
delta alike. With a uniform label delta_8 = (sigma - 1/P) / tau has one number per class, so
<delta_8, delta_8'> is a sum over classes, and the term of a class is large where both images are
given it. The terms are those of the delta that `backward` is computed of, so that they add up to
it. Whitening mixes the classes: then there are no terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from deepfishing.errors import OptionError
from deepfishing.features import TOP
from deepfishing.kernels import Comparable, gram, leaves
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

    `gradient` is its number, None if there are only forward features; `has_classes` says whether
    its delta has one number per class.

    >>> from deepfishing.recipes import parse_recipe
    >>> Explanation.of(parse_recipe("whiten(dW8,0.5)+x7+pow(dW8,0.5)", {7: "fc7", 8: "fc8"}))
    Explanation(gradient=1, has_classes=True)
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

    def similarities(self, images: Comparable, examples: Comparable) -> tuple[Array, Array | None]:
        """Forward similarities <x, x'> (n, m) and backward ones <delta, delta'> (n, m).

        Without a gradient the kernel itself is the forward similarity, and there is no other.

        >>> a = RankOne(x=[[3.0, 4.0]], delta=[[1.0, 0.0]])
        >>> b = RankOne(x=[[1.0, 0.0]], delta=[[1.0, 1.0]])
        >>> [side.round(2).tolist() for side in Explanation(0, True).similarities(a, b)]
        [[[0.6]], [[0.71]]]
        """
        if self.gradient is None:
            return gram(images, examples), None
        left, right = self._halves(images), self._halves(examples)
        return gram(left.x, right.x), gram(left.delta, right.delta)

    def class_terms(
        self, images: Comparable, examples: Comparable, names: Sequence[str] | None = None
    ) -> list[tuple[ClassTerm, ...]]:
        """The classes that add most to the mean backward similarity, per image; none if none do.

        Names are by default ImageNet's if there are as many, else numbers.

        >>> image = RankOne(x=[[1.0]], delta=[[0.6, 0.8]])
        >>> Explanation(0, True).class_terms(image, image, ["cat", "dog"])[0][0]
        ClassTerm(index=1, name='dog', term=0.64)
        """
        if not self.has_classes:
            return [()] * len(images)
        mean = self._halves(examples).delta.mean(axis=0, dtype=np.float64)
        if names is None and len(mean) == IMAGENET_CLASSES:
            names = imagenet_names()
        if names and len(names) != len(mean):
            raise OptionError(f"class names must be {len(mean)}, one a line, got {len(names)}")
        found = []
        for row in self._halves(images).delta * mean:
            best = np.argpartition(-row, min(TOP_CLASSES, len(row) - 1))[:TOP_CLASSES]
            terms = [(int(c), round(float(row[c]), 6)) for c in best if row[c] > 0]
            terms.sort(key=lambda term: (-term[1], term[0]))
            found.append(
                tuple(ClassTerm(c, names[c] if names else f"class {c}", term) for c, term in terms)
            )
        return found

    def _halves(self, features: Comparable) -> RankOne:
        """The gradient of these images, its positions pooled."""
        gradients = [leaf for leaf in leaves(features) if isinstance(leaf, RankOne)]
        return gradients[self.gradient or 0].pool().normalize()


def read_class_names(path: Path) -> list[str]:
    """Names of the classes, one a line in the order of the network's outputs."""
    try:
        return [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"class names must be a text file with one name a line, got {path} ({error})"
        ) from None


@cache
def imagenet_names() -> list[str]:
    """Names of ImageNet's 1,000 classes, in the order of a network's outputs.

    >>> imagenet_names()[208]
    'Labrador retriever'
    """
    lines = (Path(__file__).parent / "imagenet_names.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]
