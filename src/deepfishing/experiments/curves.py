"""Stage 6, experiments: curves instead of a table, by one of five further protocols.

Comes in: a data set, a network, feature names, as for `reproduce`. Goes out: measured points, kept
in `curves.jsonl` as soon as they are there and used again by the next run.

`low-shot`       mAP against the number of positive examples per class
`knn`            accuracy and mAP of the votes of the k nearest training images
`curate`         mAP by the photos chosen to be labelled, and share of wrong labels found
`search`         share of the first ten photos that show the class of one, two and three examples
`approximation`  error, mAP and time of projected gradients against the exact kernel, by the length
                 of the vectors and by the number of training images
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import cast

from deepfishing import __version__
from deepfishing.errors import FeatureError, OptionError
from deepfishing.experiments.approximation import (
    BIAS,
    EXACT,
    RMS,
    SECONDS,
    WITH_PROJECTION,
    Gradients,
    Scored,
    kernel_error,
    too_large,
    with_kernel,
    with_projection,
)
from deepfishing.experiments.checks import CURVES, Result, check_protocol
from deepfishing.experiments.curate import MACHINE, curate_runs, machine_recipe
from deepfishing.experiments.examples import search_by_examples
from deepfishing.experiments.point import Point, Run, map_axis
from deepfishing.experiments.protocols import LowShot, low_shot, neighbour_curve
from deepfishing.experiments.reproduce import Prepared, Protocol, prepare, settled
from deepfishing.experiments.results import Curves, row_key, versions
from deepfishing.gradients.to_store import OnFailure
from deepfishing.images.dataset import Dataset
from deepfishing.kernels import UNLIKE, Comparable
from deepfishing.metrics import evaluate
from deepfishing.networks.network import Network
from deepfishing.progress import Progress, silent
from deepfishing.projections import KINDS
from deepfishing.rank_one import Array, RankOne
from deepfishing.recipes import AUTO, Recipe, parse_recipe, parse_recipes
from deepfishing.statistics import mean_interval

# Features that each protocol takes where none are named, as far as the network has them.
DEFAULTS = {
    "low-shot": ("x7", "dW7", "dW8", "best"),
    "knn": ("x7", "dW7", "best"),
    "curate": ("x7", MACHINE, f"{MACHINE}+x7", "best"),
    "search": ("x7", "dW7", "dW8", "pow(dW8,0.5)", "dW8+x7", "pow(dW8,0.5)+pow(x7,0.5)"),
    "approximation": ("dW8",),
}

NEIGHBOURS = (1, 5, 10, 20, 50)
SIZES = (1024, 2048, 4096, 8192)
IMAGES = (1000, 2000, 4000, 8000, 16_000, 30_000, 50_000)
LARGEST = IMAGES[-1]
# timed against the number of images: every kind at one size, and where speed or mAP is best
TIMED = (
    *((kind, 2048) for kind in KINDS),
    ("tensor-sketch", 8192),
    ("principal", 8192),
    ("principal", 1024),
)

POSITIVES, K = "positive images per class", "neighbours k"
NUMBERS, TRAINING = "numbers per vector", "training images"
ACCURACY = "accuracy, %"
EXAMPLES, SHOWN = "examples (the third: counter-example)", "right in the first ten, %"


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
    """Measure the curves of a protocol, and keep them in `out`.

    Parameters
    ----------
    kind : str
        One of `CURVES`.
    dataset, network, out, protocol, command, progress, on_failure
        As for `reproduce`.
    features : str or list of str, optional
        Recipes; by default those of `DEFAULTS` that the network has. `approximation` takes
        gradients only.
    largest : int
        `approximation` is timed on up to this many training images.

    Returns
    -------
    points : list of dict
        With the keys of `curves.jsonl`, docs/statistics.md.
    """
    check_protocol(kind, CURVES)
    if largest < 1:
        raise OptionError(f"largest must be at least 1 image, got {largest}")
    protocol = protocol or Protocol()
    tell = progress or silent
    wanted = _recipes(kind, features, network.layers)
    curves = Curves(out)
    needed = wanted
    if kind == "curate":
        needed = (*wanted, machine_recipe(wanted, network.layers))
    prepared = prepare(dataset, network, curves.folder, needed, protocol, tell, on_failure)
    prepared.test_labels()  # told before any work, if there are none
    points: list[Result] = []
    total = 1
    for number, recipe in enumerate(wanted):
        runs = _runs(kind, prepared, recipe, protocol, largest, needed[-1], number == 0)
        for done, total, run in runs:
            tell(kind, number * total + done, len(wanted) * total)
            feature = run.feature or recipe.name
            key = row_key(
                protocol=kind,
                feature=feature,
                series=run.series,
                **run.decided_by,
                **prepared.decisive,
            )
            found = curves.find(key)
            if not found or any(point["y"] is None for point in found):
                start = time.perf_counter()
                new = run.measure()
                seconds = round(time.perf_counter() - start, 3)
                found = [
                    {
                        "protocol": kind,
                        "feature": feature,
                        "series": run.series,
                        **_line(point, prepared, protocol),
                        "seconds": seconds,
                        "command": command,
                        "version": __version__,
                        "versions": versions(),
                        "key": key,
                    }
                    for point in new
                ]
                curves.add(found)
            points += found
    tell(kind, len(wanted) * total, len(wanted) * total)
    return points


def _recipes(
    kind: str, features: str | Iterable[str] | None, layers: Mapping[int, str]
) -> tuple[Recipe, ...]:
    if features is not None:
        found = parse_recipes(features, layers)
        for recipe in found:
            if kind == "approximation" and not (recipe.is_plain and recipe.gradients):
                raise FeatureError(
                    "approximation takes whole gradients one by one, such as dW8 or pow(dW8,0.5), "
                    f"got {recipe.title}; pass --features dW8"
                )
        return found
    recipes = {}
    for name in DEFAULTS[kind]:
        with contextlib.suppress(FeatureError):  # of a layer that this network does not have
            recipe = parse_recipe(name, layers)
            recipes[recipe.name] = recipe
    if not recipes:
        raise FeatureError(
            f"this network has none of {', '.join(DEFAULTS[kind])}, which {kind} takes by default; "
            "name the features, x:PATH or dW:PATH with a module's path"
        )
    return tuple(recipes.values())


def _line(point: Point, prepared: Prepared, protocol: Protocol) -> Result:
    dataset = prepared.dataset
    return {
        "dataset": dataset.name,
        "train": dataset.train.name,
        "test": dataset.test.name,
        **prepared.settings.decisive(),
        "C": protocol.C,
        "difficult": protocol.difficult,
        "official_ap": dataset.official_ap,
        **vars(point),
        "n_train": point.n_train or len(dataset.train),
        "n_test": len(dataset.test),
    }


def _runs(
    kind: str,
    prepared: Prepared,
    recipe: Recipe,
    protocol: Protocol,
    largest: int,
    machine: Recipe,
    first: bool,
) -> Iterator[tuple[int, int, Run]]:
    """What there is to measure of a feature, each with its number and how many there are."""
    read: dict[str, tuple[Comparable, Comparable]] = {}

    def features(of: Recipe = recipe) -> tuple[Comparable, Comparable]:
        """Train and test, read and fitted once, and not at all if all points are there."""
        if of.name not in read:
            both = prepared.train(of), prepared.test(of)
            is_auto = of.name == AUTO
            choice = prepared.choose(both[0], prepared.train_labels()) if is_auto else None
            used, train, test = settled(of, choice, prepared, *both)
            fitted = used.fit(train)
            read[of.name] = fitted(train), fitted(test)
        return read[of.name]

    if kind == "approximation":
        runs = _approximation(prepared, recipe, protocol, features, largest)
    elif kind == "curate":
        sides = partial(features, machine)
        runs = curate_runs(prepared, protocol, recipe, machine, features, sides, first)
    elif kind == "low-shot" and recipe.name == AUTO:
        runs = [Run(recipe.name, {}, lambda: _auto_low_shot(prepared, recipe))]
    else:
        measure = {"low-shot": _low_shot, "knn": _knn, "search": _search}[kind]
        decided_by = {"unlike": UNLIKE} if kind == "search" else {}
        runs = [Run(recipe.name, decided_by, lambda: measure(prepared, protocol, *features()))]
    for number, run in enumerate(runs):
        yield number, len(runs), run


def _low_shot(
    prepared: Prepared, protocol: Protocol, train: Comparable, test: Comparable
) -> list[Point]:
    labels = prepared.train_labels(), prepared.test_labels()
    return _by_positives(prepared, low_shot(train, labels[0], test, labels[1], C=protocol.C))


def _auto_low_shot(prepared: Prepared, recipe: Recipe) -> list[Point]:
    """`auto` chooses anew for every draw, by the examples drawn and their labels alone."""
    sides = prepared.train(recipe), prepared.test(recipe)
    made: dict[tuple[str, float | None], tuple[Comparable, Comparable]] = {}

    def pick(labels: Array) -> tuple[Comparable, Comparable, float]:
        drawn = labels.any(axis=1)
        choice = prepared.choose({n: side[drawn] for n, side in sides[0].items()}, labels[drawn])
        if (choice.recipe, choice.tau) not in made:
            used, train, test = settled(recipe, choice, prepared, *sides)
            fitted = used.fit(train)
            made[choice.recipe, choice.tau] = fitted(train), fitted(test)
        return *made[choice.recipe, choice.tau], choice.cost

    any_train, any_test = (next(iter(side.values())) for side in sides)
    labels = prepared.train_labels(), prepared.test_labels()
    return _by_positives(prepared, low_shot(any_train, labels[0], any_test, labels[1], pick=pick))


def _by_positives(prepared: Prepared, points: Iterable[LowShot]) -> list[Point]:
    method, found = prepared.dataset.official_ap, []
    for point in points:
        low, high = point.interval(method) or (None, None)
        mean, draws = point.mean(method), list(point.map[method])
        found.append(
            Point(POSITIVES, point.positives, map_axis(method), mean, low, high, draws=draws)
        )
    return found


def _knn(
    prepared: Prepared, protocol: Protocol, train: Comparable, test: Comparable
) -> list[Point]:
    method, classes = prepared.dataset.official_ap, prepared.dataset.classes
    ks = [k for k in NEIGHBOURS if k <= len(train)]
    labels = prepared.train_labels(), prepared.test_labels()
    points = []
    for votes in neighbour_curve(train, labels[0], test, labels[1], classes, ks):
        points.append(Point(K, votes.k, ACCURACY, votes.accuracy, *votes.interval))
        low, high = votes.draws.map_interval(method) or (None, None)
        points.append(Point(K, votes.k, map_axis(method), votes.measured.map[method], low, high))
    return points


def _search(
    prepared: Prepared, protocol: Protocol, train: Comparable, test: Comparable
) -> list[Point]:
    found = search_by_examples(test, prepared.test_labels())
    points = []
    for given, shares in enumerate(found.T, start=1):
        low, high = mean_interval(shares.tolist()) or (None, None)
        draws = shares.round(3).tolist()
        points.append(Point(EXAMPLES, given, SHOWN, float(shares.mean()), low, high, draws=draws))
    return points


def _approximation(
    prepared: Prepared,
    recipe: Recipe,
    protocol: Protocol,
    features: Callable[[], tuple[Comparable, Comparable]],
    largest: int,
) -> list[Run]:
    method, classes = prepared.dataset.official_ap, prepared.dataset.classes
    resampled: dict[int, Gradients] = {}  # the last one only: they are large

    def data() -> Gradients:
        train, test = (cast(RankOne, side) for side in features())  # `_recipes` has seen to it
        return Gradients(train, prepared.train_labels(), test, protocol.C, protocol.difficult)

    def larger(n: int) -> Gradients:
        if n not in resampled:
            resampled.clear()
            resampled[n] = data().resample(n)
        return resampled[n]

    def reached(x_axis: str, x: int | None, found: Scored) -> list[Point]:
        mean = evaluate(prepared.test_labels(), found.scores, classes).map[method]
        n = x if x_axis == TRAINING else None
        return [
            Point(x_axis, x, map_axis(method), mean, n_train=n),
            Point(x_axis, x, SECONDS, found.seconds, n_train=n),
            Point(x_axis, x, WITH_PROJECTION, found.projecting + found.seconds, n_train=n),
        ]

    def by_size(kind: str, m: int) -> list[Point]:
        error = kernel_error(data(), kind, m)
        return [
            Point(NUMBERS, m, BIAS, error.bias),
            Point(NUMBERS, m, RMS, error.rms),
            *reached(NUMBERS, m, with_projection(data(), kind, m)),
        ]

    def by_images(n: int, kind: str, m: int) -> list[Point]:
        return reached(TRAINING, n, with_projection(larger(n), kind, m))

    def exact_by_images(n: int) -> list[Point]:
        why = too_large(n)
        if why:
            return [Point(TRAINING, n, SECONDS, None, n_train=n, note=why)]
        return reached(TRAINING, n, with_kernel(larger(n)))

    runs = [Run(EXACT, {"m": None}, lambda: reached(NUMBERS, None, with_kernel(data())))]
    for kind in KINDS:
        runs += [Run(kind, {"m": m}, partial(by_size, kind, m)) for m in SIZES]
    for n in (n for n in IMAGES if n <= largest):
        for kind, m in TIMED:
            runs.append(Run(f"{kind}, {m:,}", {"images": n}, partial(by_images, n, kind, m)))
        runs.append(Run(EXACT, {"images": n}, partial(exact_by_images, n)))
    return runs
