"""Stage 6, models: trained classifiers together with all that leads from an image to their scores.

Comes in: images or their factors. Goes out: scores, probabilities and classes. A `Model` is made by
`training` and saved as `model.json` and `model.safetensors`, see `files`. Only support vectors are
kept, as factors: the fitted recipe makes features of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.core.features import Factor
from deepfishing.core.kernels import Combination, Comparable, KernelRBF, KernelSum
from deepfishing.core.projections import (
    MAX_LANDMARKS,
    Nystroem,
    Projection,
    fit_projection,
    restore,
)
from deepfishing.core.rank_one import Array, RankOne, l2_normalize
from deepfishing.core.recipes import Fitted, parse_recipe
from deepfishing.errors import ImageError, OptionError, StoreError, WeightsError
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import ImageLike
from deepfishing.images.sources import find_images
from deepfishing.images.streams import samples
from deepfishing.learn.svm import KernelSVM
from deepfishing.metrics import evaluate
from deepfishing.store import Store

if TYPE_CHECKING:
    from deepfishing.networks.network import Network

ONE, SEVERAL = "one per image", "several per image"  # labels of the training images
VECTORS = "vectors/"  # begins the names of their arrays in a fitted recipe's state

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
        return tuple(factor.name for factor in self.factors)

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The factors that an image is scored by."""
        return parse_recipe(self.recipe, self.settings.network.layers).factors

    def scores(self, arrays: Mapping[str, Array]) -> Array:
        """Decision scores (m, C) of images, from their factors."""
        return self.svm.decision_function(self.fitted(arrays))

    def probabilities(self, arrays: Mapping[str, Array]) -> Array:
        """Probability (m, C) that a class is present, each class on its own."""
        return self.svm.calibrate(self.scores(arrays))

    def decision_function(self, images: Images, *, network: Network | None = None) -> Array:
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
            mean = evaluate(np.where(truth == 1, 1, -1), scores, self.classes).map["sklearn"]
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
        if set(recipe.columns) - set(pool):  # a part that is not smoothed has factors of its own
            return compact
        calibration = _adapted(self.svm, self.scores(pool), compact.scores(pool))
        return replace(compact, svm=replace(self.svm, calibration=calibration))

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
        """Write the model; one that exists is replaced."""
        from deepfishing.learn.model_files import save

        save(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Model:
        """Read a model that `save` wrote; a damaged or foreign folder is a `WeightsError`."""
        from deepfishing.learn.model_files import load

        return load(Path(folder))


@dataclass(frozen=True, eq=False)
class Vectors:
    """Features as vectors whose dot products approximate the recipe's kernel.

    A sum is its parts side by side; a gradient, or the product of two kernels, is of rank 1 and
    keeps its largest principal entries (`Principal`); a Gaussian kernel has landmarks
    (`Nystroem`).
    """

    projections: tuple[Projection, ...]  # in the order in which they are met

    @classmethod
    def fit(cls, sample: Comparable, m: int, seed: int = 0) -> Vectors:
        """Find principal axes of these images; about m numbers per vector."""
        found: list[Projection] = []
        # a product keeps m numbers of what is below it; the parts of a sum share them
        shared = max(1, sum(isinstance(part, RankOne) for part in getattr(sample, "parts", ())))
        each = m // shared if isinstance(sample, KernelSum) else m

        def project(gradients: RankOne, g: float | None = None) -> Array:
            if g is None:
                found.append(fit_projection("principal", gradients, each, seed))
            else:
                found.append(Nystroem.fit(gradients, min(each, MAX_LANDMARKS), seed, g))
            return found[-1](gradients)

        _vectors(sample, project)
        return cls(tuple(found))

    def __call__(self, features: Comparable) -> Array:
        """Vectors (n, m) in single precision."""
        left = iter(self.projections)
        return _vectors(features, lambda gradients, g=None: next(left)(gradients))

    def state(self) -> dict[str, Array]:
        """All arrays, by names that say which projection they are of."""
        return {
            f"{number}/{name}": values
            for number, project in enumerate(self.projections)
            for name, values in project.state().items()
        }

    @classmethod
    def restore(cls, state: Mapping[str, Array]) -> Vectors:
        """The map whose `state` this is."""
        found: dict[int, dict[str, Array]] = {}
        for key, values in state.items():
            number, _, name = key.partition("/")
            found.setdefault(int(number), {})[name] = values
        return cls(tuple(restore(found[number]) for number in sorted(found)))


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


def _vectors(value: Comparable, project: Callable[..., Array]) -> Array:
    if isinstance(value, KernelRBF):
        inner = l2_normalize(_vectors(value.parts[0], project))
        ones = np.ones((len(inner), 1), dtype=np.float32)
        return l2_normalize(project(RankOne(inner, ones), value.g))
    if isinstance(value, Combination):
        parts = [_vectors(part, project) for part in value.parts]
        return value.vectors(parts, lambda a, b: l2_normalize(project(RankOne(a, b))))
    if isinstance(value, RankOne):
        return l2_normalize(project(value))
    return np.asarray(value, dtype=np.float32)


def on_vectors(fitted: Fitted, project: Vectors) -> Fitted:
    """A fitted recipe whose features are made into vectors."""
    state = {f"{VECTORS}{name}": values for name, values in project.state().items()}
    return Fitted(lambda arrays: project(fitted(arrays)), {**fitted.state, **state})
