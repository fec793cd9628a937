"""Stage 6, experiments: the paper's Table 1 on a data set, with any network.

Comes in: a data set, a network, feature names. Goes out: one measured row per feature, kept on
disk as soon as it is there. Features stay in a store beside the results, so a second run or a
new row only computes what is missing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing import __version__
from deepfishing.classify import check_options, train_svm
from deepfishing.errors import DatasetError, ImageError
from deepfishing.experiments.results import Results, Row, row_key, safe_name
from deepfishing.features import needed_factors
from deepfishing.gradients.batch_size import BatchSize, check_batch_size
from deepfishing.gradients.engine import choose_engines
from deepfishing.gradients.objective import Label, check_label, check_tau
from deepfishing.gradients.to_store import extract_to_store, store_settings
from deepfishing.images.dataset import Dataset, Split
from deepfishing.images.submission import write_submission
from deepfishing.images.views import find_views
from deepfishing.metrics import evaluate
from deepfishing.networks.network import Network
from deepfishing.rank_one import Array
from deepfishing.recipes import Recipe, parse_recipes
from deepfishing.statistics import bootstrap
from deepfishing.store import Store

Progress = Callable[[str, int, int], None]  # stage, done, total


@dataclass(frozen=True)
class Protocol:
    """How rows are measured; the defaults are the paper's.

    `difficult` says what difficult labels are in training, "negative" or "ignore"; in the test
    they are always left out. `skip_broken` leaves unreadable images out instead of stopping.
    `engine` runs the network's trunk, docs/speed.md. `views` says what is seen of an image,
    docs/recipes.md.
    """

    tau: float = 2.0
    label: Label = "uniform"
    C: float = 1.0
    difficult: str = "negative"
    batch_size: BatchSize = "auto"
    skip_broken: bool = False
    engine: str = "auto"
    views: str = "centre"

    def __post_init__(self) -> None:
        check_tau(self.tau)
        check_label(self.label)
        check_options(self.C, self.difficult)
        check_batch_size(self.batch_size)
        choose_engines(self.engine)
        find_views(self.views)


def reproduce(
    dataset: Dataset,
    network: Network,
    out: str | Path,
    features: str | Iterable[str] = "all",
    protocol: Protocol | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> list[Row]:
    """Measure one row per feature: extract, train on `dataset.train`, score `dataset.test`.

    Parameters
    ----------
    dataset : Dataset
        From `read_voc`, `read_folder` or `load_scenes`.
    network : Network
        From `load_network`.
    out : path
        Folder for `results.jsonl`, `scores/` and `features/`; what is there is used again.
    features : str or list of str
        Recipes (docs/recipes.md); `all` for the rows of the paper's Table 1 that the network has.
    protocol : Protocol
        Temperature, label, cost and so on.
    command : str
        Written into the rows, so that each can be run again.
    progress : callable
        Called with a stage, how much of it is done and how much there is.

    Returns
    -------
    rows : list of dict
        With the keys of `results.jsonl`; `map` and `ap` are None for a test split without
        labels, for which submission files are written instead.
    """
    protocol = protocol or Protocol()
    tell = progress or (lambda stage, done, total: None)
    wanted = parse_recipes(features, network.layers)
    results = Results(out)
    settings = store_settings(network, protocol.tau, protocol.label, protocol.views)
    store = Store(results.folder / "features" / row_key(**settings), settings)
    keys, dataset, broken = _features_on_disk(dataset, network, store, wanted, protocol, tell)
    fixed = {
        "dataset": dataset.name,
        "splits": _fingerprint(dataset, keys),
        **settings,
        "C": protocol.C,
        "difficult": protocol.difficult,
        "version": __version__,
    }
    rows = []
    for number, feature in enumerate(wanted):
        tell("rows", number, len(wanted))
        key = row_key(feature=feature.name, **fixed)
        row = results.find(key)
        if row is None or not results.scores_path(row).exists():
            row, scores = _measure(dataset, store, keys, feature, protocol)
            row = {**row, **settings, "unreadable": broken, "command": command, "key": key}
            if dataset.test.labels is None:
                row["submission"] = _submit(results.folder, dataset, scores, feature)
            results.add(row, scores, dataset.test)
        rows.append(row)
    tell("rows", len(wanted), len(wanted))
    return rows


@dataclass(frozen=True)
class _Keys:
    """Store keys of the two splits, in their order."""

    train: list[str]
    test: list[str]


def _features_on_disk(
    dataset: Dataset,
    network: Network,
    store: Store,
    wanted: Iterable[Recipe],
    protocol: Protocol,
    tell: Progress,
) -> tuple[_Keys, Dataset, list[str]]:
    """Extract what is missing; give the keys, the readable part of the data set, the rest."""
    extraction = extract_to_store(
        network,
        [*dataset.train.paths, *dataset.test.paths],
        store,
        needed_factors(wanted),
        protocol.tau,
        protocol.label,
        protocol.batch_size,
        tell,
        engine=protocol.engine,
        views=protocol.views,
        retry=True,  # a mended or newly supported file is worth another look
    )
    if extraction.failures and not protocol.skip_broken:
        first = next(iter(extraction.failures.values()))
        raise ImageError(
            f"{len(extraction.failures)} of {len(extraction.keys)} images cannot be used, the "
            f"first: {first}; the features of all others are kept, so mend these or pass "
            "--skip-broken"
        )
    n = len(dataset.train.ids)
    train, train_keys = _readable(dataset.train, extraction.keys[:n])
    test, test_keys = _readable(dataset.test, extraction.keys[n:])
    broken = sorted(extraction.failures)
    return _Keys(train_keys, test_keys), replace(dataset, train=train, test=test), broken


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


def _measure(
    dataset: Dataset, store: Store, keys: _Keys, feature: Recipe, protocol: Protocol
) -> tuple[Row, Array]:
    start = time.perf_counter()
    if dataset.train.labels is None:
        raise DatasetError(
            f"split {dataset.train.name} of {dataset.name} must have labels to train"
        )
    train = _read(store, keys.train, feature)
    prepare = feature.fit(train)
    svm = train_svm(prepare(train), dataset.train.labels, protocol.C, protocol.difficult)
    scores = svm.decision_function(prepare(_read(store, keys.test, feature)))
    untrained = [name for name, ok in zip(dataset.classes, svm.trained, strict=True) if not ok]
    row: Row = {
        "dataset": dataset.name,
        "train": dataset.train.name,
        "test": dataset.test.name,
        "feature": feature.name,
        "C": protocol.C,
        "difficult": protocol.difficult,
        "official_ap": dataset.official_ap,
        "classes": list(dataset.classes),
        "n_train": len(keys.train),
        "n_test": len(keys.test),
        "map": None,
        "ap": None,
        "left_out": dict.fromkeys(untrained, "training needs a positive and a negative example"),
        "version": __version__,
    }
    if dataset.test.labels is not None:
        labels = dataset.test.labels.copy()
        labels[:, ~svm.trained] = -1  # no machine, so no AP
        evaluation = evaluate(labels, scores, dataset.classes)
        row["map"], row["ap"] = evaluation.map, evaluation.ap
        for name in evaluation.skipped:
            row["left_out"].setdefault(name, "no positive test example")
    row["seconds"] = round(time.perf_counter() - start, 3)
    if dataset.test.labels is not None:
        row |= bootstrap(labels, scores, dataset.classes).as_row()
    return row, scores


def _read(store: Store, keys: list[str], feature: Recipe) -> dict[str, Array]:
    return {factor: store.read(keys, factor) for factor in feature.factors}


def _submit(out: Path, dataset: Dataset, scores: Array, feature: Recipe) -> str:
    """Files for the evaluation server, since there are no labels to evaluate with."""
    name = safe_name(feature.name)
    write_submission(out / "submission" / name, dataset, scores)
    return f"submission/{name}"


def _fingerprint(dataset: Dataset, keys: _Keys) -> dict[str, Any]:
    digest = hashlib.sha256()
    for split, split_keys in ((dataset.train, keys.train), (dataset.test, keys.test)):
        digest.update("\n".join(split_keys).encode())
        digest.update(b"" if split.labels is None else split.labels.astype(np.int8).tobytes())
    return {"train": dataset.train.name, "test": dataset.test.name, "sha256": digest.hexdigest()}
