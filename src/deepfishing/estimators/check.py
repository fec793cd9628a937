"""Stage 5, estimators: what the estimators ask of their input.

Comes in: a plain array, a `RankOne` or a combination of them, as a user gave it. Goes out: the
same, safe to compute with. Arrays are left to scikit-learn, which says in its own words what is
wrong with them; for the others, width and kind are remembered in `fit` and compared afterwards.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from deepfishing.errors import FeatureError
from deepfishing.kernels import Combination, Comparable, arrays_of, leaves
from deepfishing.rank_one import RankOne

FLOATS = [np.float64, np.float32]


def check_features(estimator: Any, X: Any, reset: bool) -> Comparable:
    """Refuse features that an estimator cannot use; in `fit` (`reset`), remember their form.

    Sets `n_features_in_`, for a gradient the d * D numbers that it would have if it were built,
    and `form_`: kind and widths.
    """
    combined = isinstance(X, RankOne | Combination)
    form = _form(X) if combined else "an array"
    if not reset and estimator.form_ != form:
        raise FeatureError(
            f"{type(estimator).__name__} was fitted on {estimator.form_}, got {form}; "
            "give it the same feature"
        )
    if not combined:
        X = validate_data(estimator, X, dtype=FLOATS, reset=reset)
    elif not len(X):
        raise FeatureError(f"{type(estimator).__name__} needs at least one image, got none")
    elif not all(np.isfinite(values).all() for values in arrays_of(X)):
        raise FeatureError("features must be finite, got NaN or infinity")
    if reset:
        estimator.form_ = form
        if combined:
            estimator.n_features_in_ = sum(math.prod(leaf.shape[1:]) for leaf in leaves(X))
    checked: Comparable = X
    return checked


def _form(X: Comparable) -> str:
    if isinstance(X, Combination):
        return f"{type(X).__name__} of {' and '.join(map(_form, X.parts))}"
    kind = "RankOne" if isinstance(X, RankOne) else "array"
    return f"{kind} (n, {', '.join(map(str, X.shape[1:]))})"
