"""Stage 5, classification: one-vs-rest support vector machines on one shared Gram matrix.

Comes in: features of the training images and their labels (1, -1, 0 = difficult).
Goes out: a decision score per image and class. As in the paper: scikit-learn, C = 1.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from joblib import Parallel, delayed
from sklearn.svm import SVC

from deepfishing.errors import FeatureError, OptionError
from deepfishing.kernels import Comparable, gram
from deepfishing.rank_one import Array

DIFFICULT = ("negative", "ignore")

# Test images are scored this many at a time, so that their Gram matrix is never whole.
SCORE_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class KernelSVM:
    """One-vs-rest machines: f(image) = sum_i dual[i, class] K(image, i) + bias[class].

    `trained` (C,) is false for a class whose labels allowed no machine; its column of `dual`
    (n, C) is zero.
    """

    features: Comparable
    dual: Array
    bias: Array
    trained: Array

    def decision_function(self, features: Comparable) -> Array:
        """Scores (m, C); a class without a machine scores 0 for every image."""
        scores = np.empty((len(features), self.dual.shape[1]))
        for start in range(0, len(features), SCORE_BLOCK):
            rows = slice(start, start + SCORE_BLOCK)
            scores[rows] = gram(features[rows], self.features) @ self.dual + self.bias
        return scores


def train_svm(
    features: Comparable,
    labels: Array,
    C: float = 1.0,
    difficult: str = "negative",
    jobs: int | None = None,
) -> KernelSVM:
    """Train one machine per class on one Gram matrix, the classes in parallel.

    Parameters
    ----------
    features : ndarray (n, d), RankOne, KernelSum or KernelProduct
        Forward features (linear kernel), gradients (trace kernel) or several, normalised.
    labels : ndarray of shape (n, n_classes)
        1 present, -1 absent, 0 difficult.
    C : float
        Cost of the machines; the paper's is 1.
    difficult : "negative" or "ignore"
        Difficult examples are negatives, as in the devkit's example, or left out.
    jobs : int, optional
        Threads; all cores by default.

    Returns
    -------
    KernelSVM
        A class without both a positive and a negative example has no machine.

    Examples
    --------
    >>> x = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> svm = train_svm(x, np.array([[1], [1], [-1], [-1]]))
    >>> (svm.decision_function(x) > 0).ravel().tolist()
    [True, True, False, False]
    """
    labels = np.asarray(labels)
    check_options(C, difficult)
    if labels.ndim != 2 or len(labels) != len(features):
        raise FeatureError(
            f"labels must be ({len(features)}, n_classes) for {len(features)} images, "
            f"got {labels.shape}"
        )
    K = gram(features)
    if not np.isfinite(K).all():
        raise FeatureError("features must be finite, got NaN or infinity in the Gram matrix")
    # libsvm releases the interpreter lock, so threads share the one matrix without a copy
    fits = Parallel(n_jobs=jobs or os.cpu_count() or 1, backend="threading")(
        delayed(_train_one)(K, column, C, difficult) for column in labels.T
    )
    return KernelSVM(
        features=features,
        dual=np.stack([dual for dual, _, _ in fits], axis=1),
        bias=np.array([bias for _, bias, _ in fits]),
        trained=np.array([trained for _, _, trained in fits]),
    )


def check_options(C: float, difficult: str) -> None:
    """Refuse a cost that is not positive, and an unknown treatment of difficult examples."""
    if not C > 0 or not np.isfinite(C):
        raise OptionError(f"C must be a positive number, got {C!r}")
    if difficult not in DIFFICULT:
        raise OptionError(f"difficult must be one of {', '.join(DIFFICULT)}, got {difficult!r}")


def _train_one(K: Array, column: Array, C: float, difficult: str) -> tuple[Array, float, bool]:
    """Dual coefficients over all n images, the bias, and whether there was a machine to train."""
    kept = np.flatnonzero(column != 0) if difficult == "ignore" else np.arange(len(column))
    target = np.where(column[kept] == 1, 1, -1)
    dual = np.zeros(len(column))
    if len(np.unique(target)) < 2:
        return dual, 0.0, False
    matrix = K if len(kept) == len(K) else K[np.ix_(kept, kept)]
    svm = SVC(C=C, kernel="precomputed", cache_size=500).fit(matrix, target)
    dual[kept[svm.support_]] = svm.dual_coef_[0]
    return dual, float(svm.intercept_[0]), True
