"""Predictions for labelled photos by classifiers that have not seen them, to review labels.

They are those of `curate labels`: a support vector machine trained without the photo and its
copies, and the votes of its nearest photos. From them follow the labels to look at again, a table
of what is taken for what, and the most and the least certain photos of each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deepfishing.core.accuracy import Accuracy, has_one_class, measure_accuracy
from deepfishing.core.kernels import gram
from deepfishing.core.rank_one import Array
from deepfishing.curate.label_errors import (
    doubted,
    features_or_vectors,
    groups_of_photos,
    label_scores,
)
from deepfishing.curate.label_session import Labels, targets
from deepfishing.errors import DatasetError
from deepfishing.search import Searcher
from deepfishing.util.progress import Progress, silent

MIN_PHOTOS = 4  # of two classes, two of each


@dataclass(frozen=True)
class DoubtfulLabel:
    """A photo whose labels are doubted, by its number among the judged ones."""

    number: int
    suggested: tuple[str, ...]
    loses: str  # the class that it would no longer have, "" for none
    gains: str  # and the one that it would get
    doubt: float


@dataclass(frozen=True, eq=False)
class Judged:
    """Labelled photos, and the held-out score of each class."""

    contents: Array  # numbers of the photos in the searcher
    labels: tuple[tuple[str, ...], ...]
    classes: tuple[str, ...]
    target: Array  # (n, C), 1 and -1
    scores: Array  # (n, C), NaN for a class with too few photos
    groups: Array  # (n,) copies have the same number

    @property
    def known(self) -> Array:
        """Whether enough photos show each class (C,) for a held-out prediction."""
        return np.asarray(~np.isnan(self.scores).any(axis=0))

    @property
    def predicted(self) -> Array:
        """The column of the class that each photo is taken for; -1 if there is none."""
        if not self.known.any():
            return np.full(len(self.scores), -1)
        return np.asarray(np.where(self.known, self.scores, -np.inf).argmax(axis=1))

    def accuracy(self) -> Accuracy | None:
        """Return the held-out accuracy; None where photos have several labels."""
        if not has_one_class(self.target) or not self.known.any():
            return None
        scores = np.where(self.known, self.scores, 0.0)
        return measure_accuracy(
            self.target, scores, self.classes, self.known, self.groups
        )

    def table(self) -> Array:
        """Return how many photos of each class (row) are taken for each class (column).

        A photo with several labels counts for the one that it is taken for, or else for each.
        """
        counts = np.zeros((len(self.classes), len(self.classes)), dtype=np.int64)
        for row, column in zip(self.target, self.predicted, strict=True):
            if column < 0:
                continue
            classes = np.flatnonzero(row == 1)
            if row[column] == 1:
                classes = np.array([column])
            counts[classes, column] += 1
        return counts

    def cell(self, given: int, predicted: int) -> Array:
        """Return the numbers of the photos that a cell of the table counts."""
        has_given = self.target[:, given] == 1
        has_predicted = self.target[:, predicted] == 1
        is_counted = has_predicted == (given == predicted)
        return np.flatnonzero(has_given & (self.predicted == predicted) & is_counted)

    def doubts(self) -> list[DoubtfulLabel]:
        """Return the labels to look at again, the most doubtful first."""
        has_one = has_one_class(self.target)
        doubts = []
        for number, column, doubt in doubted(self.target, self.scores):
            has_class = self.target[number] == 1
            suggested = has_class.copy()
            loses = gains = ""
            if has_one:
                loses = self.classes[int(has_class.argmax())]
                gains = self.classes[column]
                suggested[:] = False
                suggested[column] = True
            else:
                suggested[column] = not has_class[column]
                if has_class[column]:
                    loses = self.classes[column]
                else:
                    gains = self.classes[column]
            names = [self.classes[c] for c in np.flatnonzero(suggested)]
            labels = tuple(name for name in names if name)
            doubts.append(DoubtfulLabel(number, labels, loses, gains, doubt))
        return doubts

    def certainty(self, column: int) -> tuple[Array, Array]:
        """Return the photos of a class, the most certain first, and their margins."""
        numbers = np.flatnonzero(self.target[:, column] == 1)
        is_other = self.known & (self.target[numbers] == -1)
        others = np.where(is_other, self.scores[numbers], -np.inf)
        best = others.max(axis=1, initial=-np.inf)
        margin = self.scores[numbers, column] - np.where(np.isfinite(best), best, 0.0)
        order = np.argsort(-margin, kind="stable")
        return numbers[order], margin[order]


def judge_labels(
    photos: Searcher,
    keys: Sequence[str],
    labels: Sequence[Labels],
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Judged:
    """Predict labelled photos from the others.

    Parameters
    ----------
    photos : Searcher
        From `open_photos`.
    keys : sequence of str
        Content hashes of the labelled photos; those without features are left out.
    labels : sequence of tuple of str
        The labels of each; () for none of the classes.
    """
    text = pa.array(keys, pa.string())
    stored = pc.index_in(text, value_set=photos.contents.keys).to_pylist()
    contents = []
    judged_labels: list[tuple[str, ...]] = []
    for number, names in zip(stored, labels, strict=True):
        if number is not None:
            contents.append(number)
            judged_labels.append(names or ())
    classes: tuple[str, ...] = ()
    target = np.zeros((0, 0))
    if judged_labels:
        classes, target = targets(judged_labels)
    photos_per_class = (target == 1).sum(axis=0)
    if len(contents) < MIN_PHOTOS or (photos_per_class >= 2).sum() < 2:
        raise DatasetError(
            f"labels can be reviewed where two classes have two photos each, got {len(contents)} "
            "labelled photos; label more"
        )
    numbers = np.array(contents, dtype=np.int64)
    features = features_or_vectors(photos, numbers, progress)
    groups = groups_of_photos(photos, numbers)
    signs = target.astype(np.int8)
    scores = label_scores(features, signs, groups=groups, seed=seed, progress=progress)
    return Judged(numbers, tuple(judged_labels), classes, signs, scores, groups)


def nearest_of_class(
    photos: Searcher, judged: Judged, number: int, column: int, n: int
) -> Array:
    """Return the photos of a class that are nearest to a photo, without the photo itself."""
    others: Array = np.flatnonzero(judged.target[:, column] == 1)
    others = others[judged.contents[others] != judged.contents[number]]
    if not len(others):
        return others
    itself = photos.features.of(judged.contents[[number]])
    kernel = gram(itself, photos.features.of(judged.contents[others]))[0]
    nearest: Array = others[np.argsort(-kernel, kind="stable")[:n]]
    return nearest
