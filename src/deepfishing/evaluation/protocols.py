"""Three further protocols: low-shot, nearest neighbours, search by examples.

Measured are mAP against the number of positive examples, mAP and accuracy against the number of
labelled photos per class, mAP and accuracy of the k nearest neighbours, and the share of right
photos found, for any features that `gram` compares. Neither torch nor the images are needed.

The draws depend on labels and seed alone, so two features are measured on the same examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.svm import SVC

from deepfishing.core.accuracy import has_one_class, measure_accuracy
from deepfishing.core.kernels import (
    UNLIKE,
    Comparable,
    finite_gram,
    gram,
    nearest_columns,
)
from deepfishing.core.metrics import Evaluation, evaluate
from deepfishing.core.rank_one import Array
from deepfishing.core.statistics import (
    SEED,
    Bootstrap,
    Interval,
    bootstrap,
    bounded,
    mean_interval,
    proportion_interval,
)
from deepfishing.errors import DatasetError, FeatureError, OptionError
from deepfishing.learn.svm import SCORE_BLOCK, check_labels

# As many negatives per positive as a class has among 20 of one size.
NEGATIVES = 19
DRAWS = 5
# draws of examples to search by, and photos that are looked at
SEARCHES, FIRST = 1200, 10
SEARCH_BLOCK = 100  # searches at once, which bounds the memory
# pairs of kernel matrices that are kept while `pick` changes the features
KEPT_KERNELS = 6

# features of train and test images and the cost, for the labels of the examples drawn
Pick = Callable[[Array], tuple[Comparable, Comparable, float]]


@dataclass(frozen=True)
class LowShot:
    """Figures with a number of examples per class, in percent: one value per draw.

    `positives` is the number of positive examples, or of labelled photos, per class. Accuracy and
    balanced accuracy are those of `label_photos` where every image has one class.
    """

    positives: int
    map: dict[str, tuple[float, ...]]
    accuracy: tuple[float, ...] = ()
    balanced: tuple[float, ...] = ()

    def mean(self, method: str) -> float:
        """Mean over the draws."""
        return float(np.mean(self.map[method]))

    def interval(self, method: str) -> Interval | None:
        """Where the mean of endless draws lies at 95 percent, by Student's t; None for one draw."""
        found = mean_interval(self.map[method])
        return None if found is None else bounded(found, self.mean(method))


