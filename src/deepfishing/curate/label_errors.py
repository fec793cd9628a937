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
    groups: Array | None = None,
    neighbours: bool = True,
    seed: int = 0,
    progress: Progress = silent,
) -> Array:
    """How much speaks for each class, (n, C), without looking at the photo's own labels.

    Photos of one group (copies and similar scenes, of `similar_groups`) are held out together and
    have no vote for each other; by default each photo is a group. A class that has a single group
    of photos, or lacks one, has NaN for all photos: nothing is known of it without them.
    """
    on_kernel = len(features) <= KERNEL_IMAGES
    if not on_kernel and not isinstance(features, np.ndarray):
        features = short_vectors(features.__getitem__, len(features), progress)
    group = check_groups(groups, len(labels))
    folds = make_folds(labels, group, FOLDS, seed)
    scores = np.zeros(labels.shape)
    for fold, (train, held) in enumerate(folds):
        progress("classifiers", fold, FOLDS)
        known: Any = features[train]
        if on_kernel:
            svm: Any = train_svm(known, labels[train], class_weight="balanced")
        else:
            svm = train_linear(known, labels[train])
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
    """The mean label (n, C) of each image's nearest ones, those of its own group left out."""
    groups = check_groups(groups, len(labels))
    among = sample(len(labels), AMONG)
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
    """The mean of labels (m, C) over the nearest of each row of K (n, m); -inf does not count."""
    k = min(NEIGHBOURS, K.shape[1])
    nearest, similarity = nearest_columns(K, k)
    counts = np.isfinite(similarity)
    total = (labels[nearest] * counts[:, :, None]).sum(axis=1)
    mean: Array = total / np.maximum(counts.sum(axis=1), 1)[:, None]
    return mean


def doubted(labels: Array, scores: Array) -> list[tuple[int, int, float]]:
    """Image, class and doubt of every label that its scores contradict, the largest doubt first.

    With one class per image the class is the one that it would get, and the doubt is how far that
    is above the given one; with several, it is the class that is doubted, shown or not. A class
    whose scores are NaN is neither doubted nor suggested.
    """
    if has_one_class(labels):
        rows = np.arange(len(labels))
        columns = np.where((labels == 1) | np.isnan(scores), -np.inf, scores).argmax(
            axis=1
        )
        doubt = scores[rows, columns] - scores[rows, labels.argmax(axis=1)]
    else:
        rows, columns = np.nonzero(labels)
        doubt = (-labels * scores)[rows, columns]
    order = [at for at in np.argsort(-doubt, kind="stable") if doubt[at] > 0]
    return [(int(rows[at]), int(columns[at]), float(doubt[at])) for at in order]


def _groups(photos: Searcher, numbers: Array) -> Array:
    """Groups of photos by their content and the features of the store."""
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
        features = short_vectors(
            lambda at: photos.features.of(numbers[at]), len(known), progress
        )
    groups = _groups(photos, numbers)
    scores = label_scores(features, labels, groups=groups, seed=seed, progress=progress)
    classes, has_one, found = np.array(labelled.classes), has_one_class(labels), []
    for row, column, doubt in doubted(labels, scores):
        given = labels[row]
        to = np.full_like(given, -1) if has_one else given.copy()
        to[column] = -given[column]
        before, after = (tuple(classes[which == 1].tolist()) for which in (given, to))
        found.append(Doubt(known[row].id, known[row].path, before, after, doubt))
    return found, len(known)
