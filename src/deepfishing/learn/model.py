"""Trained classifiers, with everything needed from an image to their scores.

A `Model` gives scores, probabilities and classes of images or of their factors. It is made by
`training` and saved as `model.json` and `model.safetensors`, see `model_files`. Only support
vectors are kept, as factors: the fitted recipe makes features of them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.core.features import Factor
from deepfishing.core.metrics import evaluate
from deepfishing.core.projections import SCHEME
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Fitted, parse_recipe
from deepfishing.errors import (
    DeepFishingError,
    ImageError,
    OptionError,
    StoreError,
    WeightsError,
)
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import ImageLike
from deepfishing.images.sources import find_images
from deepfishing.images.streams import samples
from deepfishing.learn.held_out import HeldOut
from deepfishing.learn.model_files import DOCUMENT, damaged, read_files, write_files
from deepfishing.learn.svm import KernelSVM
from deepfishing.learn.vectors import VECTORS, Vectors, on_vectors
from deepfishing.store import Store

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

ONE, SEVERAL = "one per image", "several per image"  # labels of the training images
ZERO_SHOT = "zero_shot"  # in the training of a model that was made of names of classes
FACTOR, STATE = "factor/", "state/"  # begin the names of tensors
MACHINES = "machines"  # name of the tensor of a model on vectors

Images = str | Path | Iterable[ImageLike] | Store


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
        Of which the svm has a column each.
    support : dict
        Factors (n, ...) of the support vectors; none of a model on vectors, see `training`.
    fitted : Fitted
        The recipe, fitted on the training images.
    svm : KernelSVM
        With calibration; its features are those of the support vectors.
    training : dict
        How it was trained, for people to read.
    thresholds : ndarray (C,), optional
        Probabilities from which a photo is sorted into a class, see `limits`.
    held_out : HeldOut, optional
        Predictions of the training images, each made without it and its copies.
    """

    recipe: str
    settings: Settings
    classes: tuple[str, ...]
    support: Mapping[str, Array]
    fitted: Fitted
    svm: KernelSVM
    training: Mapping[str, Any]
    thresholds: Array | None = None
    held_out: HeldOut | None = None

    def __repr__(self) -> str:
        some = ", ".join(self.classes[:4]) + ", ..." * (len(self.classes) > 4)
        title, network = parse_recipe(self.recipe).title, self.settings.network.name
        images = f"trained on {self.training.get('images', '?')} images"
        return f"Model({len(self.classes)} classes: {some}; {title} of {network}, {images})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the factors that an image is scored by."""
        return tuple(factor.name for factor in self.factors)

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The factors that an image is scored by."""
        return parse_recipe(self.recipe, self.settings.network.layers).factors

    @property
    def has_several(self) -> bool:
        """Whether a training image could have several classes."""
        return bool(self.training.get("labels") == SEVERAL)

    @property
    def limits(self) -> Array:
        """The probability (C,) from which a photo belongs to a class.

        The thresholds; without them the most probable class is taken, or, where a photo may have
        several, each class that is more probable than not.
        """
        if self.thresholds is not None:
            return self.thresholds
        return np.full(len(self.classes), 0.5 if self.has_several else 0.0)

    def scores(self, arrays: Mapping[str, Array]) -> Array:
        """Decision scores (m, C) of images, from their factors."""
        return self.svm.decision_function(self.fitted(arrays))

    def probabilities(self, arrays: Mapping[str, Array]) -> Array:
        """Probability (m, C) that a class is present, each class on its own."""
        return self.svm.calibrate(self.scores(arrays))

    def decision_function(
        self, images: Images, *, network: Network | None = None
    ) -> Array:
        """Decision scores (n, C); an image that cannot be used is an error.

        Parameters
        ----------
        images : path, iterable of images, or Store
            As `find_images` or `extract` take them. Of a store the usable images in the order of
            their ids; its features are those that it holds, so no network is needed.
        network : Network, optional
            The one of the training; without it the model loads it.
        """
        if isinstance(images, Store):
            self.check_store(images)
            return self.scores({name: images.to_numpy(name) for name in self.columns})
        from deepfishing.learn.predict import predict  # torch takes seconds to load

        if isinstance(images, str | Path):
            found: list[ImageLike] = [*find_images(images)]
        else:
            found = [image for image, _ in samples(images)]
        if not found:
            raise OptionError("images must hold at least one image, got none")
        scores = []
        for one in predict(self, found, network=network):
            if one.error:
                raise ImageError(one.error)
            scores.append(one.scores)
        return np.stack(scores)

    def predict(self, images: Images, *, network: Network | None = None) -> Array:
        """The class of each image (n,), the one with the highest score.

        Of a model whose training images had several classes: 1 and 0 for each class, (n, C).
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
            mean = evaluate(np.where(truth == 1, 1, -1), scores, self.classes).map[
                "sklearn"
            ]
            return float("nan") if mean is None else mean / 100
        return float((self._answers(scores) == truth).mean())

    def _answers(self, scores: Array) -> Array:
        if self.training.get("labels") == SEVERAL:
            return (scores > 0).astype(int)
        # a class that was not trained is never the answer
        best = np.where(self.svm.trained, scores, -np.inf).argmax(axis=1)
        return np.asarray(np.array(self.classes)[best])

    def compact(self) -> Model:
        """The model for photos that are not averaged with neighbours; itself without `smooth`.

        It needs no pool to score a photo. Probabilities are adapted by the photos of the pool: on
        these, the scores of the two models agree as well as a line for each class can make them.
        """
        recipe = parse_recipe(self.recipe, self.settings.network.layers)
        smoothed = [part for part in recipe.all_parts() if part.step == "smooth"]
        if not smoothed:
            return self
        plain, state = recipe.unsmoothed(), self.fitted.state
        fitted = Fitted(lambda arrays: plain.value(arrays, state), state)
        compact = replace(self, fitted=fitted)
        pool = {}
        for part in smoothed:
            for number, name in enumerate(part.columns):
                pool[name] = state[f"{part.name}/{number}"].astype(np.float32)
        if set(recipe.columns) - set(pool):
            # a part that is not smoothed has factors of its own
            return compact
        calibration = _adapted(self.svm, self.scores(pool), compact.scores(pool))
        return replace(compact, svm=replace(self.svm, calibration=calibration))

    def check_store(self, store: Store) -> None:
        """Refuse a store whose features are others, or which lacks some."""
        mine, theirs = (
            self.settings.decisive(),
            Settings.from_dict(store.settings).decisive(),
        )
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
        """Write the model; one that exists is replaced."""
        svm = self.svm
        if svm.calibration is None:
            raise OptionError(
                "a model must have probabilities, got none; make it with train_model"
            )
        tensors = {f"{FACTOR}{name}": values for name, values in self.support.items()}
        tensors |= {
            f"{STATE}{name}": values for name, values in self.fitted.state.items()
        }
        tensors |= {"dual": svm.dual, "bias": svm.bias, "calibration": svm.calibration}
        if not self.support:  # classifiers on vectors
            tensors[MACHINES] = np.asarray(svm.features)
        if self.held_out is not None:
            tensors |= self.held_out.tensors()
        document = {
            "recipe": self.recipe,
            "classes": list(self.classes),
            "trained": svm.trained.tolist(),
            "cost": svm.cost.tolist(),
            "ap": [None if np.isnan(value) else value for value in svm.ap],
            "training": dict(self.training),
            "thresholds": None if self.thresholds is None else self.thresholds.tolist(),
            "settings": self.settings.as_dict(),
            "projection": SCHEME,
        }
        write_files(Path(folder), document, tensors)

    @classmethod
    def load(cls, folder: str | Path) -> Model:
        """Read a model that `save` wrote; a damaged or foreign folder is a `WeightsError`."""
        folder = Path(folder)
        document, tensors = read_files(folder)
        try:
            model = _from_parts(document, tensors)
        except (
            LookupError,
            TypeError,
            ValueError,
            ArithmeticError,
            AttributeError,
        ) as error:
            reason = str(error) if isinstance(error, DeepFishingError) else repr(error)
            raise damaged(folder / DOCUMENT, reason) from None
        projected = any(factor.kind == "projected" for factor in model.factors)
        if projected and document.get("projection") != SCHEME:
            raise WeightsError(
                f"{folder} was trained on features that an earlier version projected, with "
                "matrices that are no longer drawn; train it again with `deepfish train`"
            )
        return model