@dataclass(frozen=True, eq=False)
class Votes:
    """How well the k nearest training images tell what a test image shows.

    `accuracy`, in percent, is the share of test images that show the class with most votes; with
    one class per image that is the usual accuracy. Images that show no class, and those for which
    that class is difficult, are left out.
    """

    k: int
    accuracy: float
    interval: Interval  # of the accuracy, at 95 percent
    scores: Array  # the votes (m, C)
    draws: Bootstrap  # of their AP

    @property
    def measured(self) -> Evaluation:
        """AP per class and mAP."""
        return self.draws.measured


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
    without a positive one in the test, is left out of the mean. `positives` are by default the
    powers of 2 up to what the rarest class has, so that every point of the curve is a mean over
    the same classes. Within a draw, fewer examples are the first of the more; `negatives` are drawn
    per positive, or as many as there are; None takes all. `pick` is called for every number of
    examples and draw with the labels of the examples drawn, 0 for all others.
    """
    train_labels, test_labels = _checked(train, train_labels, test, test_labels)
    if negatives is not None and negatives < 1:
        raise OptionError(f"negatives must be at least 1 or None, got {negatives}")
    usable = _usable(train_labels, test_labels)
    shots = _shots(train_labels, usable, positives, draws, C)
    per_shot = len(train_labels) if negatives is None else negatives
    examples = [
        [
            _drawn(train_labels[:, c], max(shots), per_shot, (seed, draw, c))
            for c in usable
        ]
        for draw in range(draws)
    ]
    drawn = [images for by_class in examples for pair in by_class for images in pair]
    kernels = _Kernels(np.unique(np.concatenate(drawn)))
    truth, names = test_labels[:, usable], [str(column) for column in usable]
    points = []
    for shot in shots:
        measured = []
        for by_class in examples:
            seen = [(yes[:shot], no[: shot * per_shot]) for yes, no in by_class]
            if pick:
                told = np.zeros(train_labels.shape, dtype=np.int8)
                for column, (yes, no) in zip(usable, seen, strict=True):
                    told[yes, column], told[no, column] = 1, -1
                train, test, C = pick(told)
            K, K_test = kernels.of(train, test)
            scores = np.empty(truth.shape)
            for column, (yes, no) in enumerate(seen):
                rows = kernels.places(np.concatenate([yes, no]))
                target = np.repeat([1, -1], [len(yes), len(no)])
                scores[:, column] = _scores(K, K_test, rows, target, C)
            measured.append(evaluate(truth, scores, names).map)
        points.append(LowShot(shot, _by_draw(measured)))
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

    It is what users do: they label photos, not pairs of a photo and a class. Of each class so many
    photos that show it are drawn; a drawn photo reveals all its labels, so it is a positive example
    of the classes that it shows and a negative one of the others. `photos`, `draws` and `pick` are
    as in `low_shot`. A class that all drawn photos show has no classifier and no part in the mean
    of that draw. Accuracies are given where every image of both sides has one class.

    Examples
    --------
    >>> x = np.repeat(np.eye(3), 4, axis=0)
    >>> labels = np.repeat(2 * np.eye(3, dtype=int) - 1, 4, axis=0)
    >>> [(point.positives, point.accuracy) for point in label_photos(x, labels, x, labels, draws=2)]
    [(1, (100.0, 100.0)), (2, (100.0, 100.0)), (4, (100.0, 100.0))]
    """
    train_labels, test_labels = _checked(train, train_labels, test, test_labels)
    usable = _usable(train_labels, test_labels)
    shots = _shots(train_labels, usable, photos, draws, C)
    examples = [
        [_drawn(train_labels[:, c], max(shots), 0, (seed, draw, c))[0] for c in usable]
        for draw in range(draws)
    ]
    kernels = _Kernels(
        np.unique(np.concatenate([yes for some in examples for yes in some]))
    )
    names = [str(column) for column in range(test_labels.shape[1])]
    one_class = has_one_class(train_labels) and has_one_class(test_labels)
    points = []
    for shot in shots:
        measured, accuracies = [], []
        for by_class in examples:
            drawn = np.unique(np.concatenate([yes[:shot] for yes in by_class]))
            if pick:
                told = np.zeros(train_labels.shape, dtype=np.int8)
                told[drawn] = train_labels[drawn]
                train, test, C = pick(told)
            K, K_test = kernels.of(train, test)
            scores = np.zeros(test_labels.shape)
            trained = np.zeros(test_labels.shape[1], dtype=bool)
            for column in usable:
                target = train_labels[drawn, column]
                known = target != 0
                if (target[known] == -1).any():
                    rows = kernels.places(drawn[known])
                    scores[:, column] = _scores(K, K_test, rows, target[known], C)
                    trained[column] = True
            counted = np.where(trained, test_labels, -1)
            measured.append(evaluate(counted, scores, names).map)
            if one_class:
                accuracy = measure_accuracy(test_labels, scores, names, trained)
                accuracies.append(
                    (accuracy.top1, accuracy.balanced) if accuracy else (0.0, 0.0)
                )
        points.append(LowShot(shot, _by_draw(measured), *zip(*accuracies, strict=True)))
    return points


def _usable(train_labels: Array, test_labels: Array) -> list[int]:
    """The classes with both kinds of examples in training and a positive one in the test."""
    usable = []
    for column in range(train_labels.shape[1]):
        kinds = set(train_labels[:, column].tolist())
        if {-1, 1} <= kinds and (test_labels[:, column] == 1).any():
            usable.append(column)
    if not usable:
        raise DatasetError(
            "low-shot learning needs a class with positive and negative training images and a "
            "positive test image, got none"
        )
    return usable


