"""Learning while somebody labels: suggestions, accuracy so far, what to label next, when to stop.

All of it is made of the vectors of `FewLabels` in closed form, so that every new label counts in
less than a second. A photo may have several labels. A photo that shows none of the classes is an
example of a class of its own, `NONE`, so that this can be suggested, too.

The accuracy is how often the first suggestion is right for the photos without a label, as
`learn.expected` tells it from labelled photos that were left out together with their copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from deepfishing.core.rank_one import Array, l2_normalize
from deepfishing.core.statistics import Interval
from deepfishing.curate.selection import choose_rows
from deepfishing.learn.expected import (
    even_sample,
    expected_accuracy,
    fit_chance,
    margins,
    stands_for,
)
from deepfishing.learn.few_labels import FewLabels

NONE = ""  # the class of photos that show none of the others
Labels = tuple[str, ...] | None

# photos that are learned from; of more, the newest and an even sample
MAX_LABELLED = 1500
MIN_LABELLED = 20  # below, an accuracy would say nothing,
MEASURED_PER_CLASS = 3  # nor while the median class has fewer
# photos of the median class before a suggestion has a probability, and of all classes on average
# before those are asked for that the classifier is unsure of
MIN_PER_CLASS = 2
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
    others: Array  # margins of photos without a label, an even sample
    # of the confidence; None with too few labels
    calibration: tuple[float, float] | None

    @property
    def right(self) -> Array:
        """Whether the first suggestion is right for each labelled photo that was left out."""
        return first_is_right(self.left_out, self.target)

    def estimate(self) -> CurvePoint | None:
        """Return the accuracy of photos without a label; None with too few labels."""
        if not is_measurable(self.target):
            return None
        found = expected_accuracy(
            margins(self.left_out), self.right, self.weights, self.groups, self.others
        )
        return CurvePoint(len(self.rows), found.accuracy, found.interval)

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
    calibration = None
    if is_measurable(target, MIN_PER_CLASS):
        calibration = fit_chance(margins(left_out), first_is_right(left_out, target))
    return Learned(
        classes=classes,
        rows=numbers,
        target=target,
        scores=scores,
        left_out=left_out,
        weights=stands_for(few.vectors, numbers),
        groups=group,
        others=margins(scores[_without_label(len(scores), rows)]),
        calibration=calibration,
    )


def _without_label(n: int, rows: Sequence[int] | Array) -> Array:
    """Return photos of a collection of n that are not labelled, an even sample."""
    return np.setdiff1d(even_sample(n), np.asarray(rows, dtype=np.int64))


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


def is_measurable(target: Array, per_class: int = MEASURED_PER_CLASS) -> bool:
    """Whether there are labels enough for an estimate of the accuracy."""
    median = float(np.median((target == 1).sum(axis=0)))
    return len(target) >= MIN_LABELLED and median >= per_class


def learning_curve(
    few: FewLabels,
    rows: Sequence[int] | Array,
    labels: Sequence[Labels],
    groups: Array | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> list[CurvePoint]:
    """Return the estimated accuracy after the first labels, after more of them, and so on.

    It ends early once it is not wanted any more, such as when there is a new label.
    """
    n = len(rows)
    if n < MIN_LABELLED:
        return []
    sizes = np.unique(np.geomspace(MIN_LABELLED, n, POINTS).round().astype(int))
    points = []
    for size in sizes.tolist():
        if not is_wanted():
            break
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
    """Return the estimated accuracy of some labels, from scores of a sample of the photos."""
    others = _without_label(len(few.vectors), rows)
    numbers = np.concatenate([np.asarray(rows, dtype=np.int64), others])
    sample = FewLabels(few.vectors[numbers])
    group = None if groups is None else groups[numbers]
    learned = learn(sample, np.arange(len(rows)), labels, group)
    if learned is None:
        return None
    chosen = learned.rows
    weights = stands_for(few.vectors, numbers[chosen])
    unlabelled = margins(learned.scores[len(rows) :])
    return replace(learned, weights=weights, others=unlabelled).estimate()


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
        return (
            f"How accurate this is can be told once {MIN_LABELLED} photos are labelled and most "
            f"classes have {MEASURED_PER_CLASS}."
        )
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
