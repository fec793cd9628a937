"""Few examples: classifiers that were trained on 1, 2, 4, ... examples per class.

There are two forms. `low_shot` draws positive images of each class, and negative ones for each;
`label_photos` draws photos, each of which reveals all its labels, as in a labelling session.

The draws depend on labels and seed alone, so two features are measured on the same examples. Any
features that `gram` compares can be measured, without torch and without the images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from sklearn.svm import SVC

from deepfishing.core.accuracy import Accuracy, has_one_class, measure_accuracy
from deepfishing.core.kernels import Comparable, finite_gram
from deepfishing.core.metrics import evaluate
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import Recipe
from deepfishing.core.statistics import SEED, Interval, bounded, mean_interval
from deepfishing.errors import DatasetError, FeatureError, OptionError
from deepfishing.evaluation.experiment import Experiment
from deepfishing.evaluation.protocols.points import Run, mean_point
from deepfishing.evaluation.record import (
    ACCURACY,
    BALANCED,
    PHOTOS,
    POSITIVES,
    Result,
    map_axis,
)
from deepfishing.learn.svm import check_labels

# As many negatives per positive as a class has among 20 of one size.
NEGATIVES = 19
DRAWS = 5
# pairs of kernel matrices that are kept while `pick` changes the features
KEPT_KERNELS = 6

# features of train and test images and the cost, for the labels of the examples drawn
Pick = Callable[[Array], tuple[Comparable, Comparable, float]]


@dataclass(frozen=True)
class LowShot:
    """Figures with a number of examples per class, in percent: one value per draw.

    `positives` is the number of positive examples, or of labelled photos, per class. Accuracy and
    balanced accuracy are those of `label_photos` where every image has one class. A draw without
    a class that could be measured has no value.
    """

    positives: int
    map: dict[str, tuple[float, ...]]
    accuracy: tuple[float, ...] = ()
    balanced: tuple[float, ...] = ()

    def mean(self, method: str) -> float:
        """Mean over the draws."""
        return float(np.mean(self.map[method]))

    def interval(self, method: str) -> Interval | None:
        """Student's interval at 95 percent of the mean over all draws; None for one draw."""
        interval = mean_interval(self.map[method])
        return None if interval is None else bounded(interval, self.mean(method))


def low_shot(
    train: Comparable,
    train_labels: Array,
    test: Comparable,
    test_labels: Array,
    positives: Sequence[int] | None = None,
    draws: int = DRAWS,
    negatives: int | None = NEGATIVES,
    C: float = 1.0,
    seed: int = SEED,
    pick: Pick | None = None,
) -> list[LowShot]:
    """mAP of classifiers that were trained on 1, 2, 4, ... positive examples per class.

    Difficult examples are never drawn. A class without an example of both kinds in training, or
    without a positive one in the test, is left out of the mean.

    Parameters
    ----------
    positives : list of int, optional
        Numbers of positive examples; by default the powers of 2 up to what the rarest class has, so
        that every point of the curve is a mean over the same classes.
    draws : int
        Within a draw, fewer examples are the first of the more.
    negatives : int, optional
        Negative examples per positive one, or as many as there are; None takes all.
    pick : callable, optional
        Called for every number of examples and draw with the labels of the examples drawn, 0 for
        all others; returns features of both sides and a cost.
    """
    data = _Data.check(train_labels, len(train), test_labels, len(test))
    if negatives is not None and negatives < 1:
        raise OptionError(f"negatives must be at least 1 or None, got {negatives}")
    numbers = _numbers_of_examples(data, positives, draws, C)
    most = max(numbers)
    per_positive = len(train) if negatives is None else negatives
    examples = []
    for draw in range(draws):
        by_class = {}
        for column in data.usable:
            yes, no = _shuffle(data.train_labels[:, column], (seed, draw, column))
            by_class[column] = yes[:most], no[: most * per_positive]
        examples.append(by_class)

    def show(number: int, draw: int) -> _Seen:
        labels = np.zeros(data.train_labels.shape, dtype=np.int8)
        rows = {}
        for column, (yes, no) in examples[draw].items():
            yes, no = yes[:number], no[: number * per_positive]
            labels[yes, column], labels[no, column] = 1, -1
            rows[column] = np.concatenate([yes, no])
        return _Seen(labels, rows)

    all_seen = [show(most, draw) for draw in range(draws)]
    classifiers = _Classifiers(train, test, C, pick, _used(all_seen))
    points = []
    for number in numbers:
        maps = []
        for draw in range(draws):
            scores, trained = classifiers.score(show(number, draw))
            maps.append(data.map(scores, trained))
        points.append(LowShot(number, _by_definition(maps)))
    return points


