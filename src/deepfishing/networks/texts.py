"""Text towers: embeddings of words that are compared with those of images.

CLIP, SigLIP and the like have two towers, one for images and one for texts, whose embeddings of
unit length are compared by their dot product. A store has embeddings by the image tower;
`load_text_tower` loads the other one of the same model.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.errors import NetworkError, StoreError, WeightsError, reraise_as
from deepfishing.networks.libraries import open_clip_models, transformers_models
from deepfishing.networks.libraries.connection import hub_or_cache
from deepfishing.networks.libraries.facts import EncodeTexts
from deepfishing.networks.network import weights_hash
from deepfishing.networks.reference import RANDOM, NetworkRef

LIBRARIES: Mapping[str, ModuleType] = {
    "hf": transformers_models,
    "open_clip": open_clip_models,
}
# of the embeddings of texts that are kept among the settings of a store
MAX_BYTES = 32 * 2**20
DEFAULT_SCALE = 100.0  # of cosines before a softmax, that of CLIP


@dataclass(frozen=True, eq=False)
class TextTower:
    """Makes embeddings of texts.

    Parameters
    ----------
    encoder : callable
        Makes embeddings (n, d) of texts, as the library does.
    scale, bias : float
        By which the library makes scores of cosines: scale * cosine + bias.
    """

    encoder: EncodeTexts
    scale: float = DEFAULT_SCALE
    bias: float = 0.0

    def encode(self, texts: Sequence[str]) -> Array:
        """Return embeddings (n, d) of unit length."""
        with torch.inference_mode():
            vectors = self.encoder(texts).float().cpu().numpy()
        return l2_normalize(vectors)


def load_text_tower(reference: NetworkRef) -> TextTower:
    """Load the text tower that belongs to a network, on the CPU in float32.

    It is loaded together with the image tower, whose weights must be those of the reference.
    """
    library, _, model = reference.name.partition(":")
    if library not in LIBRARIES:
        raise no_text_tower(reference.name)
    package = LIBRARIES[library]
    published = reference.source.kind != RANDOM
    with (
        reraise_as(
            WeightsError, f"the text tower of {reference.name} cannot be loaded"
        ),
        torch.random.fork_rng(devices=()),
        nullcontext() if Path(model).is_dir() else hub_or_cache(),
    ):
        torch.manual_seed(0)  # as for the image tower, see `load_network`
        both = package.load_both(model, published).eval()
        encoder = package.text_encoder(both, model)
    if encoder is None:
        raise no_text_tower(reference.name)
    tower = package.image_tower(both)
    facts = package.describe(tower)
    image_tower = tower.to(getattr(torch, reference.dtype))
    sha256 = weights_hash(image_tower, facts)
    if reference.source.text_head:
        sha256 = hash_with_texts(sha256, unpack(reference.source.text_head))
    if sha256 != reference.weights_sha256:
        raise WeightsError(
            f"the text tower of {reference.name} must belong to the images' weights "
            f"{reference.weights_sha256[:12]}, but it comes with others; extract the features again"
        )
    return TextTower(encoder, _scale(both), _bias(both))


def no_text_tower(name: str) -> NetworkError:
    """Say that a network cannot read words, and which ones can."""
    return NetworkError(
        f"words need a network with a text tower, such as CLIP or SigLIP by hf:ORG/NAME or "
        f"open_clip:NAME/TAG, but this store was made with {name}; search with a photo"
    )


def _scale(module: nn.Module) -> float:
    scale: Any = getattr(module, "logit_scale", None)
    return DEFAULT_SCALE if scale is None else float(scale.detach().float().exp())


def _bias(module: nn.Module) -> float:
    bias: Any = getattr(module, "logit_bias", None)
    return 0.0 if bias is None else float(bias.detach().float())


def pack(W: Array) -> str:
    """Numbers (C, d) as text."""
    rows = "x".join(map(str, W.shape))
    return f"{rows}:{base64.b64encode(W.astype('<f4').tobytes()).decode()}"


def unpack(text: str) -> Array:
    """Numbers (C, d) that `pack` wrote."""
    try:
        shape, _, numbers = text.partition(":")
        rows, columns = (int(side) for side in shape.split("x"))
        content = base64.b64decode(numbers, validate=True)
        W = np.frombuffer(content, dtype="<f4").reshape(rows, columns)
        if not np.isfinite(W).all() or len(content) > MAX_BYTES:
            raise ValueError("not finite")
    except ValueError:
        raise StoreError(
            "the texts of a classifier in the settings are damaged; make the store again"
        ) from None
    return W


def hash_with_texts(weights_sha256: str, W: Array) -> str:
    """Hash of an image tower's weights and of the texts above it."""
    return hashlib.sha256(
        weights_sha256.encode() + W.astype("<f4").tobytes()
    ).hexdigest()
