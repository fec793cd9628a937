"""The table: one row per recipe, as the paper's Table 1.

Classifiers learn from all training images and score the test images. Each measured row is written
to disk at once, and a second run measures only what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from deepfishing import __version__
from deepfishing.core.accuracy import KEYS, has_one_class, measure_accuracy
from deepfishing.core.metrics import evaluate
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Recipe, parse_recipes
from deepfishing.core.statistics import bootstrap
from deepfishing.evaluation.experiment import Experiment, Protocol, prepare
from deepfishing.evaluation.record import TABLE, Result
from deepfishing.evaluation.report.columns import Table
from deepfishing.evaluation.results import Results, row_key, safe_name, versions
from deepfishing.evaluation.splits import figures_apart, has_similar_in_training
from deepfishing.extraction.to_store import OnFailure
from deepfishing.images.dataset import Dataset
from deepfishing.images.voc import write_submission
from deepfishing.learn.svm import KernelSVM, train_svm
from deepfishing.networks.network import Network
from deepfishing.util.progress import Progress, silent


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
    report_progress = progress or silent
    recipes = parse_recipes(features, network.layers)
    results = Results(out)
    experiment = prepare(
        dataset,
        network,
        results.folder,
        recipes,
        protocol or Protocol(),
        report_progress,
        on_failure,
    )
    rows = Table()
    for number, recipe in enumerate(recipes):
        report_progress(TABLE, number, len(recipes))
        rows.append(_find_or_measure(experiment, recipe, results, command))
    report_progress(TABLE, len(recipes), len(recipes))
    return rows


def _find_or_measure(
    experiment: Experiment, recipe: Recipe, results: Results, command: str
) -> Result:
    """Return the row of a recipe: the one on disk if it is complete, or a new one."""
    key = row_key(feature=recipe.name, **experiment.decisive)
    for row in results.find(key):
        # rows that were measured before there was an accuracy are measured again
        if "accuracy" not in row or not results.scores_path(row).exists():
            break
        if "similar_across" not in row:  # a row of an older version
            scores, _, _ = results.scores(row)
            row = row | _figures_apart(experiment, row, scores)
            results.keep([row])
        return row
    row, scores = _measure(experiment, recipe)
    row |= {"command": command, "key": key}
    test = experiment.dataset.test
    if test.labels is None:  # files for the evaluation server
        row["submission"] = f"submission/{safe_name(recipe.name)}"
        folder = results.folder / row["submission"]
        write_submission(folder, experiment.dataset, scores)
    results.add(row, scores, test, experiment.test_groups)
    return row


def _measure(experiment: Experiment, recipe: Recipe) -> tuple[Result, Array]:
    """Train and score; return the row, without command and key, and the scores (m, C)."""
    start = time.perf_counter()
    dataset, protocol = experiment.dataset, experiment.protocol
    labels = experiment.train_labels()
    train_factors, test_factors = experiment.factors(recipe)
    choice, cost = None, protocol.C
    if recipe.is_chosen_later:
        choice = experiment.choose(train_factors, labels, kind=recipe.name)
        cost = choice.cost
    train, test = experiment.fit(recipe, choice, train_factors, test_factors)
    svm = train_svm(train, labels, cost, protocol.difficult)
    scores = svm.decision_function(test)
    row: Result = {**experiment.metadata, "feature": recipe.name}
    if choice is not None:
        row["auto"] = asdict(choice)
    row |= {
        "official_measure": dataset.measure,
        "classes": list(dataset.classes),
        **dict.fromkeys(("map", "ap", *KEYS)),
        "left_out": _untrained_classes(dataset, svm),
        "unreadable": experiment.broken,
        "version": __version__,
        "versions": versions(),
    }
    truth = dataset.test.labels
    if truth is None:
        row["seconds"] = round(time.perf_counter() - start, 3)
    else:
        known_labels = _known_labels(truth, svm.trained)
        evaluation = evaluate(known_labels, scores, dataset.classes)
        row |= {"map": evaluation.map, "ap": evaluation.ap}
        for name in evaluation.skipped:
            row["left_out"].setdefault(name, "no positive test example")
        # without the time for the intervals
        row["seconds"] = round(time.perf_counter() - start, 3)
        row |= _intervals_and_accuracy(experiment, svm, scores)
    row |= _figures_apart(experiment, row, scores)
    return row, scores


def _untrained_classes(dataset: Dataset, svm: KernelSVM) -> dict[str, str]:
    """Return the reason for each class that has no classifier."""
    reasons = {}
    for name, trained in zip(dataset.classes, svm.trained, strict=True):
        if not trained:
            reasons[name] = "training needs a positive and a negative example"
    return reasons


def _known_labels(truth: Array, measurable: Array) -> Array:
    """Return labels without positives of the other classes, so that these have no AP."""
    labels: Array = truth.copy()
    labels[:, ~measurable] = -1
    return labels


def _intervals_and_accuracy(
    experiment: Experiment, svm: KernelSVM, scores: Array
) -> Result:
    """Return the intervals of a row and, where every image has one class, its accuracies."""
    classes, groups = experiment.dataset.classes, experiment.test_groups
    truth = experiment.test_labels()
    known_labels = _known_labels(truth, svm.trained)
    keys = bootstrap(known_labels, scores, classes, groups=groups).as_row()
    if has_one_class(experiment.train_labels()) and has_one_class(truth):
        accuracy = measure_accuracy(truth, scores, classes, svm.trained, groups)
        if accuracy is not None:
            keys |= accuracy.as_row()
    return keys


def _figures_apart(experiment: Experiment, row: Result, scores: Array) -> Result:
    """Return the figures of a row without test images that have a similar photo in training."""
    truth = experiment.dataset.test.labels
    n_train = len(experiment.train_keys)
    similar = has_similar_in_training(experiment.groups, n_train)
    if truth is None:
        return {"similar_across": int(similar.sum())}
    measurable = [name not in row["left_out"] for name in row["classes"]]
    labels = _known_labels(truth, np.array(measurable))
    return figures_apart(
        labels, scores, row["classes"], similar, experiment.test_groups
    )
