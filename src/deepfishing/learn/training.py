"""Training of a model from labelled images or from their features.

Images that cannot be used are returned with the reasons.

Up to some thousand images one kernel matrix is made for all classes. Of more the classifiers are
linear, on vectors that approximate the recipe's kernel (`Vectors`): time and memory are linear in
the images, factors are read a block at a time, vectors are kept in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from deepfishing.core.accuracy import has_one_class, measure_accuracy
from deepfishing.core.features import has_classifier
from deepfishing.core.metrics import average_precision
from deepfishing.core.projections import FIT_IMAGES
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import AUTO, CHOSEN, Arrays, Fitted, Recipe, parse_recipe
from deepfishing.core.recipes.language import SCORES
from deepfishing.core.recipes.recipe import FORWARD, POOLED
from deepfishing.errors import DatasetError, StoreError
from deepfishing.extraction.pipeline import extract_to
from deepfishing.extraction.settings import Settings
from deepfishing.images.dataset import DIFFICULT
from deepfishing.images.item import Item
from deepfishing.images.preprocess import refuse_unreadable
from deepfishing.learn.auto import FEW_LABELS, choose, examples_per_class, looked_at
from deepfishing.learn.choice import Choice, at_temperature
from deepfishing.learn.folds import (
    FOLDS,
    Folds,
    check_groups,
    make_folds,
    read_groups,
    validation_groups,
)
from deepfishing.learn.held_out import HeldOut
from deepfishing.learn.labelled import Labelled
from deepfishing.learn.linear import train_linear
from deepfishing.learn.model import ONE, SEVERAL, Model
from deepfishing.learn.nested import nested_ap, nested_scores
from deepfishing.learn.pool import Pool
from deepfishing.learn.svm import (
    DEFAULT_COST,
    CostSearch,
    KernelSVM,
    choose_costs,
    platt,
    train_svm,
)
from deepfishing.learn.vectors import Vectors, on_vectors
from deepfishing.store import Row, Store
from deepfishing.util.machine import memory
from deepfishing.util.progress import Progress, silent

# Images from which vectors take the place of the kernel matrix, docs/projections.md.
LARGE = 20_000
MAX_NUMBERS = 8192  # per vector, or as many as a third of the memory has room for
BLOCK_IMAGES = 1024  # whose factors are in memory together

EMBEDDING = "x7"  # which `auto` learns prototypes and neighbours from

Read = Callable[[Array], Arrays]  # factors of the images with these numbers
T = TypeVar("T")


def train_on_store(
    store: Store,
    rows: Sequence[Row],
    labelled: Labelled,
    recipe: str,
    *,
    strict: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Model, dict[str, str]]:
    """Train on the labelled images of a store; `strict` refuses to leave one out.

    Options are C, class_weight, difficult and seed, as of `train_svm`.
    """
    training_rows, labels = labelled.of(rows)
    failures = {row.id: str(row.error) for row in training_rows if row.error}
    if strict:
        refuse_unreadable(failures, len(training_rows))
    keys = []
    usable = []
    for number, row in enumerate(training_rows):
        if row.sha256 and not row.error:
            keys.append(row.sha256)
            usable.append(number)
    if not usable:
        raise DatasetError(
            f"an image must be usable to train on, got none of {len(training_rows)}, see "
            f"{store.folder}"
        )
    labels = labels[np.array(usable)]
    settings = Settings.from_dict(store.settings)
    columns = _columns_to_read(store, keys, recipe, settings)

    def read(numbers: Sequence[int] | Array) -> dict[str, Array]:
        chosen = [keys[number] for number in numbers]
        return {name: store.read(chosen, name) for name in columns}

    keywords: dict[str, Any] = {"settings": settings, "progress": progress, **options}
    if len(keys) > LARGE:
        keywords["groups"] = read_groups(read, keys)
        model = train_large(read, Task(recipe, labels, labelled.classes, **keywords))
        return replace(model, held_out=HeldOut.from_svm(keys, model.svm)), failures
    arrays = read(range(len(keys)))
    keywords["groups"] = validation_groups(arrays, keys)
    pool_rows = labelled.pool(rows)
    if parse_recipe(recipe, settings.network.layers).uses_pool:
        keywords["pool"] = _read_pool(store, pool_rows, columns)
    elif recipe.strip() in CHOSEN and EMBEDDING in columns:
        keywords["pool"] = _read_pool(store, pool_rows, [EMBEDDING], [SCORES])
    model = train_model(recipe, arrays, labels, labelled.classes, **keywords)
    return replace(model, held_out=HeldOut.from_svm(keys, model.svm)), failures


def _columns_to_read(
    store: Store, keys: Sequence[str], recipe: str, settings: Settings
) -> tuple[str, ...]:
    """Return the factors to read for a recipe; `auto` uses those that all images have."""
    columns = parse_recipe(recipe, settings.network.layers).columns
    absent = [name for name in columns if store.missing(keys, [name])]
    if recipe.strip() in CHOSEN:
        complete = [name for name in columns if name not in absent]
        if not complete:
            stored = store.factors()
            complete = [name for name in stored if not store.missing(keys, [name])]
        return tuple(complete)
    if absent:
        raise StoreError(
            f"store {store.folder} must hold {', '.join(columns)} for {recipe}, but lacks "
            f"{', '.join(absent)}; name a recipe of what it has with --features, or add them with "
            "`deepfish extract`"
        )
    return columns


def _read_pool(
    store: Store,
    rows: Sequence[Row],
    columns: Sequence[str],
    optional: Sequence[str] = (),
) -> dict[str, Array]:
    """Return factors of the usable photos among these rows; at most `LARGE` of them.

    `optional` names factors that are read where all of these photos have them.
    """
    usable = {str(row.sha256) for row in rows if row.sha256 and not row.error}
    complete = sorted(usable - set(store.missing(list(usable), columns)))
    keys = _draw(complete)
    names = list(columns)
    for name in optional:
        if not store.missing(keys, [name]):
            names.append(name)
    return {name: store.read(keys, name) for name in names}


def train_on_images(
    images: Sequence[Item],
    labelled: Labelled,
    folder: Path,
    recipe: str,
    *,
    strict: bool = False,
    progress: Progress | None = None,
    extraction: Mapping[str, Any] = MappingProxyType({}),
    labelled_only: bool = False,
    **options: Any,
) -> tuple[Model, dict[str, str]]:
    """Extract what the store in a folder lacks and train on it.

    Images without labels are used where they help: by recipes with `own` or `smooth`, and by
    `auto` while labels are few, for neighbours and prototypes; up to `LARGE` of them, and none if
    `labelled_only`. `extraction` has keywords of `extract_to`; options are those of
    `train_on_store`.
    """
    training_images, labels = labelled.of(images)
    keywords = {"retry": True, "progress": progress, **extraction}
    extract_to(folder, training_images, features=[recipe], strict=strict, **keywords)
    store = Store.open(folder)
    stored = store.rows()  # an image whose features are not finite is known only now
    rows = [stored[image.id] for image in training_images]
    features: list[str] = []
    if not labelled_only:
        settings = Settings.from_dict(store.settings)
        features = _features_of_pool(recipe, settings, labels)
    if features:
        pool = labelled.pool(images)
        unlabelled = _draw([image for image in pool if image.id not in labelled.rows])
        # an unlabelled image that cannot be read is left out even if `strict`
        if unlabelled:
            extract_to(folder, unlabelled, features=features, **keywords)
        stored = Store.open(folder).rows()
        rows += [stored[image.id] for image in unlabelled if image.id in stored]
    return train_on_store(
        Store.open(folder),
        rows,
        labelled,
        recipe,
        strict=strict,
        progress=progress,
        **options,
    )


def _features_of_pool(recipe: str, settings: Settings, labels: Array) -> list[str]:
    """Return the features of unlabelled images that a recipe learns from, if it uses them."""
    layers = settings.network.layers
    if recipe.strip() == FORWARD:
        return []
    if recipe.strip() in CHOSEN:
        if examples_per_class(labels) >= FEW_LABELS:
            return []
        if has_classifier(layers):
            return [EMBEDDING, SCORES]
        return [EMBEDDING]
    parts = parse_recipe(recipe, layers).all_parts()
    return [part.name for part in parts if part.step in POOLED]


def _draw(values: Sequence[T]) -> list[T]:
    """Return at most `LARGE` of the values, drawn at random, in their order."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(values))[:LARGE])
    return [values[number] for number in chosen]


