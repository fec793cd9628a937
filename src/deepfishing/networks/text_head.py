"""A classifier made of words on top of an image tower: names of classes become the columns of W.

    x = e / |e|,    y = s <x, t_c>,    e the image's embedding, t_c of unit length that of a class,

so that layer 8 is a fully connected layer like any other: y8 and x8 are the zero-shot scores and
probabilities, dW8 is the gradient with respect to the texts. A bias that a library adds to all
scores alike changes none of them and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepfishing.core.features import TOP
from deepfishing.core.rank_one import Array
from deepfishing.networks.network import Network
from deepfishing.networks.texts import hash_with_texts, load_text_tower, pack


class TextHead(nn.Module):
    """An image tower and scores of classes: images to (n, C)."""

    def __init__(
        self, tower: nn.Module, pick: Callable[[Any], Tensor], W: Array
    ) -> None:
        super().__init__()
        self.tower = tower
        self.pick = pick
        count, width = W.shape
        self.texts = nn.Linear(width, count, bias=False)
        self.texts.weight = nn.Parameter(
            torch.from_numpy(np.array(W)), requires_grad=False
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the scores of images (n, 3, S, S)."""
        embedding = self.pick(self.tower(pixels))
        x = embedding / embedding.norm(dim=1, keepdim=True)
        scores: Tensor = self.texts(x)
        return scores


def add_text_head(
    network: Network, classes: Sequence[str], prompts: Sequence[str]
) -> Network:
    """Return a network whose classifier is made of these texts, one for each class."""
    tower = load_text_tower(network.reference())
    W = (tower.scale * tower.encode(prompts)).astype(np.float32)
    return with_weights(network, classes, W)


def with_weights(network: Network, classes: Sequence[str], W: Array) -> Network:
    """Return a network with scores of classes, by their texts' embeddings (C, d) times a scale."""
    pick = network.pick or (lambda output: output)
    head = TextHead(network.module, pick, W).eval()
    head.texts.to(network.device, network.dtype)
    layers = {k: f"tower.{path}" for k, path in network.layers.items() if k != TOP}
    return replace(
        network,
        module=head,
        layers={**layers, TOP: "texts"},
        weights_sha256=hash_with_texts(network.weights_sha256, W),
        head="softmax",
        pick=None,
        prefix_tokens=network.prefix_tokens,
        notes=(
            f"the classifier is made of {len(classes)} texts; x7 is {network.embedding}",
        ),
        embedding="",
        source=replace(network.source, classes=tuple(classes), text_head=pack(W)),
    )