def label_photos(
    train: Comparable,
    train_labels: Array,
    test: Comparable,
    test_labels: Array,
    photos: Sequence[int] | None = None,
    draws: int = DRAWS,
    C: float = 1.0,
    seed: int = SEED,
    pick: Pick | None = None,
) -> list[LowShot]:
    """mAP and accuracy of classifiers that saw 1, 2, 4, ... labelled photos per class, no others.

    It is what users do: they label photos, not pairs of a photo and a class. For each class this
    number of photos that show it is drawn; a drawn photo reveals all its labels, so it is a
    positive example of the classes that it shows and a negative one of the others. `photos`,
    `draws` and `pick` are as in `low_shot`. A class that all drawn photos show has no classifier
    and no part in the mean of that draw. Accuracies are given where every image of both sides has
    one class.

    Examples
    --------
    >>> x = np.repeat(np.eye(3), 4, axis=0)
    >>> labels = np.repeat(2 * np.eye(3, dtype=int) - 1, 4, axis=0)
    >>> [(point.positives, point.accuracy) for point in label_photos(x, labels, x, labels, draws=2)]
    [(1, (100.0, 100.0)), (2, (100.0, 100.0)), (4, (100.0, 100.0))]
    """
    data = _Data.check(train_labels, len(train), test_labels, len(test))
    numbers = _numbers_of_examples(data, photos, draws, C)
    shuffled = []
    for draw in range(draws):
        by_class = []
        for column in data.usable:
            yes, _ = _shuffle(data.train_labels[:, column], (seed, draw, column))
            by_class.append(yes)
        shuffled.append(by_class)

    def show(number: int, draw: int) -> _Seen:
        first_of_each = [yes[:number] for yes in shuffled[draw]]
        drawn = np.unique(np.concatenate(first_of_each))
        labels = np.zeros(data.train_labels.shape, dtype=np.int8)
        labels[drawn] = data.train_labels[drawn]
        rows = {}
        for column in data.usable:
            rows[column] = drawn[labels[drawn, column] != 0]
        return _Seen(labels, rows)

    all_seen = [show(max(numbers), draw) for draw in range(draws)]
    classifiers = _Classifiers(train, test, C, pick, _used(all_seen))
    points = []
    for number in numbers:
        maps, accuracies = [], []
        for draw in range(draws):
            scores, trained = classifiers.score(show(number, draw))
            maps.append(data.map(scores, trained))
            accuracy = data.accuracy(scores, trained)
            if accuracy is not None:
                accuracies.append(accuracy)
        top1 = tuple(accuracy.top1 for accuracy in accuracies)
        balanced = tuple(accuracy.balanced for accuracy in accuracies)
        points.append(LowShot(number, _by_definition(maps), top1, balanced))
    return points


