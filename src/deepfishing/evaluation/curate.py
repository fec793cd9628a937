"""Experiment: the value of choosing the photos to label, and of checking labels.

There are runs of three kinds.

- mAP on the test images of a classifier that saw 50, 100 and 200 labelled photos, which were drawn
  at random, by k-means++, or by facility location, under each feature. Its feature is always
  `CLASSIFIER`, positives weighted as much as negatives. Random choices are a mean over `DRAWS`,
  with Student's interval; facility location has no draws, so its interval is the bootstrap's.
- mAP and accuracy of classifiers on what `curate choose` chooses: forward features, `auto-forward`
  and `auto`, which may learn from the photos without labels. It chooses among `SHARE` of the
  training photos, drawn anew `SUBSETS` times, for an interval.
- share of photos with a wrong label among as many suspects, where `SWAPPED` percent of each class
  were swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial

import numpy as np

from deepfishing.core.accuracy import has_one_class
from deepfishing.core.kernels import Comparable, gram
from deepfishing.core.metrics import evaluate
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import AUTO, Recipe, parse_recipe
from deepfishing.core.recipes.language import known_recipes
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.core.statistics import (
    SEED,
    Interval,
    bootstrap,
    bounded,
    mean_interval,
)
from deepfishing.curate.label_errors import VOTE, label_scores, neighbour_votes
from deepfishing.curate.selection import RECIPES, choose_defaults, choose_rows
from deepfishing.errors import DatasetError, FeatureError
from deepfishing.evaluation.checks import (
    ACCURACY,
    FORWARD_KERNELS,
    Result,
    Run,
    map_axis,
    point,
)
from deepfishing.evaluation.reproduce import Experiment
from deepfishing.learn.svm import train_svm

CLASSIFIER = "pow(dW8,0.5)"
LABELLED = (50, 100, 200)
SWAPPED = 10  # percent
SWAPS, DRAWS = 5, 10  # of labels, of photos
CHOSEN = (25, 50, 100, 200)  # photos that `curate choose` chooses
SHARE, SUBSETS = 0.8, 5
RANDOM, KMEANS, FACILITY = "random", "k-means++", "facility location"
PHOTOS, WRONG = "photos labelled", "labels swapped, %"
CHOSEN_PHOTOS = "photos chosen, then labelled"
FOUND, FOUND_ALONE = "wrong labels found, %", "wrong labels found without neighbours, %"

# train and test, read when needed
Sides = Callable[[Recipe], tuple[Comparable, Comparable]]


def classifier_recipe(wanted: Sequence[Recipe], layers: Mapping[int, str]) -> Recipe:
    """The feature of the classifier; for a network without layer 8, the first one named."""
    try:
        return parse_recipe(CLASSIFIER, layers)
    except FeatureError:
        return wanted[0]


def curate_runs(
    experiment: Experiment,
    recipe: Recipe,
    classifier: Recipe,
    sides: Sides,
    first: bool,
) -> list[Run]:
    """What there is to measure of a feature; random choices do not depend on it: `first` only."""
    n = len(experiment.train_keys)
    counts = [count for count in LABELLED if count < n]
    if not counts:
        raise DatasetError(
            f"curate needs more than {LABELLED[0]} training photos, got {n}; take a larger data set"
        )

    def reached(way: str) -> list[Result]:
        orders = list(_orders(way, n, max(counts), partial(sides, recipe)))
        return [
            _point(experiment, *sides(classifier), orders, count) for count in counts
        ]

    decided_by = {"machine": classifier.name, "draws": DRAWS}
    ways = {RANDOM: RANDOM} if first else {}
    ways |= {f"{recipe.title}, {way}": way for way in (FACILITY, KMEANS)}
    feature = classifier.name
    return [
        *(
            Run(line, decided_by, partial(reached, way), feature)
            for line, way in ways.items()
        ),
        Run(
            recipe.name,
            {"swapped": SWAPPED},
            lambda: _found(experiment, sides(recipe)[0]),
        ),
    ]


def trained_recipes(layers: Mapping[int, str]) -> tuple[Recipe, ...]:
    """The features of the classifiers that are trained on chosen photos."""
    names = (*FORWARD_KERNELS, AUTO_FORWARD, AUTO)
    chooser = known_recipes(RECIPES, layers)
    return tuple(known_recipes(names, layers).values()) if chooser else ()


def chosen_runs(experiment: Experiment, trained: Sequence[Recipe]) -> list[Run]:
    """Choose, label, train: figures of each feature against the number of labelled photos."""
    layers = experiment.settings.network.layers
    n = len(experiment.train_keys)
    chooser = next(iter(known_recipes(choose_defaults(n), layers).values()))
    counts = [count for count in CHOSEN if count < SHARE * n]

    @cache
    def orders() -> list[Array]:
        features, _ = experiment.sides(chooser)
        found = []
        for draw in range(SUBSETS):
            random = np.random.default_rng((SEED, draw))
            subset = np.sort(random.permutation(n)[: int(SHARE * n)])
            steps = choose_rows(features[subset], max(counts))
            found.append(subset[[step.number for step in steps]])
        return found

    decided_by = {"chosen by": chooser.name, "subsets": SUBSETS}
    return [
        Run(
            recipe.name,
            decided_by,
            partial(_trained_on_chosen, experiment, recipe, orders, counts),
        )
        for recipe in trained
        if counts
    ]


def _trained_on_chosen(
    experiment: Experiment,
    recipe: Recipe,
    orders: Callable[[], list[Array]],
    counts: Sequence[int],
) -> list[Result]:
    """Figures of classifiers that saw the first photos of each order."""
    dataset, protocol = experiment.dataset, experiment.protocol
    labels, truth = experiment.train_labels(), experiment.test_labels()
    one_class = has_one_class(labels) and has_one_class(truth)
    chooser = experiment.chooser(recipe)
    points = []
    for count in counts:
        maps, accuracies = [], []
        for order in orders():
            seen = order[:count]
            told = np.zeros_like(labels)
            told[seen] = labels[seen]
            train, test, C = chooser(told)
            svm = train_svm(train[seen], labels[seen], C, protocol.difficult)
            scores = svm.decision_function(test)
            found = evaluate(truth, scores, dataset.classes).map[dataset.official_ap]
            maps.append(float(found or 0.0))
            if one_class:
                shown = np.where(svm.trained, scores, -np.inf).argmax(axis=1)
                right = truth[np.arange(len(truth)), shown] == 1
                accuracies.append(100 * float(right.mean()))
        at = CHOSEN_PHOTOS, count
        points.append(
            _mean_point((*at, map_axis(dataset.official_ap)), maps, n_train=count)
        )
        if accuracies:
            points.append(_mean_point((*at, ACCURACY), accuracies, n_train=count))
    return points


def _orders(
    way: str, n: int, most: int, sides: Callable[[], tuple[Comparable, Comparable]]
) -> Iterator[Array]:
    """Numbers of photos in the order in which they are labelled, one array per draw."""
    for draw in range(DRAWS):
        random = np.random.default_rng((SEED, draw))
        if way == RANDOM:
            yield random.permutation(n)[:most]
        elif way == KMEANS:
            yield _kmeans(sides()[0], most, random)
        else:
            yield np.array([step.number for step in choose_rows(sides()[0], most)])
            return


def _kmeans(features: Comparable, n: int, random: np.random.Generator) -> Array:
    """k-means++: each next one is drawn by its squared distance from the nearest one so far."""
    own = np.concatenate(
        [gram(features[i : i + 1]).ravel() for i in range(len(features))]
    )
    chosen = [int(random.integers(len(features)))]
    far = np.full(len(features), np.inf)
    for _ in range(n - 1):
        last = chosen[-1]
        away = own + own[last] - 2 * gram(features[last : last + 1], features)[0]
        far = np.minimum(far, np.maximum(away, 0))
        far[chosen] = 0
        weight = far if far.any() else np.isin(np.arange(len(far)), chosen, invert=True)
        chosen.append(int(random.choice(len(far), p=weight / weight.sum())))
    return np.array(chosen)


def _point(
    experiment: Experiment,
    train: Comparable,
    test: Comparable,
    orders: list[Array],
    count: int,
) -> Result:
    """mAP of classifiers that saw the first `count` photos of each order."""
    dataset, protocol = experiment.dataset, experiment.protocol
    truth, method = experiment.test_labels(), dataset.official_ap
    values, interval = [], None
    for order in orders:
        seen = order[:count]
        labels = experiment.train_labels()[seen]
        how = protocol.C, protocol.difficult
        svm = train_svm(train[seen], labels, *how, class_weight="balanced")
        scores = svm.decision_function(test)
        values.append(
            float(evaluate(truth, scores, dataset.classes).map[method] or 0.0)
        )
        if len(orders) == 1:
            interval = bootstrap(truth, scores, dataset.classes).map_interval(method)
    return _mean_point(
        (PHOTOS, count, map_axis(method)), values, interval, n_train=count
    )


def _mean_point(
    at: tuple[str, int, str],
    values: list[float],
    interval: Interval | None = None,
    n_train: int | None = None,
) -> Result:
    """The mean of draws at an axis, its value and another axis; by default Student's interval."""
    mean, interval = float(np.mean(values)), interval or mean_interval(values)
    interval = bounded(interval, mean) if interval else None
    draws = values if len(values) > 1 else None
    return point(*at, mean, interval, n_train=n_train, draws=draws)


