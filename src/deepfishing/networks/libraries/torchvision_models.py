"""Models of torchvision: preprocessing and class names by their published weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from deepfishing.errors import NetworkError, did_you_mean
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.libraries.facts import ModelFacts
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.libraries.pixels import check_pixels


def load(model: str, pretrained: bool, num_classes: int | None = None) -> nn.Module:
    """Make a model by its name, with published or random weights."""
    models = import_package("torchvision").models
    published = _published(model)
    options: dict[str, Any] = (
        {} if num_classes is None else {"num_classes": num_classes}
    )
    weights = published if pretrained else None
    module: nn.Module = models.get_model(model, weights=weights, **options)
    return module


def describe_model(model: str, classes: int | None) -> ModelFacts:
    """Read preprocessing and class names from the published weights of a model's name."""
    published = _published(model)
    names = tuple(published.meta["categories"])
    return ModelFacts(
        preprocess=_preprocess(published.transforms(), model),
        embeds=False,
        classes=names if classes in (None, len(names)) else (),
    )


def _published(model: str) -> Any:
    models = import_package("torchvision").models
    known = models.list_models(module=models)
    if model not in known:
        raise NetworkError(
            f"torchvision must know the model, got {model!r}{did_you_mean(model, known)}; it has "
            f"{len(known)} models, see its documentation"
        )
    return models.get_model_weights(model).DEFAULT


def _preprocess(transform: Any, name: str) -> Preprocess:
    """The transform of published weights as a `Preprocess`, compared with it."""
    (size, *_), (short_side, *_) = transform.crop_size, transform.resize_size
    preprocess = Preprocess(
        size=int(size),
        short_side=int(short_side),
        mean=tuple(transform.mean),
        std=tuple(transform.std),
        scale=1 / 255,
        resample=transform.interpolation.value,
        oversampling=0,
        rounding="torchvision",
    )
    check_pixels(preprocess, transform, name)
    return preprocess
