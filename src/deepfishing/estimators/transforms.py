"""Stage 5, estimators: the steps between features and classifier.

Comes in: gradients as `RankOne`, or arrays (n, d). Goes out: `RankOne` or arrays again, changed as
the recipes `pow` and `whiten` change them, or vectors that any estimator of scikit-learn takes.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from deepfishing.errors import FeatureError
from deepfishing.estimators.check import check_features
from deepfishing.features import parse_feature
from deepfishing.projections import fit_projection
from deepfishing.rank_one import Array, RankOne
from deepfishing.recipes.recipe import Recipe, apply, leaf

Rows = Array | RankOne


class _OneFeature(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    _dtypes: tuple[str, ...] = ("float64", "float32")  # that come out as they came in

    def _check(self, X: Any, reset: bool) -> Rows:
        X = check_features(self, X, reset)
        if not isinstance(X, RankOne | np.ndarray):
            raise FeatureError(
                f"{type(self).__name__} takes one feature, got {type(X).__name__}; "
                "transform its parts instead"
            )
        return X

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = list(self._dtypes)
        return tags


class _RecipeStep(OneToOneFeatureMixin, _OneFeature):  # type: ignore[misc]
    """A function of recipes, whose number is the one parameter; what comes in are its features."""

    _function: str

    def fit(self, X: Rows, y: Any = None) -> Self:
        """Learn what there is to learn from the features of the training images."""
        X = self._check(X, reset=True)
        self.state_ = self._recipe(X).fit(_factors(X)).state
        return self

    def transform(self, X: Rows) -> Rows:
        """The changed features, every image of norm 1."""
        check_is_fitted(self)
        X = self._check(X, reset=False)
        changed = self._recipe(X).load(self.state_)(_factors(X))
        return changed  # type: ignore[return-value]  # one feature in, so one feature out

    def _recipe(self, X: Rows) -> Recipe:
        (number,) = self.get_params().values()
        feature = parse_feature("dW8" if isinstance(X, RankOne) else "x7")
        return apply(self._function, leaf(feature), number)


def _factors(X: Rows) -> dict[str, Array]:
    return {"x7": X.x, "delta8": X.delta} if isinstance(X, RankOne) else {"x7": X}


class Power(_RecipeStep):
    """Signed power of both factors, sign(v) |v|^p, normalised again: the recipe `pow`.

    Parameters
    ----------
    exponent : float
        Above 0 and up to 4; 0.5 is the signed square root.

    Examples
    --------
    >>> Power().fit_transform([[-16.0, 9.0]])
    array([[-0.8,  0.6]])
    """

    _function = "pow"

    def __init__(self, exponent: float = 0.5) -> None:
        self.exponent = exponent


class Whiten(_RecipeStep):
    """Both factors in units of their spread on the training images: the recipe `whiten`.

    On gradients the trace kernel becomes the Fisher kernel, docs/recipes.md. `state_` has the roots
    of the second moments.

    Parameters
    ----------
    shrinkage : float, optional
        Above 0 and up to 1; Ledoit and Wolf's, one for each factor, unless given.

    Examples
    --------
    >>> Whiten(shrinkage=1e-6).fit_transform([[10.0, 0.1], [10.0, -0.1]]).round(2)
    array([[ 0.71,  0.71],
           [ 0.71, -0.71]])
    """

    _function = "whiten"

    def __init__(self, shrinkage: float | None = None) -> None:
        self.shrinkage = shrinkage

    def fit(self, X: Rows, y: Any = None) -> Self:
        """Estimate the second moments."""
        if len(self._check(X, reset=True)) < 2:
            raise FeatureError("Whiten needs at least 2 images to see their spread, got 1 sample")
        return super().fit(X)


class Project(ClassNamePrefixFeaturesOutMixin, _OneFeature):  # type: ignore[misc]
    """Gradients as vectors, whose dot products approximate the trace kernel.

    For linear classifiers, nearest neighbours and everything else in scikit-learn that takes
    arrays. An array (n, d) is projected as well: with delta = 1 the trace kernel is the linear one.

    Parameters
    ----------
    m : int
        Numbers per image, at most.
    kind : str
        "two-sided", "orthogonal", "principal", "product", "tensor-sketch" or "nystroem", see
        `fit_projection`.
    random_state : int, RandomState or None
        None draws another projection in every `fit`.

    Examples
    --------
    >>> gradients = RankOne(x=np.ones((4, 100)), delta=np.ones((4, 50)))
    >>> Project(64).fit_transform(gradients).shape
    (4, 64)
    """

    _dtypes = ("float32",)

    def __init__(self, m: int = 8192, kind: str = "orthogonal", random_state: Any = 0) -> None:
        self.m = m
        self.kind = kind
        self.random_state = random_state

    def fit(self, X: Rows, y: Any = None) -> Self:
        """Draw the projection; "principal" and "nystroem" look at the training images."""
        gradients = _as_gradients(self._check(X, reset=True))
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        self.projection_ = fit_projection(self.kind, gradients, self.m, int(seed))
        self._n_features_out = self.projection_.shape[0]
        return self

    def transform(self, X: Rows) -> Array:
        """Vectors (n, m) in single precision."""
        check_is_fitted(self)
        return self.projection_(_as_gradients(self._check(X, reset=False)))


def _as_gradients(X: Rows) -> RankOne:
    return X if isinstance(X, RankOne) else RankOne(X, np.ones((len(X), 1), dtype=X.dtype))
