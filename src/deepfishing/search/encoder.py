"""Stage 7, search: factors of an image that is not in the store.

Comes in: the settings of a store and the bytes of images. Goes out: the factors that the store's
own network gives them, which is loaded when it is first needed, once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepfishing.features import Factor
from deepfishing.gradients.engines import Describer, describer, gather
from deepfishing.images.item import ImageBytes
from deepfishing.options import Resources
from deepfishing.rank_one import Array
from deepfishing.settings import Settings

if TYPE_CHECKING:
    from deepfishing.networks.network import Network


class Encoder:
    """The network of a store, for queries.

    `facts` are the settings of the store. A module of the user's own cannot be loaded again from
    them and is given as `network`; `weights` is the weight file, if it is elsewhere now.
    """

    def __init__(
        self,
        facts: Mapping[str, Any],
        *,
        network: Network | None = None,
        weights: str | Path | None = None,
        device: str = "cpu",
    ) -> None:
        self.facts = facts
        self.given = network
        self.weights = weights
        self.device = device
        self._lock = threading.Lock()
        self._describers: dict[tuple[Factor, ...], Describer] = {}

    def factors(self, images: Sequence[ImageBytes], wanted: Sequence[Factor]) -> dict[str, Array]:
        """Factors of images, each (n, d) or (n, P, d); one that cannot be read is an error."""
        with self._lock:  # one query at a time: the network has all cores already
            return gather(self._describer(tuple(wanted))(images))

    def _describer(self, wanted: tuple[Factor, ...]) -> Describer:
        """Made once: to cut the network takes longer than a photo, and more memory each time."""
        if wanted not in self._describers:
            self._describers[wanted] = describer(
                self._settings,
                wanted,
                lambda: self._network,
                # starting another engine costs more than it saves on a few images
                resources=Resources(batch_size=8, engine="torch", device=self.device),
                weights=self.weights,
                own=self.given is not None,
            )
        return self._describers[wanted]

    @cached_property
    def _settings(self) -> Settings:
        return Settings.from_dict(self.facts)

    @cached_property
    def _network(self) -> Network:
        if self.given is None:
            return self._settings.load_network(device=self.device, weights=self.weights)
        from deepfishing.networks.load import check_same

        check_same(self._settings.network, self.given)
        return self.given
