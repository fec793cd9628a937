"""Stage 5, classification: classifiers that were trained, which score images without scikit-learn.

Comes in: features of images. Goes out: scores and probabilities. `classify` trains them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepfishing.errors import OptionError
from deepfishing.kernels import Comparable, gram
from deepfishing.rank_one import Array

# Test images are scored this many at a time, so that their Gram matrix is never whole.
SCORE_BLOCK = 1024


@dataclass(frozen=True, eq=False, repr=False)
class KernelSVM:
    """One-vs-rest classifiers: f(image) = sum_i dual[i, class] K(image, i) + bias[class].

    A probability is sigma(slope f + offset).
    """

    features: Comparable
    dual: Array  # (n, C)
    bias: Array  # (C,), as the others
    trained: Array  # false for a class whose labels allowed no classifier; its dual is zero
    cost: Array
    ap: Array  # mean over the folds (scikit-learn's, in percent); NaN without cross-validation
    calibration: Array | None = None  # slope and offset (2, C), if they were asked for

    def __repr__(self) -> str:
        of = "probabilities" if self.calibration is not None else "scores alone"
        classes = f"{int(self.trained.sum())} of {len(self.trained)} classes"
        return f"KernelSVM({classes}, {len(self.dual):,} training images, {of})"

    def decision_function(self, features: Comparable) -> Array:
        """Scores (m, C); a class without a classifier scores 0 for every image."""
        scores = np.empty((len(features), self.dual.shape[1]))
        for start in range(0, len(features), SCORE_BLOCK):
            rows = slice(start, start + SCORE_BLOCK)
            scores[rows] = gram(features[rows], self.features) @ self.dual + self.bias
        return scores

    def probabilities(self, features: Comparable) -> Array:
        """Probabilities (m, C) that a class is present, each class on its own."""
        return self.calibrate(self.decision_function(features))

    def calibrate(self, scores: Array) -> Array:
        """Probabilities of scores (m, C); monotone in each class."""
        if self.calibration is None:
            raise OptionError(
                "probabilities must be asked for in training, got classifiers without; "
                "call train_svm(..., calibrated=True)"
            )
        slope, offset = self.calibration
        z = slope * scores + offset
        small = np.exp(-np.abs(z))  # never too large for a number
        probabilities: Array = np.where(z < 0, small, 1.0) / (1 + small)
        return probabilities