def low_shot_runs(
    experiment: Experiment, recipes: Sequence[Recipe], largest: int
) -> list[Run]:
    """Return the runs of both forms for each feature."""

    # of one recipe at a time, for both of its runs
    @lru_cache(maxsize=1)
    def read(recipe: Recipe) -> tuple[Comparable, Comparable, Pick | None]:
        train, test = experiment.factors(recipe)
        if not recipe.is_chosen_later:
            return *experiment.fit(recipe, None, train, test), None
        # only their lengths count: `pick` has the features
        any_train, any_test = next(iter(train.values())), next(iter(test.values()))
        return any_train, any_test, experiment.chooser(recipe)

    def measure(
        form: Callable[..., list[LowShot]], x_axis: str, recipe: Recipe
    ) -> list[Result]:
        train, test, pick = read(recipe)
        labels = experiment.train_labels()
        truth = experiment.test_labels()
        C = experiment.protocol.C
        shots = form(train, labels, test, truth, C=C, pick=pick)
        return _points(experiment, x_axis, shots)

    measure_positives = partial(measure, low_shot, POSITIVES)
    measure_photos = partial(measure, label_photos, PHOTOS)
    runs = []
    for recipe in recipes:
        runs.append(Run.of_recipe(recipe, measure_positives))
        runs.append(Run.of_recipe(recipe, measure_photos, form=PHOTOS))
    return runs


def _points(
    experiment: Experiment, x_axis: str, shots: Sequence[LowShot]
) -> list[Result]:
    """Return the mean over the draws of each figure that was measured."""
    method = experiment.dataset.official_ap
    points = []
    for shot in shots:
        figures = {
            map_axis(method): shot.map[method],
            ACCURACY: shot.accuracy,
            BALANCED: shot.balanced,
        }
        for y_axis, draws in figures.items():
            if draws:
                points.append(mean_point(x_axis, shot.positives, y_axis, draws))
    return points


@dataclass(frozen=True, eq=False)
class _Seen:
    """Labels that the classifiers of one draw see."""

    labels: Array  # (n, C): 1, -1, and 0 for what they do not see
    rows: dict[int, Array]  # for each class its training images, in their order


def _used(seen: Sequence[_Seen]) -> Array:
    """Return the sorted numbers of all training images that some classifier sees."""
    rows: list[Array] = []
    for draw in seen:
        rows += draw.rows.values()
    return np.unique(np.concatenate(rows))


@dataclass(frozen=True, eq=False)
class _Data:
    """Labels of both sides, and the classes that can be measured."""

    train_labels: Array
    test_labels: Array
    usable: list[int]
    has_one_class: bool

    @classmethod
    def check(
        cls, train_labels: Array, n_train: int, test_labels: Array, n_test: int
    ) -> _Data:
        """Check the labels and find the classes with both kinds of examples."""
        train_labels, test_labels = check_both_labels(
            train_labels, n_train, test_labels, n_test
        )
        usable = []
        for column in range(train_labels.shape[1]):
            kinds = set(train_labels[:, column].tolist())
            is_tested = (test_labels[:, column] == 1).any()
            if {-1, 1} <= kinds and is_tested:
                usable.append(column)
        if not usable:
            raise DatasetError(
                "low-shot learning needs a class with positive and negative training images and a "
                "positive test image, got none"
            )
        one_class = has_one_class(train_labels) and has_one_class(test_labels)
        return cls(train_labels, test_labels, usable, one_class)

    @property
    def names(self) -> list[str]:
        """Names for the classes, which have none here."""
        return [str(column) for column in range(self.test_labels.shape[1])]

    def map(self, scores: Array, trained: Array) -> dict[str, float | None]:
        """Return the mAP over the trained classes by definition."""
        counted = np.where(trained, self.test_labels, -1)
        return evaluate(counted, scores, self.names).map

    def accuracy(self, scores: Array, trained: Array) -> Accuracy | None:
        """Return the accuracies; None where images have several classes or none is trained."""
        if not self.has_one_class:
            return None
        return measure_accuracy(self.test_labels, scores, self.names, trained)


def check_both_labels(
    train_labels: Array, n_train: int, test_labels: Array, n_test: int
) -> tuple[Array, Array]:
    """Check labels (n, C) and (m, C) of both sides and return them as arrays."""
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    check_labels(train_labels, n_train, "train labels")
    check_labels(test_labels, n_test, "test labels")
    if train_labels.shape[1] != test_labels.shape[1]:
        raise FeatureError(
            "train and test labels must have the same classes, got "
            f"{train_labels.shape[1]} and {test_labels.shape[1]} columns"
        )
    return train_labels, test_labels


