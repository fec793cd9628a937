"""Stage 8, the page: what a trained model says of an image.

Comes in: a model folder, and factors of an image, from the store or of a photo. Goes out: its most
probable classes. The model must have been trained with the network and the settings of the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from deepfishing.model import Model
from deepfishing.rank_one import Array
from deepfishing.store import Store
from deepfishing.store.contents import Contents

TOP = 3


class Judge:
    """A model and the store that it judges images of."""

    def __init__(self, folder: str | Path, store: Store) -> None:
        self.model = Model.load(folder)
        self.model.check_store(store)
        self.contents = Contents.of(store, self.model.columns)

    def of_content(self, sha256: str) -> list[dict[str, Any]]:
        """The classes of an image of the store; none if it lacks the factors."""
        number = pc.index(self.contents.keys, sha256).as_py()
        if number < 0:
            return []
        return self.of_factors(self.contents.read(np.array([number]), self.model.columns))

    def of_factors(self, arrays: Mapping[str, Array]) -> list[dict[str, Any]]:
        """The most probable classes of one image, by its factors."""
        mine = {name: arrays[name] for name in self.model.columns}
        chances = self.model.probabilities(mine)[0]
        best = np.argsort(-chances, kind="stable")[:TOP]
        return [
            {"name": self.model.classes[c], "probability": round(float(chances[c]), 4)}
            for c in best
            if np.isfinite(chances[c])
        ]
