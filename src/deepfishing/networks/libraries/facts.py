"""Facts that a library has about one of its models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from deepfishing.images.preprocess import Preprocess

EncodeTexts = Callable[[Sequence[str]], Tensor]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Preprocessing of a model and the meaning of its output.

    Parameters
    ----------
    preprocess : Preprocess or None
        None where the library does not say.
    part : str, int or None
        Name or number of the part of the output that is taken; None takes all of it.
    embeds : bool or None
        Whether the output is an embedding; None where that has to be found out.
    tokens : str
        Which tokens of the output are taken, see `outputs.Pick`.
    prefix_tokens : int
        Number of tokens before those of the patches, the first is the class token.
    embedding : str
        What the embedding is, and why.
    classes : tuple of str
        Names of the classes, empty where the library has none.
    reads_texts : bool
        Whether the model has a text tower, too, whose embeddings are compared with those of images.
    config : str
        What decides the model's code beside its name, for the hash of its weights.
    """

    preprocess: Preprocess | None = None
    part: str | int | None = None
    embeds: bool | None = None
    tokens: str = ""
    prefix_tokens: int = 0
    embedding: str = ""
    classes: tuple[str, ...] = ()
    reads_texts: bool = False
    config: str = ""
