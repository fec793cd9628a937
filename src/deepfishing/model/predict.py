"""Stage 6, models: from raw images to probabilities.

Comes in: a model and images. Goes out: scores and probabilities per image and class, batch by
batch, so memory does not depend on how many images there are. The network must be the very one
that the model was trained with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepfishing.errors import WeightsError
from deepfishing.gradients.batch_size import BatchSize
from deepfishing.gradients.extract import extract_factors
from deepfishing.gradients.to_store import store_settings
from deepfishing.images.preprocess import ImageLike
from deepfishing.model.model import Model
from deepfishing.networks.load import load_network
from deepfishing.networks.network import Network
from deepfishing.networks.zoo import RECORDS
from deepfishing.rank_one import Array


@dataclass(frozen=True, eq=False)
class Prediction:
    """One image: its number among the images, and scores and probabilities (C,) or the reason.

    `error` says why an image cannot be used; scores and probabilities are then empty.
    """

    index: int
    scores: Array
    probabilities: Array
    error: str | None = None


def load_model_network(
    model: Model, weights: str | Path | None = None, device: str = "cpu"
) -> Network:
    """The network that a model was trained with; `weights` if its file is elsewhere now."""
    source = model.source
    name, file = source.network, weights or source.weights
    if str(file).endswith(".caffemodel") and name not in RECORDS:
        name, file = str(file), None  # a Caffe file is a network by itself
    network = load_network(
        name,
        file,
        device,
        model.settings["compute_dtype"],
        source.prototxt,
        source.mean,
    )
    check_network(model, network)
    return network


def check_network(model: Model, network: Network) -> None:
    """Refuse a network that would give other factors than the model was trained on."""
    settings = store_settings(network, model.settings["tau"], model.settings["label"])
    for name in ("weights_sha256", "layers", "preprocess", "compute_dtype"):
        if settings[name] != model.settings[name]:
            raise WeightsError(
                f"the model needs {model.settings['network']} with {name} = "
                f"{model.settings[name]}, got {network.name} with {settings[name]}; "
                "pass --weights with the file that it was trained with"
            )


def predict(
    model: Model,
    network: Network,
    images: Sequence[ImageLike],
    batch_size: BatchSize = "auto",
) -> Iterator[Prediction]:
    """Classify images; an unreadable one is reported in its place, not raised.

    Parameters
    ----------
    model : Model
        From `Model.load` or `train_model`.
    network : Network
        From `load_model_network`.
    images : sequence of paths, items, PIL images or uint8 arrays
    batch_size : int or "auto"
        Images per pass; the result does not depend on it.

    Yields
    ------
    Prediction
        In the order of the images.
    """
    check_network(model, network)
    tau, label, views = (model.settings[name] for name in ("tau", "label", "views"))
    none = np.empty(0)
    for batch in extract_factors(
        network, images, model.factors, tau, label, batch_size, views=views
    ):
        found = [Prediction(i, none, none, reason) for i, reason in batch.failures.items()]
        if batch.indices:
            scores = model.scores(batch.factors)
            probabilities = model.svm.calibrate(scores)
            for row, index in enumerate(batch.indices):
                if np.isfinite(scores[row]).all():
                    found.append(Prediction(index, scores[row], probabilities[row]))
                else:
                    reason = f"features are not finite: {images[index]}"
                    found.append(Prediction(index, none, none, reason))
        yield from sorted(found, key=lambda one: one.index)