def _from_parts(document: Mapping[str, Any], tensors: Mapping[str, Array]) -> Model:
    """Make a model of the two files, each number of which is checked."""
    settings = Settings.from_dict(document["settings"])
    classes = tuple(map(str, document["classes"]))
    recipe = parse_recipe(document["recipe"], settings.network.layers)
    state = _part(STATE, tensors)
    support = _part(FACTOR, tensors)
    is_linear = MACHINES in tensors and not support
    if not is_linear and set(support) != set(recipe.columns):
        raise ValueError(
            f"recipe {recipe.name} must have {recipe.columns}, got {list(support)}"
        )
    if support:
        support = {name: support[name] for name in recipe.columns}
    if len({len(values) for values in support.values()}) > 1:
        raise ValueError("factors must be of the same images")
    n = len(tensors[MACHINES] if is_linear else support[recipe.columns[0]])
    _check_tensors(tensors, n, len(classes))
    fitted = recipe.load({n: t for n, t in state.items() if not n.startswith(VECTORS)})
    if is_linear:
        fitted = on_vectors(fitted, Vectors.restore(_part(VECTORS, state)))
    per_class = _per_class(document, len(classes))
    svm = KernelSVM(
        features=tensors[MACHINES] if is_linear else fitted(support),
        dual=tensors["dual"],
        bias=tensors["bias"],
        calibration=tensors["calibration"],
        is_exclusive=ZERO_SHOT in document["training"],
        trained=per_class["trained"],
        cost=per_class["cost"],
        ap=per_class["ap"],
    )
    training = dict(document["training"])
    thresholds = _thresholds(document.get("thresholds"), len(classes))
    held_out = HeldOut.from_tensors(tensors, len(classes))
    parts = (recipe.name, settings, classes, support, fitted, svm, training, thresholds)
    return Model(*parts, held_out)