def _shots(
    train_labels: Array,
    usable: Sequence[int],
    wanted: Sequence[int] | None,
    draws: int,
    C: float,
) -> list[int]:
    """Numbers of examples per class: those that are wanted, or powers of 2 up to the rarest's."""
    if not 0 < C < math.inf:
        raise OptionError(f"C must be a positive number, got {C!r}")
    if draws < 1:
        raise OptionError(f"draws must be at least 1, got {draws}")
    rarest = min(int((train_labels[:, column] == 1).sum()) for column in usable)
    shots = list(wanted or [2**i for i in range(rarest.bit_length())])
    if min(shots) < 1 or max(shots) > rarest:
        raise OptionError(
            f"positives per class must be from 1 to {rarest}, which is what the rarest class has, "
            f"got {shots}"
        )
    return shots


class _Kernels:
    """Kernel matrices of the training images that some draw has, and of the test images with them.

    Those of the last `KEPT_KERNELS` features are kept, in single precision.
    """

    def __init__(self, used: Array) -> None:
        self.used = used  # sorted numbers of training images
        # by the identity of the training features, which are kept so that no others get it
        self.kept: dict[int, tuple[Comparable, Array, Array]] = {}

    def of(self, train: Comparable, test: Comparable) -> tuple[Array, Array]:
        """Matrices (used, used) and (m, used) of these features."""
        if id(train) not in self.kept:
            if len(self.kept) == KEPT_KERNELS:
                del self.kept[next(iter(self.kept))]
            examples = train[self.used]
            K, K_test = finite_gram(examples), finite_gram(test, examples)
            self.kept[id(train)] = (
                train,
                K.astype(np.float32),
                K_test.astype(np.float32),
            )
        _, K, K_test = self.kept[id(train)]
        return K, K_test

    def places(self, images: Array) -> Array:
        """Rows of the matrices that are these training images."""
        return np.searchsorted(self.used, images)


def _by_draw(
    measured: Sequence[dict[str, float | None]],
) -> dict[str, tuple[float, ...]]:
    """The mAP of each draw by definition, without draws that have none."""
    found = {}
    for method in measured[0]:
        values = [means[method] for means in measured]
        found[method] = tuple(value for value in values if value is not None)
    return found


def nearest_neighbours(
    train: Comparable,
    train_labels: Array,
    test: Comparable,
    test_labels: Array,
    classes: Sequence[str],
    ks: Sequence[int] = (10,),
) -> list[Votes]:
    """For each k, mAP and accuracy of the votes of the k training images with the largest kernel.

    Features are normalised: then the largest kernel is the nearest image. An image votes for the
    classes that it shows, not for those where it is difficult.
    """
    train_labels, test_labels = _checked(train, train_labels, test, test_labels)
    for k in ks:
        if not 1 <= k <= len(train):
            raise OptionError(
                f"k must be from 1 to {len(train)}, the training images, got {k}"
            )
    shown = train_labels[_nearest(train, test, max(ks))] == 1  # (m, max k, C)
    return [_voted(shown[:, :k], test_labels, classes) for k in ks]


def _nearest(train: Comparable, test: Comparable, k: int) -> Array:
    """The k training images with the largest kernel, nearest first: indices (m, k)."""
    found: Array = np.empty((len(test), k), dtype=np.intp)
    for start in range(0, len(test), SCORE_BLOCK):
        rows = slice(start, start + SCORE_BLOCK)
        K = finite_gram(test[rows], train)
        found[rows], _ = nearest_columns(K, k)
    return found


def _voted(shown: Array, test_labels: Array, classes: Sequence[str]) -> Votes:
    """What the votes (m, k, C) of the k nearest images come to."""
    k = shown.shape[1]
    # A vote is 1; nearer neighbours add so little that all of it together stays below 1, so it
    # only decides between classes with equally many votes.
    weight = 1 + np.arange(k - 1, -1, -1) / (k * k)
    scores: Array = np.einsum("k,mkc->mc", weight, shown)
    voted = np.take_along_axis(test_labels, scores.argmax(axis=1)[:, None], axis=1)[
        :, 0
    ]
    counted = (test_labels == 1).any(axis=1) & (voted != 0)
    if not counted.any():
        raise DatasetError(
            "nearest neighbours need a test image that shows a class, got none"
        )
    n, right = int(counted.sum()), (voted == 1) & (scores.max(axis=1) > 0)
    share = float(right[counted].mean())
    interval = proportion_interval(share * n, n)
    return Votes(
        k, 100 * share, interval, scores, bootstrap(test_labels, scores, classes)
    )


