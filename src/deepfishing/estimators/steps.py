"""Steps of a pipeline between images and a classifier.

Features are `RankOne` or arrays; `Power` and `Whiten` change them as the recipes `pow` and `whiten`
do, and `Project` makes vectors for any other estimator. scikit-learn checks arrays. For other
features `fit` records width and kind, and `transform` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from deepfishing.core.features import parse_feature, parse_features
from deepfishing.core.kernels import Combination, Comparable, arrays_of, leaves
from deepfishing.core.projections import fit_projection
from deepfishing.core.rank_one import Array, RankOne
from deepfishing.core.recipes.recipe import Recipe, apply, leaf
from deepfishing.errors import FeatureError, ImageError
from deepfishing.extraction.options import BatchSize, parse_batch_size
from deepfishing.images.preprocess import ImageLike, find_views
from deepfishing.networks.objectives import Label, check_objective
from deepfishing.networks.zoo import DEFAULT

if TYPE_CHECKING:  # the rest of the estimators work where torch is not installed
    from deepfishing.networks.network import Network

FLOATS = [np.float64, np.float32]

Rows = Array | RankOne


class GradientFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Describe images by a network's gradients, or by the output of one of its layers.

    Nothing is learnt from the images: `fit` loads the network, `network_`. To try many classifiers,
    transform once and search over the result, or give the pipeline a `memory`.

    Parameters
    ----------
    network : str or Network
        A name as for `load_network`, or a loaded network; clones share it.
    feature : str
        One feature: `dW8`, `x7`, `x6;x7`, `dW7@exact`, `dW7@64x32`, `dW:PATH`.
    tau, label, batch_size, views
        As of `extract`.

    Examples
    --------
    >>> import numpy as np
    >>> images = [np.full((300, 400, 3), grey, dtype=np.uint8) for grey in (0, 255)]
    >>> GradientFeatures(feature="dW8").fit_transform(images).shape
    (2, 1280, 1000)
    """

    def __init__(
        self,
        network: str | Network = DEFAULT,
        feature: str = "dW8",
        tau: float = 2.0,
        label: Label = "uniform",
        batch_size: BatchSize = "auto",
        views: str = "centre",
    ) -> None:
        self.network = network
        self.feature = feature
        self.tau = tau
        self.label = label
        self.batch_size = batch_size
        self.views = views

    def fit(self, images: Any, y: Any = None) -> Self:
        """Check the parameters and load the network; the images are not used."""
        from deepfishing.networks.load import as_network  # torch takes seconds to load

        check_objective(self.tau, self.label)
        parse_batch_size(self.batch_size)
        find_views(self.views)
        self.network_ = as_network(self.network)
        features = parse_features(self.feature, self.network_.layers)
        if len(features) != 1:
            raise FeatureError(
                f"GradientFeatures makes one feature, got {len(features)} in {self.feature!r}; "
                "use `extract` for several from one pass"
            )
        self.feature_ = features[0].name
        self._width: int | None = None  # of a forward feature, computed at first use
        return self

    def transform(self, images: Iterable[ImageLike]) -> Array | RankOne:
        """Return the feature of each image; one that cannot be read raises `ImageError`."""
        # torch takes seconds to load
        from deepfishing.extraction.extract import extract

        check_is_fitted(self)
        if isinstance(images, str | Path):
            raise ImageError(
                f"images must be a list of images, got the single path {images}"
            )
        features = extract(
            self.network_,
            images,
            self.feature_,
            tau=self.tau,
            label=self.label,
            views=self.views,
            batch_size=self.batch_size,
        )
        return features[self.feature_]  # type: ignore[return-value]  # one feature, not a sum

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return names of a forward feature's columns, `x7_0`..., for `set_output`."""
        # torch takes seconds to load
        from deepfishing.extraction.extract import extract

        check_is_fitted(self)
        if self._width is None:  # measured on one grey pixel
            grey = [np.zeros((1, 1, 3), dtype=np.uint8)]
            features = extract(self.network_, grey, self.feature_, engine="torch")
            feature = features[self.feature_]
            if isinstance(feature, RankOne):
                raise FeatureError(
                    f"{self.feature_} is a gradient and has no columns; put "
                    "deepfishing.estimators.Project behind it, which has"
                )
            self._width = feature.shape[1]
        names = [f"{self.feature_}_{i}" for i in range(self._width)]
        return np.array(names, dtype=object)

    def __sklearn_clone__(self) -> Self:
        # a network is frozen, so clones share it instead of copying its weights for each fold
        return type(self)(**self.get_params(deep=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.no_validation = True
        tags.requires_fit = True
        return tags


def check_features(estimator: Any, X: Any, reset: bool) -> Comparable:
    """Refuse features that an estimator cannot use; in `fit` (`reset`), remember their form.

    Sets `n_features_in_`, for a gradient the d * D numbers that it would have if it were built,
    and `form_`: kind and widths.
    """
    combined = isinstance(X, RankOne | Combination)
    form = "an array"
    if combined:
        form = _form(X)
    if not reset and estimator.form_ != form:
        raise FeatureError(
            f"{type(estimator).__name__} was fitted on {estimator.form_}, got {form}; "
            "give it the same feature"
        )
    if not combined:
        X = validate_data(estimator, X, dtype=FLOATS, reset=reset)
    elif not len(X):
        raise FeatureError(
            f"{type(estimator).__name__} needs at least one image, got none"
        )
    elif not all(np.isfinite(values).all() for values in arrays_of(X)):
        raise FeatureError("features must be finite, got NaN or infinity")
    if reset:
        estimator.form_ = form
        if combined:
            widths = [math.prod(leaf.shape[1:]) for leaf in leaves(X)]
            estimator.n_features_in_ = sum(widths)
    checked: Comparable = X
    return checked


def _form(X: Comparable) -> str:
    if isinstance(X, Combination):
        return f"{type(X).__name__} of {' and '.join(map(_form, X.parts))}"
    widths = ", ".join(map(str, X.shape[1:]))
    if isinstance(X, RankOne):
        return f"RankOne (n, {widths})"
    return f"array (n, {widths})"


class _OneFeature(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    _dtypes: tuple[str, ...] = ("float64", "float32")  # which `transform` preserves

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
    """A function of recipes with one parameter, a number; its input are features."""

    _function: str

    def fit(self, X: Rows, y: Any = None) -> Self:
        """Fit the recipe to the features of the training images."""
        X = self._check(X, reset=True)
        self.state_ = self._recipe(X).fit(_factors(X)).state
        return self

    def transform(self, X: Rows) -> Rows:
        """Return the changed features, every image of norm 1."""
        check_is_fitted(self)
        X = self._check(X, reset=False)
        changed = self._recipe(X).load(self.state_)(_factors(X))
        return changed  # type: ignore[return-value]  # one feature in, so one feature out

    def _recipe(self, X: Rows) -> Recipe:
        (number,) = self.get_params().values()
        name = "x7"
        if isinstance(X, RankOne):
            name = "dW8"
        feature = parse_feature(name)
        return apply(self._function, leaf(feature), number)


def _factors(X: Rows) -> dict[str, Array]:
    if isinstance(X, RankOne):
        return {"x7": X.x, "delta8": X.delta}
    return {"x7": X}


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
            raise FeatureError(
                "Whiten needs at least 2 images to see their spread, got 1 sample"
            )
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
        "principal", "tensor-sketch" or "two-sided", see `fit_projection`.
    random_state : int, RandomState or None
        None draws another projection in every `fit`.

    Examples
    --------
    >>> gradients = RankOne(x=np.ones((4, 100)), delta=np.ones((4, 50)))
    >>> Project(64, kind="two-sided").fit_transform(gradients).shape
    (4, 64)
    """

    _dtypes = ("float32",)

    def __init__(
        self, m: int = 8192, kind: str = "principal", random_state: Any = 0
    ) -> None:
        self.m = m
        self.kind = kind
        self.random_state = random_state

    def fit(self, X: Rows, y: Any = None) -> Self:
        """Fit the projection; "principal" depends on the training images."""
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
    return (
        X if isinstance(X, RankOne) else RankOne(X, np.ones((len(X), 1), dtype=X.dtype))
    )
