"""Curate: the value of choosing the photos to label, and of checking labels.

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

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache

import numpy as np

from deepfishing.core.accuracy import has_one_class
from deepfishing.core.kernels import Comparable, gram
from deepfishing.core.metrics import evaluate
from deepfishing.core.rank_one import Array
from deepfishing.core.recipes import AUTO, Recipe, parse_recipe
from deepfishing.core.recipes.language import known_recipes
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.core.statistics import SEED, Interval, bootstrap
from deepfishing.curate.label_errors import VOTE, label_scores, neighbour_votes
from deepfishing.curate.selection import RECIPES, choose_defaults, choose_rows
from deepfishing.errors import DatasetError, FeatureError
from deepfishing.evaluation.experiment import Experiment
from deepfishing.evaluation.protocols.points import Run, mean_point
from deepfishing.evaluation.record import (
    ACCURACY,
    FORWARD_KERNELS,
    Result,
    map_axis,
    point,
)
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


def curate_runs(
    experiment: Experiment, recipes: Sequence[Recipe], largest: int
) -> list[Run]:
    """Return the runs of all three kinds; random choices do not depend on the feature."""
    layers = experiment.settings.network.layers
    classifier = classifier_recipe(recipes, layers)
    n = len(experiment.train_keys)
    if n <= LABELLED[0]:
        raise DatasetError(
            f"curate needs more than {LABELLED[0]} training photos, got {n}; take a larger data set"
        )
    # of a feature and of the classifier
    sides = lru_cache(maxsize=2)(experiment.sides)

    def labelled_run(series: str, method: str, recipe: Recipe) -> Run:
        def measure() -> list[Result]:
            return _measure_labelled(experiment, sides, recipe, classifier, method)

        decided_by = {"machine": classifier.name, "draws": DRAWS}
        return Run(classifier.name, series, decided_by, measure)

    def measure_errors(recipe: Recipe) -> list[Result]:
        train, _ = sides(recipe)
        return _measure_label_errors(experiment, train)

    runs = [labelled_run(RANDOM, RANDOM, recipes[0])]
    for recipe in recipes:
        for method in (FACILITY, KMEANS):
            runs.append(labelled_run(f"{recipe.title}, {method}", method, recipe))
        runs.append(Run.of_recipe(recipe, measure_errors, swapped=SWAPPED))
    return runs + _chosen_runs(experiment)


def classifier_recipe(recipes: Sequence[Recipe], layers: Mapping[int, str]) -> Recipe:
    """Return the recipe of the classifier; without layer 8, the first of the recipes."""
    try:
        return parse_recipe(CLASSIFIER, layers)
    except FeatureError:
        return recipes[0]


def trained_recipes(layers: Mapping[int, str]) -> tuple[Recipe, ...]:
    """Return the recipes of classifiers that are trained on chosen photos."""
    if not known_recipes(RECIPES, layers):  # nothing to choose by
        return ()
    names = (*FORWARD_KERNELS, AUTO_FORWARD, AUTO)
    return tuple(known_recipes(names, layers).values())


def curate_needs(
    recipes: Sequence[Recipe], layers: Mapping[int, str]
) -> tuple[Recipe, ...]:
    """Return the recipes that are extracted beside those that are compared."""
    return *trained_recipes(layers), classifier_recipe(recipes, layers)


def _measure_labelled(
    experiment: Experiment,
    sides: Sides,
    recipe: Recipe,
    classifier: Recipe,
    choice: str,
) -> list[Result]:
    """Measure the classifier on 50, 100 and 200 photos that were chosen in one way."""
    n = len(experiment.train_keys)
    counts = [count for count in LABELLED if count < n]
    orders = []
    for draw in range(1 if choice == FACILITY else DRAWS):
        rng = np.random.default_rng((SEED, draw))
        if choice == RANDOM:
            order = rng.permutation(n)[: max(counts)]
        elif choice == KMEANS:
            features, _ = sides(recipe)
            order = _kmeans(features, max(counts), rng)
        else:
            features, _ = sides(recipe)
            steps = choose_rows(features, max(counts))
            order = np.array([step.number for step in steps])
        orders.append(order)
    train, test = sides(classifier)
    return [_labelled_point(experiment, train, test, orders, n) for n in counts]


def _labelled_point(
    experiment: Experiment,
    train: Comparable,
    test: Comparable,
    orders: Sequence[Array],
    count: int,
) -> Result:
    """Measure the classifier on the first photos of each order, with the interval of its mAP."""
    dataset, protocol = experiment.dataset, experiment.protocol
    method, classes = dataset.official_ap, dataset.classes
    labels, truth = experiment.train_labels(), experiment.test_labels()
    maps, interval = [], None
    for order in orders:
        chosen = order[:count]
        svm = train_svm(
            train[chosen],
            labels[chosen],
            protocol.C,
            protocol.difficult,
            class_weight="balanced",
        )
        scores = svm.decision_function(test)
        maps.append(evaluate(truth, scores, classes).map[method])
        if len(orders) == 1:
            interval = bootstrap(truth, scores, classes).map_interval(method)
    return _map_point(experiment, PHOTOS, count, maps, interval)


def _map_point(
    experiment: Experiment,
    x_axis: str,
    count: int,
    maps: Sequence[float | None],
    interval: Interval | None = None,
) -> Result:
    """Return the mean mAP of classifiers that saw `count` photos."""
    y_axis = map_axis(experiment.dataset.official_ap)
    measured = [value for value in maps if value is not None]
    if not measured:
        note = "no class has a positive test example"
        return point(x_axis, count, y_axis, None, n_train=count, note=note)
    return mean_point(x_axis, count, y_axis, measured, interval, n_train=count)


def _kmeans(features: Comparable, n: int, rng: np.random.Generator) -> Array:
    """k-means++: each next one is drawn by its squared distance from the nearest one so far."""
    squared_norms = np.concatenate(
        [gram(features[i : i + 1]).ravel() for i in range(len(features))]
    )
    chosen = [int(rng.integers(len(features)))]
    distance = np.full(len(features), np.inf)  # squared, from the nearest chosen one
    for _ in range(n - 1):
        last = chosen[-1]
        products = gram(features[last : last + 1], features)[0]
        from_last = squared_norms + squared_norms[last] - 2 * products
        distance = np.minimum(distance, np.maximum(from_last, 0))
        distance[chosen] = 0
        weight = distance
        if not distance.any():  # the others are copies of chosen ones
            weight = np.isin(np.arange(len(features)), chosen, invert=True)
        chosen.append(int(rng.choice(len(features), p=weight / weight.sum())))
    return np.array(chosen)


def _chosen_runs(experiment: Experiment) -> list[Run]:
    """Choose, label, train: figures of each feature against the number of labelled photos."""
    layers = experiment.settings.network.layers
    trained = trained_recipes(layers)
    n = len(experiment.train_keys)
    counts = [count for count in CHOSEN if count < SHARE * n]
    if not (trained and counts):
        return []
    chooser = next(iter(known_recipes(choose_defaults(n), layers).values()))

    @cache
    def orders() -> list[Array]:
        features, _ = experiment.sides(chooser)
        orders = []
        for draw in range(SUBSETS):
            rng = np.random.default_rng((SEED, draw))
            subset = np.sort(rng.permutation(n)[: int(SHARE * n)])
            steps = choose_rows(features[subset], max(counts))
            orders.append(subset[[step.number for step in steps]])
        return orders

    def measure(recipe: Recipe) -> list[Result]:
        return _measure_chosen(experiment, recipe, orders(), counts)

    decided_by = {"chosen by": chooser.name, "subsets": SUBSETS}
    return [Run.of_recipe(recipe, measure, **decided_by) for recipe in trained]


def _measure_chosen(
    experiment: Experiment,
    recipe: Recipe,
    orders: Sequence[Array],
    counts: Sequence[int],
) -> list[Result]:
    """Return figures of classifiers that saw the first photos of each order."""
    dataset, protocol = experiment.dataset, experiment.protocol
    labels, truth = experiment.train_labels(), experiment.test_labels()
    one_class = has_one_class(labels) and has_one_class(truth)
    choose_features = experiment.chooser(recipe)
    points = []
    for count in counts:
        maps, accuracies = [], []
        for order in orders:
            chosen = order[:count]
            chosen_labels = np.zeros_like(labels)
            chosen_labels[chosen] = labels[chosen]
            train, test, C = choose_features(chosen_labels)
            svm = train_svm(train[chosen], labels[chosen], C, protocol.difficult)
            scores = svm.decision_function(test)
            evaluation = evaluate(truth, scores, dataset.classes)
            maps.append(evaluation.map[dataset.official_ap])
            if one_class:
                answer = np.where(svm.trained, scores, -np.inf).argmax(axis=1)
                is_right = truth[np.arange(len(truth)), answer] == 1
                accuracies.append(100 * float(is_right.mean()))
        points.append(_map_point(experiment, CHOSEN_PHOTOS, count, maps))
        if accuracies:
            points.append(
                mean_point(CHOSEN_PHOTOS, count, ACCURACY, accuracies, n_train=count)
            )
    return points


def _measure_label_errors(experiment: Experiment, train: Comparable) -> list[Result]:
    """Measure how many swapped labels are found, with neighbours and by the classifier alone."""
    truth = experiment.train_labels()
    shares: dict[str, list[float]] = {FOUND: [], FOUND_ALONE: []}
    for draw in range(SWAPS):
        labels = swap_labels(truth, np.random.default_rng((SEED, draw)))
        alone = label_scores(train, labels, neighbours=False, seed=draw)
        shares[FOUND_ALONE].append(share_found(truth, labels, alone))
        votes = VOTE * neighbour_votes(train, labels)
        shares[FOUND].append(share_found(truth, labels, alone + votes))
    points = []
    for y_axis, draws in shares.items():
        points.append(mean_point(WRONG, SWAPPED, y_axis, draws))
    return points


def swap_labels(labels: Array, rng: np.random.Generator) -> Array:
    """Return labels of which `SWAPPED` percent of each class are wrong.

    With one class per image, they get another one; with several, as many images lose the class as
    others, which do not show it, get it. Difficult ones stay.
    """
    wrong = labels.copy()
    one_class = has_one_class(labels)
    for column in range(labels.shape[1]):
        present = rng.permutation(np.flatnonzero(labels[:, column] == 1))
        absent = rng.permutation(np.flatnonzero(labels[:, column] == -1))
        n = min(round(len(present) * SWAPPED / 100), len(absent))
        wrong[present[:n], column] = -1
        if one_class:
            other_classes = np.delete(np.arange(labels.shape[1]), column)
            wrong[present[:n], rng.choice(other_classes, n)] = 1
        else:
            wrong[absent[:n], column] = 1
    return wrong


def share_found(truth: Array, labels: Array, scores: Array) -> float:
    """Return the percent of photos with a wrong label among as many suspects."""
    # a photo is as suspect as the label that its scores contradict most
    is_wrong = (labels != truth).any(axis=1)
    # classes whose labels cannot be doubted have no score
    scores = np.where(np.isnan(scores), 1e9 * labels, scores)
    if has_one_class(labels):
        given = np.where(labels == 1, scores, 0).sum(axis=1)
        best_other = np.where(labels == 1, -np.inf, scores).max(axis=1)
        margin = given - best_other
    else:
        margin = np.where(labels == 0, np.inf, labels * scores).min(axis=1)
    suspects = np.argsort(margin, kind="stable")[: is_wrong.sum()]
    if len(suspects) == 0:
        return 0.0
    return 100 * float(is_wrong[suspects].mean())