def _checked(
    train: Comparable, train_labels: Array, test: Comparable, test_labels: Array
) -> tuple[Array, Array]:
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    check_labels(train_labels, len(train), "train labels")
    check_labels(test_labels, len(test), "test labels")
    if train_labels.shape[1] != test_labels.shape[1]:
        raise FeatureError(
            "train and test labels must have the same classes, got "
            f"{train_labels.shape[1]} and {test_labels.shape[1]} columns"
        )
    return train_labels, test_labels


def _drawn(
    column: Array, n: int, per_shot: int, seed: tuple[int, ...]
) -> tuple[Array, Array]:
    """n positive examples of a class and `per_shot` negative ones for each, in a random order."""
    rng = np.random.default_rng(seed)
    positive, negative = (
        rng.permutation(np.flatnonzero(column == sign)) for sign in (1, -1)
    )
    return positive[:n], negative[: n * per_shot]


def _scores(K: Array, K_test: Array, seen: Array, target: Array, C: float) -> Array:
    """Scores (m,) of an SVM that saw these examples, which are positive, 1, or negative, -1."""
    svm = SVC(C=C, kernel="precomputed").fit(
        K[np.ix_(seen, seen)].astype(np.float64), target
    )
    scores: Array = (
        K_test[:, seen[svm.support_]] @ svm.dual_coef_[0] + svm.intercept_[0]
    )
    return scores


def search_by_examples(
    features: Comparable,
    labels: Array,
    queries: Comparable,
    query_labels: Array,
    draws: int = SEARCHES,
    first: int = FIRST,
    seed: int = SEED,
) -> Array:
    """Share of the first photos that show the class, in percent, (draws, 4).

    A collection is searched with photos that it does not have: with one example, two, three, and
    two with a counter-example, the first photo of the search by the two that does not show the
    class, which somebody would mark as wrong; it counts as in `deepfish search`, and is not found
    again. Photos for which the class is difficult are passed over. Every class that three queries
    show, and that some photos of the collection show and some do not, is drawn equally often.
    """
    labels, query_labels = _checked(features, labels, queries, query_labels)
    shown = [np.flatnonzero(column == 1) for column in query_labels.T]
    usable = [
        c
        for c in range(len(shown))
        if len(shown[c]) > 2 and {1, -1} <= set(labels[:, c])
    ]
    if not usable:
        raise DatasetError(
            "search by examples needs a class that three test images show, and a training image "
            "with and one without it, got none"
        )
    classes = np.resize(usable, draws)
    given = []
    for draw, column in enumerate(classes):
        given.append(np.random.default_rng((seed, draw)).permutation(shown[column])[:3])
    examples = np.array(given)
    found = np.empty((draws, 4))
    for start in range(0, draws, SEARCH_BLOCK):
        part = slice(start, start + SEARCH_BLOCK)
        truth = labels[:, classes[part]].T
        found[part] = _shares(features, truth, queries, examples[part], first)
    return found


def _shares(
    features: Comparable, truth: Array, queries: Comparable, examples: Array, first: int
) -> Array:
    """Shares (d, 4) of d draws: labels (d, n) of their classes, and their examples (d, 3)."""
    # (d, 3, n)
    K = gram(features, queries[examples.ravel()]).T.reshape(*examples.shape, -1)
    by_count = [K[:, :count].mean(axis=1) for count in (1, 2, 3)]
    for scores in by_count:
        scores[truth == 0] = -np.inf
    two = by_count[1]
    wrong = np.where(truth == -1, two, -np.inf).argmax(axis=1)
    corrected = two - UNLIKE * gram(features, features[wrong]).T
    corrected[np.arange(len(examples)), wrong] = -np.inf
    return np.stack(
        [_share(truth, scores, first) for scores in (*by_count, corrected)], axis=1
    )


def _share(truth: Array, scores: Array, first: int) -> Array:
    """Percent of the first photos that show the class; as many as there are, if there are fewer."""
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :first]
    seen = np.take_along_axis(scores, nearest, axis=1) > -np.inf
    right = (np.take_along_axis(truth, nearest, axis=1) == 1) & seen
    share: Array = 100.0 * right.sum(axis=1) / seen.sum(axis=1)
    return share