def _thresholds(values: Any, C: int) -> Array | None:
    """Thresholds of a document, of which older models have none."""
    if values is None:
        return None
    thresholds = np.array(values, dtype=float)
    if thresholds.shape != (C,) or not ((thresholds >= 0) & (thresholds <= 1)).all():
        raise ValueError(f"thresholds must be {C} numbers from 0 to 1, one per class")
    return thresholds


def _check_tensors(tensors: Mapping[str, Array], n: int, C: int) -> None:
    """Refuse numbers that do not belong to n support vectors and C classes."""
    for name, shape in {"dual": (n, C), "bias": (C,), "calibration": (2, C)}.items():
        if tensors[name].shape != shape:
            raise ValueError(
                f"{name} must be of shape {shape}, got {tensors[name].shape}"
            )
    if not all(np.isfinite(values).all() for values in tensors.values()):
        raise ValueError("numbers must be finite, got NaN or infinity")


def _per_class(document: Mapping[str, Any], C: int) -> dict[str, Array]:
    """Arrays (C,) that the document has."""
    kinds = {"trained": bool, "cost": float, "ap": float}
    arrays = {
        name: np.array(document[name], dtype=kind) for name, kind in kinds.items()
    }
    if C == 0 or any(values.shape != (C,) for values in arrays.values()):
        raise ValueError(f"{', '.join(kinds)} must have {C} entries, one per class")
    return arrays


def _part(prefix: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    found = {}
    for name, values in tensors.items():
        if name.startswith(prefix):
            found[name.removeprefix(prefix)] = values
    return found


def _adapted(svm: KernelSVM, scores: Array, others: Array) -> Array | None:
    """Slopes and offsets (2, C) for other scores (n, C), a line of which is near the scores."""
    if svm.calibration is None:
        return None
    slope, offset = svm.calibration
    centred = others - others.mean(axis=0)
    spread = np.maximum(np.square(centred).sum(axis=0), 1e-12)
    a = np.maximum((centred * scores).sum(axis=0) / spread, 0.0)
    b = scores.mean(axis=0) - a * others.mean(axis=0)
    return np.stack([slope * a, offset + slope * b])
