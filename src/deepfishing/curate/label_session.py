"""Learning while somebody labels: suggestions, accuracy so far, what to label next, when to stop.

All of it is made of the vectors of `FewLabels` in closed form, so that every new label counts in
less than a second. A photo may have several labels. A photo that shows none of the classes is an
example of a class of its own, `NONE`, so that this can be suggested, too.

The accuracy is how often the first suggestion is right for a labelled photo that was left out
together with its copies. Photos that are labelled first are harder than the others, so each counts
as much as the number of photos that are nearest to it. benchmarks/SESSION.md has the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.core.statistics import Interval, proportion_interval
from deepfishing.curate.selection import choose_rows
from deepfishing.learn.few_labels import FewLabels

NONE = ""  # the class of photos that show none of the others
Labels = tuple[str, ...] | None

# photos that are learned from; of more, the newest and an even sample
MAX_LABELLED = 1500
MIN_LABELLED = 20  # below, an accuracy would say nothing,
MIN_PER_CLASS = 2  # nor while the median class has fewer
POINTS = 12  # of the curve
HALVES = 8  # random halves of the labels, to see what the second half was worth
SMALL_GAIN = 1.5  # points of accuracy that are not worth twice the labels
SPREAD = 1.28  # standard errors: the gain is below the limit in nine cases of ten
# photos that the next ones to label are chosen from, an even sample of more
CANDIDATES = 3000
QUEUE = 10  # photos that are chosen at a time
# photos whose two best classes are close count exp(-SHARPNESS * margin)
SHARPNESS = 3.0


@dataclass(frozen=True)
class CurvePoint:
    """Estimated accuracy, in percent, with so many labelled photos."""

    labels: int
    accuracy: float
    interval: Interval


@dataclass(frozen=True)
class Advice:
    """Whether more labels help: what the second half of them gained, in points of accuracy."""

    gain: float | None
    error: float | None  # standard error of the gain
    verdict: str  # "early", "helps", "unclear" or "enough"


@dataclass(frozen=True, eq=False)
class Learned:
    """What was learned from the labels so far."""

    # columns; NONE is the last one if a photo shows none of the others
    classes: tuple[str, ...]
    rows: Array  # the labelled photos that were learned from
    target: Array  # (n_labelled, C), 1 and -1
    scores: Array  # (n, C) of all photos
    left_out: Array  # (n_labelled, C) of the labelled ones, each without its group
    weights: Array  # (n_labelled,) how many photos each stands for
    groups: Array  # (n_labelled,) copies have the same number
    # of the confidence; None with too few labels
    calibration: tuple[float, float] | None

    @property
    def right(self) -> Array:
        """Whether the first suggestion is right for each labelled photo that was left out."""
        return first_is_right(self.left_out, self.target)

    def estimate(self) -> CurvePoint | None:
        """Return the estimated accuracy; None with too few labels."""
        return estimate(self.right, self.weights, self.target, self.groups)

    def confidence(self, scores: Array) -> Array | None:
        """Return the probability that the first suggestion is right, for scores (m, C)."""
        if self.calibration is None:
            return None
        slope, offset = self.calibration
        chances: Array = expit(slope * margins(scores) + offset)
        return chances


def learn(
    few: FewLabels,
    rows: Sequence[int] | Array,
    labels: Sequence[Labels],
    groups: Array | None = None,
) -> Learned | None:
    """Learn from labelled photos; None while there are fewer than two classes.

    Parameters
    ----------
    few : FewLabels
    rows : sequence of int
        Numbers of the labelled photos, in the order in which they were labelled.
    labels : sequence of tuple of str
        The labels of each; () for none of the classes.
    groups : ndarray, optional
        The group of each photo of the collection: copies are left out together.
    """
    chosen = newest(len(rows))
    numbers = np.asarray(rows, dtype=np.int64)[chosen]
    classes, target = targets([labels[at] for at in chosen])
    if len(classes) < 2:
        return None
    group = np.arange(len(numbers)) if groups is None else groups[numbers]
    scores, left_out = few.fit_targets(numbers, target, group)
    weights = photos_nearest_to(few, numbers)
    calibration = None
    if is_measurable(target):
        calibration = calibrate(margins(left_out), first_is_right(left_out, target))
    return Learned(
        classes, numbers, target, scores, left_out, weights, group, calibration
    )


def newest(n: int) -> Array:
    """Return which of n labelled photos are learned from: half the newest, half of all others."""
    if n <= MAX_LABELLED:
        return np.arange(n)
    half = MAX_LABELLED // 2
    older = np.linspace(0, n - half - 1, MAX_LABELLED - half).round().astype(np.int64)
    return np.concatenate([older, np.arange(n - half, n)])


def targets(labels: Sequence[Labels]) -> tuple[tuple[str, ...], Array]:
    """Return the classes and a matrix (n, C) of 1 and -1."""
    names: set[str] = set()
    for one in labels:
        names.update(one or ())
    classes = sorted(names)
    if any(not one for one in labels):
        classes.append(NONE)
    column = {name: number for number, name in enumerate(classes)}
    target = np.full((len(labels), len(classes)), -1.0)
    for row, one in enumerate(labels):
        for name in one or (NONE,):
            target[row, column[name]] = 1.0
    return tuple(classes), target


def first_is_right(scores: Array, target: Array) -> Array:
    """Whether the class with the highest score is one that each photo shows."""
    first = scores.argmax(axis=1)
    is_right: Array = target[np.arange(len(target)), first] == 1
    return is_right


def margins(scores: Array) -> Array:
    """Return by how much the first class is above the second one."""
    best = np.partition(scores, -2, axis=1)
    margin: Array = best[:, -1] - best[:, -2]
    return margin


def photos_nearest_to(few: FewLabels, rows: Array, sample: int = 5000) -> Array:
    """Return how many photos are nearest to each of these, which at least stand for themselves."""
    among = np.linspace(0, len(few.vectors) - 1, min(len(few.vectors), sample)).round()
    photos = few.vectors[among.astype(np.int64)].astype(np.float32)
    nearest = (photos @ few.vectors[rows].astype(np.float32).T).argmax(axis=1)
    share = len(few.vectors) / len(photos)
    weights: Array = np.maximum(np.bincount(nearest, minlength=len(rows)) * share, 1.0)
    return weights


def is_measurable(target: Array) -> bool:
    """Whether there are labels enough for an estimate of the accuracy."""
    per_class = (target == 1).sum(axis=0)
    return len(target) >= MIN_LABELLED and float(np.median(per_class)) >= MIN_PER_CLASS


def estimate(
    right: Array, weights: Array, target: Array, groups: Array
) -> CurvePoint | None:
    """Return the weighted accuracy of left-out photos, with its interval.

    Groups with weights w count as (sum w)^2 / sum w^2 independent photos. The only photo of a class
    does not count: without it nothing is known of the class. None where there are too few labels.
    """
    if not is_measurable(target):
        return None
    has_another = ((target == 1) & ((target == 1).sum(axis=0) >= MIN_PER_CLASS)).any(
        axis=1
    )
    right, weights = right[has_another], weights[has_another]
    of_group = np.bincount(
        np.unique(groups[has_another], return_inverse=True)[1], weights
    )
    share = float((weights * right).sum() / weights.sum())
    independent = float(of_group.sum() ** 2 / (of_group**2).sum())
    interval = proportion_interval(share * independent, independent)
    return CurvePoint(len(target), 100 * share, interval)


def calibrate(margin: Array, right: Array) -> tuple[float, float]:
    """Fit the probability that a suggestion is right, given its margin (Platt's method).

    Targets are moved towards one half by one photo of each kind, so that ten right answers of ten
    are not taken for certainty.
    """
    n_right = int(right.sum())
    n_wrong = len(right) - n_right
    goal = np.where(right, (n_right + 1) / (n_right + 2), 1 / (n_wrong + 2))

    def loss(parameters: Array) -> tuple[float, Array]:
        slope, offset = parameters
        z = slope * margin + offset
        chance = expit(z)
        value = float((np.logaddexp(0, z) - goal * z).sum())
        difference = chance - goal
        return value, np.array([(difference * margin).sum(), difference.sum()])

    best = minimize(
        loss, np.array([1.0, 0.0]), jac=True, bounds=[(0, None), (None, None)]
    )
    return float(best.x[0]), float(best.x[1])


def learning_curve(
    few: FewLabels,
    rows: Sequence[int] | Array,
    labels: Sequence[Labels],
    groups: Array | None = None,
) -> list[CurvePoint]:
    """Return the estimated accuracy after the first labels, after more of them, and so on."""
    n = len(rows)
    if n < MIN_LABELLED:
        return []
    sizes = np.unique(np.geomspace(MIN_LABELLED, n, POINTS).round().astype(int))
    points = []
    for size in sizes.tolist():
        point = _estimate_of(few, rows[:size], labels[:size], groups)
        if point is not None:
            points.append(CurvePoint(size, point.accuracy, point.interval))
    return points


def _estimate_of(
    few: FewLabels,
    rows: Sequence[int] | Array,
    labels: Sequence[Labels],
    groups: Array | None = None,
) -> CurvePoint | None:
    """Return the estimated accuracy of some labels, without scores of all photos."""
    chosen = newest(len(rows))
    numbers = np.asarray(rows, dtype=np.int64)[chosen]
    classes, target = targets([labels[at] for at in chosen])
    if len(classes) < 2:
        return None
    group = np.arange(len(numbers)) if groups is None else groups[numbers]
    right = first_is_right(few.left_out(numbers, target, group), target)
    return estimate(right, photos_nearest_to(few, numbers), target, group)


def advise(few: FewLabels, learned: Learned, seed: int = 0) -> Advice:
    """Say what the second half of the labels gained, and so what as many again may gain at most.

    Classifiers of random halves are tried on the other halves, and compared with that of all labels
    on the same photos, which are left out. Accuracy grows ever more slowly with the number of
    labels, so the next doubling is worth less than the last one.
    """
    n = len(learned.rows)
    if not is_measurable(learned.target):
        return Advice(None, None, "early")
    group = learned.groups
    rng = np.random.default_rng(seed)
    names = np.unique(group)
    seen, right = np.zeros(n), np.zeros(n)
    for _ in range(HALVES):
        half = np.isin(group, rng.permutation(names)[: max(1, len(names) // 2)])
        if half.all():
            continue
        answers = _answers(
            few, learned.rows[half], learned.target[half], learned.rows[~half]
        )
        seen[~half] += 1
        right[~half] += (
            learned.target[~half][np.arange(int((~half).sum())), answers] == 1
        )
    tried = seen > 0
    difference = learned.right[tried] - right[tried] / seen[tried]
    weights = learned.weights[tried] / learned.weights[tried].sum()
    gain = float((weights * difference).sum())
    error = float(np.sqrt((weights**2 * (difference - gain) ** 2).sum()))
    if 100 * (gain + SPREAD * error) < SMALL_GAIN:
        verdict = "enough"
    elif 100 * (gain - SPREAD * error) > 0:
        verdict = "helps"
    else:
        verdict = "unclear"
    return Advice(100 * gain, 100 * error, verdict)


def _answers(few: FewLabels, rows: Array, target: Array, asked: Array) -> Array:
    """Return the first suggestion for some photos, learned from others."""
    together = FewLabels(few.vectors[np.concatenate([rows, asked])])
    scores, _ = together.fit_targets(np.arange(len(rows)), target)
    answers: Array = scores[len(rows) :].argmax(axis=1)
    return answers


def advice_in_words(advice: Advice) -> str:
    """Return one sentence for the person who labels."""
    if advice.verdict == "early":
        return f"Label {MIN_LABELLED} photos and some of each class to see how accurate this is."
    gained = f"The second half of the labels gained about {max(advice.gain or 0.0, 0.0):.1f} points"
    if advice.verdict == "enough":
        return f"{gained}: more labels will hardly help, you can stop."
    if advice.verdict == "helps":
        return f"{gained}: more labels help."
    return f"{gained}, which may be chance: some more labels will show it."


def choose_next(
    few: FewLabels,
    labelled: Sequence[int] | Array,
    learned: Learned | None = None,
    among: Array | None = None,
    n: int = QUEUE,
) -> Array:
    """Return the photos to label next, the most useful first.

    They stand for as many photos as possible that the labelled ones do not stand for, by greedy
    facility location; once there are some labels, photos count that the classifier is unsure of.

    Parameters
    ----------
    few : FewLabels
    labelled : sequence of int
        Photos that are labelled or are to be passed over.
    learned : Learned, optional
    among : ndarray of int, optional
        The photos to choose from; all by default.
    n : int
    """
    done = np.unique(np.asarray(labelled, dtype=np.int64))
    choice = (
        np.arange(len(few.vectors))
        if among is None
        else np.asarray(among, dtype=np.int64)
    )
    choice = np.setdiff1d(choice, done)
    if not len(choice):
        return choice
    if len(choice) > CANDIDATES:
        spread = np.linspace(0, len(choice) - 1, CANDIDATES).round()
        choice = choice[spread.astype(np.int64)]
    done = done[newest(len(done))]
    numbers = np.concatenate([choice, done])
    vectors = l2_normalize(few.vectors[numbers].astype(np.float32))
    weights = np.ones(len(numbers))
    if learned is not None and len(learned.rows) >= MIN_PER_CLASS * len(
        learned.classes
    ):
        weights = np.exp(-SHARPNESS * margins(learned.scores[numbers]))
    known = np.arange(len(choice), len(numbers))
    steps = choose_rows(vectors, n, labelled=known, weights=weights, exact=True)
    chosen = np.array([choice[step.number] for step in steps], dtype=np.int64)
    rest = np.setdiff1d(choice, chosen)  # the same as one of those that are labelled
    return np.concatenate([chosen, rest[: max(0, n - len(chosen))]])
