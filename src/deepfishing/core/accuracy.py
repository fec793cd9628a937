"""Stage "evaluation": accuracy and confusions, where every image has exactly one class.

Comes in: labels and scores of the test images, as in `metrics`. Goes out: how often the class with
the highest score is the right one, over all images (top-1) and as the mean over the classes
(balanced), with bootstrap intervals, and which classes are taken for which.

The draws are those of `statistics`, so accuracy and mAP are seen on the same test sets. A class
without a classifier is left out, as it is of the mAP: it is never the answer, and its images do not
count. A class without a test image may be answered, wrongly, and has no part in the balanced mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from deepfishing.core.statistics import (
    RESAMPLES,
    SEED,
    Interval,
    draw_counts,
    indicator,
    interval_of,
)
from deepfishing.errors import DatasetError, FeatureError
from deepfishing.metrics import Array, check_columns

KEYS = (  # of a row; None where images have several classes
    *("accuracy", "accuracy_interval", "balanced_accuracy", "balanced_accuracy_interval"),
    "confusion",
)

Confusion = dict[str, dict[str, int]]  # class of the image -> class it is taken for -> images


def has_one_class(labels: Array) -> bool:
    """Whether every image shows one class, and is difficult for none."""
    return bool(np.all(labels != 0) and np.all((labels == 1).sum(axis=1) == 1))


@dataclass(frozen=True)
class Accuracy:
    """How often the right class has the highest score, in percent, with intervals of 95 percent."""

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
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Accuracy | None:
    """Accuracy of the class with the highest score; None if no image shows a usable class.

    Labels and scores are arrays (n, C) as for `metrics.evaluate`, `usable` (C,) is False for a
    class that has no classifier; the bootstrap is that of `statistics.bootstrap`.
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
    known = np.ones(len(classes), dtype=bool) if usable is None else np.asarray(usable, dtype=bool)
    truth = labels.argmax(axis=1)
    kept = known[truth]
    if not kept.any():
        return None
    answer = np.where(known, scores, -np.inf).argmax(axis=1)
    right = kept & (answer == truth)
    table = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(table, (truth[kept], answer[kept]), 1)
    every, hits = (indicator(truth, chosen, len(classes)) for chosen in (kept, right))
    whole = _shares(every, hits, np.ones((len(truth), 1)))
    draws = [_shares(every, hits, counts) for counts in draw_counts(len(truth), resamples, seed)]
    (top1, balanced), drawn = whole[:, 0].tolist(), np.concatenate(draws, axis=1)
    return Accuracy(
        top1=top1,
        balanced=balanced,
        confusion={
            name: {answer: n for answer, n in zip(classes, counts, strict=True) if n}
            for name, counts in zip(classes, table.tolist(), strict=True)
            if any(counts)
        },
        top1_interval=interval_of(drawn[0], top1),
        balanced_interval=interval_of(drawn[1], balanced),
    )


def _shares(every: csr_array, hits: csr_array, counts: Array) -> Array:
    """Top-1 and balanced accuracy in percent, (2, draws), with counts (n, draws) of each image.

    `every` and `hits` say which images, and which that are right, are in which class: (C, n).
    """
    images, right = every @ counts, hits @ counts  # (C, draws)
    total, seen = images.sum(axis=0), images > 0
    shares = np.full((2, counts.shape[1]), np.nan)  # of a draw without any of the images
    np.divide(100.0 * right.sum(axis=0), total, out=shares[0], where=total > 0)
    each = np.divide(100.0 * right, images, out=np.zeros_like(images), where=seen)
    np.divide(each.sum(axis=0), seen.sum(axis=0), out=shares[1], where=total > 0)
    return shares
