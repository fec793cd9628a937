"""Stage 7, search: what is looked for, as examples with weights.

Comes in: features of examples, positive and negative. Goes out: a `Query`, whose score of an image
is sum_i weight_i K(image, example_i) + bias. One example has the weight 1; several positive ones
have the mean of their kernels; with negative ones a support vector machine is trained on the spot.
All three are linear in the kernel, so one index serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepfishing.kernels import Comparable, gram
from deepfishing.rank_one import Array


@dataclass(frozen=True, eq=False)
class Query:
    """Examples (m of them) and how much each counts.

    Parameters
    ----------
    examples : Comparable
        Their features, the positive ones first.
    positive : int
        How many are positive.
    weights : ndarray (m,)
    bias : float

    Examples
    --------
    >>> one = Query.of(np.array([[1.0, 0.0]]))
    >>> one.scores(np.array([[0.6, 0.8]]))
    array([0.6])
    """

    examples: Comparable
    positive: int
    weights: Array
    bias: float

    @classmethod
    def of(cls, examples: Comparable, positive: int | None = None) -> Query:
        """The query of these examples, of which the first `positive` (all by default) are so."""
        m = len(examples)
        positive = m if positive is None else positive
        if positive == m:
            return cls(examples, m, np.full(m, 1 / m), 0.0)

        from deepfishing.classify import train_svm  # scikit-learn takes a second to load

        labels = np.where(np.arange(m) < positive, 1, -1)[:, None]
        svm = train_svm(examples, labels, class_weight="balanced", jobs=1)
        return cls(examples, positive, svm.dual[:, 0], float(svm.bias[0]))

    def scores(self, features: Comparable) -> Array:
        """Score of each image, (n,)."""
        scores: Array = gram(features, self.examples) @ self.weights + self.bias
        return scores

    @property
    def likes(self) -> Comparable:
        """The positive examples."""
        return self.examples[: self.positive]
