"""Stage 8, curate: labels that an SVM and the nearest photos contradict.

Comes in: features of labelled photos. Goes out: the labels to look at again, the most doubtful
first, with those that the photo would get. The score of a photo for a class is the margin of an
SVM that was trained without the photo (its fold) plus `VOTE` times the mean label, 1 or -1, of its
nearest photos. Up to `KERNEL_IMAGES` the SVM is on the kernel, positives weighted as much as
negatives; beyond, it is linear on the short vectors of the search's index.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.core.accuracy import has_one_class
from deepfishing.core.kernels import Comparable, gram
from deepfishing.core.rank_one import Array
from deepfishing.curate.selection import short_vectors
from deepfishing.errors import DatasetError
from deepfishing.learn.labelled import read_labels
from deepfishing.learn.linear import train_linear
from deepfishing.learn.svm import train_svm
from deepfishing.search import Searcher
from deepfishing.search.compare import sample
from deepfishing.util.progress import Progress, silent

FOLDS = 5
NEIGHBOURS, VOTE = 10, 0.5  # docs/curate.md has the measurement
KERNEL_IMAGES = 6000
AMONG = 20_000  # photos, drawn if there are more, among which neighbours are looked for
BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Doubt:
    """A label to look at again; `doubt` is by how much the scores speak against it, above 0."""

    id: str
    path: str
    given: tuple[str, ...]
    suggested: tuple[str, ...]
    doubt: float


def label_scores(
    features: Comparable,
    labels: Array,
    *,
    neighbours: bool = True,
    seed: int = 0,
    progress: Progress = silent,
) -> Array:
    """How much speaks for each class, (n, C), without looking at the photo's own labels."""
    on_kernel = len(features) <= KERNEL_IMAGES
    if not on_kernel and not isinstance(features, np.ndarray):
        features = short_vectors(features.__getitem__, len(features), progress)
    folds = _folds(labels, seed)
    scores = np.zeros(labels.shape)
    for fold in range(FOLDS):
        progress("classifiers", fold, FOLDS)
        held = folds == fold
        known: Any = features[~held]
        if on_kernel:
            svm: Any = train_svm(known, labels[~held], class_weight="balanced")
        else:
            svm = train_linear(known, labels[~held])
        scores[held] = svm.decision_function(features[held])
    progress("classifiers", FOLDS, FOLDS)
    return scores + VOTE * neighbour_votes(features, labels, progress) if neighbours else scores


def _folds(labels: Array, seed: int) -> Array:
    """The fold of each image, the rarest class of every image spread evenly."""
    counts = (labels == 1).sum(axis=0)
    rarest = np.where(labels == 1, counts, len(labels) + 1).argmin(axis=1)
    order = np.lexsort((np.random.default_rng(seed).random(len(labels)), rarest))
    folds = np.empty(len(labels), dtype=int)
    folds[order] = np.arange(len(labels)) % FOLDS
    return folds


def neighbour_votes(features: Comparable, labels: Array, progress: Progress = silent) -> Array:
    """The mean label (n, C) of each image's nearest ones, itself left out."""
    among = sample(len(labels), AMONG)
    others, k = features[among], min(NEIGHBOURS, len(among) - 1)
    votes = np.zeros(labels.shape)
    for start in range(0, len(labels) if k else 0, BLOCK_ROWS):
        progress("neighbours", start, len(labels))
        rows = np.arange(start, min(start + BLOCK_ROWS, len(labels)))
        K = gram(features[rows], others)
        K[rows[:, None] == among] = -np.inf
        nearest = among[np.argpartition(-K, k - 1, axis=1)[:, :k]]
        votes[rows] = labels[nearest].mean(axis=1)
    progress("neighbours", len(labels), len(labels))
    return votes


def doubted(labels: Array, scores: Array) -> list[tuple[int, int, float]]:
    """Image, class and doubt of every label that its scores contradict, the largest doubt first.

    With one class per image the class is the one that it would get, and the doubt is how far that
    is above the given one; with several, it is the class that is doubted, shown or not.
    """
    if has_one_class(labels):
        rows = np.arange(len(labels))
        columns = np.where(labels == 1, -np.inf, scores).argmax(axis=1)
        doubt = scores[rows, columns] - scores[rows, labels.argmax(axis=1)]
    else:
        rows, columns = np.nonzero(labels)
        doubt = (-labels * scores)[rows, columns]
    order = [at for at in np.argsort(-doubt, kind="stable") if doubt[at] > 0]
    return [(int(rows[at]), int(columns[at]), float(doubt[at])) for at in order]


def doubtful_labels(
    photos: Searcher,
    source: Path | None = None,
    *,
    split: str = "trainval",
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[list[Doubt], int]:
    """Labels of a store's photos to look at again, and how many photos were looked at.

    Photos from `open_photos`; `source` and `split` say where the labels are, see `read_labels`.
    """
    pictures = [photos.collection[row] for row in range(len(photos.collection))]
    labelled = read_labels(pictures, source, split)
    known, labels = labelled.of(pictures)
    positive = (labels == 1).sum(axis=0)
    if ((positive > 1) & (positive < len(labels))).sum() == 0:
        raise DatasetError(
            "labels can be doubted where a class has two photos and another has one, got "
            f"{len(known)} with labels in {photos.store.folder}; label more"
        )
    is_known = [picture.id in labelled.rows for picture in pictures]
    numbers = photos.collection.content[is_known]
    if len(known) <= KERNEL_IMAGES:
        features = photos.features.of(numbers)
    else:
        features = short_vectors(lambda at: photos.features.of(numbers[at]), len(known), progress)
    scores = label_scores(features, labels, seed=seed, progress=progress)
    classes, has_one, found = np.array(labelled.classes), has_one_class(labels), []
    for row, column, doubt in doubted(labels, scores):
        given = labels[row]
        to = np.full_like(given, -1) if has_one else given.copy()
        to[column] = -given[column]
        before, after = (tuple(classes[which == 1].tolist()) for which in (given, to))
        found.append(Doubt(known[row].id, known[row].path, before, after, doubt))
    return found, len(known)
