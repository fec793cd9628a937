"""Intervals of measured figures, and tests of differences between two rows.

An AP or mAP has a bootstrap interval. The test images are drawn anew, n of n with replacement, and
every AP is computed again. A draw is a count for each image, so each class is sorted once and a
draw only changes weights. The draws depend on n, the groups and the seed alone, so that images that
are hard for both of two rows cancel in their difference. Copies of one photo are drawn together.
The percentiles of the draws are moved so that their mean is the measured figure: a draw repeats
images, and repeated positives raise AP (docs/statistics.md).

A proportion, such as accuracy, has Wilson's interval: the bootstrap has no width at 0 and 100 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from deepfishing.core.metrics import (
    DEFINITIONS,
    Array,
    Evaluation,
    Ranking,
    check_definition,
    evaluate,
)
from deepfishing.errors import DatasetError, OptionError

RESAMPLES = 1000
SEED = 0
LEVEL = 0.95

# A block of draws holds at most this many numbers per array (float64: 8 MB).
BLOCK_VALUES = 1_000_000

Interval = tuple[float, float]  # low, high


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """AP of every class on each draw of test images, in percent."""

    measured: Evaluation  # on the test images themselves
    # by definition (draws, C); NaN where a draw has no positive image
    ap: dict[str, Array]

    def map(self, method: str) -> Array:
        """Mean over the classes that a draw has, (draws,); NaN where it has none."""
        known = ~np.isnan(self.ap[method])
        total = np.where(known, self.ap[method], 0.0).sum(axis=1)
        count = known.sum(axis=1)
        mean: Array = np.divide(
            total, count, out=np.full(len(total), np.nan), where=count > 0
        )
        return mean

    def map_interval(self, method: str) -> Interval | None:
        """Interval of the mAP; None if no class has an AP."""
        measured = self.measured.map[method]
        return None if measured is None else interval_of(self.map(method), measured)

    def ap_interval(self, method: str) -> dict[str, Interval | None]:
        """Interval of each class's AP; None for a class without."""
        measured = self.measured.ap[method]
        return {
            name: None if value is None else interval_of(draws, value)
            for (name, value), draws in zip(
                measured.items(), self.ap[method].T, strict=True
            )
        }

    def as_row(self) -> dict[str, Any]:
        """The keys `map_interval` and `ap_interval` of a measured row, ready for JSON."""
        return {
            "map_interval": {
                method: _listed(self.map_interval(method)) for method in self.ap
            },
            "ap_interval": {
                method: {
                    name: _listed(found)
                    for name, found in self.ap_interval(method).items()
                }
                for method in self.ap
            },
        }


