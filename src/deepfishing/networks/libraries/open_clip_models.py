"""Models of open_clip: `NAME/TAG` of its published weights, or a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from deepfishing.errors import NetworkError, WeightsError, did_you_mean, one_line
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.libraries.connection import reason_of, without_log
from deepfishing.networks.libraries.facts import EncodeTexts, ModelFacts
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.libraries.pixels import check_pixels

FITS = {"shortest": "short", "squash": "squash", "longest": "border"}


def load(model: str, pretrained: bool, num_classes: int | None = None) -> nn.Module:
    """Load the image tower of a model by NAME/TAG or from a folder."""
    return image_tower(load_both(model, pretrained))


def load_both(model: str, pretrained: bool) -> nn.Module:
    """Load image and text tower of a model."""
    name, tag = source_name(model)
    open_clip = import_package("open_clip")
    known = open_clip.list_models()
    if not name.startswith("local-dir:") and name not in known:
        raise NetworkError(
            f"open_clip must know the model, got {name!r}{did_you_mean(name, known)}; it has "
            f"{len(known)} models, see open_clip.list_pretrained()"
        )
    if pretrained and not tag and not name.startswith("local-dir:"):
        tags = open_clip.list_pretrained_tags_by_model(name) or [
            "none that are published"
        ]
        raise NetworkError(
            f"open_clip:{name} must name its weights as in open_clip:{name}/TAG, got none; it has "
            f"{', '.join(tags)}"
        )
    try:
        with without_log():
            module: nn.Module = open_clip.create_model(
                name,
                pretrained=tag if pretrained else None,
                load_weights=pretrained,
                pretrained_text=False,
                weights_only=True,
            )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        published = open_clip.get_pretrained_cfg(name, tag).get("hf_hub", "")
        where = f" of huggingface.co/{published.strip('/')}" if published else ""
        raise WeightsError(
            f"open_clip:{model} cannot be loaded ({reason_of(error)}); connect once to fill the "
            f"cache, or put open_clip_config.json and open_clip_model.safetensors{where} into a "
            "folder and give open_clip:FOLDER"
        ) from None
    return module


def source_name(model: str) -> tuple[str, str]:
    """What open_clip calls a model, and the tag of its weights; a folder has no tag."""
    if Path(model).is_dir():
        config = Path(model) / "open_clip_config.json"
        if not config.is_file():
            raise WeightsError(
                f"open_clip:{model} must hold open_clip_config.json; put it there"
            )
        return f"local-dir:{model}", ""
    name, _, tag = model.partition("/")
    return name, tag


def image_tower(module: nn.Module) -> nn.Module:
    """The part of a model that takes images."""
    visual = getattr(module, "visual", None)
    return visual if isinstance(visual, nn.Module) else module


def text_encoder(module: nn.Module, model: str) -> EncodeTexts | None:
    """Return what makes embeddings (n, d) of texts."""
    open_clip = import_package("open_clip")
    name, _ = source_name(model)
    try:
        tokenizer = open_clip.get_tokenizer(name)
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        ImportError,
        TypeError,
    ) as error:
        raise WeightsError(
            f"open_clip:{model} needs the files of its tokenizer to read words "
            f"({one_line(error)[:120]}); connect once to fill the cache"
        ) from None
    whole: Any = module

    def encode(texts: Sequence[str]) -> Tensor:
        features: Tensor = whole.encode_text(tokenizer(list(texts)))
        return features

    return encode


def describe(module: nn.Module) -> ModelFacts:
    """Read preprocessing and embedding from an image tower."""
    settings = getattr(module, "preprocess_cfg", None)
    has_token = any(
        name.endswith("class_embedding") for name, _ in module.named_parameters()
    )
    return ModelFacts(
        preprocess=_preprocess(settings, type(module).__name__) if settings else None,
        embeds=True,
        # with CoCa's tokens of the picture behind it
        part=0 if getattr(module, "output_tokens", False) else None,
        reads_texts=True,
        prefix_tokens=int(has_token),
        embedding="the image projection, which is compared with texts",
        config=json.dumps(settings, sort_keys=True, default=list) + str(module),
    )


def _preprocess(settings: Any, name: str) -> Preprocess:
    """The evaluation transform as a `Preprocess`, compared with it."""
    size = settings["size"]
    high, wide = (size, size) if isinstance(size, int) else size
    if high != wide:
        raise NetworkError(
            f"{name} of open_clip must take squares, got {wide} x {high}"
        )
    fill = int(settings.get("fill_color") or 0)
    preprocess = Preprocess(
        size=int(high),
        short_side=int(high),
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        scale=1 / 255,
        resample="bilinear" if settings["interpolation"] == "bilinear" else "bicubic",
        oversampling=0,
        fit=FITS[settings["resize_mode"]],
        rounding="torchvision",
        fill=(fill, fill, fill),
    )
    transforms = import_package("open_clip.transform")
    config = transforms.PreprocessCfg(**settings)
    check_pixels(
        preprocess, transforms.image_transform_v2(config, is_train=False), name
    )
    return preprocess
