"""Models of transformers: from the hub's cache, the hub, or a folder; never remote code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from deepfishing.errors import NetworkError, WeightsError, one_line
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.discover import run_blank
from deepfishing.networks.libraries.connection import reason_of
from deepfishing.networks.libraries.facts import EncodeTexts, ModelFacts
from deepfishing.networks.libraries.packages import import_package
from deepfishing.networks.libraries.pixels import check_pixels

CLASSIFIER = "ForImageClassification"  # in the names of classes with a classifier
PROJECTION = "WithProjection"  # how the names of image towers with a projection end
TIMM = "timm_wrapper"  # the type of a model of timm in a folder of transformers
UNUSED = ("pooler.dense.",)  # of a pooler that is left out of x7
# pixels; smaller images are cropped, as its processor does
CONVNEXT_SQUASHES_FROM = 384

Three = tuple[float, float, float]


def load(model: str, pretrained: bool, num_classes: int | None = None) -> nn.Module:
    """Load the image part of a model by its hub name or from a folder.

    `num_classes` is that of the configuration and cannot be changed.
    """
    return image_tower(load_both(model, pretrained))


def load_both(model: str, pretrained: bool) -> nn.Module:
    """Load a model with all its towers."""
    transformers = import_package("transformers")
    transformers.utils.logging.disable_progress_bar()  # we have our own
    transformers.utils.logging.set_verbosity_error()  # missing weights are refused below
    missing: Collection[str] = ()
    try:
        config = read_config(model)
        factory = _factory(config)
        if pretrained:
            module, report = factory.from_pretrained(
                model, config=config, trust_remote_code=False, output_loading_info=True
            )
            missing = report["missing_keys"]
        else:
            module = _random_model(factory, config)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise WeightsError(_advice(model, error)) from None
    lacking = sorted(name for name in missing if not name.startswith(UNUSED))
    if lacking:
        raise WeightsError(
            f"hf:{model} must have all weights of {type(module).__name__}, but lacks "
            f"{len(lacking)} of them, such as {lacking[0]}; get its files again"
        )
    settings: Any = module.config
    settings.name_or_path = model  # where its processor is
    made: nn.Module = module
    return made


def read_config(model: str) -> Any:
    """Read the configuration of a model by its hub name or from a folder."""
    transformers = import_package("transformers")
    config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=False)
    if hasattr(config, "mask_ratio"):
        config.mask_ratio = 0.0  # a masked autoencoder would hide patches at random
    return config


def is_of_timm(model: str) -> bool:
    """Whether a model is one of timm, whose publisher put it where transformers finds it."""
    try:
        return bool(read_config(model).model_type == TIMM)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError):
        return False  # `load_both` explains it


def _factory(config: Any) -> Any:
    """Return the class that makes a model: the one that its publisher names, where it matters."""
    transformers = import_package("transformers")
    name = str((getattr(config, "architectures", None) or [""])[0])
    is_special = CLASSIFIER in name or name.endswith(PROJECTION)
    if is_special and hasattr(transformers, name):
        return getattr(transformers, name)
    if CLASSIFIER in name:
        return transformers.AutoModelForImageClassification
    return transformers.AutoModel


def _random_model(factory: Any, config: Any) -> Any:
    """Make a model with random weights."""
    if hasattr(factory, "from_config"):  # one of the automatic classes
        return factory.from_config(config, trust_remote_code=False)
    return factory._from_config(config)


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
        f"hf:{model} cannot be loaded ({reason_of(error)}); check the name, connect once to "
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
    is_classifier = CLASSIFIER in type(module).__name__
    preprocess = _find_preprocess(str(getattr(config, "name_or_path", "") or ""))
    output = _SCORES if is_classifier else _embedding(module, preprocess)
    return ModelFacts(
        preprocess=preprocess,
        part=output.part,
        embeds=not is_classifier,
        tokens=output.tokens,
        prefix_tokens=_prefix_tokens(module),
        embedding=output.about,
        classes=_class_names(config) if is_classifier else (),
        reads_texts=isinstance(module, ImageTower),
        config=config.to_json_string(),
    )


@dataclass(frozen=True)
class _Output:
    """Part of a model's output, which of its tokens are taken, and what that is."""

    part: str | None
    tokens: str = ""
    about: str = ""


