"""Stage 6, models: machines together with all that leads from an image to their scores.

Comes in: factors of the training images and their labels. Goes out: a `Model`, which scores the
factors of other images. It is saved as `model.json` and `model.safetensors`, see `files`. Only
support vectors are kept, as factors: the fitted recipe makes features of them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.auto import choose_recipe
from deepfishing.classify import KernelSVM, train_svm
from deepfishing.errors import DatasetError
from deepfishing.features import Factor, parse_factor
from deepfishing.images.dataset import DIFFICULT
from deepfishing.rank_one import Array
from deepfishing.recipes import AUTO, Fitted, parse_recipe
from deepfishing.settings import Settings


@dataclass(frozen=True, eq=False)
class Model:
    """A trained classifier of images.

    Parameters
    ----------
    recipe : str
        The features, as docs/recipes.md names them.
    settings : Settings
        All that decides a factor's values, as in a store; it can load the network again.
    classes : tuple of str
        One per machine.
    support : dict
        Factors (n, ...) of the support vectors.
    fitted : Fitted
        The recipe, fitted on the training images.
    svm : KernelSVM
        With calibration; its features are those of the support vectors.
    training : dict
        How it was trained, for people to read.
    """

    recipe: str
    settings: Settings
    classes: tuple[str, ...]
    support: Mapping[str, Array]
    fitted: Fitted
    svm: KernelSVM
    training: Mapping[str, Any]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the factors that an image is scored by."""
        return tuple(self.support)

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The factors that an image is scored by."""
        return tuple(map(parse_factor, self.support))

    def scores(self, arrays: Mapping[str, Array]) -> Array:
        """Decision scores (m, C) of images, from their factors."""
        return self.svm.decision_function(self.fitted(arrays))

    def probabilities(self, arrays: Mapping[str, Array]) -> Array:
        """Probability (m, C) that a class is present, each class on its own."""
        return self.svm.calibrate(self.scores(arrays))

    def save(self, folder: str | Path) -> None:
        """Write the model; a model that is there is replaced."""
        from deepfishing.model.files import save

        save(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Model:
        """Read a model that `save` wrote; a damaged or foreign folder is a `WeightsError`."""
        from deepfishing.model.files import load

        return load(Path(folder))


def train_model(
    recipe: str,
    arrays: Mapping[str, Array],
    labels: Array,
    classes: Sequence[str],
    *,
    settings: Settings,
    C: float | str = 1.0,
    class_weight: str | float | None = None,
    difficult: str = DIFFICULT[0],
    seed: int = 0,
) -> Model:
    """Fit a recipe and train its machines, with probabilities.

    Parameters
    ----------
    recipe : str
        One recipe, or `auto` for the one that suits the training images best, see `choose_recipe`.
    arrays : mapping
        The recipe's factors (n, d) or (n, P, d) of the training images.
    labels : ndarray of shape (n, C)
        1 present, -1 absent, 0 difficult.
    classes : sequence of C names
    settings
        See `Model`.
    C, class_weight, difficult, seed
        See `train_svm`.
    """
    layers, choice = settings.network.layers, None
    if recipe.strip() == AUTO:
        choice = choose_recipe(arrays, labels, layers, seed=seed)
        recipe = choice.recipe
    parsed = parse_recipe(recipe, layers)
    fitted = parsed.fit(arrays)
    svm = train_svm(
        fitted(arrays),
        labels,
        C,
        difficult,
        class_weight=class_weight,
        calibrated=True,
        seed=seed,
    )
    if not svm.trained.any():
        raise DatasetError(
            f"a class must have images with it and images without it, got none of "
            f"{', '.join(classes)} among {len(labels)} images"
        )
    used = np.flatnonzero(svm.dual.any(axis=1))
    support = {name: np.ascontiguousarray(arrays[name][used]) for name in parsed.columns}
    return Model(
        recipe=parsed.name,
        settings=settings,
        classes=tuple(classes),
        support=support,
        fitted=fitted,
        svm=replace(svm, features=fitted(support), dual=svm.dual[used]),
        training={
            "images": len(labels),
            "C": C,
            "class_weight": class_weight,
            "difficult": difficult,
            "seed": seed,
            **({"auto": asdict(choice)} if choice else {}),
        },
    )
