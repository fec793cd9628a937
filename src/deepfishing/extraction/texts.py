"""Embeddings of texts, cached in the folder of a store.

Networks with a text tower (CLIP, SigLIP) compute embeddings of texts and images that are compared
by their dot product. Texts that were encoded before are read from `texts.safetensors` in the store,
without torch and without the network.
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
from deepfishing.networks.reference import NetworkRef
from deepfishing.util.files import read_regular, replacing

EMBEDDING = "x7"  # the factor that texts are compared with
FILE = "texts.safetensors"
MAX_FILE_BYTES = 64 * 2**20
MAX_TEXTS = 4096  # in the file; the oldest are dropped first
VECTORS, FACTS = "vectors", "facts"  # tensors of the file

Encode = Callable[[Sequence[str]], Array]


@dataclass(frozen=True, eq=False)
class _Cached:
    """Embeddings by their texts; the library computes scores as scale * cosine + bias."""

    vectors: dict[str, Array]
    scale: float = 1.0
    bias: float = 0.0


class TextVectors:
    """Embeddings of texts by the text tower of a store's network.

    Parameters
    ----------
    folder : Path
        Of the store.
    settings : mapping
        Of the store; they identify the network.

    Attributes
    ----------
    scale, bias : float
        The library computes scores as scale * cosine + bias. Set by the first call.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.path = folder / FILE
        self.scale, self.bias = 1.0, 0.0
        self._settings = settings
        self._encode: Encode | None = None
        self._lock = threading.Lock()

    @property
    def is_known(self) -> bool:
        """Whether the network has a text tower."""
        source = self._settings.get("source")
        return isinstance(source, dict) and bool(source.get("reads_texts"))

    @cached_property
    def reference(self) -> NetworkRef:
        """The network of the store."""
        return NetworkRef.from_dict(self._settings)

    def __call__(self, texts: Sequence[str]) -> Array:
        """Return embeddings (n, d) of unit length, and cache those that are new."""
        with self._lock:
            cached = self._read()
            new = [text for text in dict.fromkeys(texts) if text not in cached.vectors]
            if new:
                vectors = cached.vectors | self._encode_new(new)
                cached = _Cached(vectors, self.scale, self.bias)
                self._write(cached)
            self.scale, self.bias = cached.scale, cached.bias
        return np.stack([cached.vectors[text] for text in texts])

    def _encode_new(self, texts: Sequence[str]) -> dict[str, Array]:
        """Return embeddings by the text tower, which is loaded when it is first needed."""
        if self._encode is None:
            # torch takes seconds to load
            from deepfishing.networks.texts import load_text_tower

            tower = load_text_tower(self.reference)
            self.scale, self.bias, self._encode = tower.scale, tower.bias, tower.encode
        return dict(zip(texts, self._encode(texts), strict=True))

    def _read(self) -> _Cached:
        """Return the cache; it is empty if the file is damaged or of other weights."""
        try:
            tensors = safetensors.numpy.load(read_regular(self.path, MAX_FILE_BYTES))
            vectors = tensors[VECTORS]
            facts = json.loads(bytes(tensors[FACTS]).decode())
            texts = [str(text) for text in facts["texts"]]
            fits = facts["weights_sha256"] == self.reference.weights_sha256
            scale, bias = float(facts["scale"]), float(facts["bias"])
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            safetensors.SafetensorError,
        ):
            return _Cached({})
        if not fits or vectors.ndim != 2 or len(texts) != len(vectors):
            return _Cached({})
        if vectors.dtype != np.float32 or not np.isfinite(vectors).all():
            return _Cached({})
        return _Cached(dict(zip(texts, vectors, strict=True)), scale, bias)

    def _write(self, cached: _Cached) -> None:
        """Write the cache; if the folder cannot be written, the texts are encoded again later."""
        texts = list(cached.vectors)[-MAX_TEXTS:]
        facts = {
            "texts": texts,
            "weights_sha256": self.reference.weights_sha256,
            "scale": cached.scale,
            "bias": cached.bias,
        }
        tensors: dict[str, Array] = {
            VECTORS: np.stack([cached.vectors[text] for text in texts]).astype(
                np.float32
            ),
            FACTS: np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
        }
        with contextlib.suppress(OSError), replacing(self.path) as partial:
            partial.write_bytes(safetensors.numpy.save(tensors))
