"""Models of transformers: from the hub's cache, the hub, or a folder; never remote code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from deepfishing.errors import NetworkError, WeightsError, one_line
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.libraries.facts import EncodeTexts, ModelFacts
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.libraries.pixels import check_pixels

CLASSIFIER = "ForImageClassification"  # how the names of classes with a classifier end
# pixels; smaller images are cropped, as its processor does
CONVNEXT_SQUASHES_FROM = 384


def load(model: str, pretrained: bool, num_classes: int | None = None) -> nn.Module:
    """Load the image part of a model by its hub name or from a folder.

    `num_classes` is that of the configuration and cannot be changed.
    """
    return image_tower(load_both(model, pretrained))


def load_both(model: str, pretrained: bool) -> nn.Module:
    """Load a model with all its towers."""
    transformers = import_package("transformers")
    transformers.utils.logging.disable_progress_bar()  # we have our own
    try:
        config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=False)
        names = getattr(config, "architectures", None) or [""]
        is_classifier = str(names[0]).endswith(CLASSIFIER)
        kind = "AutoModelForImageClassification" if is_classifier else "AutoModel"
        factory = getattr(transformers, kind)
        if pretrained:
            module: nn.Module = factory.from_pretrained(model, trust_remote_code=False)
        else:
            module = factory.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise WeightsError(_advice(model, error)) from None
    settings: Any = module.config
    settings.name_or_path = model  # where its processor is
    return module


def _advice(model: str, error: Exception) -> str:
    """Which file is missing, and where it is put."""
    files = "config.json, preprocessor_config.json and model.safetensors"
    if Path(model).is_dir():
        lacking = [
            name
            for name in ("config.json", "model.safetensors")
            if not _has(model, name)
        ]
        if lacking:
            return f"hf:{model} must hold {files}, but lacks {' and '.join(lacking)}; put it there"
    return (
        f"hf:{model} cannot be loaded ({one_line(error)[:200]}); check the name, connect once to "
        f"fill the cache, or put {files} into a folder and give hf:FOLDER"
    )


def _has(folder: str, name: str) -> bool:
    stem = name.partition(".")[0]
    return any(Path(folder).glob(f"{stem}*"))


def image_tower(module: nn.Module) -> nn.Module:
    """The part of a model that takes images: of an image-text model, its image tower."""
    vision = getattr(module, "vision_model", None)
    if vision is None or not hasattr(module, "text_model"):
        return module
    return ImageTower(vision, getattr(module, "visual_projection", None), module.config)


def text_encoder(module: nn.Module, model: str) -> EncodeTexts | None:
    """Return what makes embeddings (n, d) of texts; None for a model without a text tower."""
    if not isinstance(image_tower(module), ImageTower):
        return None
    transformers = import_package("transformers")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            model, trust_remote_code=False
        )
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        ImportError,
        TypeError,
    ) as error:
        raise WeightsError(
            f"hf:{model} needs the files of its tokenizer to read words, tokenizer.json and "
            f"tokenizer_config.json ({one_line(error)[:120]}); put them beside config.json"
        ) from None
    whole: Any = module
    length = int(whole.config.text_config.max_position_embeddings)
    # SigLIP was trained on texts that are filled up to one length
    padding = "max_length" if whole.config.model_type.startswith("siglip") else True

    def encode(texts: Sequence[str]) -> Tensor:
        tokens = tokenizer(
            list(texts),
            padding=padding,
            max_length=length,
            truncation=True,
            return_tensors="pt",
        )
        known = {name: tokens[name] for name in tokens if name != "token_type_ids"}
        output = whole.get_text_features(**known)
        features: Tensor = getattr(output, "pooler_output", output)
        return features

    return encode


class ImageTower(nn.Module):
    """Image tower and projection of CLIP, SigLIP and the like: pixels to an embedding (n, d)."""

    def __init__(
        self, vision: nn.Module, projection: nn.Module | None, config: Any
    ) -> None:
        super().__init__()
        self.vision_model = vision
        self.visual_projection = projection if projection is not None else nn.Identity()
        self.config = config

    def forward(self, pixels: Tensor) -> Tensor:
        """Return what `get_image_features` of the whole model gives."""
        pooled = self.vision_model(pixel_values=pixels).pooler_output
        embedding: Tensor = self.visual_projection(pooled)
        return embedding


def describe(module: nn.Module) -> ModelFacts:
    """Read preprocessing, classes and embedding from a model's configuration and folder."""
    config: Any = module.config
    is_classifier = type(module).__name__.endswith(CLASSIFIER)
    part, tokens, embedding = _scores() if is_classifier else _embedding(module)
    return ModelFacts(
        preprocess=_find_preprocess(str(getattr(config, "name_or_path", "") or "")),
        part=part,
        embeds=not is_classifier,
        tokens=tokens,
        prefix_tokens=_prefix_tokens(module),
        embedding=embedding,
        classes=_class_names(config) if is_classifier else (),
        reads_texts=isinstance(module, ImageTower),
        config=config.to_json_string(),
    )


