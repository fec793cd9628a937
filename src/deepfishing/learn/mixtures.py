"""Candidates for few labels: mixtures of forward features, unlabelled neighbours and gradients.

Each candidate is a mean of kernels that fail in different ways:

- forward: two Gaussian kernels of forward features, which no collection misleads;
- neighbours: `smooth(x7)`, which helps while labels are few, and misleads where photos that look
  alike are of different classes;
- own: gradients of a head made of the collection (`own`), likewise;
- smoothed: x7 and these gradients, averaged with neighbours together;
- head: gradients of the network's classifier, which help where photos resemble its training data.

Gains are what a candidate gained over the forward kernel on the development sets, on average, in
points of mAP and accuracy, with 1, 2, 4, 8 and 16 labels per class: on photos like those that the
network was trained on, of which its predictions are peaked, and on others.
`benchmarks/few_labels.py` measures them, see benchmarks/FEW_LABELS.md.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from deepfishing.core.features import has_classifier
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import AUTO, parse_recipe
from deepfishing.core.recipes.language import forward_kernels
from deepfishing.core.recipes.recipe import spell

LABELS = (1, 2, 4, 8, 16)  # per class, to which gains belong
# mean of the largest probability, between which gains change
UNLIKE_PEAK, LIKE_PEAK = 0.15, 0.25
UNKNOWN = 0.5  # how alike photos are taken to be where the network has no classes
Gains = tuple[float, float, float, float, float]
# the kernels of each part, and what they count for in it
NEIGHBOURS = {"smooth(x7)": 1.0}
SMOOTHED = {"smooth(2*x7+own(x7,64)+pow(own(x7),0.5))": 1.0}
OWN = {"own(x7,64)": 1 / 2, "pow(own(x7),0.5)": 1 / 2}
HEAD = {"dW8": 2 / 3, "pow(dW8,0.5)": 1 / 3}


@dataclass(frozen=True)
class Mixture:
    """Shares of five kernels, and the gain over the first of them that is expected.

    `unlike` are gains on photos unlike those that the network was trained on, `like` on others.
    """

    unlike: Gains
    like: Gains
    forward: float = 1.0
    neighbours: float = 0.0
    own: float = 0.0
    smoothed: float = 0.0
    head: float = 0.0
    alone: str = ""  # a forward recipe that is the whole candidate

    @property
    def is_gradient(self) -> bool:
        """Whether it has gradients."""
        return max(self.own, self.smoothed, self.head) > 0

    @property
    def uses_pool(self) -> bool:
        """Whether it learns from unlabelled photos."""
        return (
            max(self.neighbours, self.own, self.smoothed) > 0 or "smooth" in self.alone
        )

    def expected(self, labels: float, likeness: float = UNKNOWN) -> float:
        """Return the expected gain with so many labels per class, for a likeness from 0 to 1.

        >>> Mixture(NO_GAIN, (2.0, 1.0, 0.0, 0.0, -1.0)).expected(3.0, 1.0)
        0.415
        """
        position = np.log2(max(labels, 1.0))
        unlike = np.interp(position, np.log2(LABELS), self.unlike)
        like = np.interp(position, np.log2(LABELS), self.like)
        return round(float((1 - likeness) * unlike + likeness * like), 3)

    @property
    def words(self) -> str:
        """Return its parts in words.

        >>> Mixture(NO_GAIN, NO_GAIN, neighbours=1, head=1).words
        "forward features with neighbours, the network's classes"
        """
        if self.alone:
            return self.alone
        added = []
        if self.neighbours or self.smoothed:
            added.append("neighbours")
        if self.own or self.smoothed:
            added.append("prototypes")
        if self.head:
            added.append("the network's classes")
        if not added:
            return "forward features"
        return f"forward features with {', '.join(added)}"

    def recipe(self, layers: Mapping[int, str]) -> str:
        """Return the recipe for a network with these layers.

        >>> Mixture(NO_GAIN, NO_GAIN, neighbours=2).recipe({8: "fc"})
        'rbf(pow(x7,0.5),2)+rbf(x7,2)+4*smooth(x7)'
        """
        shares = (
            (self.forward, dict.fromkeys(forward_kernels(layers), 1 / 2)),
            (self.neighbours, NEIGHBOURS),
            (self.own, OWN),
            (self.smoothed, SMOOTHED),
            (self.head, HEAD),
        )
        if self.alone:
            return parse_recipe(self.alone, layers).name
        weights: dict[str, float] = {}
        for share, kernels in shares:
            for name, part in kernels.items():
                if share:
                    weights[name] = share * part
        smallest = min(weights.values())
        terms = []
        for name, weight in weights.items():
            relative = round(weight / smallest, 3)
            terms.append(name if relative == 1 else f"{spell(relative)}*{name}")
        return "+".join(terms)


NO_GAIN = (0.0, 0.0, 0.0, 0.0, 0.0)
ROOT_RBF = "rbf(pow(x7,0.5),2)"
MIXTURES = (
    # forward features alone, of which the first is what all are compared with, and with neighbours
    Mixture(NO_GAIN, NO_GAIN),
    Mixture((0.2, 0.5, 0.2, 0.2, 0.0), (-0.1, 0.0, 0.0, -0.1, -0.1), alone=ROOT_RBF),
    Mixture(
        (-0.8, -0.5, 1.0, 0.2, -0.9),
        (-0.3, -0.4, -1.1, -1.7, -2.1),
        alone="pow(x7,0.5)",
    ),
    Mixture(
        (-0.6, -1.3, 0.6, -0.1, -0.2), (-0.3, -0.4, -0.5, -0.6, -0.7), alone="low*x7"
    ),
    Mixture(
        (0.1, 0.1, 0.5, -0.5, -0.9),
        (3.9, 3.4, 2.2, 1.0, -0.1),
        alone=f"{ROOT_RBF}+smooth(x7)",
    ),
    Mixture((0.2, -0.3, 0.3, -0.7, -0.9), (3.9, 3.4, 2.2, 1.1, 0.1), neighbours=1),
    Mixture((0.0, -1.0, -0.1, -1.4, -1.6), (4.2, 3.7, 2.0, 0.5, -0.5), neighbours=2),
    # and with gradients
    Mixture((0.0, -0.5, -0.4, -1.1, -1.0), (4.4, 4.0, 2.4, 1.3, 0.2), smoothed=0.5),
    Mixture((-0.4, -1.2, -1.1, -2.2, -1.8), (5.1, 4.4, 2.4, 0.9, -0.2), smoothed=1),
    Mixture((-1.3, -2.2, -2.0, -3.8, -3.1), (5.4, 4.5, 2.0, 0.2, -1.0), smoothed=2),
    Mixture(
        (-0.3, -1.1, -1.0, -2.2, -1.9), (4.6, 4.1, 2.5, 1.0, -0.1), smoothed=1, head=0.5
    ),
    Mixture((-0.9, -1.1, -2.2, -2.8, -2.8), (3.2, 3.0, 1.6, 0.7, -0.2), own=1),
)


def likeness(scores: Array | None) -> float:
    """Return how alike photos are to those that a network was trained on, from 0 to 1.

    By the scores (n, P) of its classes: the mean of the largest probability says how sure it is.

    >>> likeness(np.array([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])), likeness(np.zeros((2, 100)))
    (1.0, 0.0)
    """
    if scores is None or not len(scores):
        return UNKNOWN
    peak = float(
        softmax(np.asarray(scores, dtype=np.float64), axis=1).max(axis=1).mean()
    )
    return float(np.clip((peak - UNLIKE_PEAK) / (LIKE_PEAK - UNLIKE_PEAK), 0.0, 1.0))


def mixtures_for(
    kind: str, layers: Mapping[int, str], columns: Container[str], has_pool: bool
) -> tuple[Mixture, ...]:
    """Return the candidates whose factors are there, the forward kernel first; none without x7."""
    usable = []
    for mixture in MIXTURES:
        if (mixture.is_gradient and kind != AUTO) or (
            mixture.uses_pool and not has_pool
        ):
            continue
        if mixture.head and not has_classifier(layers):
            continue
        needed = parse_recipe(mixture.recipe(layers), layers).columns
        if all(name in columns for name in needed):
            usable.append(mixture)
    return tuple(usable)
