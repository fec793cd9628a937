"""What 20 classes cost: all machines on one Gram matrix, against a loop over scikit-learn's SVC."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC
from timing import Ratio, ratio

from deepfishing.core.kernels import gram
from deepfishing.core.rank_one import RankOne
from deepfishing.learn import svm as classify
from deepfishing.learn.svm import SEARCHES, train_svm


def run(quick: bool = False) -> list[Ratio]:
    n, repetitions = (1500, 3) if quick else (5000, 5)
    features, labels = gradients(n)
    K = gram(features)

    def given(_: RankOne) -> np.ndarray:
        return K

    def ours() -> object:
        """The machines alone: both sides have the Gram matrix already."""
        computed, classify.gram = classify.gram, given
        try:
            return train_svm(features, labels)
        finally:
            classify.gram = computed

    def loop(matrix: np.ndarray) -> object:
        return [SVC(kernel="precomputed").fit(matrix, column) for column in labels.T]

    few = labels[:, : 4 if quick else 6]
    return [
        ratio(
            f"20 machines, {n} images",
            ours,
            "a loop over SVC",
            lambda: loop(K),
            repetitions,
        ),
        ratio(
            f"20 machines, {n} images, with the Gram matrix",
            lambda: train_svm(features, labels),
            "one Gram matrix and a loop",
            lambda: loop(gram(features)),
            repetitions,
        ),
        ratio(
            f"cost by cross-validation, {few.shape[1]} classes, {n} images",
            lambda: train_svm(features, few, C="cv"),
            "one Gram matrix and loops",
            lambda: searches(gram(features), few),
            3,
        ),
    ]


def gradients(
    n: int, classes: int = 20, d: int = 320, D: int = 1280
) -> tuple[RankOne, np.ndarray]:
    """Factors of EfficientNet-Lite0's size whose classes overlap about as those of VOC 2007."""
    rng = np.random.default_rng(0)
    rate = rng.uniform(0.03, 0.12, classes)
    rate[0] = 0.4  # persons are everywhere
    labels = np.where(rng.random((n, classes)) < rate, 1, -1).astype(np.int8)
    factors = []
    for width in (d, D):
        signal = (labels == 1) @ rng.normal(size=(classes, width))
        noise = rng.normal(size=(n, 40)) @ rng.normal(size=(40, width)) * 0.3
        values = np.maximum(signal + noise + rng.normal(size=(n, width)), 0)
        factors.append(values.astype(np.float32))
    return RankOne(*factors).normalize(), labels


def searches(K: np.ndarray, labels: np.ndarray) -> None:
    """The same search, class by class and fold by fold."""
    for column in labels.T:
        best = []
        for cost in SEARCHES["cv"].costs:
            ap = []
            for train, held in StratifiedKFold(3, shuffle=True, random_state=0).split(
                K, column
            ):
                svm = SVC(C=cost, kernel="precomputed").fit(
                    K[np.ix_(train, train)], column[train]
                )
                scores = svm.decision_function(K[np.ix_(held, train)])
                ap.append(average_precision_score(column[held] == 1, scores))
            best.append(np.mean(ap))
        SVC(C=SEARCHES["cv"].costs[int(np.argmax(best))], kernel="precomputed").fit(
            K, column
        )


if __name__ == "__main__":
    import sys

    for line in run("--quick" in sys.argv):
        print(line)
