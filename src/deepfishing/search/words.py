"""Search by words: embeddings of texts, kept in the folder of a store.

Networks with a text tower (CLIP, SigLIP) give texts and images embeddings that are compared by
their dot product, so a text is an example like a photo whose x7 is the text's embedding. Texts that
were asked before are read from `texts.safetensors` in the store, without torch and without the
network.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Recipe
from deepfishing.errors import OptionError
from deepfishing.images.preprocess import EXTENSIONS, HEIC
from deepfishing.networks.reference import NetworkRef
from deepfishing.util.files import read_regular, replacing

WORDS_FEATURE = "x7"  # the embedding, in every network with a text tower
FILE = "texts.safetensors"
MAX_FILE_BYTES = 64 * 2**20
MAX_TEXTS = 4096  # that are kept; the oldest leave first
MAX_LETTERS = 2000  # of one text; towers read some tens of words
SUFFIXES = {*EXTENSIONS, *HEIC, ".avif"}  # of images, also where they cannot be read
VECTORS, TEXTS, WEIGHTS = "vectors", "texts", "weights_sha256"

Encode = Callable[[Sequence[str]], Array]


@dataclass(frozen=True)
class Words:
    """An example in words, such as `Words("a red bicycle")`."""

    text: str

    def __post_init__(self) -> None:
        """Refuse what no text tower can read."""
        if not self.text.strip() or len(self.text) > MAX_LETTERS:
            raise OptionError(
                f"words must have 1 to {MAX_LETTERS:,} letters, got {len(self.text.strip()):,}; "
                "describe the photo in a sentence"
            )


def is_file_name(text: str) -> bool:
    """Whether a text is always taken for a file: it has a slash or the suffix of an image."""
    return "/" in text or "\\" in text or Path(text).suffix.lower() in SUFFIXES


def check_words_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that cannot compare a text with images."""
    if recipe.name != WORDS_FEATURE:
        raise OptionError(
            f"words are compared with {WORDS_FEATURE}, the embedding, got the recipe "
            f"{recipe.name}; pass --by {WORDS_FEATURE}"
        )


class TextVectors:
    """Embeddings of texts by the text tower of a store's network.

    Parameters
    ----------
    folder : Path
        Of the store.
    settings : mapping
        Of the store; they say which network it is.
    encode : callable, optional
        Makes embeddings (n, d) of texts; by default the text tower, loaded when it is first needed.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], encode: Encode | None = None
    ) -> None:
        self.path = folder / FILE
        self._settings = settings
        self._encode = encode
        self._lock = threading.Lock()

    @property
    def is_known(self) -> bool:
        """Whether the network has a text tower, or what makes embeddings was given."""
        source = self._settings.get("source")
        return bool(self._encode) or (isinstance(source, dict) and bool(source.get("reads_texts")))

    @cached_property
    def reference(self) -> NetworkRef:
        """The network of the store."""
        return NetworkRef.from_dict(self._settings)

    def __call__(self, texts: Sequence[str]) -> Array:
        """Return embeddings (n, d) of unit length, and keep those that are new."""
        with self._lock:
            vectors = self._read()
            new = [text for text in dict.fromkeys(texts) if text not in vectors]
            if new:
                made = self._encoder()(new)
                vectors |= dict(zip(new, made, strict=True))
                self._write(vectors)
        return np.stack([vectors[text] for text in texts])

    def _encoder(self) -> Encode:
        if self._encode is None:
            from deepfishing.networks.texts import load_text_tower  # torch takes seconds to load

            self._encode = load_text_tower(self.reference).encode
        return self._encode

    def _read(self) -> dict[str, Array]:
        """The embeddings that are kept; none where the file is damaged or of other weights."""
        try:
            content = read_regular(self.path, MAX_FILE_BYTES)
            tensors = safetensors.numpy.load(content)
            vectors = tensors[VECTORS]
            facts = json.loads(bytes(tensors[TEXTS]).decode())
            texts = facts[TEXTS]
            fits = facts[WEIGHTS] == self.reference.weights_sha256
        except (OSError, ValueError, LookupError, TypeError, safetensors.SafetensorError):
            return {}
        if not fits or vectors.ndim != 2 or len(texts) != len(vectors):
            return {}
        if vectors.dtype != np.float32 or not np.isfinite(vectors).all():
            return {}
        return dict(zip(map(str, texts), vectors, strict=True))

    def _write(self, vectors: Mapping[str, Array]) -> None:
        """Keep the embeddings; a folder that cannot be written costs the text tower next time."""
        texts = list(vectors)[-MAX_TEXTS:]
        facts = {TEXTS: texts, WEIGHTS: self.reference.weights_sha256}
        tensors: dict[str, Array] = {
            VECTORS: np.stack([vectors[text] for text in texts]).astype(np.float32),
            TEXTS: np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
        }
        with contextlib.suppress(OSError), replacing(self.path) as partial:
            partial.write_bytes(safetensors.numpy.save(tensors))
