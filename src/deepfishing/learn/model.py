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
from deepfishing.core.kernels import Comparable
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
        Everything that determines a factor's values, as in a store; it can load the network.
    classes : tuple of str
        Of which the svm has a column each.
    support : dict
        Factors (n, ...) of the support vectors; none of a model on vectors, see `training`.
    fitted : Fitted
        The recipe, fitted on the training images.
    svm : KernelSVM
        With calibration; its features are those of the support vectors.
    training : dict
        Record of the training, for readers.
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
        names = ", ".join(self.classes[:4])
        if len(self.classes) > 4:
            names += ", ..."
        title = parse_recipe(self.recipe).title
        network = self.settings.network.name
        images = f"trained on {self.training.get('images', '?')} images"
        return f"Model({len(self.classes)} classes: {names}; {title} of {network}, {images})"

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
        limit = 0.0
        if self.has_several:
            limit = 0.5
        return np.full(len(self.classes), limit)

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
            pictures: list[ImageLike] = [*find_images(images)]
        else:
            pictures = [image for image, _ in samples(images)]
        if not pictures:
            raise OptionError("images must hold at least one image, got none")
        scores = []
        for prediction in predict(self, pictures, network=network):
            if prediction.error:
                raise ImageError(prediction.error)
            scores.append(prediction.scores)
        return np.stack(scores)

    def predict(self, images: Images, *, network: Network | None = None) -> Array:
        """Return the class of each image (n,), the one with the highest score.

        For a model whose training images had several classes: 1 and 0 for each class, (n, C).
        """
        return self._answers(self.decision_function(images, network=network))

    def predict_proba(self, images: Images, *, network: Network | None = None) -> Array:
        """Probability (n, C) that a class is present, each class on its own."""
        return self.svm.calibrate(self.decision_function(images, network=network))

    def score(self, images: Images, y: Any, *, network: Network | None = None) -> float:
        """Return the share of images whose class is right, 0 to 1.

        For a model with several classes per image it is the mean AP, scikit-learn's, of `y` (n, C)
        of 1 (present), 0 or -1.
        """
        truth = np.asarray(y)
        scores = self.decision_function(images, network=network)
        shape: tuple[int, ...] = (len(scores),)
        if self.has_several:
            shape = (len(scores), len(self.classes))
        if len(truth) != len(scores) or truth.ndim != len(shape):
            raise OptionError(f"y must have the shape {shape}, got {truth.shape}")
        if not self.has_several:
            return float((self._answers(scores) == truth).mean())
        evaluation = evaluate(np.where(truth == 1, 1, -1), scores, self.classes)
        mean = evaluation.map["sklearn"]
        if mean is None:
            return float("nan")
        return mean / 100

    def _answers(self, scores: Array) -> Array:
        """Return the class of each image, or 1 and 0 for each class; see `predict`."""
        if self.has_several:
            return (scores > 0).astype(int)
        # a class that was not trained is never the answer
        best = np.where(self.svm.trained, scores, -np.inf).argmax(axis=1)
        return np.asarray(np.array(self.classes)[best])

    def compact(self) -> Model:
        """Return the model without `smooth`: photos are not averaged with neighbours.

        It needs no pool to score a photo. Its probabilities are calibrated on the photos of the
        pool by a line for each class, from its scores to those of this model.
        """
        recipe = parse_recipe(self.recipe, self.settings.network.layers)
        smoothed = [part for part in recipe.all_parts() if part.step == "smooth"]
        if not smoothed:
            return self
        plain = recipe.unsmoothed()
        state = self.fitted.state
        fitted = Fitted(lambda arrays: plain.value(arrays, state), state)
        compact = replace(self, fitted=fitted)
        pool = {}
        for part in smoothed:
            for number, name in enumerate(part.columns):
                pool[name] = state[f"{part.name}/{number}"].astype(np.float32)
        if set(recipe.columns) - set(pool):
            # a part that is not smoothed has other factors
            return compact
        calibration = _adapted(self.svm, self.scores(pool), compact.scores(pool))
        return replace(compact, svm=replace(self.svm, calibration=calibration))

    def check_store(self, store: Store) -> None:
        """Refuse a store with other features, or without some of the model's."""
        of_store = Settings.from_dict(store.settings).decisive()
        for key, value in self.settings.decisive().items():
            if value != of_store[key] and key != "network":
                raise WeightsError(
                    f"the model must have been trained with the {key} of {store.folder}, "
                    f"{of_store[key]}, got {value}; train one on this store with `deepfish train`"
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
        tensors = {"dual": svm.dual, "bias": svm.bias, "calibration": svm.calibration}
        for name, values in self.support.items():
            tensors[f"{FACTOR}{name}"] = values
        for name, values in self.fitted.state.items():
            tensors[f"{STATE}{name}"] = values
        if not self.support:  # classifiers on vectors
            tensors[MACHINES] = np.asarray(svm.features)
        if self.held_out is not None:
            tensors |= self.held_out.tensors()
        ap = svm.ap.astype(object)
        ap[np.isnan(svm.ap)] = None  # JSON has no NaN
        thresholds = None
        if self.thresholds is not None:
            thresholds = self.thresholds.tolist()
        document = {
            "recipe": self.recipe,
            "classes": list(self.classes),
            "trained": svm.trained.tolist(),
            "cost": svm.cost.tolist(),
            "ap": ap.tolist(),
            "training": dict(self.training),
            "thresholds": thresholds,
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
            reason = repr(error)
            if isinstance(error, DeepFishingError):
                reason = str(error)
            raise damaged(folder / DOCUMENT, reason) from None
        projected = any(factor.kind == "projected" for factor in model.factors)
        if projected and document.get("projection") != SCHEME:
            raise WeightsError(
                f"{folder} was trained on features that an earlier version projected, with "
                "matrices that are no longer drawn; train it again with `deepfish train`"
            )
        return model


def _from_parts(document: Mapping[str, Any], tensors: Mapping[str, Array]) -> Model:
    """Make a model of the contents of its two files; all numbers are checked."""
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
    vectors = tensors[MACHINES] if is_linear else support[recipe.columns[0]]
    _check_tensors(tensors, len(vectors), len(classes))
    learnt = {}
    for name, values in state.items():
        if not name.startswith(VECTORS):
            learnt[name] = values
    fitted = recipe.load(learnt)
    if is_linear:
        fitted = on_vectors(fitted, Vectors.restore(_part(VECTORS, state)))
        features: Comparable = vectors
    else:
        features = fitted(support)
    per_class = _per_class(document, len(classes))
    svm = KernelSVM(
        features=features,
        dual=tensors["dual"],
        bias=tensors["bias"],
        calibration=tensors["calibration"],
        is_exclusive=ZERO_SHOT in document["training"],
        trained=per_class["trained"],
        cost=per_class["cost"],
        ap=per_class["ap"],
    )
    return Model(
        recipe.name,
        settings,
        classes,
        support,
        fitted,
        svm,
        training=dict(document["training"]),
        thresholds=_thresholds(document.get("thresholds"), len(classes)),
        held_out=HeldOut.from_tensors(tensors, len(classes)),
    )


def _thresholds(values: Any, C: int) -> Array | None:
    """Return the thresholds of a document; older models have none."""
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
    """Return the arrays (C,) of the document."""
    kinds = {"trained": bool, "cost": float, "ap": float}
    arrays = {}
    for name, kind in kinds.items():
        arrays[name] = np.array(document[name], dtype=kind)
    if C == 0 or any(values.shape != (C,) for values in arrays.values()):
        raise ValueError(f"{', '.join(kinds)} must have {C} entries, one per class")
    return arrays


def _part(prefix: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the tensors whose names begin with a prefix, by the rest of the name."""
    part = {}
    for name, values in tensors.items():
        if name.startswith(prefix):
            part[name.removeprefix(prefix)] = values
    return part


def _adapted(svm: KernelSVM, scores: Array, others: Array) -> Array | None:
    """Return slopes and offsets (2, C) for other scores (n, C), by a line from these to scores."""
    if svm.calibration is None:
        return None
    slope, offset = svm.calibration
    centred = others - others.mean(axis=0)
    spread = np.maximum(np.square(centred).sum(axis=0), 1e-12)
    a = np.maximum((centred * scores).sum(axis=0) / spread, 0.0)
    b = scores.mean(axis=0) - a * others.mean(axis=0)
    return np.stack([slope * a, offset + slope * b])
