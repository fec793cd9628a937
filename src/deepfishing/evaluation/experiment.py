"""An experiment: a data set whose features are on disk, ready for any protocol.

Features stay in a store beside the results, so a second run or a new row computes only what is
missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing import __version__
from deepfishing.core.kernels import Comparable
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import AUTO, Arrays, Recipe, parse_recipe
from deepfishing.core.recipes.language import known_recipes
from deepfishing.errors import DatasetError, OptionError, PrecisionError
from deepfishing.evaluation.record import Result
from deepfishing.evaluation.splits import DRAWN, GIVEN, find_groups, keep_together
from deepfishing.extraction.engines import choose_engines
from deepfishing.extraction.options import FeatureOptions, Resources
from deepfishing.extraction.pipeline import extract_to
from deepfishing.extraction.settings import Settings
from deepfishing.extraction.to_store import OnFailure
from deepfishing.images.dataset import DIFFICULT, Dataset, Split
from deepfishing.images.preprocess import refuse_unreadable
from deepfishing.learn.auto import choose
from deepfishing.learn.choice import Choice, at_temperature
from deepfishing.learn.folds import EMBEDDING
from deepfishing.learn.pool import Pool
from deepfishing.learn.svm import check_options
from deepfishing.networks.network import Network
from deepfishing.store import Store
from deepfishing.store.precision import FINER
from deepfishing.util.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Protocol(FeatureOptions, Resources):
    """Options of the measurement; the defaults are the paper's.

    `FeatureOptions` are those of the network, `Resources` those of the computer. `difficult` says
    what difficult examples are in training: left out, "ignore", or "negative". In the test they
    are always left out. Images that cannot be used are left out; `strict` stops before the work
    instead.
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

    @cached_property
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
    def metadata(self) -> Result:
        """The keys of the setting, which every row and every point has."""
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

    def train_labels(self) -> Array:
        """Return labels to train with."""
        name, split = self.dataset.name, self.dataset.train
        if split.labels is None:
            raise DatasetError(
                f"split {split.name} of {name} must have labels to train"
            )
        return split.labels

    def test_labels(self) -> Array:
        """Return labels to evaluate with."""
        split = self.dataset.test
        if split.labels is None:
            raise DatasetError(
                f"split {split.name} of {self.dataset.name} must have labels for this protocol; "
                "pass --test with a split that has them"
            )
        return split.labels

    def factors(self, recipe: Recipe) -> tuple[dict[str, Array], dict[str, Array]]:
        """Factors of the training and of the test images."""
        train, test = {}, {}
        for name in recipe.columns:
            train[name] = self.store.read(self.train_keys, name)
            test[name] = self.store.read(self.test_keys, name)
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
        """Return the choice of `auto` for these training images, by default all, and their labels.

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
                train = at_temperature(train, choice.tau)
                test = at_temperature(test, choice.tau)
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
        """Return a function of labels that returns features of both sides and a cost.

        Labels (n, classes) of the training images are 0 where they are not known. `auto` chooses
        by them; the features of all other recipes are the same for all labels.
        """
        if not recipe.is_chosen_later:
            train_features, test_features = self.sides(recipe)
            cost = self.protocol.C
            return lambda labels: (train_features, test_features, cost)
        train, test = self.factors(recipe)
        pool = Pool(train)
        fitted: dict[tuple[str, float | None], tuple[Comparable, Comparable]] = {}

        def choose_by(labels: Array) -> tuple[Comparable, Comparable, float]:
            rows = np.flatnonzero(labels.any(axis=1))
            examples = {name: side[rows] for name, side in train.items()}
            choice = self.choose(
                examples, labels[rows], rows, kind=recipe.name, pool=pool
            )
            chosen = choice.recipe, choice.tau
            if chosen not in fitted:
                fitted[chosen] = self.fit(recipe, choice, train, test, pool)
            return *fitted[chosen], choice.cost

        return choose_by


def prepare(
    dataset: Dataset,
    network: Network,
    out: Path,
    recipes: Iterable[Recipe],
    protocol: Protocol,
    progress: Progress,
    on_failure: OnFailure | None = None,
) -> Experiment:
    """Extract what is missing in `out`; the rest of the work needs neither images nor network."""
    settings = Settings.from_network(network, **protocol.feature_options())
    embedding = known_recipes([EMBEDDING], network.layers).values()
    extract_features = partial(
        extract_to,
        images=[
            *dataset.train.items(dataset.classes),
            *dataset.test.items(dataset.classes),
        ],
        network=network,
        features=[recipe.name for recipe in (*recipes, *embedding)],
        resources=protocol,
        progress=progress,
        retry=True,  # a mended or newly supported file is worth another look
        strict=protocol.strict,
        **protocol.feature_options(),
    )
    folder = out / "features" / settings.digest[:16]
    finer = folder.with_name(f"{folder.name}-{FINER}")
    if finer.exists():
        folder = finer
    try:
        extraction = extract_features(store=folder)
    except PrecisionError:  # of features that earlier runs did not need
        folder = finer
        extraction = extract_features(store=finer, precision=FINER)
    store = Store.open(folder)
    if protocol.strict:  # features that are not finite are known only now
        refuse_unreadable(extraction.failures, len(extraction.keys))
    for id_, reason in extraction.failures.items():
        if on_failure:
            on_failure(id_, reason)
    n_train = len(dataset.train.ids)
    train, train_keys = _readable(dataset.train, extraction.keys[:n_train])
    test, test_keys = _readable(dataset.test, extraction.keys[n_train:])
    dataset = replace(dataset, train=train, test=test)
    if dataset.is_drawn:
        keys = [*train_keys, *test_keys]
        groups = find_groups(store, keys)
        dataset, train_keys, test_keys = keep_together(dataset, keys, groups)
    digest = _digest((dataset.train, train_keys), (dataset.test, test_keys))
    splits = {"train": train.name, "test": test.name, "sha256": digest}
    decisive = {
        "dataset": dataset.name,
        "splits": splits,
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


def _readable(split: Split, keys: Sequence[str | None]) -> tuple[Split, list[str]]:
    """Return the readable part of a split and the keys of its images."""
    rows = [row for row, key in enumerate(keys) if key]
    if not rows:
        raise DatasetError(f"split {split.name} must have a readable image, got none")
    readable = Split(
        split.name,
        tuple(split.ids[row] for row in rows),
        tuple(split.paths[row] for row in rows),
        None if split.labels is None else split.labels[rows],
    )
    return readable, [key for key in keys if key]


def _digest(*sides: tuple[Split, list[str]]) -> str:
    """Return a digest of the images of both sides and their labels."""
    digest = hashlib.sha256()
    for split, keys in sides:
        digest.update("\n".join(keys).encode())
        if split.labels is not None:
            digest.update(split.labels.astype(np.int8).tobytes())
    return digest.hexdigest()