def _numbers_of_examples(
    data: _Data, numbers: Sequence[int] | None, draws: int, C: float
) -> list[int]:
    """Return numbers of examples per class, by default powers of 2 up to what the rarest has."""
    if not 0 < C < math.inf:
        raise OptionError(f"C must be a positive number, got {C!r}")
    if draws < 1:
        raise OptionError(f"draws must be at least 1, got {draws}")
    sizes = (data.train_labels[:, data.usable] == 1).sum(axis=0)
    rarest = int(sizes.min())
    if not numbers:
        return [2**i for i in range(rarest.bit_length())]
    if min(numbers) < 1 or max(numbers) > rarest:
        raise OptionError(
            f"positives per class must be from 1 to {rarest}, which is what the rarest class has, "
            f"got {list(numbers)}"
        )
    return list(numbers)


def _shuffle(column: Array, seed: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the positive and the negative examples of a class in a random order."""
    rng = np.random.default_rng(seed)
    positive = rng.permutation(np.flatnonzero(column == 1))
    negative = rng.permutation(np.flatnonzero(column == -1))
    return positive, negative


class _Classifiers:
    """Classifiers of the drawn examples, on kernel matrices that the draws share.

    A matrix has the training images that some draw sees, `used`. Those of the last `KEPT_KERNELS`
    features are kept, in single precision.
    """

    def __init__(
        self,
        train: Comparable,
        test: Comparable,
        C: float,
        pick: Pick | None,
        used: Array,
    ) -> None:
        self.features = train, test, C
        self.pick = pick
        self.used = used
        # by the identity of the training features, which are kept so that no others get it
        self.kept: dict[int, tuple[Comparable, Array, Array]] = {}

    def score(self, seen: _Seen) -> tuple[Array, Array]:
        """Train on the labels of a draw; return scores (m, C), and the trained classes (C,)."""
        train, test, C = self.pick(seen.labels) if self.pick else self.features
        K, K_test = self._matrices(train, test)
        n_classes = seen.labels.shape[1]
        scores = np.zeros((len(K_test), n_classes))
        trained = np.zeros(n_classes, dtype=bool)
        for column, rows in seen.rows.items():
            target = seen.labels[rows, column]
            if not (target == -1).any():
                continue
            places = np.searchsorted(self.used, rows)
            scores[:, column] = _scores(K, K_test, places, target, C)
            trained[column] = True
        return scores, trained

    def _matrices(self, train: Comparable, test: Comparable) -> tuple[Array, Array]:
        """Return the kernel matrices (used, used) and (m, used) of these features."""
        if id(train) not in self.kept:
            if len(self.kept) == KEPT_KERNELS:
                oldest = next(iter(self.kept))
                del self.kept[oldest]
            examples = train[self.used]
            K = finite_gram(examples).astype(np.float32)
            K_test = finite_gram(test, examples).astype(np.float32)
            self.kept[id(train)] = train, K, K_test
        _, K, K_test = self.kept[id(train)]
        return K, K_test


def _scores(K: Array, K_test: Array, rows: Array, target: Array, C: float) -> Array:
    """Return scores (m,) of a classifier of these rows of K, positive, 1, or negative, -1."""
    K_seen = K[np.ix_(rows, rows)].astype(np.float64)
    svm = SVC(C=C, kernel="precomputed").fit(K_seen, target)
    support = rows[svm.support_]
    scores: Array = K_test[:, support] @ svm.dual_coef_[0] + svm.intercept_[0]
    return scores


def _by_definition(
    maps: Sequence[dict[str, float | None]],
) -> dict[str, tuple[float, ...]]:
    """Return the mAP of each draw by definition, without draws that have none."""
    by_definition = {}
    for method in maps[0]:
        values = [draw[method] for draw in maps]
        by_definition[method] = tuple(value for value in values if value is not None)
    return by_definition