def _scores() -> tuple[str | None, str, str]:
    """Part of the output of a model with a classifier."""
    return "logits", "", ""


def _embedding(module: nn.Module) -> tuple[str | None, str, str]:
    """Part, tokens and description of the embedding of a model without a classifier."""
    if isinstance(module, ImageTower):
        projected = not isinstance(module.visual_projection, nn.Identity)
        what = "image projection" if projected else "pooled output of the image tower"
        return None, "", f"the {what}, which is compared with texts"
    if "image_embeds" in _output_names(module):
        return "image_embeds", "", "image_embeds, the image projection"
    if hasattr(getattr(module, "pooler", None), "dense"):
        why = "the class token after the last norm; the pooler has its own layer and is left out"
        return "last_hidden_state", "class", why
    return "pooler_output", "", "pooler_output, which the network's own head would take"


def _output_names(module: nn.Module) -> tuple[str, ...]:
    return ("image_embeds",) if type(module).__name__.endswith("WithProjection") else ()


def _prefix_tokens(module: nn.Module) -> int:
    """Tokens before those of the patches: class, distillation and register tokens."""
    names = [name.rpartition(".")[2] for name, _ in module.named_parameters()]
    if "cls_token" not in names and "class_embedding" not in names:
        return 0
    registers = int(getattr(module.config, "num_register_tokens", 0) or 0)
    return 1 + ("distillation_token" in names) + registers


def _class_names(config: Any) -> tuple[str, ...]:
    names = getattr(config, "id2label", None) or {}
    found = tuple(str(names[number]) for number in sorted(names))
    invented = tuple(f"LABEL_{number}" for number in range(len(found)))
    return () if found == invented else found


def _find_preprocess(folder: str) -> Preprocess | None:
    """Preprocessing of the processor that belongs to a model; None where there is none."""
    if not folder:
        return None
    transformers = import_package("transformers")
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(
            folder, backend="pil", trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise WeightsError(
            f"hf:{folder} needs preprocessor_config.json, which says how it wants its pixels "
            f"({one_line(error)[:120]}); put it beside config.json"
        ) from None
    return read_processor(processor)


def read_processor(processor: Any) -> Preprocess:
    """Read an image processor of transformers into a `Preprocess`, and compare the pixels."""
    name = type(processor).__name__
    if not processor.do_resize or getattr(processor, "do_pad", False):
        raise NetworkError(
            f"{name} must resize images and not pad them, got do_resize {processor.do_resize}; "
            "give wrap(module, preprocess=Preprocess(...))"
        )
    size = dict(processor.size)
    crop = (
        dict(processor.crop_size or {})
        if getattr(processor, "do_center_crop", False)
        else {}
    )
    fit, side, square = _geometry(
        size, crop, getattr(processor, "crop_pct", None), name
    )
    scale = float(processor.rescale_factor) if processor.do_rescale else 1.0
    normalises = bool(processor.do_normalize)
    preprocess = Preprocess(
        size=square,
        short_side=side,
        mean=_three(processor.image_mean) if normalises else (0.0, 0.0, 0.0),
        std=_three(processor.image_std) if normalises else (1.0, 1.0, 1.0),
        scale=scale,
        resample=_resample(processor.resample),
        oversampling=0,
        fit=fit,
        rounding="transformers",
    )

    def reference(image: Image.Image) -> Any:
        return np.asarray(processor(images=image)["pixel_values"][0])

    check_pixels(preprocess, reference, name)
    return preprocess


def _geometry(
    size: Mapping[str, Any],
    crop: Mapping[str, Any],
    crop_share: float | None,
    name: str,
) -> tuple[str, int, int]:
    """How an image is fitted, the side that it is resized to, and the side of the square."""
    shortest, high, wide = (
        size.get("shortest_edge"),
        size.get("height"),
        size.get("width"),
    )
    cropped = crop.get("height") if crop.get("height") == crop.get("width") else None
    if crop_share and shortest:
        if shortest >= CONVNEXT_SQUASHES_FROM:
            return "squash", int(shortest), int(shortest)
        return "short", int(shortest / crop_share), int(shortest)
    if shortest and cropped and not size.get("longest_edge"):
        return "short", int(shortest), int(cropped)
    if high and high == wide:
        return "squash", int(high), int(cropped or high)
    raise NetworkError(
        f"{name} must make squares, got size {dict(size)} and crop {dict(crop) or 'none'}; give "
        "wrap(module, preprocess=Preprocess(...))"
    )


def _resample(number: Any) -> str:
    return Image.Resampling(int(number)).name.lower()


def _three(values: Any) -> tuple[float, float, float]:
    if isinstance(values, int | float):
        return (float(values),) * 3
    red, green, blue = (float(value) for value in values)
    return red, green, blue
