"""Stage 2, networks: timm's and torchvision's models by name, an optional extra.

Comes in: `timm` or `torchvision` and a model's name. Goes out: a `Network` with the preprocessing
of the model's own configuration and its layers discovered. Both packages are imported only here.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from deepfishing.errors import (
    MissingDependencyError,
    NetworkError,
    WeightsError,
    did_you_mean,
    one_line,
    pip_install,
)
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.network import Network, cast, torch_target
from deepfishing.networks.reference import FILES, PUBLISHED, RANDOM, WEIGHTS, NetworkFile, Source
from deepfishing.networks.weights import load_into, read_weights
from deepfishing.networks.wrap import state_sha256, wrap

_OPERATORS: list[Any] = []  # torch forgets operators whose library object is collected


def load_hub(
    hub: str, model: str, weights: str | Path | None, device: str | torch.device, dtype: str
) -> Network:
    """A model of timm or torchvision with its published weights, a file's, or random ones."""
    place, torch_dtype = torch_target(device, dtype)
    torch.manual_seed(0)  # for random weights
    module, preprocess = HUBS[hub](model, pretrained=weights is None)
    if weights is not None and weights != RANDOM:
        load_into(module, read_weights(weights), f"{weights} for {hub}:{model}")
    module.load_state_dict(cast(module.state_dict(), torch_dtype), assign=True)
    wrapped = wrap(module.to(place), preprocess=preprocess, name=f"{hub}:{model}")
    if weights is None or weights == RANDOM:
        source = Source(kind=PUBLISHED if weights is None else RANDOM)
    else:
        source = Source(kind=FILES, files={WEIGHTS: NetworkFile.of(weights)})
    # the model's name stands for its code
    return replace(wrapped, weights_sha256=state_sha256(module), source=source)


def import_hub(package: str) -> ModuleType:
    """Import torchvision or timm, also beside a torch build that torchvision was not made for.

    torchvision's Python code registers kernels for operators of its compiled part. Where that
    part does not load, the operators are declared first; models and transforms do not use them.
    """
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingDependencyError(
            f"networks of {package} need the package {package}; run "
            f"`{pip_install(extra='hub')}`, or `{pip_install(package)}` with the version that fits "
            "your torch"
        ) from None
    except RuntimeError as error:
        if _OPERATORS or "torchvision::" not in str(error):
            raise NetworkError(f"{package} cannot be imported: {error}") from None
    _OPERATORS.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        _OPERATORS[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return import_hub(package)


def _timm(model: str, pretrained: bool) -> tuple[nn.Module, Preprocess]:
    timm = import_hub("timm")
    base = model.partition(".")[0]  # `vit_tiny_patch16_224.augreg` names weights, too
    if not timm.is_model(base):
        raise _unknown("timm", model, timm.list_models())
    module = _create(f"timm:{model}", lambda: timm.create_model(model, pretrained=pretrained))
    config = timm.data.resolve_model_data_config(module)
    size = config["input_size"][-1]
    short_side = round(size / config["crop_pct"])
    kind = config["interpolation"]
    return module, _preprocess(size, short_side, config["mean"], config["std"], kind)


def _torchvision(model: str, pretrained: bool) -> tuple[nn.Module, Preprocess]:
    models = import_hub("torchvision").models
    known = models.list_models(module=models)
    if model not in known:
        raise _unknown("torchvision", model, known)
    weights = models.get_model_weights(model).DEFAULT
    used = weights if pretrained else None
    module = _create(f"torchvision:{model}", lambda: models.get_model(model, weights=used))
    config = weights.transforms()
    (size, *_), (short_side, *_) = config.crop_size, config.resize_size
    kind = config.interpolation.value
    return module, _preprocess(size, short_side, config.mean, config.std, kind)


HUBS = {"timm": _timm, "torchvision": _torchvision}


def _create(name: str, create: Any) -> nn.Module:
    try:
        module: nn.Module = create()
    except (OSError, RuntimeError, ValueError) as error:  # no connection, no such weights
        raise WeightsError(
            f"{name} cannot be made with its published weights ({one_line(error)}); give --weights "
            "FILE, or --weights random"
        ) from None
    return module


def _preprocess(size: int, short: int, mean: Any, std: Any, interpolation: str) -> Preprocess:
    return Preprocess(
        size=int(size),
        short_side=int(short),
        mean=tuple(mean),
        std=tuple(std),
        scale=1 / 255,
        resample="bicubic" if interpolation == "bicubic" else "bilinear",
    )


def _unknown(hub: str, model: str, known: list[str]) -> NetworkError:
    return NetworkError(
        f"{hub} must know the model, got {model!r}{did_you_mean(model, known)}; it has "
        f"{len(known)} models, see its documentation"
    )
