"""Experiments that give curves instead of a table, by one of five further protocols.

Measured points are kept in `curves.jsonl` at once and used again by the next run.

`low-shot`       mAP against the number of positive examples per class; mAP and accuracy against the
                 number of labelled photos per class
`knn`            accuracy and mAP of the votes of the k nearest training images
`curate`         mAP by the photos chosen to be labelled, and share of wrong labels found
`search`         share of the first ten photos that show the class of one, two and three examples,
                 and of two with a counter-example
`approximation`  error, mAP and time of projected gradients against the exact kernel, by the length
                 of the vectors and by the number of training images
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from deepfishing import __version__
from deepfishing.core.kernels import UNLIKE, Comparable
from deepfishing.core.recipes import AUTO, Recipe, parse_recipes
from deepfishing.core.recipes.language import OWN_HEAD, known_recipes
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.core.statistics import bounded, mean_interval
from deepfishing.errors import FeatureError, OptionError, check_choice
from deepfishing.evaluation.approximation import LARGEST, approximation_runs
from deepfishing.evaluation.checks import (
    ACCURACY,
    BALANCED,
    CURVES,
    FORWARD_KERNELS,
    PHOTOS,
    POSITIVES,
    Result,
    Run,
    map_axis,
    point,
)
from deepfishing.evaluation.curate import (
    CLASSIFIER,
    chosen_runs,
    classifier_recipe,
    curate_runs,
    trained_recipes,
)
from deepfishing.evaluation.protocols import (
    LowShot,
    Pick,
    label_photos,
    low_shot,
    nearest_neighbours,
    search_by_examples,
)
from deepfishing.evaluation.reproduce import Experiment, Protocol, prepare
from deepfishing.evaluation.results import Curves, row_key, versions
from deepfishing.extraction.to_store import OnFailure
from deepfishing.images.dataset import Dataset
from deepfishing.networks.network import Network
from deepfishing.search.compare import WITH_PROTOTYPES
from deepfishing.util.progress import Progress, silent

# Features that each protocol takes where none are named, as far as the network has them.
DEFAULTS = {
    "low-shot": (*FORWARD_KERNELS, AUTO_FORWARD, AUTO),
    "knn": ("x7", "dW7", "best"),
    "curate": ("x7", CLASSIFIER, f"{CLASSIFIER}+x7", OWN_HEAD, "smooth(x7)"),
    "search": (
        "x7",
        "smooth(x7)",
        "dW8+x7",
        *WITH_PROTOTYPES,
        "smooth(dW8+x7+own(x7,64))",
    ),
    "approximation": ("dW8",),
}

NEIGHBOURS = (1, 5, 10, 20, 50)
K = "neighbours k"
EXAMPLES, SHOWN = "examples", "right in the first ten, %"
# of `search_by_examples`: how many examples each figure has, and its axis
GIVEN, AXES = (1, 2, 3, 2), (*[SHOWN] * 3, "with a counter-example, %")


def measure_curves(
    kind: str,
    dataset: Dataset,
    network: Network,
    out: str | Path,
    features: str | Iterable[str] | None = None,
    protocol: Protocol | None = None,
    command: str = "",
    progress: Progress | None = None,
    on_failure: OnFailure | None = None,
    largest: int = LARGEST,
) -> list[Result]:
    """Measure the curves of a protocol, of `CURVES`, and keep them in `out`; as for `reproduce`.

    Features are by default those of `DEFAULTS` that the network has; `approximation` takes
    gradients only, and is timed on up to `largest` training images. The points have the keys of
    `curves.jsonl`, docs/statistics.md.
    """
    check_choice("protocol", kind, CURVES)
    if largest < 1:
        raise OptionError(f"largest must be at least 1 image, got {largest}")
    tell = progress or silent
    wanted = _recipes(kind, features, network.layers)
    curves = Curves(out)
    classifier = classifier_recipe(wanted, network.layers)
    trained = trained_recipes(network.layers) if kind == "curate" else ()
    needed = (*wanted, *trained, classifier) if kind == "curate" else wanted
    experiment = prepare(
        dataset,
        network,
        curves.folder,
        needed,
        protocol or Protocol(),
        tell,
        on_failure,
    )
    experiment.test_labels()  # told before any work, if there are none
    points: list[Result] = []
    after = chosen_runs(experiment, trained) if trained else []
    for number, recipe in enumerate(wanted):
        runs = _runs(kind, experiment, recipe, largest, classifier, number == 0)
        total = len(wanted) * len(runs) + len(after)
        runs += after if number == len(wanted) - 1 else []
        for done, run in enumerate(runs, number * len(runs)):
            tell(kind, done, total)
            line = {
                "protocol": kind,
                "feature": run.feature or recipe.name,
                "series": run.series,
            }
            key = row_key(**line, **run.decided_by, **experiment.decisive)
            found = curves.find(key)
            if not found or any(one["y"] is None for one in found):
                start = time.perf_counter()
                new = run.measure()
                last = {
                    "seconds": round(time.perf_counter() - start, 3),
                    "command": command,
                }
                last |= {"version": __version__, "versions": versions(), "key": key}
                found = [{**line, **experiment.facts, **one, **last} for one in new]
                curves.keep(found)
            points += found
    tell(kind, total, total)
    return points


def _recipes(
    kind: str, features: str | Iterable[str] | None, layers: Mapping[int, str]
) -> tuple[Recipe, ...]:
    if features is not None:
        found = parse_recipes(features, layers)
        names = [recipe.name for recipe in found]
        if kind == "low-shot" and AUTO in names:  # which is compared with these
            compared = known_recipes((*FORWARD_KERNELS, AUTO_FORWARD), layers)
            found = (*(r for r in compared.values() if r.name not in names), *found)
        for recipe in found:
            if kind == "approximation" and not (recipe.is_plain and recipe.gradients):
                raise FeatureError(
                    "approximation takes whole gradients one by one, such as dW8 or pow(dW8,0.5), "
                    f"got {recipe.title}; pass --features dW8"
                )
        return found
    recipes = known_recipes(DEFAULTS[kind], layers)
    if not recipes:
        raise FeatureError(
            f"this network has none of {', '.join(DEFAULTS[kind])}, which {kind} takes by default; "
            "name the features, x:PATH or dW:PATH with a module's path"
        )
    return tuple(recipes.values())


def _runs(
    kind: str,
    experiment: Experiment,
    recipe: Recipe,
    largest: int,
    classifier: Recipe,
    first: bool,
) -> list[Run]:
    """What there is to measure of a feature."""
    sides = cache(experiment.sides)  # read once, and not at all if all points are known
    if kind == "approximation":
        return approximation_runs(experiment, partial(sides, recipe), largest)
    if kind == "curate":
        return curate_runs(experiment, recipe, classifier, sides, first)
    if kind == "low-shot":
        given = cache(partial(_low_shot_features, experiment, recipe))
        return [
            Run(recipe.name, {}, lambda: _positive_images(experiment, *given())),
            Run(
                recipe.name,
                {"form": PHOTOS},
                lambda: _labelled_photos(experiment, *given()),
            ),
        ]
    measure = {"knn": _knn, "search": _search}[kind]
    decided_by = {"unlike": UNLIKE, "searched": "training"} if kind == "search" else {}
    return [Run(recipe.name, decided_by, lambda: measure(experiment, *sides(recipe)))]


def _low_shot_features(
    experiment: Experiment, recipe: Recipe
) -> tuple[Comparable, Comparable, Pick | None]:
    """Features of both sides, or for `auto` and its like what chooses them by the labels drawn."""
    train, test = experiment.factors(recipe)
    if not recipe.is_chosen_later:
        return *experiment.fit(recipe, None, train, test), None
    any_train, any_test = (next(iter(side.values())) for side in (train, test))
    return any_train, any_test, experiment.chooser(recipe)


def _positive_images(
    experiment: Experiment, train: Comparable, test: Comparable, pick: Pick | None
) -> list[Result]:
    """The first form: so many positive images of each class, and negative ones for each."""
    labels = experiment.train_labels(), experiment.test_labels()
    shots = low_shot(
        train, labels[0], test, labels[1], C=experiment.protocol.C, pick=pick
    )
    return _points(experiment, POSITIVES, shots)


def _labelled_photos(
    experiment: Experiment, train: Comparable, test: Comparable, pick: Pick | None
) -> list[Result]:
    """The second form: so many labelled photos of each class, and nothing else."""
    labels = experiment.train_labels(), experiment.test_labels()
    shots = label_photos(
        train, labels[0], test, labels[1], C=experiment.protocol.C, pick=pick
    )
    return _points(experiment, PHOTOS, shots)


def _points(
    experiment: Experiment, x_axis: str, shots: Sequence[LowShot]
) -> list[Result]:
    """The mean of the draws of each figure that was measured."""
    method = experiment.dataset.official_ap
    points = []
    for shot in shots:
        figures = {map_axis(method): shot.map[method]}
        figures |= {ACCURACY: shot.accuracy, BALANCED: shot.balanced}
        for y_axis, draws in figures.items():
            if draws:
                points.append(_mean_point(x_axis, shot.positives, y_axis, draws))
    return points


def _mean_point(x_axis: str, x: int, y_axis: str, draws: Sequence[float]) -> Result:
    """The mean of draws with Student's interval, bounded as a percentage is."""
    mean, interval = float(np.mean(draws)), mean_interval(draws)
    interval = None if interval is None else bounded(interval, mean)
    return point(x_axis, x, y_axis, mean, interval, draws=list(draws))


def _knn(experiment: Experiment, train: Comparable, test: Comparable) -> list[Result]:
    method, classes = experiment.dataset.official_ap, experiment.dataset.classes
    ks = [k for k in NEIGHBOURS if k <= len(train)]
    labels = experiment.train_labels(), experiment.test_labels()
    points = []
    for votes in nearest_neighbours(train, labels[0], test, labels[1], classes, ks):
        points.append(point(K, votes.k, ACCURACY, votes.accuracy, votes.interval))
        mean, interval = votes.measured.map[method], votes.draws.map_interval(method)
        points.append(point(K, votes.k, map_axis(method), mean, interval))
    return points


def _search(
    experiment: Experiment, train: Comparable, test: Comparable
) -> list[Result]:
    """Test images search the training images, by one to three examples, and a counter-example."""
    labels = experiment.train_labels(), experiment.test_labels()
    by_count = search_by_examples(train, labels[0], test, labels[1]).T
    points = []
    for given, y_axis, shares in zip(GIVEN, AXES, by_count, strict=True):
        interval, draws = mean_interval(shares.tolist()), shares.round(3).tolist()
        points.append(
            point(EXAMPLES, given, y_axis, float(shares.mean()), interval, draws=draws)
        )
    return points
