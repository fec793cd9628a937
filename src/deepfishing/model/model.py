"""Stage 6, models: machines together with all that leads from an image to their scores.

Comes in: factors of the training images and their labels. Goes out: a `Model`, which scores the
factors of other images. It is saved as `model.json` and `model.safetensors`, see `files`. Only
support vectors are kept, as factors: the fitted recipe makes features of them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.errors import DatasetError, ImageError, OptionError, StoreError, WeightsError
from deepfishing.features import Factor, parse_factor
from deepfishing.images.dataset import DIFFICULT
from deepfishing.images.preprocess import ImageLike
from deepfishing.images.sources import find_images
from deepfishing.metrics import evaluate
from deepfishing.rank_one import Array
from deepfishing.recipes import AUTO, Fitted, parse_recipe
from deepfishing.settings import Settings
from deepfishing.store import Store
from deepfishing.svm import KernelSVM

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

ONE, SEVERAL = "one per image", "several per image"  # labels of the training images

Images = str | Path | Sequence[ImageLike] | Store


@dataclass(frozen=True, eq=False, repr=False)
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

    def __repr__(self) -> str:
        some = ", ".join(self.classes[:4]) + ", ..." * (len(self.classes) > 4)
        title, network = parse_recipe(self.recipe).title, self.settings.network.name
        images = f"trained on {self.training.get('images', '?')} images"
        return f"Model({len(self.classes)} classes: {some}; {title} of {network}, {images})"

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

    def predict(self, images: Images, *, network: Network | None = None) -> Array:
        """The class of each image (n,), the one with the highest score.

        Of a model whose training images had several classes: 1 and 0 for each class, (n, C).

        Parameters
        ----------
        images : path, sequence of images, or Store
            As `find_images` or `extract` take them. Of a store the usable images in the order of
            their ids; its features are those that it holds, so no network is needed.
        network : Network, optional
            The one of the training; without it the model loads it.
        """
        return self._answers(self.decision_function(images, network=network))

    def predict_proba(self, images: Images, *, network: Network | None = None) -> Array:
        """Probability (n, C) that a class is present, each class on its own."""
        return self.svm.calibrate(self.decision_function(images, network=network))

    def score(self, images: Images, y: Any, *, network: Network | None = None) -> float:
        """The share of images whose class is right, 0 to 1.

        Of a model with several classes per image: the mean AP, scikit-learn's, for `y` (n, C) of 1
        (present), 0 or -1.
        """
        truth, scores = np.asarray(y), self.decision_function(images, network=network)
        several = self.training.get("labels") == SEVERAL
        if len(truth) != len(scores) or truth.ndim != 1 + several:
            shape = (len(scores), len(self.classes)) if several else (len(scores),)
            raise OptionError(f"y must have the shape {shape}, got {truth.shape}")
        if several:
            mean = evaluate(np.where(truth == 1, 1, -1), scores, self.classes).map["sklearn"]
            return float("nan") if mean is None else mean / 100
        return float((self._answers(scores) == truth).mean())

    def _answers(self, scores: Array) -> Array:
        if self.training.get("labels") == SEVERAL:
            return (scores > 0).astype(int)
        # a class without a machine is never the answer
        best = np.where(self.svm.trained, scores, -np.inf).argmax(axis=1)
        answers: Array = np.array(self.classes)[best]
        return answers

    def decision_function(self, images: Images, *, network: Network | None = None) -> Array:
        """Decision scores (n, C); an image that cannot be used is an error."""
        if isinstance(images, Store):
            self.check_store(images)
            return self.scores({name: images.to_numpy(name) for name in self.columns})
        from deepfishing.model.predict import predict  # torch takes seconds to load

        found = find_images(images) if isinstance(images, str | Path) else images
        scores = []
        for one in predict(self, found, network=network):
            if one.error:
                raise ImageError(one.error)
            scores.append(one.scores)
        return np.stack(scores)

    def check_store(self, store: Store) -> None:
        """Refuse a store whose features are others, or which lacks some."""
        mine, theirs = self.settings.decisive(), Settings.from_dict(store.settings).decisive()
        for key in mine:
            if mine[key] != theirs[key] and key != "network":
                raise WeightsError(
                    f"the model must have been trained with the {key} of {store.folder}, "
                    f"{theirs[key]}, got {mine[key]}; train one on this store with `deepfish train`"
                )
        absent = [name for name in self.columns if name not in store.factors()]
        if absent:
            raise StoreError(
                f"the model needs {', '.join(absent)}, which {store.folder} lacks; add "
                f"{self.recipe} with `deepfish extract`"
            )

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
    # a prediction need not wait for these
    from deepfishing.accuracy import has_one_class
    from deepfishing.auto import choose_recipe
    from deepfishing.classify import train_svm

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
            "labels": ONE if has_one_class(np.asarray(labels)) else SEVERAL,
            "C": C,
            "class_weight": class_weight,
            "difficult": difficult,
            "seed": seed,
            **({"auto": asdict(choice)} if choice else {}),
        },
    )
