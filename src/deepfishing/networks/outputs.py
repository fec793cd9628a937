"""Choice of a part of a module's output: class scores, or an embedding.

A module may return a tensor, a dict, a tuple or an object such as those of transformers. `Pick`
takes one part of it and brings an embedding into the form (n, d): a feature map is averaged over
its positions, and of tokens the class token or a mean is taken, whichever was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from deepfishing.errors import LayerError
from deepfishing.networks.identity import identity
from deepfishing.networks.reference import UNIDENTIFIED

Part = str | int | Callable[[Any], Tensor]

RANDOM_CLASSES = 1000  # of the random head of an embedding
# Names that libraries give to parts of an output.
SCORE_PARTS = ("logits",)
EMBEDDING_PARTS = ("image_embeds", "pooler_output", "last_hidden_state")
TOKENS = ("class", "patches", "mean")


@dataclass(frozen=True)
class Pick:
    """Takes scores or an embedding (n, d) out of an output.

    Parameters
    ----------
    part : str, int, callable or None
        Name, number or function of the part; None takes the output as it is.
    seed : int or None
        Seed of a random head, which makes scores of an embedding.
    embeds : bool
        Whether the part is an embedding.
    tokens : str
        Which tokens of an embedding (n, tokens, d) are taken: `class`, `patches` or `mean`.
    prefix_tokens : int
        Number of tokens before those of the patches.
    """

    part: Part | None = None
    seed: int | None = None
    embeds: bool = False
    tokens: str = ""
    prefix_tokens: int = 0

    def __call__(self, output: Any) -> Tensor:
        """Return the scores or the embedding, (n, d)."""
        value = take_part(output, self.part)
        if self.embeds and isinstance(value, Tensor):
            value = self.pooled(value)
        if not isinstance(value, Tensor) or value.ndim != 2:
            raise self.refuse(value)
        if self.seed is None:
            return value
        return torch.mm(value, _random_head(self.seed, value.shape[1]).to(value))

    def pooled(self, value: Tensor) -> Tensor:
        """An embedding (n, d) of a feature map (n, d, h, w) or of tokens (n, t, d)."""
        if value.ndim == 4:
            return value.mean(dim=(2, 3))
        if value.ndim != 3:
            return value
        if self.tokens == "class":
            return value[:, 0]
        if self.tokens == "patches":
            return value[:, self.prefix_tokens :].mean(dim=1)
        if self.tokens == "mean":
            return value.mean(dim=1)
        raise LayerError(
            f"the embedding must be one vector per image, got {value.shape[1]} tokens; pass "
            'tokens="class" for the first one, tokens="patches" or tokens="mean" to wrap'
        )

    def refuse(self, value: Any) -> LayerError:
        """Say what was expected and what came."""
        came = f"a {type(value).__name__}"
        if isinstance(value, Tensor):
            came = f"shape {tuple(value.shape)}"
        elif isinstance(value, Mapping) and value:
            came += f" with {list(value)}"
        if self.embeds:
            return LayerError(
                f"the embedding must be of shape (n, d), got {came}; say which part of the output "
                "it is with wrap(..., embedding=NAME or INDEX or FUNCTION)"
            )
        return LayerError(
            f"the network's output must be scores of shape (n, classes), got {came}; say which "
            "part of it with wrap(..., logits=NAME or INDEX or FUNCTION), or "
            "wrap(..., embedding=...) if it is an embedding"
        )

    def identity(self) -> str:
        """Return which part is taken, empty if all of it, and which random head is used."""
        part = "" if self.part is None else repr(self.part)
        if callable(self.part):
            part = identity(self.part)
        if part == UNIDENTIFIED:
            return part
        if self.tokens:
            part = f"{part} @ {self.tokens}".strip()
        if self.seed is not None:
            part = f"{part} @ random({self.seed}, {RANDOM_CLASSES})".strip()
        return part


def take_part(output: Any, part: Part | None) -> Any:
    """Return a part of an output by its name, number or function; None if there is none."""
    if part is None:
        return output
    if callable(part):
        return part(output)
    try:
        return output[part]
    except (KeyError, IndexError, TypeError):
        return getattr(output, str(part), None)


def named_part(output: Any) -> str | None:
    """Return the name of the part of a dict-like output that is taken by default."""
    if not isinstance(output, Mapping):
        return None
    for name in (*SCORE_PARTS, *EMBEDDING_PARTS):
        if output.get(name) is not None:
            return name
    return None


@cache
def _random_head(seed: int, width: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False):
        # so that gradients can go through it, whoever asks first
        head: Tensor = torch.randn(width, RANDOM_CLASSES, generator=random) / width**0.5
        return head
