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
from typing import Any

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
NUMBERS = 8192  # per vector, or as many as a third of the memory has room for
BLOCK = 1024  # images whose factors are in memory together

EMBEDDING = "x7"  # which `auto` learns prototypes and neighbours from

Read = Callable[[Array], Arrays]  # factors of the images with these numbers


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
    known, labels = labelled.of(rows)
    failures = {row.id: str(row.error) for row in known if row.error}
    if strict:
        refuse_unreadable(failures, len(known))
    good = [number for number, row in enumerate(known) if row.sha256 and not row.error]
    if not good:
        raise DatasetError(
            f"an image must be usable to train on, got none of {len(known)}, see {store.folder}"
        )
    usable = [str(known[number].sha256) for number in good]
    settings, labels = Settings.from_dict(store.settings), labels[np.array(good)]
    columns = parse_recipe(recipe, settings.network.layers).columns
    absent = [name for name in columns if store.missing(usable, [name])]
    if recipe.strip() in CHOSEN:  # makes do with what there is
        columns = tuple(name for name in columns if name not in absent)
        columns = columns or tuple(
            n for n in store.factors() if not store.missing(usable, [n])
        )
    elif absent:
        raise StoreError(
            f"store {store.folder} must hold {', '.join(columns)} for {recipe}, but lacks "
            f"{', '.join(absent)}; name a recipe of what it has with --features, or add them with "
            "`deepfish extract`"
        )

    def read(numbers: Sequence[int] | Array) -> dict[str, Array]:
        keys = [usable[number] for number in numbers]
        return {name: store.read(keys, name) for name in columns}

    how: dict[str, Any] = {"settings": settings, "progress": progress, **options}
    if len(usable) > LARGE:
        how["groups"] = read_groups(read, usable)
        model = train_large(read, Task(recipe, labels, labelled.classes, **how))
        return replace(model, held_out=HeldOut.from_svm(usable, model.svm)), failures
    arrays = read(range(len(usable)))
    how["groups"] = validation_groups(arrays, usable)
    if parse_recipe(recipe, settings.network.layers).uses_pool:
        how["pool"] = _read_pool(store, labelled.pool(rows), columns)
    elif recipe.strip() in CHOSEN and EMBEDDING in columns:
        how["pool"] = _read_pool(store, labelled.pool(rows), [EMBEDDING], [SCORES])
    model = train_model(recipe, arrays, labels, labelled.classes, **how)
    return replace(model, held_out=HeldOut.from_svm(usable, model.svm)), failures


def _read_pool(
    store: Store, rows: Sequence[Row], columns: Sequence[str], also: Sequence[str] = ()
) -> dict[str, Array]:
    """Factors of the usable photos among these rows, labelled or not; at most `LARGE` of them.

    `also` names factors that are read where all of these photos have them.
    """
    keys = dict.fromkeys(
        str(row.sha256) for row in rows if row.sha256 and not row.error
    )
    ready = sorted(set(keys) - set(store.missing(list(keys), columns)))
    drawn = np.sort(np.random.default_rng(0).permutation(len(ready))[:LARGE])
    chosen = [ready[number] for number in drawn]
    names = [*columns, *(name for name in also if not store.missing(chosen, [name]))]
    return {name: store.read(chosen, name) for name in names}


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
    known, labels = labelled.of(images)
    told: dict[str, Any] = {"strict": strict, "progress": progress}
    extract_to(folder, known, features=[recipe], retry=True, **told, **extraction)
    store = Store.open(folder)
    rows = store.rows()  # an image whose features are not finite is known only now
    found = [rows[image.id] for image in known]
    settings = Settings.from_dict(store.settings)
    features = _learnt_from_pool(recipe, settings, labels)
    if features and not labelled_only:
        unlabelled = [
            image for image in labelled.pool(images) if image.id not in labelled.rows
        ]
        some = _some_of(unlabelled)
        if some:
            told["strict"] = False  # an unlabelled image that cannot be read is no loss
            extract_to(
                folder, some, features=features, retry=True, **told, **extraction
            )
            rows = Store.open(folder).rows()
            found += [rows[image.id] for image in some if image.id in rows]
        told["strict"] = strict
    return train_on_store(
        Store.open(folder), found, labelled, recipe, **told, **options
    )


def _learnt_from_pool(recipe: str, settings: Settings, labels: Array) -> list[str]:
    """The features of unlabelled images that a recipe learns from; none if they are of no use."""
    layers = settings.network.layers
    if recipe.strip() == FORWARD:
        return []
    if recipe.strip() in CHOSEN:
        if examples_per_class(labels) >= FEW_LABELS:
            return []
        return [EMBEDDING, SCORES] if has_classifier(layers) else [EMBEDDING]
    parsed = parse_recipe(recipe, layers)
    pooled = [part for part in parsed.all_parts() if part.step in POOLED]
    return [part.name for part in pooled]


