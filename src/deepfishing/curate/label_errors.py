"""Labels that an SVM and the nearest photos contradict.

The score of a photo for a class is the margin of an SVM that was trained without the photo and its
copies (`learn.folds`) plus `VOTE` times the mean label, 1 or -1, of its nearest other photos. Up to
`KERNEL_IMAGES` the SVM is on the kernel, positives weighted as much as negatives; beyond, it is
linear on the short vectors of the search's index.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepfishing.core.accuracy import has_one_class
from deepfishing.core.kernels import Comparable, gram, nearest_columns
from deepfishing.core.rank_one import Array
from deepfishing.curate.selection import short_vectors
from deepfishing.errors import DatasetError
from deepfishing.learn.folds import check_groups, make_folds, read_groups
from deepfishing.learn.labelled import read_labels
from deepfishing.learn.linear import train_linear
from deepfishing.learn.svm import train_svm
from deepfishing.search import Searcher
from deepfishing.search.compare import sample
from deepfishing.util.progress import Progress, silent

FOLDS = 5
MIN_GROUPS = 2  # of copies and similar scenes that a class must have to be doubted
NEIGHBOURS, VOTE = 10, 0.5  # benchmarks/CURATION.md has the measurement
KERNEL_IMAGES = 6000
MAX_NEIGHBOURHOOD = 20_000  # photos, drawn at random, in which neighbours are searched
BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Doubt:
    """A label to review; `doubt` is the margin by which the scores contradict it, above 0."""

    id: str
    path: str
    given: tuple[str, ...]
    suggested: tuple[str, ...]
    doubt: float


def label_scores(
    features: Comparable,
    labels: Array,
    *,
    groups: Array | None = None,
    neighbours: bool = True,
    seed: int = 0,
    progress: Progress = silent,
) -> Array:
    """Return the score of each class (n, C), computed without the labels of the photo itself.

    Photos of one group (copies and similar scenes, of `similar_groups`) are held out together and
    have no vote for each other; by default each photo is a group. A class that has a single group
    of photos, or lacks one, has NaN for all photos: it cannot be predicted without them.
    """
    on_kernel = len(features) <= KERNEL_IMAGES
    if not on_kernel and not isinstance(features, np.ndarray):
        features = short_vectors(features.__getitem__, len(features), progress)
    group = check_groups(groups, len(labels))
    folds = make_folds(labels, group, FOLDS, seed)
    scores = np.zeros(labels.shape)
    for fold, (train, held) in enumerate(folds):
        progress("classifiers", fold, FOLDS)
        examples: Any = features[train]
        if on_kernel:
            svm: Any = train_svm(examples, labels[train], class_weight="balanced")
        else:
            svm = train_linear(examples, labels[train])
        scores[held] = svm.decision_function(features[held])
    progress("classifiers", FOLDS, FOLDS)
    if neighbours:
        scores += VOTE * neighbour_votes(features, labels, group, progress)
    fewest = np.minimum(folds.positive_groups, folds.negative_groups)
    scores[:, fewest < MIN_GROUPS] = np.nan
    return scores


def neighbour_votes(
    features: Comparable,
    labels: Array,
    groups: Array | None = None,
    progress: Progress = silent,
) -> Array:
    """Return the mean label (n, C) of each image's nearest ones outside its group."""
    groups = check_groups(groups, len(labels))
    among = sample(len(labels), MAX_NEIGHBOURHOOD)
    others = features[among]
    votes = np.zeros(labels.shape)
    for start in range(0, len(labels), BLOCK_ROWS):
        progress("neighbours", start, len(labels))
        rows = np.arange(start, min(start + BLOCK_ROWS, len(labels)))
        K = gram(features[rows], others)
        K[groups[rows][:, None] == groups[among]] = -np.inf
        votes[rows] = _mean_label_of_nearest(K, labels[among])
    progress("neighbours", len(labels), len(labels))
    return votes