_SCORES = _Output("logits")
_CLASS_TOKEN = _Output(
    "last_hidden_state",
    "class",
    "the class token after the last norm; the pooler has its own layer and is left out",
)


def _embedding(module: nn.Module, preprocess: Preprocess | None) -> _Output:
    """Return what the embedding of a model without a classifier is."""
    if isinstance(module, ImageTower):
        projected = not isinstance(module.visual_projection, nn.Identity)
        what = "image projection" if projected else "pooled output of the image tower"
        return _Output(None, about=f"the {what}, which is compared with texts")
    if type(module).__name__.endswith(PROJECTION):
        return _Output("image_embeds", about="image_embeds, the image projection")
    if hasattr(getattr(module, "pooler", None), "dense"):
        return _CLASS_TOKEN
    if preprocess is not None:
        output = run_blank(module, preprocess)
        if output.get("pooler_output") is None:
            return _without_pooler(module, output.get("last_hidden_state"))
    about = "pooler_output, which the network's own head would take"
    return _Output("pooler_output", about=about)


def _without_pooler(module: nn.Module, state: Tensor | None) -> _Output:
    """Return what the embedding is where only the last layer's output is given."""
    part, why = "last_hidden_state", "since the model has no pooler"
    if state is not None and state.ndim == 4:
        return _Output(part, about=f"the mean of the feature map {part}, {why}")
    if _prefix_tokens(module):
        return _Output(part, "class", f"the class token of {part}, {why}")
    return _Output(part, "patches", f"the mean of the patch tokens of {part}, {why}")


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
    if not getattr(processor, "size", None):
        raise NetworkError(
            f"{name} must resize images to one size, but it keeps theirs; take a model of a fixed "
            "size, or give wrap(module, preprocess=Preprocess(...))"
        )
    if not processor.do_resize or getattr(processor, "do_pad", False):
        raise NetworkError(
            f"{name} must resize images and not pad them, got do_resize {processor.do_resize}; "
            "give wrap(module, preprocess=Preprocess(...))"
        )
    size, crop = _target_size(processor), _crop_size(processor)
    crop_share = getattr(processor, "crop_pct", None)
    fit, side, square = _geometry(size, crop, crop_share, name)
    mean, std = _normalisation(processor)
    preprocess = Preprocess(
        size=square,
        short_side=side,
        mean=mean,
        std=std,
        scale=float(processor.rescale_factor) if processor.do_rescale else 1.0,
        order="BGR" if getattr(processor, "do_flip_channel_order", False) else "RGB",
        resample=_resample(processor.resample),
        oversampling=0,
        fit=fit,
        rounding="transformers",
    )

    def reference(image: Image.Image) -> Any:
        return np.asarray(processor(images=image)["pixel_values"][0])

    check_pixels(preprocess, reference, name)
    return preprocess


def _target_size(processor: Any) -> dict[str, Any]:
    """Return the size that images are resized to."""
    size = dict(processor.size)
    if type(processor).__name__.startswith("Levit") and size.get("shortest_edge"):
        size["shortest_edge"] = int(size["shortest_edge"] * 256 / 224)  # as it does
    return size


def _crop_size(processor: Any) -> dict[str, Any]:
    """Return the size that images are cropped to; nothing if they are not."""
    if not getattr(processor, "do_center_crop", False):
        return {}
    return dict(processor.crop_size or {})


def _normalisation(processor: Any) -> tuple[Three, Three]:
    """Return mean and deviation, in the order of the channels that the network takes."""
    mean, std = np.zeros(3), np.ones(3)
    if processor.do_normalize:
        mean = np.array(_three(processor.image_mean))
        std = np.array(_three(processor.image_std))
    # two settings of EfficientNet: values from -1, and a second division
    if getattr(processor, "rescale_offset", False):
        mean = mean + 1
    if getattr(processor, "include_top", False):
        std = std * np.array(_three(processor.image_std))
    return _three(mean), _three(std)


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


def _three(values: Any) -> Three:
    if isinstance(values, int | float):
        return (float(values),) * 3
    red, green, blue = (float(value) for value in values)
    return red, green, blue
