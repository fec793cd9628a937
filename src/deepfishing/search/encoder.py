"""Stage 7, search: factors of an image that is not in the store.

Comes in: the settings of a store and the bytes of images. Goes out: the factors that the store's
own network gives them. The network is loaded when it is first needed, once, and must be the very
one of the store.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.errors import ImageError, WeightsError
from deepfishing.features import Factor
from deepfishing.networks.zoo import RECORDS
from deepfishing.rank_one import Array

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

CHECKED = ("weights_sha256", "layers", "preprocess", "compute_dtype")


@dataclass(frozen=True)
class Upload:
    """Bytes of an image with a name for messages; opens as a file does."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name

    def open(self, mode: str = "rb") -> io.BytesIO:
        """The bytes."""
        return io.BytesIO(self.content)


class Encoder:
    """The network of a store, for queries.

    Parameters
    ----------
    settings : mapping
        Of the store.
    weights : path, optional
        The weight file, if the network's own place for it is not where it is.
    device : str
        As for `load_network`.
    """

    def __init__(
        self, settings: Mapping[str, Any], weights: str | Path | None = None, device: str = "cpu"
    ) -> None:
        self.settings = settings
        self.weights = weights
        self.device = device
        self._network: Network | None = None
        self._lock = threading.Lock()

    def factors(self, images: Sequence[Upload], wanted: Sequence[Factor]) -> dict[str, Array]:
        """Factors of images, each (n, d) or (n, P, d); one that cannot be read is an error."""
        from deepfishing.gradients.extract import extract_factors  # torch takes seconds to load

        settings = self.settings
        parts: dict[str, list[Array]] = {factor.name: [] for factor in wanted}
        with self._lock:  # one query at a time: the network has all cores already
            batches = extract_factors(
                self._loaded(),
                images,
                wanted,
                settings["tau"],
                settings["label"],
                batch_size=8,
                engine="torch",  # starting another one costs more than it saves on a few images
                views=settings.get("views", "centre"),
            )
            for batch in batches:
                if batch.failures:
                    raise ImageError(next(iter(batch.failures.values())))
                for name, values in batch.factors.items():
                    parts[name].append(values)
        return {name: np.concatenate(values) for name, values in parts.items()}

    def _loaded(self) -> Network:
        if self._network is None:
            self._network = self._load()
        return self._network

    def _load(self) -> Network:
        from deepfishing.gradients.to_store import store_settings
        from deepfishing.networks.load import RANDOM, load_network

        settings, weights = self.settings, self.weights
        name = str(settings["network"])
        if weights is None and str(settings["weights_sha256"]).startswith(f"{RANDOM}-"):
            weights = RANDOM
        if str(weights).endswith(".caffemodel") and name not in RECORDS:
            name, weights = str(weights), None  # a Caffe file is a network by itself
        if weights is None and name not in RECORDS and ":" not in name and not Path(name).is_file():
            raise WeightsError(
                f"the store's network {name!r} is not one that is found by name; pass --weights "
                "with the .caffemodel file that the store was made with"
            )
        network = load_network(name, weights, self.device, settings["compute_dtype"])
        found = store_settings(network, settings["tau"], settings["label"])
        for key in CHECKED:
            if found[key] != settings[key]:
                raise WeightsError(
                    f"the store needs {settings['network']} with {key} = {settings[key]}, got "
                    f"{network.name} with {found[key]}; pass --weights with the file that the "
                    "store was made with"
                )
        return network
