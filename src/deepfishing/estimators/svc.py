"""Classifier at the end of a pipeline.

It takes gradients as `RankOne` (trace kernel), arrays (linear kernel) or a combination of them, and
labels in any form that scikit-learn accepts.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from deepfishing.core.kernels import Comparable
from deepfishing.core.rank_one import Array
from deepfishing.errors import FeatureError
from deepfishing.estimators.steps import check_features
from deepfishing.learn.svm import train_svm


class TraceKernelSVC(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """One-vs-rest support vector machines on the trace kernel.

    Parameters
    ----------
    C : float, "cv", "cv-shared" or "vissl"
        Cost; the paper's is 1. The words choose it by cross-validation on one Gram matrix, which is
        cheaper than a grid search, see `train_svm`.
    class_weight : None, "balanced" or float
        Factor on the cost of positives; balanced gives both sides the same total.
    calibrated : bool
        Also fit probabilities, for `predict_proba`.
    n_jobs : int, optional
        Threads over the classes; as everywhere in scikit-learn, one by default, and
        -1 for all cores.

    Attributes
    ----------
    classes_ : ndarray
        The labels seen in `fit`; for an indicator matrix, the numbers of its columns.
    svm_ : KernelSVM
        What was trained: one column for two classes, else one per class.

    Examples
    --------
    >>> from deepfishing.core.rank_one import RankOne
    >>> gradients = RankOne(x=[[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]], delta=[[1.0]] * 3)
    >>> svc = TraceKernelSVC().fit(gradients[:2], ["cat", "dog"])
    >>> svc.predict(gradients[2:])
    array(['cat'], dtype='<U3')
    """

    def __init__(
        self,
        C: float | str = 1.0,
        class_weight: str | float | None = None,
        calibrated: bool = False,
        n_jobs: int | None = None,
    ) -> None:
        self.C = C
        self.class_weight = class_weight
        self.calibrated = calibrated
        self.n_jobs = n_jobs

    def fit(self, X: Comparable, y: Any, groups: Any = None) -> Self:
        """Train on one Gram matrix of normalised features of n images.

        `y` is a class per image, or for several labels per image an indicator matrix (n, n_labels)
        of 0 and 1. `groups` (n,) are images that belong together, such as copies of one photo, of
        `deepfishing.core.groups.similar_groups`: the folds by which cost and probabilities are
        found never split a group.
        """
        if y is None:
            raise FeatureError(
                "TraceKernelSVC requires y to be passed, but the target y is None; give the labels"
            )
        X = check_features(self, X, reset=True)
        is_present = self._read_targets(y)
        check_consistent_length(X, is_present)
        labels = np.where(is_present, 1, -1).astype(np.int8)
        svm = train_svm(
            X,
            labels,
            C=self.C,
            n_jobs=effective_n_jobs(self.n_jobs),
            class_weight=self.class_weight,
            calibrated=self.calibrated,
            groups=groups,
        )
        # a label that every image has, or none, is not trained: all that is known is its sign
        self.svm_ = replace(svm, bias=np.where(svm.trained, svm.bias, labels[0]))
        return self

    def _read_targets(self, y: Any) -> Array:
        """Set `classes_` and return the label of each image: (n, 1) for two classes."""
        y = check_array(y, ensure_2d=False, dtype=None, input_name="y")
        check_classification_targets(y)
        several = type_of_target(y) == "multilabel-indicator"
        if several and not np.isin(y, (0, 1)).all():
            raise FeatureError(
                f"an indicator matrix must hold 0 and 1, got {np.unique(y).tolist()}; "
                "pass (labels > 0).astype(int)"
            )
        y = y if several else column_or_1d(y, warn=True)
        self._binarizer = LabelBinarizer().fit(y)
        self.classes_ = self._binarizer.classes_
        if not several and len(self.classes_) < 2:
            raise FeatureError(
                f"y must hold at least two classes, got one class: {y[:1].tolist()}"
            )
        return np.asarray(self._binarizer.transform(y) == 1)

    def decision_function(self, X: Comparable) -> Array:
        """Scores (n, n_classes); for two classes (n,), above 0 for `classes_[1]`."""
        check_is_fitted(self)
        scores = self.svm_.decision_function(check_features(self, X, reset=False))
        return scores[:, 0] if self._binarizer.y_type_ == "binary" else scores

    def predict(self, X: Comparable) -> Array:
        """Return the class of each image (n,), or the indicator matrix (n, n_labels) of 0 and 1."""
        scores = self.decision_function(X)
        return np.asarray(self._binarizer.inverse_transform(scores, threshold=0))

    @available_if(attrgetter("calibrated"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Comparable) -> Array:
        """Probabilities (n, n_classes), with `calibrated`.

        Of the classes of an image they add up to 1; of several labels each is on its own.
        """
        check_is_fitted(self)
        present = self.svm_.probabilities(check_features(self, X, reset=False))
        if self._binarizer.y_type_ == "binary":
            return np.hstack([1 - present, present])
        if self._binarizer.y_type_ == "multilabel-indicator":
            return present
        # an image far from all has 0 for each
        present = np.maximum(present, np.finfo(float).tiny)
        return np.asarray(present / present.sum(axis=1, keepdims=True))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