def _mean_label_of_nearest(K: Array, labels: Array) -> Array:
    """Return the mean of labels (m, C) over the nearest of each row of K (n, m), without -inf."""
    k = min(NEIGHBOURS, K.shape[1])
    nearest, similarity = nearest_columns(K, k)
    counts = np.isfinite(similarity)
    total = (labels[nearest] * counts[:, :, None]).sum(axis=1)
    mean: Array = total / np.maximum(counts.sum(axis=1), 1)[:, None]
    return mean


def doubted(labels: Array, scores: Array) -> list[tuple[int, int, float]]:
    """Return image, class and doubt of every label that its scores contradict, sorted by doubt.

    With one class per image the class is the suggested one, and the doubt is its margin over the
    given one; with several, it is the class whose label is doubted. A class whose scores are NaN is
    neither doubted nor suggested.
    """
    if has_one_class(labels):
        rows = np.arange(len(labels))
        is_excluded = (labels == 1) | np.isnan(scores)
        columns = np.where(is_excluded, -np.inf, scores).argmax(axis=1)
        doubt = scores[rows, columns] - scores[rows, labels.argmax(axis=1)]
    else:
        rows, columns = np.nonzero(labels)
        doubt = (-labels * scores)[rows, columns]
    contradicted = []
    for number in np.argsort(-doubt, kind="stable"):
        if doubt[number] > 0:
            image, column = int(rows[number]), int(columns[number])
            contradicted.append((image, column, float(doubt[number])))
    return contradicted


def features_or_vectors(
    photos: Searcher, numbers: Array, progress: Progress
) -> Comparable:
    """Return the features of photos, or short vectors of more than `KERNEL_IMAGES`."""
    if len(numbers) <= KERNEL_IMAGES:
        return photos.features.of(numbers)

    def read(rows: Array) -> Comparable:
        return photos.features.of(numbers[rows])

    return short_vectors(read, len(numbers), progress)


def groups_of_photos(photos: Searcher, numbers: Array) -> Array:
    """Return the groups of photos by their content and the features of the store."""
    contents, columns = photos.features.contents, photos.features.recipe.columns

    def read(rows: Array) -> dict[str, Array]:
        return contents.read(numbers[rows], columns)

    return read_groups(read, [str(number) for number in numbers])


def doubtful_labels(
    photos: Searcher,
    source: Path | None = None,
    *,
    split: str = "trainval",
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[list[Doubt], int]:
    """Return the doubtful labels of a store, and how many photos have labels.

    `photos` are from `open_photos`; for `source` and `split` see `read_labels`.
    """
    pictures = [photos.collection[row] for row in range(len(photos.collection))]
    labelled = read_labels(pictures, source, split)
    labelled_pictures, labels = labelled.of(pictures)
    positive = (labels == 1).sum(axis=0)
    if ((positive > 1) & (positive < len(labels))).sum() == 0:
        raise DatasetError(
            "labels can be doubted where a class has two photos and another has one, got "
            f"{len(labelled_pictures)} with labels in {photos.store.folder}; label more"
        )
    is_labelled = [picture.id in labelled.rows for picture in pictures]
    numbers = photos.collection.content[is_labelled]
    features = features_or_vectors(photos, numbers, progress)
    groups = groups_of_photos(photos, numbers)
    scores = label_scores(features, labels, groups=groups, seed=seed, progress=progress)
    classes = np.array(labelled.classes)
    has_one = has_one_class(labels)
    doubts = []
    for row, column, doubt in doubted(labels, scores):
        given = labels[row]
        suggested = given.copy()
        if has_one:
            suggested[:] = -1
        suggested[column] = -given[column]
        picture = labelled_pictures[row]
        given_names = tuple(classes[given == 1].tolist())
        suggested_names = tuple(classes[suggested == 1].tolist())
        doubts.append(
            Doubt(picture.id, picture.path, given_names, suggested_names, doubt)
        )
    return doubts, len(labelled_pictures)
