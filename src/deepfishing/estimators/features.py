"""Stage 5, estimators: the step that takes images.

Comes in: a list of paths, PIL images or arrays. Goes out: their gradients as `RankOne`, or a
forward feature as an array (n, d).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from deepfishing.errors import FeatureError, ImageError
from deepfishing.features import parse_features
from deepfishing.images.preprocess import ImageLike, find_views
from deepfishing.networks.zoo import DEFAULT
from deepfishing.objectives import Label, check_objective
from deepfishing.options import BatchSize, parse_batch_size
from deepfishing.rank_one import Array, RankOne

if TYPE_CHECKING:  # the rest of the estimators work where torch is not installed
    from deepfishing.networks.network import Network


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
        """Check the parameters and load the network; the images are not looked at."""
        from deepfishing.networks.load import load_network

        check_objective(self.tau, self.label)
        parse_batch_size(self.batch_size)
        find_views(self.views)
        network = self.network
        self.network_ = load_network(network) if isinstance(network, str) else network
        features = parse_features(self.feature, self.network_.layers)
        if len(features) != 1:
            raise FeatureError(
                f"GradientFeatures makes one feature, got {len(features)} in {self.feature!r}; "
                "use `extract` for several from one pass"
            )
        self.feature_ = features[0].name
        return self

    def transform(self, images: Iterable[ImageLike]) -> Array | RankOne:
        """The feature of each image; one that cannot be read raises `ImageError`."""
        from deepfishing.gradients.extract import extract

        check_is_fitted(self)
        if isinstance(images, str | Path):
            raise ImageError(f"images must be a list of images, got the single path {images}")
        found = extract(
            self.network_,
            list(images),
            self.feature_,
            tau=self.tau,
            label=self.label,
            views=self.views,
            batch_size=self.batch_size,
        )
        return found[self.feature_]  # type: ignore[return-value]  # one feature, not a sum

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the numbers of a forward feature, `x7_0`...; what `set_output` calls columns."""
        from deepfishing.gradients.extract import extract

        check_is_fitted(self)
        if not hasattr(self, "_width"):  # one grey pixel tells it
            grey = [np.zeros((1, 1, 3), dtype=np.uint8)]
            found = extract(self.network_, grey, self.feature_, engine="torch")[self.feature_]
            if isinstance(found, RankOne):
                raise FeatureError(
                    f"{self.feature_} is a gradient and has no columns; put "
                    "deepfishing.estimators.Project behind it, which has"
                )
            self._width = found.shape[1]
        return np.array([f"{self.feature_}_{i}" for i in range(self._width)], dtype=object)

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
