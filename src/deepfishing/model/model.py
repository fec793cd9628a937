"""Stage 6, models: machines together with all that leads from an image to their scores.

Comes in: factors of the training images and their labels. Goes out: a `Model`, which scores the
factors of other images. It is saved as `model.json` and `model.safetensors`, see `files`. Only
support vectors are kept, as factors: the fitted recipe makes features of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfishing.errors import DatasetError, ImageError, OptionError, StoreError, WeightsError
from deepfishing.features import Factor
from deepfishing.images.dataset import DIFFICULT
from deepfishing.images.preprocess import ImageLike
from deepfishing.images.sources import find_images
from deepfishing.kernel_vectors import Vectors
from deepfishing.metrics import evaluate
from deepfishing.rank_one import Array
from deepfishing.recipes import AUTO, Fitted, parse_recipe
from deepfishing.settings import Settings
from deepfishing.store import Store
from deepfishing.svm import KernelSVM

if TYPE_CHECKING:
    from deepfishing.auto import Choice
    from deepfishing.networks.network import Network

ONE, SEVERAL = "one per image", "several per image"  # labels of the training images
VECTORS = "vectors/"  # begins the names of their arrays in a fitted recipe's state

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
        Factors (n, ...) of the support vectors; none of a model on vectors, see `large`.
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


def on_vectors(fitted: Fitted, project: Vectors) -> Fitted:
    """A fitted recipe whose features are made into vectors."""
    state = {f"{VECTORS}{name}": values for name, values in project.state().items()}
    return Fitted(lambda arrays: project(fitted(arrays)), {**fitted.state, **state})


@dataclass(frozen=True, eq=False)
class Task:
    """What a model is trained for and how: labels (n, C) of classes, and options of `train_svm`.

    `progress` is told how far `auto` is.
    """

    labels: Array
    classes: Sequence[str]
    settings: Settings
    C: float | str = 1.0
    class_weight: str | float | None = None
    difficult: str = DIFFICULT[0]
    seed: int = 0
    progress: Callable[[str, int, int], None] | None = None

    def decide(self, recipe: str, arrays: Mapping[str, Array], rows: Array) -> Decided:
        """Settle `auto`, for the recipe or the cost, by the factors of these rows."""
        if recipe.strip() != AUTO and self.C != AUTO:
            return Decided(recipe, self, None)
        from deepfishing.auto import choose  # a prediction need not wait for it

        choice = choose(
            arrays,
            self.labels[rows],
            self.settings.network.layers,
            recipe=None if recipe.strip() == AUTO else recipe,
            tempered=self.settings.temperable,
            difficult=self.difficult,
            seed=self.seed,
            progress=self.progress,
        )
        settings = replace(self.settings, tau=choice.tau or self.settings.tau)
        C = choice.cost if self.C == AUTO else self.C
        return Decided(choice.recipe, replace(self, settings=settings, C=C), choice)

    def facts(self, choice: Choice | None) -> dict[str, Any]:
        """How it was trained, for people to read."""
        known = {name: getattr(self, name) for name in ("C", "class_weight", "difficult", "seed")}
        from deepfishing.accuracy import has_one_class

        kind = ONE if has_one_class(np.asarray(self.labels)) else SEVERAL
        chosen = {"auto": asdict(choice)} if choice else {}
        return {"images": len(self.labels), "labels": kind, **known, **chosen}

    def check(self, trained: Array) -> None:
        """Refuse labels that allow no machine."""
        if not trained.any():
            raise DatasetError(
                f"a class must have images with it and images without it, got none of "
                f"{', '.join(self.classes)} among {len(self.labels)} images"
            )


@dataclass(frozen=True, eq=False)
class Decided:
    """A recipe and a task without anything left to choose; `choice` is None if nothing was."""

    recipe: str
    task: Task
    choice: Choice | None

    def factors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """The factors at the temperature that was chosen."""
        if self.choice is None or self.choice.tau is None:
            return arrays
        from deepfishing.auto import at_temperature

        return at_temperature(arrays, self.choice.tau)


def train_model(
    recipe: str,
    arrays: Mapping[str, Array],
    labels: Array,
    classes: Sequence[str],
    *,
    settings: Settings,
    **options: Any,
) -> Model:
    """Fit a recipe and train its machines, with probabilities.

    Parameters
    ----------
    recipe : str
        One recipe, or `auto` for the one that suits the training images best, see `choose`.
    arrays : mapping
        The recipe's factors (n, d) or (n, P, d) of the training images.
    labels, classes, settings, options
        See `Task`; a `C` of "auto" is chosen, too.
    """
    return train_on_arrays(recipe, arrays, Task(labels, classes, settings, **options))


def train_on_arrays(recipe: str, arrays: Mapping[str, Array], task: Task) -> Model:
    """The same for a task as one value."""
    from deepfishing.classify import train_svm

    decided = task.decide(recipe, arrays, np.arange(len(task.labels)))
    task, arrays = decided.task, decided.factors(arrays)
    parsed = parse_recipe(decided.recipe, task.settings.network.layers)
    fitted = parsed.fit(arrays)
    svm = train_svm(
        fitted(arrays),
        task.labels,
        task.C,
        task.difficult,
        class_weight=task.class_weight,
        calibrated=True,
        seed=task.seed,
    )
    task.check(svm.trained)
    used = np.flatnonzero(svm.dual.any(axis=1))
    support = {name: np.ascontiguousarray(arrays[name][used]) for name in parsed.columns}
    return Model(
        recipe=parsed.name,
        settings=task.settings,
        classes=tuple(task.classes),
        support=support,
        fitted=fitted,
        svm=replace(svm, features=fitted(support), dual=svm.dual[used]),
        training=task.facts(decided.choice),
    )
