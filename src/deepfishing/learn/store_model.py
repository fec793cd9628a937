"""The model of a store: trained on its labels, with held-out figures and predictions of all photos.

The studio keeps it in `.studio/model`, the figures and predictions beside it. Figures are those of
photos that were held out together with their copies and similar scenes (`learn.folds`); what they
say of photos without a label is told by `learn.expected`.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.core.recipes import AUTO
from deepfishing.core.recipes.language import SCORES
from deepfishing.core.statistics import proportion_interval
from deepfishing.errors import OptionError, StoreError, did_you_mean
from deepfishing.learn.choice import at_temperature
from deepfishing.learn.expected import (
    even_sample,
    expected_accuracy,
    margins,
    stands_for,
)
from deepfishing.learn.folds import FOLDS, make_folds, validation_groups
from deepfishing.learn.label_pool import EMBEDDING, read_embeddings
from deepfishing.learn.labelled import Labelled, read_labels
from deepfishing.learn.model import Model
from deepfishing.learn.svm import train_svm
from deepfishing.learn.training import LARGE, train_on_store
from deepfishing.store import Row, Store
from deepfishing.store.contents import Contents
from deepfishing.store.side_files import (
    FOLDER,
    pack_keys,
    read_side,
    side_folder,
    unpack_keys,
    write_side,
)
from deepfishing.util.progress import Progress, silent

NAME = "model"
FORMAT = 1
BLOCK_ROWS = 1024
MAX_STEPS = 200  # thresholds of a curve
MIN_EXPECTED = 20  # labelled photos without which nothing is said of the others


@dataclass(frozen=True, eq=False)
class StoreModel:
    """A model, the facts of its training, and probabilities (n, C) of contents of the store.

    `held_out` are probabilities (m, C) of the labelled photos, each by a classifier that has not
    seen it, and `truth` their labels (1, -1, 0); both are None above 20,000 labelled photos.
    """

    model: Model
    facts: dict[str, Any]
    keys: pa.Array
    probabilities: Array
    held_out: Array | None
    truth: Array | None

    def numbers_of(self, keys: pa.Array) -> Array:
        """Return the row of each content in `probabilities`; -1 for one without a prediction."""
        numbers = pc.fill_null(pc.index_in(keys, value_set=self.keys), -1)
        return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.int64)

    def class_number(self, name: str) -> int:
        """Return the column of a class."""
        classes = self.model.classes
        if name not in classes:
            hint = did_you_mean(name, classes)
            raise OptionError(f"class must be one of the model, got {name!r}{hint}")
        return classes.index(name)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Labelled photos, each judged by a classifier that has not seen it and its group."""

    keys: list[str]  # content hashes
    chances: (
        Array  # (n, C) probabilities; NaN for a class with no photo left to learn from
    )
    truth: Array  # (n, C) labels: 1, -1, 0
    groups: Array  # (n,) copies and similar scenes have the same number

    @property
    def scores(self) -> Array:
        """Probabilities, the lowest for a class that was not learned."""
        scores: Array = np.where(np.isfinite(self.chances), self.chances, -1.0)
        return scores

    @property
    def has_one(self) -> Array:
        """Whether each photo has one class, and all others are known not to be there."""
        n_classes = (self.truth == 1).sum(axis=1)
        is_known = (self.truth != 0).all(axis=1)
        has_one: Array = (n_classes == 1) & is_known
        return has_one


@dataclass(frozen=True)
class CurvePoint:
    """A threshold of a class: of the held-out photos above it, how many have the class."""

    threshold: float
    above: int  # held-out photos that reach it
    right: int  # of these, with the class
    precision: float | None  # in percent; None if no photo reaches it
    recall: float


def model_folder(store: Path) -> Path:
    """Return the folder of a store's model."""
    return store / FOLDER / NAME