@dataclass(frozen=True, eq=False)
class Task:
    """A recipe or `auto`, labels (n, C) of classes, and options of `train_svm`."""

    recipe: str
    labels: Array
    classes: Sequence[str]
    settings: Settings
    C: float | str = 1.0
    class_weight: str | float | None = None
    difficult: str = DIFFICULT[0]
    seed: int = 0
    progress: Progress | None = None
    choice: Choice | None = None  # of `auto`, once it has chosen
    pool: Pool | None = None  # photos that prototypes and neighbours may be learnt from
    # group of each image, from `validation_groups`; folds never split one
    groups: Array | None = None

    @property
    def counted_labels(self) -> Array:
        """The labels with difficult examples as they are used: 0 where they are left out."""
        labels = np.asarray(self.labels)
        if self.difficult == "negative":
            return np.where(labels == 0, -1, labels)
        return labels

    @property
    def parsed(self) -> Recipe:
        """The recipe as a value."""
        return parse_recipe(self.recipe, self.settings.network.layers)

    @property
    def has_choice(self) -> bool:
        """Whether the recipe or the cost is chosen on the training images."""
        return (
            self.recipe.strip() in CHOSEN
            or len(CostSearch.from_option(self.C).costs) > 1
        )

    def fit(self, arrays: Mapping[str, Array]) -> Fitted:
        """Fit the recipe to images, or to the pool if there is one."""
        if self.pool:
            return self.pool.fit(self.parsed, arrays)
        return self.parsed.fit(arrays)

    def decide(self, arrays: Mapping[str, Array], rows: Array) -> Task:
        """Return the task with `auto`, of recipe or cost, chosen by the factors of these rows."""
        recipe: str | None = self.recipe
        kind = AUTO
        if self.recipe.strip() in CHOSEN:
            recipe = None
            kind = self.recipe.strip()
        elif self.C != AUTO:
            return self
        groups = self.groups
        if groups is not None:
            groups = groups[rows]
        tempered = None
        if self.settings.temperable:
            tempered = self.settings.tau
        choice = choose(
            arrays,
            self.labels[rows],
            self.settings.network.layers,
            recipe=recipe,
            kind=kind,
            pool=self.pool,
            groups=groups,
            tempered=tempered,
            difficult=self.difficult,
            seed=self.seed,
            progress=self.progress,
        )
        settings = replace(self.settings, tau=choice.tau or self.settings.tau)
        C = self.C
        if C == AUTO:
            C = choice.cost
        return replace(
            self, recipe=choice.recipe, settings=settings, C=C, choice=choice
        )

    def factors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """The factors at the temperature that was chosen."""
        if self.choice is None or self.choice.tau is None:
            return arrays
        return at_temperature(arrays, self.choice.tau)

    def _validation(self, folds: Folds | None) -> dict[str, Any]:
        """Return a record of the cross-validation, and of the classes that were left out."""
        if folds is None:
            return {}
        not_measurable = {}
        for column, name in enumerate(self.classes):
            reason = folds.reason(column)
            if reason:
                not_measurable[name] = reason
        groups = check_groups(self.groups, len(self.labels))
        return {
            "folds": folds.count,
            "groups": len(np.unique(groups)),
            "not_measurable": not_measurable,
        }

    def accuracy(
        self, held_out: Array | None, folds: Folds | None
    ) -> dict[str, float | list[float]]:
        """Return the accuracy of held-out scores (n, C), in percent, with its interval.

        Beside it stands what the commonest class would get if it were always the answer. Images of
        classes that cannot be held out do not count. Empty where images have several classes.
        """
        labels = np.asarray(self.labels)
        if held_out is None or folds is None or not has_one_class(labels):
            return {}
        measurable = folds.measurable
        kept = (labels[:, measurable] == 1).any(axis=1)
        scores = held_out[kept][:, measurable]
        if not kept.any() or not np.isfinite(scores).all():
            return {}
        truth = labels[kept][:, measurable]
        names = [
            name
            for name, is_known in zip(self.classes, measurable, strict=True)
            if is_known
        ]
        groups = check_groups(self.groups, len(labels))[kept]
        found = measure_accuracy(truth, scores, names, groups=groups)
        if found is None:
            return {}
        return {
            "accuracy": round(found.top1, 2),
            "interval": [round(limit, 2) for limit in found.top1_interval],
            "commonest": round(100 * float((truth == 1).mean(axis=0).max()), 2),
            "classes": len(names),
        }

    def model(
        self, fitted: Fitted, svm: KernelSVM, support: Mapping[str, Array], **facts: Any
    ) -> Model:
        """Return the trained model, with a record of the training."""
        if not svm.trained.any():
            raise DatasetError(
                f"a class must have images with it and images without it, got none of "
                f"{', '.join(self.classes)} among {len(self.labels)} images"
            )
        labels = SEVERAL
        if has_one_class(np.asarray(self.labels)):
            labels = ONE
        training: dict[str, Any] = {
            "images": len(self.labels),
            "labels": labels,
            "C": self.C,
            "class_weight": self.class_weight,
            "difficult": self.difficult,
            "seed": self.seed,
            "validation": self._validation(svm.folds),
        }
        if self.choice:
            training["auto"] = asdict(self.choice)
        if self.pool and self.parsed.uses_pool:
            training["pool"] = len(self.pool)
        training |= facts
        return Model(
            self.parsed.name,
            self.settings,
            tuple(self.classes),
            support,
            fitted,
            svm,
            training,
        )


