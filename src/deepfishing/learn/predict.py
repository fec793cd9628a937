"""Scores and probabilities of images, batch by batch.

Memory does not depend on the number of images. The network must be the one that the model was
trained with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deepfishing.core.rank_one import Array
from deepfishing.extraction.batches import zero_gradients
from deepfishing.extraction.encoder import (
    MAX_IMAGES_WITHOUT_TORCH,
    Encode,
    Notice,
    make_encoder,
)
from deepfishing.extraction.options import Resources
from deepfishing.images.preprocess import ImageLike

if TYPE_CHECKING:
    from deepfishing.learn.model import Model
    from deepfishing.networks.network import Network


@dataclass(frozen=True, eq=False)
class Prediction:
    """One image: its scores and probabilities (C,)."""

    index: int  # its number among the images
    scores: Array
    probabilities: Array
    # why it cannot be used; then scores and probabilities are empty
    error: str | None = None
    # gradients of such images are all alike, so the classes do not depend on the image
    has_zero_gradient: bool = False


def predict(
    model: Model,
    images: Sequence[ImageLike],
    *,
    network: Network | None = None,
    weights: str | Path | None = None,
    resources: Resources | None = None,
    notice: Notice | None = None,
) -> Iterator[Prediction]:
    """Classify images in their order; an unreadable one is reported in its place, not raised.

    Without the network of the training the model's settings load it, with `weights` if its file is
    elsewhere now, or for a few images take what an earlier run has kept of it, see `make_encoder`.
    `notice` is called with a line before the network is prepared, which takes a few seconds.
    """
    settings = model.settings
    resources = resources or Resources()

    def load() -> Network:
        return settings.load_network(device=resources.device, weights=weights)

    encode: Encode
    if network is None and len(images) <= MAX_IMAGES_WITHOUT_TORCH:
        encode = make_encoder(
            settings,
            model.factors,
            load,
            resources=resources,
            weights=weights,
            notice=notice,
        )
    else:
        # torch takes seconds to load
        from deepfishing.extraction.extract import Extractor
        from deepfishing.networks.load import check_same

        if network is not None:
            check_same(settings.network, network)
        if network is None:
            if notice is not None:
                notice(f"loading {settings.network.name}")
            network = load()
        encode = Extractor(
            network, model.factors, settings=settings, resources=resources
        )
    for batch in encode(images):
        predictions = []
        for index, reason in batch.failures.items():
            predictions.append(_failed(index, reason))
        if batch.indices:
            scores = model.scores(batch.factors)
            probabilities = model.svm.calibrate(scores)
            zero = zero_gradients(batch.factors)
            for row, index in enumerate(batch.indices):
                if not np.isfinite(scores[row]).all():
                    reason = f"features are not finite: {images[index]}"
                    predictions.append(_failed(index, reason))
                    continue
                prediction = Prediction(
                    index,
                    scores[row],
                    probabilities[row],
                    has_zero_gradient=bool(zero[row]),
                )
                predictions.append(prediction)
        yield from sorted(predictions, key=lambda prediction: prediction.index)


def _failed(index: int, reason: str) -> Prediction:
    """Return the prediction of an image that cannot be used."""
    return Prediction(index, np.empty(0), np.empty(0), reason)
