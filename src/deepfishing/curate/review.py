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
from deepfishing.curate.label_errors import KERNEL_IMAGES, doubted, label_scores
from deepfishing.curate.label_session import Labels, targets
from deepfishing.curate.selection import short_vectors
from deepfishing.errors import DatasetError
from deepfishing.learn.folds import read_groups
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
    """Labelled photos, and how much speaks for each class when a photo is held out."""

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
            shown = [column] if row[column] == 1 else np.flatnonzero(row == 1)
            counts[shown, column] += 1
        return counts

    def cell(self, given: int, predicted: int) -> Array:
        """Return the numbers of the photos that a cell of the table counts."""
        shows = self.target[:, given] == 1
        taken_for = self.predicted == predicted
        is_right = self.target[:, predicted] == 1
        return np.flatnonzero(shows & taken_for & (is_right == (given == predicted)))

    def doubts(self) -> list[DoubtfulLabel]:
        """Return the labels to look at again, the most doubtful first."""
        has_one = has_one_class(self.target)
        found = []
        for number, column, doubt in doubted(self.target, self.scores):
            shown = self.target[number] == 1
            name = self.classes[column]
            if has_one:
                loses = self.classes[int(shown.argmax())]
                gains, suggested = name, [name]
            else:
                loses, gains = (name, "") if shown[column] else ("", name)
                now = shown.copy()
                now[column] = not shown[column]
                suggested = [self.classes[at] for at in np.flatnonzero(now)]
            kept = tuple(one for one in suggested if one)
            found.append(DoubtfulLabel(number, kept, loses, gains, doubt))
        return found

    def certainty(self, column: int) -> tuple[Array, Array]:
        """Return the photos of a class, the most certain first, and by how much it is ahead."""
        numbers = np.flatnonzero(self.target[:, column] == 1)
        others = np.where(
            self.known & (self.target[numbers] == -1), self.scores[numbers], -np.inf
        )
        best = others.max(axis=1, initial=-np.inf)
        ahead = self.scores[numbers, column] - np.where(np.isfinite(best), best, 0.0)
        order = np.argsort(-ahead, kind="stable")
        return numbers[order], ahead[order]


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
    found = pc.index_in(
        pa.array(keys, pa.string()), value_set=photos.contents.keys
    ).to_pylist()
    there = [at for at, number in enumerate(found) if number is not None]
    kept = [labels[at] or () for at in there]
    classes, target = targets(kept) if kept else ((), np.zeros((0, 0)))
    if len(there) < MIN_PHOTOS or ((target == 1).sum(axis=0) >= 2).sum() < 2:
        raise DatasetError(
            f"labels can be reviewed where two classes have two photos each, got {len(there)} "
            "labelled photos; label more"
        )
    numbers = np.array([found[at] for at in there], dtype=np.int64)
    if len(numbers) <= KERNEL_IMAGES:
        features = photos.features.of(numbers)
    else:
        features = short_vectors(
            lambda at: photos.features.of(numbers[at]), len(numbers), progress
        )
    contents, columns = photos.contents, photos.recipe.columns
    groups = read_groups(
        lambda rows: contents.read(numbers[rows], columns),
        [str(one) for one in numbers],
    )
    signs = target.astype(np.int8)
    scores = label_scores(features, signs, groups=groups, seed=seed, progress=progress)
    return Judged(numbers, tuple(kept), classes, signs, scores, groups)


def nearest_of_class(
    photos: Searcher, judged: Judged, number: int, column: int, n: int
) -> Array:
    """Return the photos that show a class and are nearest to a photo, which is not one of them."""
    others: Array = np.flatnonzero(judged.target[:, column] == 1)
    others = others[judged.contents[others] != judged.contents[number]]
    if not len(others):
        return others
    itself = photos.features.of(judged.contents[[number]])
    kernel = gram(itself, photos.features.of(judged.contents[others]))[0]
    nearest: Array = others[np.argsort(-kernel, kind="stable")[:n]]
    return nearest