def train_model(
    recipe: str,
    arrays: Mapping[str, Array],
    labels: Array,
    classes: Sequence[str],
    *,
    settings: Settings,
    pool: Arrays | None = None,
    **options: Any,
) -> Model:
    """Fit a recipe, or `auto`, to factors (n, d) or (n, P, d) of images; options as of `Task`.

    `pool` has the factors of photos that may be unlabelled, for `own` and `smooth` to learn from.
    """
    task_pool = None
    if pool:
        task_pool = Pool(pool)
    if options.get("groups") is None:
        options["groups"] = validation_groups(arrays)
    task = Task(recipe, labels, classes, settings, pool=task_pool, **options)
    undecided = task
    task = task.decide(arrays, np.arange(len(labels)))
    factors = task.factors(arrays)
    fitted = task.fit(factors)
    svm = train_svm(
        fitted(factors),
        task.labels,
        task.C,
        task.difficult,
        class_weight=task.class_weight,
        calibrated=True,
        seed=task.seed,
        groups=task.groups,
    )
    held_out = svm.held_out
    if undecided.has_choice and svm.folds is not None:
        held_out = nested_scores(undecided, arrays, svm.folds)
        svm = replace(svm, ap=nested_ap(undecided, held_out, svm.folds))
    accuracy = task.accuracy(held_out, svm.folds)
    used = np.flatnonzero(svm.dual.any(axis=1))
    support = {}
    for name in task.parsed.columns:
        support[name] = np.ascontiguousarray(factors[name][used])
    svm = replace(svm, features=fitted(support), dual=svm.dual[used])
    return task.model(fitted, svm, support, accuracy=accuracy)


