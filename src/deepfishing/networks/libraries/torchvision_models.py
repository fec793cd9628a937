"""Models of torchvision: preprocessing and class names by their published weights."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepfishing.errors import NetworkError, WeightsError, did_you_mean, one_line
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.libraries.facts import ModelFacts
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.libraries.pixels import check_pixels


def load(model: str, pretrained: bool, num_classes: int | None = None) -> nn.Module:
    """Make a model by NAME or NAME/TAG, with published or random weights."""
    models = import_package("torchvision").models
    published = _published(model)
    options: dict[str, Any] = (
        {} if num_classes is None else {"num_classes": num_classes}
    )
    weights = published if pretrained else None
    name = model.partition("/")[0]
    if name.startswith("vit_"):  # whose positions are those of one size
        options["image_size"] = published.transforms().crop_size[0]
    try:
        with redirect_stdout(sys.stderr):  # of what it says while it downloads
            module: nn.Module = models.get_model(name, weights=weights, **options)
    except OSError as error:
        folder = Path(torch.hub.get_dir(), "checkpoints")
        raise WeightsError(
            f"torchvision:{model} cannot be made with its published weights ({one_line(error)}); "
            f"put {published.url} into {folder}, or give --weights FILE"
        ) from None
    return module


def describe_model(model: str, classes: int | None) -> ModelFacts:
    """Read preprocessing and class names from the published weights of a model."""
    published = _published(model)
    names = tuple(published.meta["categories"])
    return ModelFacts(
        preprocess=_preprocess(published.transforms(), model),
        embeds=False,
        classes=names if classes in (None, len(names)) else (),
    )


def find_tag(model: str, sha256: str) -> str:
    """Return NAME/TAG of the published weights that a file has, by its checksum; else ''.

    The names of torchvision's files have the first eight digits of their checksum.
    """
    name = model.partition("/")[0]
    for weights in type(_published(model)):
        if f"-{sha256[:8]}." in weights.url:
            return f"{name}/{weights.name}"
    return ""


def default_tag(model: str) -> str:
    """Return the name of the published weights whose pixels a model takes."""
    return str(_published(model).name)


def _published(model: str) -> Any:
    """Return the published weights of NAME/TAG, or the default ones of NAME."""
    models = import_package("torchvision").models
    known = models.list_models(module=models)
    name, _, tag = model.partition("/")
    if name not in known:
        raise NetworkError(
            f"torchvision must know the model, got {name!r}{did_you_mean(name, known)}; it has "
            f"{len(known)} models, see its documentation"
        )
    weights = models.get_model_weights(name)
    if not tag:
        return weights.DEFAULT
    if tag not in weights.__members__:
        raise NetworkError(
            f"torchvision:{name} must have weights of this name, got {tag!r}; it has "
            f"{', '.join(weights.__members__)}"
        )
    return weights[tag]


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