def _found(experiment: Experiment, train: Comparable) -> list[Result]:
    """The share of swapped labels that is found, with neighbours and by the classifier alone."""
    truth = experiment.train_labels()
    shares: dict[str, list[float]] = {FOUND: [], FOUND_ALONE: []}
    for draw in range(SWAPS):
        labels = swap_labels(truth, np.random.default_rng((SEED, draw)))
        alone = label_scores(train, labels, neighbours=False, seed=draw)
        shares[FOUND_ALONE].append(share_found(truth, labels, alone))
        votes = VOTE * neighbour_votes(train, labels)
        shares[FOUND].append(share_found(truth, labels, alone + votes))
    return [
        _mean_point((WRONG, SWAPPED, axis), values) for axis, values in shares.items()
    ]


def swap_labels(labels: Array, random: np.random.Generator) -> Array:
    """Labels of which `SWAPPED` percent of each class are wrong.

    With one class per image, they get another one; with several, as many images lose the class as
    others, which do not show it, get it. Difficult ones stay.
    """
    wrong = labels.copy()
    one = has_one_class(labels)
    for c in range(labels.shape[1]):
        there, absent = (
            random.permutation(np.flatnonzero(labels[:, c] == v)) for v in (1, -1)
        )
        k = min(round(len(there) * SWAPPED / 100), len(absent))
        wrong[there[:k], c] = -1
        if one:
            others = np.delete(np.arange(labels.shape[1]), c)
            wrong[there[:k], random.choice(others, k)] = 1
        else:
            wrong[absent[:k], c] = 1
    return wrong


def share_found(truth: Array, labels: Array, scores: Array) -> float:
    """Percent of photos with a wrong label among as many suspects."""
    # a photo is as suspect as the label that its scores contradict most
    wrong = (labels != truth).any(axis=1)
    # of a class that cannot be doubted
    scores = np.where(np.isnan(scores), 1e9 * labels, scores)
    if has_one_class(labels):
        given = np.where(labels == 1, scores, 0).sum(axis=1)
        margin = given - np.where(labels == 1, -np.inf, scores).max(axis=1)
    else:
        margin = np.where(labels == 0, np.inf, labels * scores).min(axis=1)
    suspects = np.argsort(margin, kind="stable")[: wrong.sum()]
    return 100 * float(wrong[suspects].mean()) if len(suspects) else 0.0
