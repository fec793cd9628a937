"""Accuracy and confusions, where every image has exactly one class.

Top-1 accuracy is the share of images whose class has the highest score; balanced accuracy is the
mean over the classes of this share. Both have Wilson's interval (`core.statistics`). A class
without a classifier is left out, as it is of the mAP: it is never the answer, and its images do not
count. A class without a test image may be answered, wrongly, and has no part in the balanced mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepfishing.core.metrics import Array, check_columns
from deepfishing.core.statistics import (
    Interval,
    mean_proportion_interval,
    numbered_groups,
    proportion_interval,
)
from deepfishing.errors import DatasetError, FeatureError

KEYS = (  # of a row; None where images have several classes
    *(
        "accuracy",
        "accuracy_interval",
        "balanced_accuracy",
        "balanced_accuracy_interval",
    ),
    "confusion",
)

# class of the image -> class it is taken for -> images
Confusion = dict[str, dict[str, int]]


def has_one_class(labels: Array) -> bool:
    """Whether every image shows one class, and is difficult for none."""
    return bool(np.all(labels != 0) and np.all((labels == 1).sum(axis=1) == 1))


@dataclass(frozen=True)
class Accuracy:
    """Shares of images whose class has the highest score, in percent, with intervals of 95 %."""

    top1: float  # over all images; of equal scores the first class counts
    balanced: float  # mean over the classes of the share of their images that are right
    confusion: Confusion  # without zeros
    top1_interval: Interval
    balanced_interval: Interval

    def as_row(self) -> dict[str, Any]:
        """Keys of a measured row, ready for JSON."""
        intervals = list(self.top1_interval), list(self.balanced_interval)
        figures = self.top1, intervals[0], self.balanced, intervals[1], self.confusion
        return dict(zip(KEYS, figures, strict=True))


def measure_accuracy(
    labels: Array,
    scores: Array,
    classes: Sequence[str],
    usable: Array | None = None,
    groups: Array | None = None,
) -> Accuracy | None:
    """Accuracy of the class with the highest score; None if no image shows a usable class.

    Labels and scores are arrays (n, C) as for `core.metrics.evaluate`, `usable` (C,) is False for a
    class that has no classifier. Images of one group, such as copies of a photo, count as one in
    the width of the intervals; by default each image is a group.
    """
    labels, scores = np.asarray(labels), np.asarray(scores, dtype=np.float64)
    check_columns(labels, scores, classes)
    if not np.isfinite(scores).all():
        raise FeatureError("scores must be finite, got NaN or infinity")
    if not has_one_class(labels):
        raise DatasetError(
            "accuracy needs one class per image, got images with none, several or a difficult one; "
            "look at the mAP instead"
        )
    trained = (
        np.ones(len(classes), dtype=bool)
        if usable is None
        else np.asarray(usable, dtype=bool)
    )
    truth = labels.argmax(axis=1)
    counts = trained[truth]
    if not counts.any():
        return None
    answer = np.where(trained, scores, -np.inf).argmax(axis=1)
    table = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(table, (truth[counts], answer[counts]), 1)
    images, right = table.sum(axis=1), table.diagonal()
    seen = images > 0
    share = right[seen] / images[seen]
    group = np.arange(len(truth)) if groups is None else numbered_groups(groups)
    independent = np.zeros(len(classes))
    for column in np.flatnonzero(seen):
        independent[column] = len(np.unique(group[counts & (truth == column)]))
    total = len(np.unique(group[counts]))
    top1 = right.sum() / images.sum()
    return Accuracy(
        top1=100.0 * float(top1),
        balanced=100.0 * float(share.mean()),
        confusion=_confusion(classes, table),
        top1_interval=proportion_interval(float(top1) * total, total),
        balanced_interval=mean_proportion_interval(
            share * independent[seen], independent[seen]
        ),
    )


def _confusion(classes: Sequence[str], table: Array) -> Confusion:
    """Counts (C, C) by the names of the classes, without zeros."""
    confusion: Confusion = {}
    for name, counts in zip(classes, table.tolist(), strict=True):
        answers = {answer: n for answer, n in zip(classes, counts, strict=True) if n}
        if answers:
            confusion[name] = answers
    return confusion