@dataclass(frozen=True)
class Difference:
    """mAP of row a minus that of row b on the same images, in points.

    `mean` is the measured difference, `low` and `high` its interval. `p` is twice the share of
    draws on the other side of 0: small if the sign of the difference can be trusted.
    """

    mean: float
    low: float
    high: float
    p: float

    @property
    def holds(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """Return the mean of a - b with Student's interval and p; None for one pair or none.

    Examples
    --------
    >>> found = paired_difference([3.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    >>> round(found.mean, 2), round(found.low, 2), found.holds
    (2.33, 0.9, True)
    """
    from scipy.stats import t as student  # takes a while to import

    differences = [x - y for x, y in zip(a, b, strict=True)]
    interval = mean_interval(differences)
    if interval is None:
        return None
    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / len(differences) ** 0.5
    p = (
        2 * float(student.sf(abs(mean) / error, len(differences) - 1))
        if error
        else float(mean == 0)
    )
    return Difference(mean, *interval, p)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return Student's interval of the mean of such values; None for one value or none."""
    from scipy.stats import t as student  # takes a while to import

    if len(values) < 2:
        return None
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    half = (
        float(student.ppf((1 + LEVEL) / 2, len(values) - 1))
        * spread
        / len(values) ** 0.5
    )
    return mean - half, mean + half


def proportion_interval(right: float, n: float) -> Interval:
    """Return Wilson's interval, in percent, of a share of `right` out of n independent images.

    Examples
    --------
    >>> low, high = proportion_interval(30, 30)
    >>> round(low, 1), round(high, 1)
    (88.6, 100.0)
    """
    if not 0 <= right <= n or n <= 0:
        raise OptionError(f"a share must be of 1 or more images, got {right} of {n}")
    z = normal_quantile()
    share, size = right / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / size
    half = z / size * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return bounded((100 * (centre - half), 100 * (centre + half)), 100 * share)


def mean_proportion_interval(right: Sequence[float], n: Sequence[float]) -> Interval:
    """Return the interval, in percent, of the mean of independent shares, such as one per class.

    The distances of Wilson's limits from each share are added as standard errors are (MOVER, Zou
    and Donner 2008).
    """
    shares, below, above = [], [], []
    for some, of in zip(right, n, strict=True):
        share = 100 * some / of
        low, high = proportion_interval(some, of)
        shares.append(share)
        below.append(share - low)
        above.append(high - share)
    mean = float(np.mean(shares))
    low = mean - float(np.linalg.norm(below)) / len(shares)
    high = mean + float(np.linalg.norm(above)) / len(shares)
    return bounded((low, high), mean)


def normal_quantile() -> float:
    """Return the number of standard errors on either side of an interval at `LEVEL`."""
    from scipy.stats import norm  # takes a while to import

    return float(norm.ppf((1 + LEVEL) / 2))


def bootstrap(
    labels: Array,
    scores: Array,
    classes: Sequence[str],
    methods: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    groups: Array | None = None,
) -> Bootstrap:
    """AP of every class on `resamples` draws of the test images, by all definitions or by some.

    Labels, scores and classes are as for `core.metrics.evaluate`. Images of one group, such as
    copies of a photo, are drawn together; by default each image is a group.
    """
    if resamples < 1:
        raise OptionError(f"resamples must be at least 1, got {resamples}")
    definitions = [
        check_definition(name) for name in (DEFINITIONS if methods is None else methods)
    ]
    labels, scores = np.asarray(labels), np.asarray(scores)
    measured = evaluate(labels, scores, classes)  # which also checks the three
    if not len(labels):
        raise DatasetError("a bootstrap needs at least one test image, got none")
    ap = {one.name: np.full((resamples, len(classes)), np.nan) for one in definitions}
    ranked = [_Ranked.of(labels[:, c], scores[:, c]) for c in range(len(classes))]
    done = 0
    for counts in draw_counts(len(labels), resamples, seed, groups):
        rows = slice(done, done + counts.shape[1])
        for column, ranking in enumerate(ranked):
            if ranking is None:
                continue
            drawn = ranking.drawn(counts)
            for one in definitions:
                ap[one.name][rows, column] = one.ap(drawn)
        done = rows.stop
    return Bootstrap(measured, ap)


def compare(
    labels: Array,
    scores_a: Array,
    scores_b: Array,
    method: str,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Difference:
    """Return the paired bootstrap of mAP, row a minus row b, on the same draws of images."""
    names = [
        str(column) for column in range(np.shape(labels)[-1] if np.ndim(labels) else 0)
    ]
    a, b = (
        bootstrap(labels, scores, names, (method,), resamples, seed)
        for scores in (scores_a, scores_b)
    )
    map_a, map_b = a.measured.map[method], b.measured.map[method]
    if map_a is None or map_b is None:
        raise DatasetError("two rows to compare must have a class with an AP, got none")
    return difference(map_a - map_b, a.map(method) - b.map(method))


def difference(measured: float, draws: Array) -> Difference:
    """Return a measured difference with its interval, from the same difference on each draw.

    `compare` for many rows: each one's draws are computed once.
    """
    draws = _centred(draws, measured)
    low, high = bounded(_percentiles(draws), measured, -100.0)
    # counted with the measured difference as one more draw, so that p is never 0
    tails = [
        (1 + int(side.sum())) / (1 + len(draws)) for side in (draws <= 0, draws >= 0)
    ]
    return Difference(measured, low, high, min(1.0, 2 * min(tails)))


def interval_of(draws: Array, measured: float) -> Interval:
    """The interval of a measured percentage, from the same figure on each draw or NaN for none."""
    return bounded(_percentiles(_centred(draws, measured)), measured)


def bounded(interval: Interval, figure: float, least: float = 0.0) -> Interval:
    """An interval of a percentage: in order, from `least` to 100, and around the figure."""
    low, high = interval
    return min(max(least, low), figure), max(min(100.0, high), figure)


def _centred(draws: Array, measured: float) -> Array:
    """The draws that have a value, moved so that their mean is the measured one."""
    known: Array = draws[~np.isnan(draws)]
    return known + (measured - known.mean()) if len(known) else np.full(1, measured)


def _listed(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _percentiles(draws: Array) -> Interval:
    low, high = np.quantile(draws, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class _Ranked:
    """The images of one class in groups from the highest score down.

    A group ends with the images of one score of which at least one is positive; images below the
    last of these change no AP.
    """

    positive: csr_array  # (groups, n), 1 where the image belongs to the group
    all: csr_array

    @classmethod
    def of(cls, truth: Array, scores: Array) -> _Ranked | None:
        """None without a positive image."""
        # scores that have a positive, rising: image i is in the group of the first one <= its own
        levels = np.unique(scores[truth == 1].astype(np.float64))
        if not len(levels):
            return None
        group = len(levels) - np.searchsorted(
            levels, scores.astype(np.float64), side="right"
        )
        return cls(
            indicator(group, truth == 1, len(levels)),
            indicator(group, (truth != 0) & (group < len(levels)), len(levels)),
        )

    def drawn(self, counts: Array) -> Ranking:
        """The curves of draws, with counts (n, draws) of each image; a point for each group."""
        return Ranking(self.positive @ counts, self.all @ counts)


def indicator(group: Array, chosen: Array, groups: int) -> csr_array:
    """Return a sparse matrix (groups, n), 1 for each chosen image in its group."""
    images = np.flatnonzero(chosen)
    ones = np.ones(len(images))
    return csr_array((ones, (group[images], images)), shape=(groups, len(group)))


def draw_counts(
    n: int, resamples: int, seed: int, groups: Array | None = None
) -> Iterator[Array]:
    """Blocks (n, draws): how often each of n images is in each draw, n of n with replacement.

    With groups (n,), as many groups as there are are drawn, each with all of its images.
    """
    group = np.arange(n)
    if groups is not None:
        group = numbered_groups(groups)
    drawn_from = int(group.max(initial=-1)) + 1
    rng = np.random.default_rng(seed)
    block = max(1, BLOCK_VALUES // max(n, 1))
    for start in range(0, resamples, block):
        draws = []
        for _ in range(start, min(start + block, resamples)):
            drawn = rng.integers(0, drawn_from, drawn_from)
            draws.append(np.bincount(drawn, minlength=drawn_from)[group])
        yield np.stack(draws, axis=1).astype(np.float64)


def numbered_groups(groups: Array) -> Array:
    """Return the same groups, numbered from 0 on in the order of their first images."""
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    numbers: Array = rank[number.ravel()]
    return numbers