def train_store_model(
    store: Store, recipe: str = AUTO, progress: Progress = silent
) -> StoreModel:
    """Train on the current labels of a store; write the model, its figures and predictions."""
    rows = store.labelled_rows()
    labelled = read_labels(rows)
    C: float | str = 1.0
    if recipe.strip() == AUTO:
        C = AUTO
    progress("training", 0, 1)
    model, _ = train_on_store(store, rows, labelled, recipe, progress=progress, C=C)
    folder = model_folder(store.folder)
    model = replace(model, thresholds=_earlier_thresholds(folder, model))
    held = _held_out(store, model, rows, labelled, progress)
    contents = Contents.of(store, model.columns)
    probabilities = _predict_all(store, model, contents, progress)
    label_counts: Counter[str] = Counter()
    for row in rows:
        label_counts.update(row.labels or ())
    measured = figures(model, held)
    if held is not None and "accuracy" in measured:
        chances = np.where(model.svm.trained, probabilities, -1.0)
        labelled_keys = [row.sha256 for row in rows if row.labels is not None]
        has_label = pc.is_in(
            contents.keys, value_set=pa.array(labelled_keys, pa.string())
        )
        without = np.flatnonzero(~has_label.to_numpy(zero_copy_only=False))
        measured |= _figures_of_others(store, held, contents.keys, chances, without)
    facts = {
        "format": FORMAT,
        "trained": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": _counts(labelled, rows),
        "labels": dict(label_counts),
        "figures": measured,
    }
    arrays = {"keys": pack_keys(contents.keys), "probabilities": probabilities}
    if held is not None:
        arrays |= {
            "held_out": held.chances.astype(np.float32),
            "truth": held.truth.astype(np.int8),
        }
    side_folder(store.folder)
    model.save(folder)
    write_side(store.folder, NAME, facts, arrays)
    return StoreModel(
        model,
        facts,
        contents.keys,
        probabilities,
        None if held is None else held.chances,
        None if held is None else held.truth,
    )


def open_store_model(store: Store) -> StoreModel | None:
    """Return the model of a store that is on disk; None if there is none that can be used."""
    stored = read_side(store.folder, NAME)
    folder = model_folder(store.folder)
    if stored is None or stored[0].get("format") != FORMAT or not folder.is_dir():
        return None
    facts, arrays = stored
    model = Model.load(folder)
    probabilities, packed = arrays.get("probabilities"), arrays.get("keys")
    if probabilities is None or packed is None or packed.ndim != 2:
        return None
    if probabilities.shape != (len(packed), len(model.classes)):
        return None
    held_out, truth = arrays.get("held_out"), arrays.get("truth")
    return StoreModel(model, facts, unpack_keys(packed), probabilities, held_out, truth)


