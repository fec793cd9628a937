"""Stage 8, curate: labels that a machine and the nearest photos contradict.

Comes in: features of labelled photos. Goes out: the labels to look at again, the most doubtful
first, with those that the photo would get. The score of a photo for a class is the margin of a
machine that was trained without the photo (its fold) plus `VOTE` times the mean label, 1 or -1, of
its nearest photos. Up to `KERNEL_IMAGES` machines are on the kernel, positives weighted as much as
negatives; beyond, they are linear on the short vectors of the search's index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepfishing.accuracy import has_one_class
from deepfishing.classify import train_svm
from deepfishing.curate.facility import short_vectors
from deepfishing.errors import DatasetError
from deepfishing.kernels import Comparable, gram
from deepfishing.linear import train_linear
from deepfishing.model.labelled import read_labels
from deepfishing.progress import Progress, silent
from deepfishing.rank_one import Array
from deepfishing.search import Searcher
from deepfishing.search.compare import sample

FOLDS = 5
NEIGHBOURS, VOTE = 10, 0.5  # docs/curate.md has the measurement
KERNEL_IMAGES = 6000
AMONG = 20_000  # photos, drawn if there are more, among which neighbours are looked for
BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Doubt:
    """A label to look at again.

    `given` are the photo's labels, `suggested` those that it would get, and `doubt` is by how much
    its score speaks against the label: more than 0 where machine and neighbours contradict.
    """

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
    progress: Progress | None = None,
) -> Array:
    """How much speaks for each class, (n, C), without looking at the photo's own labels.

    Parameters
    ----------
    features : ndarray, RankOne, KernelSum or KernelProduct of n images
    labels : ndarray (n, C)
        1 present, -1 absent, 0 difficult.
    neighbours : bool
        Whether the nearest photos vote, too.
    seed : int
        Of the folds.
    progress : callable, optional

    Examples
    --------
    >>> x = np.repeat(np.eye(2), 10, axis=0)
    >>> labels = np.where(x == 1, 1, -1)
    >>> labels[3] = -1, 1  # which is wrong
    >>> (label_scores(x, labels)[3] > 0).tolist()
    [True, False]
    """
    tell = progress or silent
    on_kernel = len(features) <= KERNEL_IMAGES
    if not on_kernel and not isinstance(features, np.ndarray):
        features = short_vectors(features.__getitem__, len(features), tell)
    folds = _folds(labels, seed)
    scores = np.zeros(labels.shape)
    for fold in range(FOLDS):
        tell("machines", fold, FOLDS)
        held = folds == fold
        known, seen = features[~held], labels[~held]
        if on_kernel:
            machine = train_svm(known, seen, class_weight="balanced")
            scores[held] = machine.decision_function(features[held])
        else:
            linear = train_linear(known, seen)  # type: ignore[arg-type]
            scores[held] = linear.decision_function(features[held])  # type: ignore[arg-type]
    tell("machines", FOLDS, FOLDS)
    return scores + VOTE * neighbour_votes(features, labels, tell) if neighbours else scores


def _folds(labels: Array, seed: int) -> Array:
    """The fold of each image, the rarest class of every image spread evenly."""
    counts = (labels == 1).sum(axis=0)
    rarest = np.where(labels == 1, counts, len(labels) + 1).argmin(axis=1)
    order = np.lexsort((np.random.default_rng(seed).random(len(labels)), rarest))
    folds = np.empty(len(labels), dtype=int)
    folds[order] = np.arange(len(labels)) % FOLDS
    return folds


def neighbour_votes(features: Comparable, labels: Array, progress: Progress | None = None) -> Array:
    """The mean label (n, C) of each image's nearest ones, itself left out."""
    tell = progress or silent
    among = sample(len(labels), AMONG)
    others, k = features[among], min(NEIGHBOURS, len(among) - 1)
    votes = np.zeros(labels.shape)
    for start in range(0, len(labels) if k else 0, BLOCK_ROWS):
        tell("neighbours", start, len(labels))
        rows = np.arange(start, min(start + BLOCK_ROWS, len(labels)))
        K = gram(features[rows], others)
        K[rows[:, None] == among] = -np.inf
        nearest = among[np.argpartition(-K, k - 1, axis=1)[:, :k]]
        votes[rows] = labels[nearest].mean(axis=1)
    tell("neighbours", len(labels), len(labels))
    return votes


def doubted(labels: Array, scores: Array) -> list[tuple[int, int, float]]:
    """Image, class and doubt of every label that its scores contradict, the largest doubt first.

    With one class per image the class is the one that it would get, and the doubt is how far that
    is above the given one; with several, it is the class that is doubted, there or not.

    Examples
    --------
    >>> doubted(np.array([[1, -1], [1, -1]]), np.array([[0.5, -0.5], [-1.0, 0.5]]))
    [(1, 1, 1.5)]
    >>> doubted(np.array([[1, 1], [1, -1]]), np.array([[0.5, -0.5], [-1.0, 0.25]]))
    [(1, 0, 1.0), (0, 1, 0.5), (1, 1, 0.25)]
    """
    if has_one_class(labels):
        rows = np.arange(len(labels))
        other = np.where(labels == 1, -np.inf, scores).argmax(axis=1)
        doubt = scores[rows, other] - scores[rows, labels.argmax(axis=1)]
        where = [(int(i), int(other[i])) for i in rows]
    else:
        against = -labels * scores
        pairs = np.argwhere(labels != 0)
        doubt, where = against[tuple(pairs.T)], [(int(i), int(c)) for i, c in pairs]
    order = np.argsort(-doubt, kind="stable")
    return [(*where[at], float(doubt[at])) for at in order if doubt[at] > 0]


def doubtful_labels(
    photos: Searcher,
    source: Path | None = None,
    *,
    split: str = "trainval",
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[list[Doubt], int]:
    """Labels of a store's photos to look at again, and how many photos were looked at.

    Parameters
    ----------
    photos : Searcher
        From `open_photos`.
    source, split
        Where the labels are: see `read_labels`. By default those of the store, or its folders.
    seed, progress
        See `label_scores`.
    """
    collection = photos.collection
    pictures = [collection[row] for row in range(len(collection))]
    labelled = read_labels(pictures, source, split)
    known = [row for row, picture in enumerate(pictures) if picture.id in labelled.rows]
    if not known:
        labelled.of(pictures)  # which says what is wrong
    labels = np.stack([labelled.rows[pictures[row].id] for row in known])
    positive = (labels == 1).sum(axis=0)
    if ((positive > 1) & (positive < len(labels))).sum() == 0:
        raise DatasetError(
            "labels can be doubted where a class has two photos and another has one, got "
            f"{len(known)} with labels in {photos.store.folder}; label more"
        )
    numbers, tell = collection.content[known], progress or silent
    if len(known) <= KERNEL_IMAGES:
        features = photos.features.of(numbers)
    else:
        features = short_vectors(lambda rows: photos.features.of(numbers[rows]), len(known), tell)
    scores = label_scores(features, labels, seed=seed, progress=progress)
    one, found = has_one_class(labels), []
    for row, column, doubt in doubted(labels, scores):
        picture, given = pictures[known[row]], labels[row]
        to = np.full_like(given, -1) if one else given.copy()
        to[column] = -given[column]
        before, after = (_names(which, labelled.classes) for which in (given, to))
        found.append(Doubt(picture.id, picture.path, before, after, doubt))
    return found, len(known)


def _names(row: Array, classes: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name, value in zip(classes, row, strict=True) if value == 1)