def train_large(read: Read, task: Task) -> Model:
    """Train as `train_model`, in time and memory linear in the number of images."""
    n = len(task.labels)
    folds = make_folds(task.counted_labels, task.groups, FOLDS, task.seed)
    # the first fold measures the classifiers, so the recipe is chosen without it
    outside = np.flatnonzero(folds.number != 0)
    rows = outside[looked_at(task.labels[outside], task.seed)]
    task = task.decide(read(rows), rows)
    recipe = task.parsed

    def factors(rows: Array) -> Arrays:
        arrays = task.factors(read(rows))
        return {name: arrays[name] for name in recipe.columns}

    random = np.random.default_rng(task.seed)
    sample = factors(np.sort(random.permutation(n)[: 2 * FIT_IMAGES]))
    fitted = recipe.fit(sample)
    numbers = min(MAX_NUMBERS, memory() // (6 * n))
    project = Vectors.fit(fitted(sample)[:FIT_IMAGES], numbers, task.seed)
    two_images = {name: values[:2] for name, values in sample.items()}
    width = project(fitted(two_images)).shape[1]
    vectors: Array = np.empty((n, width), dtype=np.float16)
    # those that are held out once come first, so that neither they nor the others are copied
    order = np.argsort(folds.number != 0, kind="stable")
    place = np.argsort(order)
    report_progress = task.progress or silent
    for start in range(0, n, BLOCK_IMAGES):
        report_progress("vectors", start, n)
        rows = np.arange(start, min(start + BLOCK_IMAGES, n))
        vectors[place[rows]] = project(fitted(factors(rows)))
    report_progress("vectors", n, n)
    n_held_out = int((folds.number == 0).sum())
    svm = _train_linear(vectors, task.labels[order], n_held_out, task, folds)
    svm = replace(svm, folds=folds)
    return task.model(on_vectors(fitted, project), svm, {}, vectors=width)


def _train_linear(
    vectors: Array, labels: Array, n_held_out: int, task: Task, folds: Folds
) -> KernelSVM:
    """Train linear classifiers on all vectors.

    Costs and probabilities are chosen by classifiers without the first `n_held_out` images.
    """
    search = CostSearch.from_option(task.C)
    weight = task.class_weight
    if weight is None:
        weight = search.positive_weight
    options: dict[str, Any] = {
        "difficult": task.difficult,
        "class_weight": weight,
        "progress": task.progress or silent,
    }
    held_out = labels[:n_held_out].T
    scores, ap = [], []
    for C in search.costs:
        svm = train_linear(vectors[n_held_out:], labels[n_held_out:], C, **options)
        scores_at_cost = svm.decision_function(vectors[:n_held_out])
        ap_at_cost = list(map(_ap, held_out, scores_at_cost.T))
        scores.append(scores_at_cost)
        ap.append(np.where(folds.measurable, ap_at_cost, np.nan))
    chosen = choose_costs(np.array(ap).T, search)
    cost = np.array(search.costs)[chosen]
    final = train_linear(vectors, labels, cost, **options)
    calibration = []
    for column, (truth, best) in enumerate(zip(held_out, chosen, strict=True)):
        counts = np.full(len(truth), True)
        if task.difficult == "ignore":
            counts = truth != 0
        target = np.where(truth[counts] == 1, 1, -1)
        calibration.append(platt(scores[best][counts, column], target))
    return KernelSVM(
        features=np.ascontiguousarray(final.w.T),
        dual=np.eye(final.w.shape[1]),
        bias=final.bias,
        trained=final.trained,
        cost=np.where(final.trained, cost, DEFAULT_COST),
        ap=np.array(ap)[chosen, np.arange(len(chosen))],
        calibration=np.array(calibration).T,
    )


def _ap(truth: Array, scores: Array) -> float:
    """Return the AP of one class; NaN without a positive or without a negative image."""
    counts = truth != 0
    if len(np.unique(truth[counts])) < 2:
        return np.nan
    return average_precision(truth[counts], scores[counts], "area")