def work(folder: Path, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Train as a task of the server."""
    recipe = str(options.get("recipe", AUTO))
    trained = train_store_model(Store.open(folder), recipe, progress)
    return {"classes": len(trained.model.classes)}


def set_threshold(
    store: Store, current: StoreModel, name: str, value: float | None
) -> StoreModel:
    """Set the threshold of a class, or the default one with None; it is saved with the model."""
    if value is not None and not 0 <= value <= 1:
        raise OptionError(f"a threshold must be a probability from 0 to 1, got {value}")
    number = current.class_number(name)
    model = current.model
    defaults = replace(model, thresholds=None).limits
    if value is None:
        value = float(defaults[number])
    limits = model.limits.copy()
    limits[number] = value
    thresholds: Array | None = limits
    if np.array_equal(limits, defaults):
        thresholds = None
    model = replace(model, thresholds=thresholds)
    model.save(model_folder(store.folder))
    return replace(current, model=model)


def curve(trained: StoreModel, name: str) -> list[CurvePoint]:
    """Return precision and recall of a class at thresholds, rising; empty if not measurable.

    Of a model with one class per photo, only photos count whose most probable class it is, as they
    are sorted.
    """
    held_out = _held_out_of(trained, name)
    if held_out is None:
        return []
    truth, probability = held_out
    own = probability[probability >= 0].round(4)
    steps = np.unique(np.concatenate([[0.0, 0.5], own]))
    if len(steps) > MAX_STEPS:
        steps = np.unique(np.quantile(steps, np.linspace(0, 1, MAX_STEPS)).round(4))
    return [_point(float(step), truth, probability) for step in steps]


def point_at(trained: StoreModel, name: str) -> CurvePoint | None:
    """Return precision and recall of a class at its current threshold."""
    held_out = _held_out_of(trained, name)
    if held_out is None:
        return None
    limit = trained.model.limits[trained.class_number(name)]
    return _point(float(limit), *held_out)


def _held_out_of(trained: StoreModel, name: str) -> tuple[Array, Array] | None:
    """Return labels and probabilities of a class; -1 where another class is more probable."""
    number = trained.class_number(name)
    if trained.held_out is None or trained.truth is None:
        return None
    validation = trained.model.training.get("validation", {})
    if name in validation.get("not_measurable", {}):
        return None
    truth = np.asarray(trained.truth[:, number])
    probabilities = np.asarray(trained.held_out, dtype=np.float64)
    probability = probabilities[:, number].copy()
    if np.isnan(probability).all():
        return None
    if not trained.model.has_several:
        is_measured = np.isfinite(probabilities)
        best = np.where(is_measured, probabilities, -1.0).argmax(axis=1)
        probability[best != number] = -1.0
    counts = (truth != 0) & np.isfinite(probability)
    is_positive = truth[counts] == 1
    if not is_positive.any() or is_positive.all():
        return None
    return is_positive, probability[counts]


def _point(threshold: float, truth: Array, probability: Array) -> CurvePoint:
    """Return precision and recall of a class at one threshold."""
    above = probability >= threshold
    n = int(above.sum())
    right = int((above & truth).sum())
    precision = None
    if n:
        precision = 100 * right / n
    return CurvePoint(threshold, n, right, precision, 100 * right / int(truth.sum()))


def figures(model: Model, held: HeldOut | None) -> dict[str, Any]:
    """Return the accuracy of held-out photos with its interval, and what it is of."""
    if held is None:
        return {
            "why": f"not measured above {LARGE:,} labelled photos; see the AP of each class"
        }
    truth = held.truth
    if ((truth == 1).sum(axis=1) > 1).any():
        return {"why": "photos have several classes; see the AP of each class"}
    has_one = held.has_one
    labels = truth[has_one].argmax(axis=1)
    predicted = held.scores[has_one].argmax(axis=1)
    right = predicted == labels
    if not len(right) or np.isnan(held.chances[has_one]).all(axis=1).any():
        return {
            "why": "not measurable: too few labelled photos that are not similar to each other"
        }
    independent = len(np.unique(held.groups[has_one]))
    # similar photos are right or wrong together, so groups are counted and not photos
    interval = proportion_interval(float(right.mean()) * independent, independent)
    confusion: dict[str, dict[str, int]] = {}
    for label, prediction in zip(labels, predicted, strict=True):
        counts = confusion.setdefault(model.classes[label], {})
        name = model.classes[prediction]
        counts[name] = counts.get(name, 0) + 1
    return {
        "accuracy": round(100 * float(right.mean()), 2),
        "interval": [round(limit, 2) for limit in interval],
        "right": int(right.sum()),
        "photos": len(right),
        "groups": independent,
        "folds": FOLDS,
        "confusion": confusion,
    }


def _figures_of_others(
    store: Store, held: HeldOut, keys: pa.Array, chances: Array, without: Array
) -> dict[str, Any]:
    """Return how often photos without a label are expected to be right; {} if that is unknown.

    `chances` (n, C) are probabilities of the photos `keys`, -1 for a class that was not learned;
    `without` are the numbers of those that have no label.
    """
    one = held.has_one
    is_known = EMBEDDING in store.factors() and one.sum() >= MIN_EXPECTED
    if not is_known or not len(without):
        return {}
    sample = without[even_sample(len(without))]
    names = [key for key, has_one in zip(held.keys, one, strict=True) if has_one]
    photos = pa.array([*names, *keys.take(pa.array(sample)).to_pylist()])
    contents = Contents.of(store, [EMBEDDING], photos)
    if not contents.keys[: len(photos)].equals(photos):
        return {}  # some photos have no embedding
    embeddings = read_embeddings(contents, np.arange(len(photos)))
    vectors = l2_normalize(embeddings.astype(np.float32))
    scores = held.scores[one]
    expected = expected_accuracy(
        margins(np.maximum(scores, 0.0)),
        scores.argmax(axis=1) == held.truth[one].argmax(axis=1),
        stands_for(vectors, np.arange(len(names))),
        held.groups[one],
        margins(np.maximum(chances[sample], 0.0)),
    )
    return {
        "others": len(without),
        "expected": round(expected.accuracy, 2),
        "expected_interval": [round(limit, 2) for limit in expected.interval],
    }


def _held_out(
    store: Store, model: Model, rows: list[Row], labelled: Labelled, progress: Progress
) -> HeldOut | None:
    """Judge the labelled photos by classifiers without them; None where they are too many."""
    known, labels = labelled.of(rows)
    good = [number for number, row in enumerate(known) if row.sha256 and not row.error]
    if len(good) > LARGE or not model.support:
        return None
    labels = labels[good]
    keys = [str(known[number].sha256) for number in good]
    arrays = _factors(store, model, keys)
    features = model.fitted(arrays)
    groups = validation_groups(arrays, keys)
    folds = make_folds(labels, groups, FOLDS, int(model.training.get("seed", 0)))
    scores = np.full(labels.shape, np.nan)
    cost = float(model.svm.cost[model.svm.trained][0])
    for number, (train, held) in enumerate(folds):
        progress("held out", number, folds.count)
        svm = train_svm(features[train], labels[train], cost)
        fold_scores = svm.decision_function(features[held])
        scores[held] = np.where(svm.trained, fold_scores, np.nan)
    return HeldOut(keys, model.svm.calibrate(scores), labels, groups)


def _factors(store: Store, model: Model, keys: list[str]) -> dict[str, Array]:
    """Return the factors of a model, at its temperature."""
    tau = model.settings.tau
    factors = {name: store.read(keys, name) for name in model.columns}
    if tau == store.settings.get("tau", tau):
        return factors
    if SCORES not in factors:
        factors[SCORES] = store.read(keys, SCORES)
    tempered = at_temperature(factors, tau)
    return {name: tempered[name] for name in model.columns}


def _predict_all(
    store: Store, model: Model, contents: Contents, progress: Progress
) -> Array:
    """Probabilities (n, C) of all contents, in half precision."""
    n = len(contents)
    probabilities = np.empty((n, len(model.classes)), dtype=np.float16)
    for start in range(0, n, BLOCK_ROWS):
        progress("predicting", start, n)
        keys = contents.keys[start : start + BLOCK_ROWS].to_pylist()
        rows = slice(start, start + len(keys))
        probabilities[rows] = model.probabilities(_factors(store, model, keys))
    progress("predicting", n, n)
    return probabilities


def _counts(labelled: Labelled, rows: list[Row]) -> dict[str, int]:
    """Return the number of training photos of each class."""
    _, labels = labelled.of(rows)
    counts = (labels == 1).sum(axis=0)
    return dict(zip(labelled.classes, counts.tolist(), strict=True))


def _earlier_thresholds(folder: Path, model: Model) -> Array | None:
    """Return the thresholds of the model on disk, for classes of the same names."""
    if not folder.is_dir():
        return None
    try:
        earlier = Model.load(folder)
    except (StoreError, OSError, ValueError):
        return None
    if earlier.thresholds is None:
        return None
    thresholds = replace(model, thresholds=None).limits.copy()
    for name, threshold in zip(earlier.classes, earlier.thresholds, strict=True):
        if name in model.classes:
            thresholds[model.classes.index(name)] = threshold
    return thresholds


def export_onnx(
    folder: Path, options: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    """Write the model of a store as .onnx, as a task of the server."""
    from deepfishing.learn.to_onnx import export_model  # torch takes seconds to load

    progress("ONNX", 0, 1)
    model = Model.load(model_folder(folder))
    network = model.settings.load_network(weights=options.get("weights"))
    difference = export_model(model, onnx_file(folder), network=network)
    return {
        "difference": difference,
        "model": json.dumps(model.training, default=str)[:200],
    }


def onnx_file(store: Path) -> Path:
    """Return the path of a store's model as .onnx."""
    return side_folder(store) / "model.onnx"
