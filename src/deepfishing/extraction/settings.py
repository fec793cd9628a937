"""Settings: everything that determines the values of a factor.

Store, Ray, model, search and page carry it whole; its JSON form is in a manifest and in a model.
Features can be combined only if the digests of their settings are the same. Options that affect
speed alone are in `options.Resources`. Torch is loaded when the network is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepfishing.core.rank_one import Array
from deepfishing.errors import OptionError, StoreError
from deepfishing.extraction.options import FEATURES, FeatureOptions
from deepfishing.images.preprocess import ImageLike, find_views
from deepfishing.networks.reference import UNIDENTIFIED, NetworkRef

if TYPE_CHECKING:
    import torch

    from deepfishing.networks.network import Network

LATER = ("views", "head", "scores", "source")  # settings that version 0.1 did not write


@dataclass(frozen=True, kw_only=True)
class Settings(FeatureOptions):
    """Everything that determines the values of a factor: a network and the feature options."""

    network: NetworkRef

    @classmethod
    def from_network(cls, network: Network, **options: Any) -> Settings:
        """Return the settings of a loaded network; `options` are those of `FeatureOptions`."""
        return cls(network=network.reference(), **options)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values for a manifest; refuse a network that they would not identify."""
        for what, identity in (
            ("head", self.network.head),
            ("logits", self.network.scores),
        ):
            if identity == UNIDENTIFIED:
                raise OptionError(
                    f"{what} of {self.network.name} must be told from others before features are "
                    "kept, but it uses more than code, numbers and tensors; write it as a function "
                    "of those, or use `extract`, which keeps nothing"
                )
        label = self.label if isinstance(self.label, str | int) else list(self.label)
        return {**self.network.as_dict(), **self.feature_options(), "label": label}

    def decisive(self) -> dict[str, Any]:
        """Return the same without the places of the network's files, which determine no value."""
        return {
            name: value for name, value in self.as_dict().items() if name != "source"
        }

    def preprocessing(self) -> Callable[[ImageLike], Array]:
        """Return the function from an image to float32 pixels (views, 3, S, S)."""
        return partial(self.network.preprocess.see, views=find_views(self.views))

    @property
    def temperable(self) -> bool:
        """Whether delta8 of another tau follows from y8 alone: softmax, uniform label, one view."""
        plain = self.network.head == "softmax" and not self.network.scores
        return plain and self.label == "uniform" and self.views == "centre"

    @property
    def digest(self) -> str:
        """Hash of all that is decisive, 64 hex digits."""
        return hashlib.sha256(
            json.dumps(self.decisive(), sort_keys=True).encode()
        ).hexdigest()

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Settings:
        """Read what `as_dict` wrote; other keys are ignored."""
        lacking = [name for name in LATER if name not in facts]
        if lacking and "network" in facts:
            raise StoreError(
                f"settings must have {', '.join(LATER)}, got none of {', '.join(lacking)}, as in "
                "version 0.1; make the store or the model again"
            )
        options = {
            field.name: facts[field.name] for field in FEATURES if field.name in facts
        }
        tau, label, views = (options.get(name) for name in ("tau", "label", "views"))
        network = NetworkRef.from_dict(facts)
        try:
            if isinstance(label, bool) or not isinstance(label, str | int | list):
                raise OptionError(
                    f"label must be text, a number or a list, got {str(label)[:60]}"
                )
            if not isinstance(views, str) or isinstance(tau, bool):
                raise OptionError(
                    f"views must be text and tau a number, got {str(views)[:60]}"
                )
            return cls(network=network, **options)
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"{error}; make the store or the model again") from None

    def load_network(
        self, *, device: str | torch.device = "cpu", weights: str | Path | None = None
    ) -> Network:
        """Reload this network; `weights` if its file is elsewhere now."""
        # torch takes seconds to load
        from deepfishing.networks.load import load_reference

        return load_reference(self.network, device=device, weights=weights)
