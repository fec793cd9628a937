"""One-vs-rest support vector machines on one shared Gram matrix.

As in the paper: scikit-learn, C = 1, unless the cost is chosen by cross-validation. One Gram matrix
serves all classes and all folds, which are those of `learn.folds`: copies of an image are never
separated. Scikit-learn is loaded to train; trained classifiers score images without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
from scipy.special import softmax

from deepfishing.core.kernels import Comparable, finite_gram, gram
from deepfishing.core.metrics import average_precision, check_signs
from deepfishing.core.rank_one import Array
from deepfishing.errors import FeatureError, OptionError, check_choice, did_you_mean
from deepfishing.images.dataset import DIFFICULT
from deepfishing.learn.folds import FOLDS, Folds, make_folds
from deepfishing.util.machine import memory

# Test images are scored this many at a time, so that their Gram matrix is never whole.
SCORE_BLOCK = 1024
# the paper's: of a class that has too few examples to be cross-validated
DEFAULT_COST = 1.0


@dataclass(frozen=True)
class CostSearch:
    """Costs to try by cross-validation; the one with the best mean AP is taken."""

    costs: tuple[float, ...]  # `DEFAULT_COST` among them, if they are several
    folds: int = FOLDS
    shared: bool = False  # one cost for all classes instead of one each
    # on the cost of positives, unless one is asked for
    positive_weight: float | None = None

    @classmethod
    def from_option(cls, C: float | str) -> CostSearch:
        """Return the search of a name, or the single cost of a number."""
        if isinstance(C, str):
            return SEARCHES[C]
        return cls((float(C),))


_COSTS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

# `vissl` has the costs, the folds, the AP (scikit-learn's) and the weight of the benchmark for
# VOC 2007 of the library VISSL; the loss is libsvm's hinge, there it is LIBLINEAR's squared hinge.
SEARCHES = {
    "auto": CostSearch((1.0, 3.0, 10.0), shared=True),
    "cv": CostSearch(_COSTS),
    "cv-shared": CostSearch(_COSTS, shared=True),
    "vissl": CostSearch(
        (0.01, 0.1, 1, 2, 5, 10, 15, 20, 50, 100, 1000), positive_weight=2.0
    ),
}


@dataclass(frozen=True, eq=False, repr=False)
class KernelSVM:
    """One-vs-rest classifiers: f(image) = sum_i dual[i, class] K(image, i) + bias[class].

    A probability is sigma(slope f + offset); of classes that exclude each other, the softmax of it.
    """

    features: Comparable
    dual: Array  # (n, C)
    bias: Array  # (C,), as the others
    # false for a class whose labels allowed no classifier; its dual is zero
    trained: Array
    cost: Array
    # of all images, each held out once (area, in percent); NaN if not measurable
    ap: Array
    calibration: Array | None = None  # slope and offset (2, C), if they were asked for
    is_exclusive: bool = False
    folds: Folds | None = None  # by which `ap`, `cost` and `calibration` were found
    # scores (n, C) of images when they were held out, NaN without
    held_out: Array | None = None

    def __repr__(self) -> str:
        outputs = "scores alone"
        if self.calibration is not None:
            outputs = "probabilities"
        classes = f"{int(self.trained.sum())} of {len(self.trained)} classes"
        return f"KernelSVM({classes}, {len(self.dual):,} training images, {outputs})"

    def decision_function(self, features: Comparable) -> Array:
        """Return scores (m, C); they are 0 for a class without a classifier."""
        scores = np.empty((len(features), self.dual.shape[1]))
        for start in range(0, len(features), SCORE_BLOCK):
            rows = slice(start, start + SCORE_BLOCK)
            scores[rows] = gram(features[rows], self.features) @ self.dual + self.bias
        return scores

    def probabilities(self, features: Comparable) -> Array:
        """Probabilities (m, C) that a class is present, each class on its own."""
        return self.calibrate(self.decision_function(features))

    def calibrate(self, scores: Array) -> Array:
        """Return probabilities of scores (m, C)."""
        if self.calibration is None:
            raise OptionError(
                "probabilities must be asked for in training, got classifiers without; "
                "call train_svm(..., calibrated=True)"
            )
        slope, offset = self.calibration
        z = slope * scores + offset
        if self.is_exclusive:
            return np.asarray(softmax(z, axis=1))
        small = np.exp(-np.abs(z))  # never too large for a number
        probabilities: Array = np.where(z < 0, small, 1.0) / (1 + small)
        return probabilities


def train_svm(
    features: Comparable,
    labels: Array,
    C: float | str = 1.0,
    difficult: str = DIFFICULT[0],
    n_jobs: int | None = None,
    class_weight: str | float | None = None,
    calibrated: bool = False,
    seed: int = 0,
    groups: Array | Sequence[int] | None = None,
) -> KernelSVM:
    """Train one classifier per class on one Gram matrix, the classes in parallel.

    Parameters
    ----------
    features : ndarray (n, d), RankOne, KernelSum or KernelProduct
        Forward features (linear kernel), gradients (trace kernel) or several, normalised.
    labels : ndarray of shape (n, n_classes)
        1 present, -1 absent, 0 difficult.
    C : float, "auto", "cv", "cv-shared" or "vissl"
        Cost of the classifiers; the paper's is 1. The words choose it by cross-validation: one of
        three for all classes, one per class, one for all, or as in VISSL's benchmark.
    difficult : "ignore" or "negative"
        Difficult examples are left out, as in the devkit's example, or are negatives.
    n_jobs : int, optional
        Threads; by default all cores, or as many as there is memory for.
    class_weight : None, "balanced" or float
        Factor on the cost of positives; balanced gives both sides the same total.
    calibrated : bool
        Also fit probabilities: Platt's sigmoid on cross-validated scores.
    seed : int
        Of the folds, over which classes are spread evenly.
    groups : sequence of int, optional
        The group of each image, of `similar_groups`; a group is never split by the folds.

    Returns
    -------
    KernelSVM
        A class without both a positive and a negative example has no classifier.

    Examples
    --------
    >>> x = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> svm = train_svm(x, np.array([[1], [1], [-1], [-1]]), calibrated=True)
    >>> (svm.decision_function(x) > 0).ravel().tolist()
    [True, True, False, False]
    >>> (svm.probabilities(x) > 0.5).ravel().tolist()
    [True, True, False, False]
    """
    from joblib import Parallel, delayed  # a second to load, as scikit-learn

    labels = np.asarray(labels)
    check_options(C, difficult, class_weight)
    check_labels(labels, len(features))
    if difficult == "ignore":
        check_signs(labels)
    K = finite_gram(features)
    search = CostSearch.from_option(C)
    weight = class_weight
    if weight is None:
        weight = search.positive_weight
    tasks = [
        _OneVsRest.from_labels(K, column, difficult, weight) for column in labels.T
    ]
    # libsvm releases the interpreter lock, so threads share the one matrix without a copy
    # the copies of the folds, about two thirds of it, must fit into memory for all threads
    max_threads = max(1, memory() // (3 * max(K.nbytes, 1)))
    threads = n_jobs or min(os.cpu_count() or 1, max_threads)
    run = Parallel(n_jobs=threads, backend="threading")
    folds = None
    validated: list[list[_Fold]] = [[] for _ in tasks]  # for each class
    if len(search.costs) > 1 or calibrated:
        folds = make_folds(
            counted_labels(labels, difficult), groups, search.folds, seed
        )
        validated = _cross_validate(tasks, folds, search.costs, run)
    chosen = choose_costs(_ap_at_costs(tasks, validated, len(search.costs)), search)
    costs = np.array(search.costs)[chosen]
    jobs = zip(tasks, costs.tolist(), strict=True)
    fits = run(delayed(task.train)(cost) for task, cost in jobs)
    ap = np.full(len(tasks), np.nan)
    for number, task in enumerate(tasks):
        if validated[number]:
            ap[number] = task.pooled_ap(validated[number], chosen[number])
    svm = KernelSVM(
        features=features,
        dual=np.stack([dual for dual, _ in fits], axis=1),
        bias=np.array([bias for _, bias in fits]),
        trained=np.array([task.fewest > 0 for task in tasks]),
        cost=costs,
        ap=ap,
        folds=folds,
    )
    if not calibrated:
        return svm
    scores = K @ svm.dual + svm.bias
    calibration = []
    held_out = np.full(labels.shape, np.nan)
    for number, task in enumerate(tasks):
        best = chosen[number]
        own_scores = scores[task.kept, number]
        calibration.append(task.calibration(validated[number], best, own_scores))
        for rows, at_costs in validated[number]:
            held_out[task.kept[rows], number] = at_costs[best]
    return replace(svm, calibration=np.array(calibration).T, held_out=held_out)


def counted_labels(labels: Array, difficult: str) -> Array:
    """Return labels with difficult examples as they count: 0 if ignored, or -1 if negative."""
    if difficult == "negative":
        return np.where(labels == 0, -1, labels)
    return labels


def _cross_validate(
    tasks: Sequence[_OneVsRest], folds: Folds, costs: Sequence[float], run: Any
) -> list[list[_Fold]]:
    """Return the folds of each class, with scores at every cost; `run` runs jobs in parallel."""
    from joblib import delayed  # a second to load, as scikit-learn

    numbers: list[int] = []
    jobs = []
    for number, task in enumerate(tasks):
        for train, held in task.split(folds, number):
            numbers.append(number)
            jobs.append(delayed(task.validate)(train, held, costs))
    validated: list[list[_Fold]] = [[] for _ in tasks]
    for number, fold in zip(numbers, run(jobs), strict=True):
        validated[number].append(fold)
    return validated


def _ap_at_costs(
    tasks: Sequence[_OneVsRest], validated: Sequence[Sequence[_Fold]], costs: int
) -> Array:
    """Return the mean AP of the folds (classes, costs); NaN for a class without folds."""
    ap = np.full((len(tasks), costs), np.nan)
    for number, task in enumerate(tasks):
        if validated[number]:
            of_folds = [task.ap(fold) for fold in validated[number]]
            ap[number] = np.nanmean(of_folds, axis=0)
    return ap


def check_labels(labels: Array, n: int, what: str = "labels") -> None:
    """Refuse labels that do not have a row for each of n images."""
    if labels.ndim != 2 or len(labels) != n:
        raise FeatureError(
            f"{what} must be ({n}, n_classes) for {n} images, got an array of shape {labels.shape}"
        )


def check_options(
    C: float | str,
    difficult: str = DIFFICULT[0],
    class_weight: str | float | None = None,
) -> None:
    """Refuse a cost or a weight that is not positive, and unknown words."""
    if isinstance(C, str) and C not in SEARCHES:
        raise OptionError(
            f"C must be a positive number or one of {', '.join(SEARCHES)}, got {C!r}"
            f"{did_you_mean(C, SEARCHES)}"
        )
    if not isinstance(C, str) and not _is_positive(C):
        raise OptionError(f"C must be a positive number, got {C!r}")
    check_choice("difficult", difficult, DIFFICULT)
    if class_weight not in (None, "balanced") and not _is_positive(class_weight):
        raise OptionError(
            f"class_weight must be None, 'balanced' or a positive number, got {class_weight!r}"
        )


def _is_positive(value: object) -> bool:
    return isinstance(value, Real) and 0 < float(value) < np.inf


# positions in a task's `kept` that were held out, and their scores at every cost (costs, held)
_Fold = tuple[Array, Array]


@dataclass(frozen=True, eq=False)
class _OneVsRest:
    """One class: the images that are used for it, and their targets (1, -1)."""

    K: Array  # of all images
    kept: Array
    target: Array
    weight: str | float | None  # on the cost of positives

    @classmethod
    def from_labels(
        cls, K: Array, column: Array, difficult: str, weight: str | float | None
    ) -> _OneVsRest:
        kept = np.arange(len(column))
        if difficult == "ignore":
            kept = np.flatnonzero(column != 0)
        return cls(K, kept, np.where(column[kept] == 1, 1, -1), weight)

    @property
    def fewest(self) -> int:
        """Examples on the smaller side."""
        positives = int(np.count_nonzero(self.target == 1))
        return min(positives, len(self.target) - positives)

    def split(self, folds: Folds, column: int) -> Iterator[tuple[Array, Array]]:
        """Yield positions to train on and to hold out, per fold; none if not measurable."""
        if not folds.measurable[column]:
            return
        number = folds.number[self.kept]
        for fold in range(folds.count):
            held = np.flatnonzero(number == fold)
            train = np.flatnonzero(number != fold)
            if len(held) and len(np.unique(self.target[train])) == 2:
                yield train, held

    def validate(self, train: Array, held: Array, costs: Sequence[float]) -> _Fold:
        fits = self.fit(train, costs)
        across = self.K[np.ix_(self.kept[held], self.kept[train])]
        return held, np.array([across @ dual + bias for dual, bias in fits])

    def ap(self, fold: _Fold) -> list[float]:
        """Return the AP of one fold at every cost; NaN without a positive."""
        held, scores = fold
        if not (self.target[held] == 1).any():
            # groups of several classes need not be spread evenly
            return [np.nan] * len(scores)
        target = self.target[held]
        return [average_precision(target, at_cost, "sklearn") for at_cost in scores]

    def pooled_ap(self, folds: Sequence[_Fold], best: int) -> float:
        """Return the AP of all images, each scored by a classifier trained without its fold."""
        held = np.concatenate([rows for rows, _ in folds])
        scores = np.concatenate([at_costs[best] for _, at_costs in folds])
        return average_precision(self.target[held], scores, "area")

    def train(self, cost: float) -> tuple[Array, float]:
        """Return dual coefficients of all n images and the bias; zero without a classifier."""
        dual = np.zeros(len(self.K))
        bias = 0.0
        if self.fewest:
            ((dual[self.kept], bias),) = self.fit(np.arange(len(self.kept)), [cost])
        return dual, bias

    def fit(self, rows: Array, costs: Sequence[float]) -> list[tuple[Array, float]]:
        """Return dual coefficients of these images and the bias, at every cost."""
        from sklearn import config_context
        from sklearn.svm import SVC

        images = self.kept[rows]
        K = self.K
        if len(images) < len(K):
            K = K[np.ix_(images, images)]
        classes: Any = self.weight
        if isinstance(self.weight, Real):
            classes = {1: float(self.weight), -1: 1.0}
        fits = []
        for cost in costs:
            svm = SVC(
                C=cost, kernel="precomputed", cache_size=500, class_weight=classes
            )
            # K was checked once; scikit-learn would check it again for every classifier
            with config_context(assume_finite=True):
                svm.fit(K, self.target[rows])
            dual = np.zeros(len(K))
            dual[svm.support_] = svm.dual_coef_[0]
            fits.append((dual, float(svm.intercept_[0])))
        return fits

    def calibration(
        self, folds: Sequence[_Fold], best: int, training_scores: Array
    ) -> tuple[float, float]:
        """Return slope and offset, from scores of images that were held out.

        A class of too few groups for folds has only the scores of its training images; without a
        classifier, only its frequency.
        """
        if not self.fewest:
            positives = np.count_nonzero(self.target == 1)
            negatives = len(self.target) - positives
            return 0.0, float(np.log((positives + 1) / (negatives + 1)))
        scores = training_scores.copy()
        for held, at_costs in folds:
            scores[held] = at_costs[best]
        return platt(scores, self.target)


def choose_costs(ap: Array, search: CostSearch) -> Array:
    """Return the number of each class's cost: the one with the best AP, the lowest of equals."""
    measured = ~np.isnan(ap[:, 0])
    if len(search.costs) == 1:
        return np.zeros(len(ap), dtype=int)
    chosen = np.full(len(ap), search.costs.index(DEFAULT_COST))
    if search.shared and measured.any():
        chosen[:] = ap[measured].mean(axis=0).argmax()
    else:
        chosen[measured] = ap[measured].argmax(axis=1)
    return chosen


def platt(scores: Array, target: Array) -> tuple[float, float]:
    """Slope and offset of the sigmoid that turns scores (n,) into probabilities of target 1.

    Maximum likelihood with Platt's smoothed targets, (p + 1) / (p + 2) for p positives and
    1 / (q + 2) for q negatives; the slope is never negative, so the order of the scores stays.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    positive = target == 1
    p, q = np.count_nonzero(positive), np.count_nonzero(~positive)
    wanted = np.where(positive, (p + 1) / (p + 2), 1 / (q + 2))
    centre, spread = scores.mean(), scores.std() or 1.0
    f = (scores - centre) / spread  # of unit size, so that one tolerance suits all

    def loss(parameters: Array) -> tuple[float, Array]:
        z = parameters[0] * f + parameters[1]
        error = expit(z) - wanted
        value = (np.logaddexp(0, z) - wanted * z).mean()
        return float(value), np.array([(error * f).mean(), error.mean()])

    start = np.array([0.0, np.log((p + 1) / (q + 1))])
    bounds = [(0.0, None), (None, None)]
    options = {"ftol": 1e-14, "gtol": 1e-9, "maxiter": 1000}
    result = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    slope = result.x[0] / spread
    return float(slope), float(result.x[1] - slope * centre)