def _some_of(images: Sequence[Item]) -> list[Item]:
    """At most `LARGE` images, drawn at random, in their order."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(images))[:LARGE])
    return [images[number] for number in chosen]


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
    # of each image, of `validation_groups`; folds never split one
    groups: Array | None = None

    @property
    def counted_labels(self) -> Array:
        """The labels with difficult examples as they are used: 0 where they are left out."""
        labels = np.asarray(self.labels)
        return (
            np.where(labels == 0, -1, labels)
            if self.difficult == "negative"
            else labels
        )

    @property
    def parsed(self) -> Recipe:
        """The recipe as a value."""
        return parse_recipe(self.recipe, self.settings.network.layers)

    @property
    def has_choice(self) -> bool:
        """Whether the recipe or the cost is chosen on the training images."""
        return self.recipe.strip() in CHOSEN or len(CostSearch.of(self.C).costs) > 1

    def fit(self, arrays: Mapping[str, Array]) -> Fitted:
        """Fit the recipe to images, or to the pool if there is one."""
        if self.pool:
            return self.pool.fit(self.parsed, arrays)
        return self.parsed.fit(arrays)

    def decide(self, arrays: Mapping[str, Array], rows: Array) -> Task:
        """The task with `auto`, of recipe or cost, settled by the factors of these rows."""
        is_chosen = self.recipe.strip() in CHOSEN
        if not is_chosen and self.C != AUTO:
            return self
        choice = choose(
            arrays,
            self.labels[rows],
            self.settings.network.layers,
            recipe=None if is_chosen else self.recipe,
            kind=self.recipe.strip() if is_chosen else AUTO,
            pool=self.pool,
            groups=None if self.groups is None else self.groups[rows],
            tempered=self.settings.tau if self.settings.temperable else None,
            difficult=self.difficult,
            seed=self.seed,
            progress=self.progress,
        )
        settings = replace(self.settings, tau=choice.tau or self.settings.tau)
        C = choice.cost if self.C == AUTO else self.C
        return replace(
            self, recipe=choice.recipe, settings=settings, C=C, choice=choice
        )

    def factors(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """The factors at the temperature that was chosen."""
        tau = self.choice.tau if self.choice else None
        return arrays if tau is None else at_temperature(arrays, tau)

    def _validation(self, folds: Folds | None) -> dict[str, Any]:
        """Record how the figures of a model were cross-validated, and of which classes not."""
        if folds is None:
            return {}
        reasons = {
            name: folds.reason(column) for column, name in enumerate(self.classes)
        }
        return {
            "folds": folds.count,
            "groups": len(np.unique(check_groups(self.groups, len(self.labels)))),
            "not_measurable": {
                name: reason for name, reason in reasons.items() if reason
            },
        }

    def accuracy(
        self, held_out: Array | None, folds: Folds | None
    ) -> dict[str, float | list[float]]:
        """Return the accuracy of held-out scores (n, C), in percent, with its interval.

        Beside it stands what the commonest class would get if it were always the answer. Empty
        where images have several classes, or a class cannot be held out.
        """
        labels = np.asarray(self.labels)
        is_known = folds is not None and folds.measurable.all()
        if held_out is None or not is_known or not has_one_class(labels):
            return {}
        if not np.isfinite(held_out).all():
            return {}
        found = measure_accuracy(labels, held_out, self.classes, groups=self.groups)
        if found is None:
            return {}
        return {
            "accuracy": round(found.top1, 2),
            "interval": [round(limit, 2) for limit in found.top1_interval],
            "commonest": round(100 * float((labels == 1).mean(axis=0).max()), 2),
        }

    def model(
        self, fitted: Fitted, svm: KernelSVM, support: Mapping[str, Array], **facts: Any
    ) -> Model:
        """The trained model, which notes how it was made."""
        if not svm.trained.any():
            raise DatasetError(
                f"a class must have images with it and images without it, got none of "
                f"{', '.join(self.classes)} among {len(self.labels)} images"
            )
        training = {
            "images": len(self.labels),
            "labels": ONE if has_one_class(np.asarray(self.labels)) else SEVERAL,
            **{
                name: getattr(self, name)
                for name in ("C", "class_weight", "difficult", "seed")
            },
            "validation": self._validation(svm.folds),
            **({"auto": asdict(self.choice)} if self.choice else {}),
            **({"pool": len(self.pool)} if self.pool and self.parsed.uses_pool else {}),
            **facts,
        }
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
    known = Pool(pool) if pool else None
    if options.get("groups") is None:
        options["groups"] = validation_groups(arrays)
    asked = Task(recipe, labels, classes, settings, pool=known, **options)
    task = asked.decide(arrays, np.arange(len(labels)))
    as_stored, arrays = arrays, task.factors(arrays)
    fitted = task.fit(arrays)
    svm = train_svm(
        fitted(arrays),
        task.labels,
        task.C,
        task.difficult,
        class_weight=task.class_weight,
        calibrated=True,
        seed=task.seed,
        groups=task.groups,
    )
    held_out = svm.held_out
    if asked.has_choice and svm.folds is not None:
        held_out = nested_scores(asked, as_stored, svm.folds)
        svm = replace(svm, ap=nested_ap(asked, held_out, svm.folds))
    accuracy = task.accuracy(held_out, svm.folds)
    used = np.flatnonzero(svm.dual.any(axis=1))
    support = {
        name: np.ascontiguousarray(arrays[name][used]) for name in task.parsed.columns
    }
    return task.model(
        fitted,
        replace(svm, features=fitted(support), dual=svm.dual[used]),
        support,
        accuracy=accuracy,
    )


def train_large(read: Read, task: Task) -> Model:
    """As `train_model`, in time and memory that grow with the number of images, not its square."""
    n = len(task.labels)
    folds = make_folds(task.counted_labels, task.groups, FOLDS, task.seed)
    # the first fold measures the classifiers, so the recipe is chosen without it
    outside = np.flatnonzero(folds.number != 0)
    rows = outside[looked_at(task.labels[outside], task.seed)]
    task = task.decide(read(rows), rows)
    recipe = task.parsed

    def factors(rows: Array) -> Arrays:
        found = task.factors(read(rows))
        return {name: found[name] for name in recipe.columns}

    random = np.random.default_rng(task.seed)
    some = factors(np.sort(random.permutation(n)[: 2 * FIT_IMAGES]))
    fitted = recipe.fit(some)
    numbers = min(NUMBERS, memory() // (6 * n))
    project = Vectors.fit(fitted(some)[:FIT_IMAGES], numbers, task.seed)
    width = project(fitted({name: values[:2] for name, values in some.items()})).shape[
        1
    ]
    vectors: Array = np.empty((n, width), dtype=np.float16)
    # those that are held out once come first, so that neither they nor the others are copied
    order = np.argsort(folds.number != 0, kind="stable")
    place = np.argsort(order)
    tell = task.progress or silent
    for start in range(0, n, BLOCK):
        tell("vectors", start, n)
        rows = np.arange(start, min(start + BLOCK, n))
        vectors[place[rows]] = project(fitted(factors(rows)))
    tell("vectors", n, n)
    held = int((folds.number == 0).sum())
    svm = replace(
        _train_linear(vectors, task.labels[order], held, task, folds), folds=folds
    )
    return task.model(on_vectors(fitted, project), svm, {}, vectors=width)


def _train_linear(
    vectors: Array, labels: Array, held: int, task: Task, folds: Folds
) -> KernelSVM:
    """Linear classifiers on all vectors; costs and probabilities by those without the first."""
    search = CostSearch.of(task.C)
    weight = search.positive_weight if task.class_weight is None else task.class_weight
    options: dict[str, Any] = {"difficult": task.difficult, "class_weight": weight}
    options["progress"] = task.progress or silent
    scores, ap = [], []
    for C in search.costs:
        svm = train_linear(vectors[held:], labels[held:], C, **options)
        scores.append(svm.decision_function(vectors[:held]))
        held_out = [
            _ap(*column) for column in zip(labels[:held].T, scores[-1].T, strict=True)
        ]
        ap.append(np.where(folds.measurable, held_out, np.nan))
    chosen = choose_costs(np.array(ap).T, search)
    cost = np.array(search.costs)[chosen]
    final = train_linear(vectors, labels, cost, **options)
    calibration = []
    for column, (truth, best) in enumerate(zip(labels[:held].T, chosen, strict=True)):
        kept = truth != 0 if task.difficult == "ignore" else np.full(len(truth), True)
        target = np.where(truth[kept] == 1, 1, -1)
        calibration.append(platt(scores[best][kept, column], target))
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
    known = truth != 0
    both = len(np.unique(truth[known])) == 2
    return average_precision(truth[known], scores[known], "area") if both else np.nan
