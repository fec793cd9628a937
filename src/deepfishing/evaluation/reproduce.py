"""Experiment: the paper's Table 1 on a data set, with any network.

Each measured row is written to disk at once. Features stay in a store beside the results, so a
second run or a new row computes only what is missing.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing import __version__
from deepfishing.core.accuracy import KEYS, has_one_class, measure_accuracy
from deepfishing.core.kernels import Comparable
from deepfishing.core.metrics import evaluate
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import AUTO, Arrays, Recipe, parse_recipe, parse_recipes
from deepfishing.core.recipes.language import known_recipes
from deepfishing.core.statistics import bootstrap
from deepfishing.errors import DatasetError, OptionError
from deepfishing.evaluation.checks import TABLE, Result
from deepfishing.evaluation.results import Results, Table, row_key, safe_name, versions
from deepfishing.evaluation.splits import (
    DRAWN,
    GIVEN,
    figures_apart,
    find_groups,
    has_similar_in_training,
    keep_together,
)
from deepfishing.extraction.engines import choose_engines
from deepfishing.extraction.options import FeatureOptions, Resources
from deepfishing.extraction.pipeline import extract_to
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import OnFailure
from deepfishing.images.dataset import DIFFICULT, Dataset, Split
from deepfishing.images.preprocess import refuse_unreadable
from deepfishing.images.voc import write_submission
from deepfishing.learn.auto import choose
from deepfishing.learn.choice import Choice, at_temperature
from deepfishing.learn.folds import EMBEDDING
from deepfishing.learn.pool import Pool
from deepfishing.learn.svm import check_options, train_svm
from deepfishing.networks.network import Network
from deepfishing.store import Store
from deepfishing.util.progress import Progress, silent


@dataclass(frozen=True, kw_only=True)
class Protocol(FeatureOptions, Resources):
    """How rows are measured; the defaults are the paper's.

    What is asked of the network is in `FeatureOptions`, what the work may use in `Resources`.
    `difficult` says what difficult examples are in training: left out, "ignore", or "negative". In
    the test they are always left out. Images that cannot be used are left out; `strict` stops
    before the work instead.
    """

    C: float = 1.0
    difficult: str = DIFFICULT[0]
    strict: bool = False

    def __post_init__(self) -> None:
        FeatureOptions.__post_init__(self)
        Resources.__post_init__(self)
        if isinstance(self.C, str):
            raise OptionError(
                f"C of an experiment must be a positive number, got {self.C!r}"
            )
        check_options(self.C, self.difficult)
        choose_engines(self.engine)


def reproduce(
    dataset: Dataset,
    network: Network,
    out: str | Path,
    features: str | Iterable[str] = "all",
    protocol: Protocol | None = None,
    command: str = "",
    progress: Progress | None = None,
    on_failure: OnFailure | None = None,
) -> Table:
    """Measure one row per feature: extract, train on `dataset.train`, score `dataset.test`.

    Parameters
    ----------
    dataset : Dataset
        From `read_voc`, `read_folder` or `load_groceries`.
    network : Network
        From `load_network`.
    out : path
        Folder for `results.jsonl`, `scores/` and `features/`; what it holds is used again.
    features : str or list of str
        Recipes (docs/recipes.md); `all` for the rows of the paper's Table 1 that the network has,
        `auto` for what suits the training images: recipe, temperature and cost.
    protocol : Protocol
        Temperature, label, cost and so on.
    command : str
        Written into the rows, so that each can be run again.
    progress : callable
        Called with a stage, how much of it is done and how much there is.
    on_failure : callable
        Called with id and reason of each image that is left out, before anything is measured.

    Returns
    -------
    rows : Table
        A list of dicts with the keys of `results.jsonl`; `map` and `ap` are None for a test split
        without labels, for which submission files are written instead.
    """
    tell = progress or silent
    wanted = parse_recipes(features, network.layers)
    results = Results(out)
    experiment = prepare(
        dataset,
        network,
        results.folder,
        wanted,
        protocol or Protocol(),
        tell,
        on_failure,
    )
    rows = Table()
    for number, feature in enumerate(wanted):
        tell(TABLE, number, len(wanted))
        key = row_key(feature=feature.name, **experiment.decisive)
        row = next(iter(results.find(key)), None)
        # rows that were measured before there was an accuracy are measured again
        if (
            row is None
            or "accuracy" not in row
            or not results.scores_path(row).exists()
        ):
            row, scores = _measure(experiment, feature)
            row |= {"command": command, "key": key}
            test = experiment.dataset.test
            if test.labels is None:  # files for the evaluation server
                row["submission"] = f"submission/{safe_name(feature.name)}"
                write_submission(
                    results.folder / row["submission"], experiment.dataset, scores
                )
            results.add(row, scores, test, experiment.test_groups)
        elif "similar_across" not in row:  # a row of an older version
            row = row | _apart(experiment, row, results.scores(row)[0])
            results.keep([row])
        rows.append(row)
    tell(TABLE, len(wanted), len(wanted))
    return rows


@dataclass(frozen=True, eq=False)
class Experiment:
    """A data set whose features are on disk, ready to be measured in one way or another."""

    dataset: Dataset  # the readable part
    protocol: Protocol
    store: Store
    train_keys: list[str]  # the store's, of the images in their order
    test_keys: list[str]
    broken: list[str]  # the other images
    settings: Settings  # of the features
    decisive: dict[str, Any]  # all that decides a figure beside the feature's name

    @functools.cached_property
    def groups(self) -> Array:
        """Groups of copies and similar scenes: of the training images, then of the test images."""
        return find_groups(self.store, [*self.train_keys, *self.test_keys])

    @property
    def train_groups(self) -> Array:
        """Groups of the training images, which folds never split."""
        return self.groups[: len(self.train_keys)]

    @property
    def test_groups(self) -> Array:
        """Groups of the test images, which are drawn together by the bootstrap."""
        return self.groups[len(self.train_keys) :]

    @property
    def facts(self) -> Result:
        """What every row and every point says of the setting."""
        dataset = self.dataset
        return {
            "dataset": dataset.name,
            "train": dataset.train.name,
            "test": dataset.test.name,
            **self.settings.decisive(),
            "C": self.protocol.C,
            "difficult": self.protocol.difficult,
            "official_ap": dataset.official_ap,
            "n_train": len(dataset.train),
            "n_test": len(dataset.test),
            "split": DRAWN if dataset.is_drawn else GIVEN,
        }

    def factors(self, recipe: Recipe) -> tuple[dict[str, Array], dict[str, Array]]:
        """Factors of the training and of the test images."""
        train, test = (
            {name: self.store.read(keys, name) for name in recipe.columns}
            for keys in (self.train_keys, self.test_keys)
        )
        return train, test

    def choose(
        self,
        train: Arrays,
        labels: Array,
        rows: Array | None = None,
        *,
        kind: str = AUTO,
        pool: Pool | None = None,
    ) -> Choice:
        """What `auto` takes for these training images, by default all, and their labels.

        `kind` is one of `CHOSEN`. The `pool` has all training images; without one it is `train`.
        """
        return choose(
            train,
            labels,
            self.settings.network.layers,
            kind=kind,
            pool=pool or Pool(train),
            groups=self.train_groups if rows is None else self.train_groups[rows],
            tempered=self.settings.tau if self.settings.temperable else None,
            difficult=self.protocol.difficult,
        )

    def fit(
        self,
        recipe: Recipe,
        choice: Choice | None,
        train: Arrays,
        test: Arrays,
        pool: Pool | None = None,
    ) -> tuple[Comparable, Comparable]:
        """Features of both sides: of the recipe that was chosen, if any, at its temperature."""
        if choice is not None:
            recipe = parse_recipe(choice.recipe, self.settings.network.layers)
            if choice.tau is not None:
                train, test = (
                    at_temperature(side, choice.tau) for side in (train, test)
                )
        fitted = (pool or Pool(train)).fit(recipe, train)
        return fitted(train), fitted(test)

    def sides(self, recipe: Recipe) -> tuple[Comparable, Comparable]:
        """Features of the training and of the test images."""
        train, test = self.factors(recipe)
        choice = None
        if recipe.is_chosen_later:
            choice = self.choose(train, self.train_labels(), kind=recipe.name)
        return self.fit(recipe, choice, train, test)

    def chooser(
        self, recipe: Recipe
    ) -> Callable[[Array], tuple[Comparable, Comparable, float]]:
        """Return what gives, for labels, features of both sides and a cost; `auto` chooses them.

        Labels (n, classes) of the training images are 0 where they are not known.
        """
        if not recipe.is_chosen_later:
            fixed = (*self.sides(recipe), self.protocol.C)
            return lambda labels: fixed
        train, test = self.factors(recipe)
        pool = Pool(train)
        made: dict[tuple[str, float | None], tuple[Comparable, Comparable]] = {}

        def choose_by(labels: Array) -> tuple[Comparable, Comparable, float]:
            rows = np.flatnonzero(labels.any(axis=1))
            examples = {name: side[rows] for name, side in train.items()}
            choice = self.choose(
                examples, labels[rows], rows, kind=recipe.name, pool=pool
            )
            chosen = choice.recipe, choice.tau
            if chosen not in made:
                made[chosen] = self.fit(recipe, choice, train, test, pool)
            return *made[chosen], choice.cost

        return choose_by

    def train_labels(self) -> Array:
        """Labels to train with."""
        name, split = self.dataset.name, self.dataset.train
        if split.labels is None:
            raise DatasetError(
                f"split {split.name} of {name} must have labels to train"
            )
        return split.labels

    def test_labels(self) -> Array:
        """Labels to evaluate with."""
        split = self.dataset.test
        if split.labels is None:
            raise DatasetError(
                f"split {split.name} of {self.dataset.name} must have labels for this protocol; "
                "pass --test with a split that has them"
            )
        return split.labels


def prepare(
    dataset: Dataset,
    network: Network,
    out: Path,
    wanted: Iterable[Recipe],
    protocol: Protocol,
    tell: Progress,
    on_failure: OnFailure | None = None,
) -> Experiment:
    """Extract what is missing in `out`; the rest of the work needs neither images nor network."""
    settings = Settings.from_network(network, **protocol.feature_options())
    folder = out / "features" / settings.digest[:16]
    items = [
        *dataset.train.items(dataset.classes),
        *dataset.test.items(dataset.classes),
    ]
    recipes = [*wanted, *known_recipes([EMBEDDING], network.layers).values()]
    extraction = extract_to(
        folder,
        items,
        network=network,
        features=[recipe.name for recipe in recipes],
        resources=protocol,
        progress=tell,
        retry=True,  # a mended or newly supported file is worth another look
        strict=protocol.strict,
        **protocol.feature_options(),
    )
    store = Store.open(folder)
    if protocol.strict:  # features that are not finite are known only now
        refuse_unreadable(extraction.failures, len(extraction.keys))
    for id_, reason in extraction.failures.items():
        if on_failure:
            on_failure(id_, reason)
    n = len(dataset.train.ids)
    train, train_keys = _readable(dataset.train, extraction.keys[:n])
    test, test_keys = _readable(dataset.test, extraction.keys[n:])
    dataset = replace(dataset, train=train, test=test)
    if dataset.is_drawn:
        keys = [*train_keys, *test_keys]
        dataset, train_keys, test_keys = keep_together(
            dataset, keys, find_groups(store, keys)
        )
    digest = hashlib.sha256()
    for split, keys in ((dataset.train, train_keys), (dataset.test, test_keys)):
        digest.update("\n".join(keys).encode())
        digest.update(
            b"" if split.labels is None else split.labels.astype(np.int8).tobytes()
        )
    decisive = {
        "dataset": dataset.name,
        "splits": {
            "train": train.name,
            "test": test.name,
            "sha256": digest.hexdigest(),
        },
        **settings.decisive(),
        "C": protocol.C,
        "difficult": protocol.difficult,
        "version": __version__,
    }
    return Experiment(
        dataset=dataset,
        protocol=protocol,
        store=store,
        train_keys=train_keys,
        test_keys=test_keys,
        broken=sorted(extraction.failures),
        settings=settings,
        decisive=decisive,
    )


def _readable(split: Split, keys: tuple[str | None, ...]) -> tuple[Split, list[str]]:
    good = [i for i, key in enumerate(keys) if key]
    if not good:
        raise DatasetError(f"split {split.name} must have a readable image, got none")
    kept = Split(
        split.name,
        tuple(split.ids[i] for i in good),
        tuple(split.paths[i] for i in good),
        None if split.labels is None else split.labels[good],
    )
    return kept, [key for key in keys if key]


def _measure(experiment: Experiment, feature: Recipe) -> tuple[Result, Array]:
    start = time.perf_counter()
    dataset, protocol = experiment.dataset, experiment.protocol
    train_labels, sides = experiment.train_labels(), experiment.factors(feature)
    choice = None
    if feature.is_chosen_later:
        choice = experiment.choose(sides[0], train_labels, kind=feature.name)
    train, test = experiment.fit(feature, choice, *sides)
    svm = train_svm(
        train, train_labels, choice.cost if choice else protocol.C, protocol.difficult
    )
    scores = svm.decision_function(test)
    untrained = [
        name for name, ok in zip(dataset.classes, svm.trained, strict=True) if not ok
    ]
    row: Result = {
        **experiment.facts,
        "feature": feature.name,
        **({"auto": asdict(choice)} if choice else {}),
        "official_measure": dataset.measure,
        "classes": list(dataset.classes),
        **dict.fromkeys(("map", "ap", *KEYS)),
        "left_out": dict.fromkeys(
            untrained, "training needs a positive and a negative example"
        ),
        "unreadable": experiment.broken,
        "version": __version__,
        "versions": versions(),
    }
    truth = dataset.test.labels
    if truth is not None:
        labels = truth.copy()
        labels[:, ~svm.trained] = -1  # no classifier, so no AP
        evaluation = evaluate(labels, scores, dataset.classes)
        row |= {"map": evaluation.map, "ap": evaluation.ap}
        for name in evaluation.skipped:
            row["left_out"].setdefault(name, "no positive test example")
    row["seconds"] = round(time.perf_counter() - start, 3)  # without the intervals
    if truth is not None:
        groups = experiment.test_groups
        row |= bootstrap(labels, scores, dataset.classes, groups=groups).as_row()
        if has_one_class(train_labels) and has_one_class(truth):
            found = measure_accuracy(
                truth, scores, dataset.classes, svm.trained, groups
            )
            row |= found.as_row() if found else {}
        row |= _apart(experiment, row, scores)
    return row, scores


def _apart(experiment: Experiment, row: Result, scores: Array) -> Result:
    """The figures of a row without test images that have a similar photo in training."""
    truth, groups = experiment.dataset.test.labels, experiment.groups
    similar = has_similar_in_training(groups, len(experiment.train_keys))
    if truth is None:
        return {"similar_across": int(similar.sum())}
    labels = truth.copy()
    left_out = np.array([name in row["left_out"] for name in row["classes"]])
    labels[:, left_out] = -1
    return figures_apart(
        labels, scores, row["classes"], similar, experiment.test_groups
    )
