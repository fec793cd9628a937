"""All that decides the numbers of a factor, as one value.

The command line makes a `Settings` once; store, Ray, model, search and page carry it whole. Its
JSON form is in the manifest of a store and in a model; features of two settings may stand together
only if their digests are the same. What only decides how fast it goes is in
`gradients.resources.Resources`. Torch is loaded when the network is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepfishing.errors import OptionError, StoreError
from deepfishing.images.views import find_views
from deepfishing.networks.reference import UNTOLD, NetworkRef
from deepfishing.objectives import Label, check_objective

if TYPE_CHECKING:
    import torch

    from deepfishing.networks.network import Network


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that decides the numbers of a factor.

    Parameters
    ----------
    network : NetworkRef
        Which network: name, weights, files with checksums, layers, preprocessing, precision, and
        what its scores mean.
    tau : float
        Temperature of the SoftMax.
    label : "uniform", "predicted", int or vector
        Label vector of the error, see `cross_entropy`.
    views : str
        What the network sees of an image, see `find_views`.

    Examples
    --------
    >>> from deepfishing.networks.zoo import record
    >>> entry = record("vgg16")
    >>> network = NetworkRef(name=entry.name, weights_sha256=entry.weights.sha256,
    ...                      layers=entry.layers, preprocess=entry.preprocess)
    >>> two = Settings(network=network)
    >>> two.tau, two == Settings.from_dict(two.as_dict())
    (2.0, True)
    >>> two.digest == Settings(network=network, tau=3).digest
    False
    """

    network: NetworkRef
    tau: float = 2.0
    label: Label = "uniform"
    views: str = "centre"

    def __post_init__(self) -> None:
        check_objective(self.tau, self.label)
        find_views(self.views)
        object.__setattr__(self, "tau", float(self.tau))
        if not isinstance(self.label, str | int):
            object.__setattr__(self, "label", tuple(float(g) for g in self.label))

    @classmethod
    def of(cls, network: Network, **options: Any) -> Settings:
        """Those of a loaded network; `options` are tau, label and views."""
        return cls(network=network.reference(), **options)

    def as_dict(self) -> dict[str, Any]:
        """JSON values, for a manifest.

        Raises
        ------
        OptionError
            If the network has an error of its own, or a function that picks its scores, that
            cannot be told from another one: its features must not be kept.
        """
        for what, identity in (("head", self.network.head), ("logits", self.network.scores)):
            if identity == UNTOLD:
                raise OptionError(
                    f"{what} of {self.network.name} must be told from others before features are "
                    "kept, but it uses more than code, numbers and tensors; write it as a function "
                    "of those, or use `extract`, which keeps nothing"
                )
        return {
            **self.network.as_dict(),
            "tau": self.tau,
            "label": self.label if isinstance(self.label, str | int) else list(self.label),
            "views": self.views,
        }

    def decisive(self) -> dict[str, Any]:
        """The same without what decides no number: where the network's files are."""
        return {name: value for name, value in self.as_dict().items() if name != "source"}

    @property
    def temperable(self) -> bool:
        """Whether delta8 of another tau follows from y8 alone: softmax, uniform label, one view."""
        plain = self.network.head == "softmax" and not self.network.scores
        return plain and self.label == "uniform" and self.views == "centre"

    @property
    def digest(self) -> str:
        """Hash of all that is decisive, 64 hex digits."""
        return hashlib.sha256(json.dumps(self.decisive(), sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Settings:
        """What `as_dict` gave, also by version 0.1; other keys are not looked at."""
        tau, label = facts.get("tau"), facts.get("label")
        views = facts.get("views", "centre")
        network = NetworkRef.from_dict(facts)
        try:
            if isinstance(label, bool) or not isinstance(label, str | int | list):
                raise OptionError(f"label must be text, a number or a list, got {str(label)[:60]}")
            if not isinstance(views, str) or isinstance(tau, bool):
                raise OptionError(f"views must be text and tau a number, got {str(views)[:60]}")
            return cls(network=network, tau=tau, label=label, views=views)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"{error}; make the store or the model again") from None

    def load_network(
        self, *, device: str | torch.device = "cpu", weights: str | Path | None = None
    ) -> Network:
        """The very network, loaded again; `weights` if its file is elsewhere now."""
        from deepfishing.networks.load import load_reference  # torch takes seconds to load

        return load_reference(self.network, device=device, weights=weights)
