"""Models of timm: preprocessing, class names and embedding by their own configuration."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from deepfishing.errors import NetworkError, WeightsError, did_you_mean
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.libraries.connection import reason_of
from deepfishing.networks.libraries.facts import ModelFacts
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.libraries.pixels import check_pixels

# by timm's crop_mode
FITS = {"center": "short", "squash": "squash", "border": "border"}
IMAGENET_CLASSES = 1000
FOLDER = "local-dir:"  # before the path of a folder

# names of torch.hub, as papers and code of others have them: those of timm
TORCH_HUB = {
    f"dinov2_vit{letter}14{suffix}": f"vit_{size}_patch14{registers}_dinov2"
    for letter, size in {"s": "small", "b": "base", "l": "large", "g": "giant"}.items()
    for suffix, registers in {"": "", "_reg": "_reg4"}.items()
}


def source_name(model: str) -> str:
    """What timm calls a model: a folder, or a name, that of torch.hub in its own words."""
    if Path(model).is_dir():
        return f"{FOLDER}{model}"
    return TORCH_HUB.get(model, model)


def load(model: str, pretrained: bool, num_classes: int | None = None) -> nn.Module:
    """Make a model by its name, with published or random weights."""
    timm = import_package("timm")
    model = source_name(model)
    architecture = model.partition(".")[0]  # a dot and the name of weights may follow
    is_elsewhere = model.startswith(("hf-hub:", "hf_hub:", FOLDER))
    if not is_elsewhere and not timm.is_model(architecture):
        known = timm.list_models()
        raise NetworkError(
            f"timm must know the model, got {model!r}{did_you_mean(model, known)}; it has "
            f"{len(known)} models, see its documentation"
        )
    options = {} if num_classes is None else {"num_classes": num_classes}
    try:
        module: nn.Module = timm.create_model(model, pretrained=pretrained, **options)
    except OSError as error:
        published = timm.get_pretrained_cfg(model, allow_unregistered=True)
        where = getattr(published, "hf_hub_id", "")
        file = f"model.safetensors of huggingface.co/{where}" if where else "its file"
        raise WeightsError(
            f"timm:{model} cannot be made with its published weights ({reason_of(error)}); connect "
            f"once to fill the cache, or get {file} elsewhere and give --weights FILE"
        ) from None
    return module


def convert(module: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Weights as the authors of a model published them, as timm's code for the model takes them."""
    if set(tensors) <= set(module.state_dict()):
        return tensors
    package = sys.modules[type(module).__module__]
    change = getattr(package, "checkpoint_filter_fn", None)
    if change is None:
        return tensors
    try:
        changed: dict[str, Tensor] = dict(change(dict(tensors), module))
    except (KeyError, RuntimeError, ValueError, AttributeError, TypeError, IndexError):
        return tensors  # of another model
    return (
        changed
        if all(isinstance(value, Tensor) for value in changed.values())
        else tensors
    )


def describe(module: nn.Module) -> ModelFacts:
    """Read preprocessing, classes and embedding from a model's configuration."""
    timm = import_package("timm")
    config = getattr(module, "pretrained_cfg", None)
    classes = getattr(module, "num_classes", None)
    if not config or classes is None:
        return ModelFacts()
    settings = timm.data.resolve_model_data_config(module)
    embeds = classes == 0
    return ModelFacts(
        preprocess=_preprocess(settings, type(module).__name__),
        embeds=embeds,
        prefix_tokens=int(getattr(module, "num_prefix_tokens", 0) or 0),
        embedding=_embedding(module) if embeds else "",
        classes=_class_names(timm) if classes == IMAGENET_CLASSES else (),
    )


def default_tag(module: nn.Module) -> str:
    """Return the name of the published weights whose pixels a model takes."""
    config: Any = getattr(module, "pretrained_cfg", None) or {}
    return str(config.get("tag") or "")


def _preprocess(settings: Mapping[str, Any], name: str) -> Preprocess:
    """Timm's evaluation transform as a `Preprocess`, compared with it."""
    high, wide = settings["input_size"][-2:]
    mode = settings.get("crop_mode") or "center"
    if high != wide or mode not in FITS:
        raise NetworkError(
            f"{name} of timm must take squares, cropped in the centre, squashed or with a border, "
            f"got {wide} x {high} and {mode}; this one cannot be used"
        )
    red, green, blue = (round(255 * value) for value in settings["mean"])
    preprocess = Preprocess(
        size=high,
        short_side=math.floor(high / settings["crop_pct"]),  # as timm rounds
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        scale=1 / 255,
        resample=settings["interpolation"],
        oversampling=0,
        fit=FITS[mode],
        rounding="torchvision",
        fill=(red, green, blue) if mode == "border" else (0, 0, 0),
    )
    create_transform = import_package("timm").data.create_transform
    check_pixels(preprocess, create_transform(**settings, is_training=False), name)
    return preprocess


def _embedding(module: nn.Module) -> str:
    """What the output of a model without a classifier is."""
    pooled = str(getattr(module, "global_pool", "") or "")
    if pooled == "token" and hasattr(module, "head_dist"):
        return "the mean of class and distillation token, which timm's own heads would take"
    if pooled == "token":
        return "the class token after the last norm, which timm's own head would take"
    if pooled == "map":
        return "the attention-pooled tokens, which timm's own head would take"
    if getattr(module, "num_prefix_tokens", None) is not None and pooled:
        return f"the patch tokens, pooled by {pooled}, which timm's own head would take"
    return "the pooled output, which timm's own head would take"


def _class_names(timm: Any) -> tuple[str, ...]:
    info = timm.data.ImageNetInfo()
    names = [info.index_to_description(number) for number in range(IMAGENET_CLASSES)]
    return tuple(name.partition(",")[0] for name in names)
