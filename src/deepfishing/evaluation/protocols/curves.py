"""Curves: one record per protocol that gives points instead of rows, and their measurement.

Measured points are kept in `curves.jsonl` at once and used again by the next run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepfishing import __version__
from deepfishing.core.recipes import AUTO, Recipe, parse_recipes
from deepfishing.core.recipes.language import OWN_HEAD, known_recipes
from deepfishing.core.recipes.recipe import AUTO_FORWARD
from deepfishing.errors import FeatureError, OptionError, check_choice
from deepfishing.evaluation.experiment import Experiment, Protocol, prepare
from deepfishing.evaluation.protocols.approximation import LARGEST, approximation_runs
from deepfishing.evaluation.protocols.curate import (
    CLASSIFIER,
    curate_needs,
    curate_runs,
)
from deepfishing.evaluation.protocols.low_shot import low_shot_runs
from deepfishing.evaluation.protocols.neighbours import neighbour_runs
from deepfishing.evaluation.protocols.points import Run
from deepfishing.evaluation.protocols.search import search_runs
from deepfishing.evaluation.record import CURVES, FORWARD_KERNELS, Result
from deepfishing.evaluation.results import Curves, row_key, versions
from deepfishing.extraction.to_store import OnFailure
from deepfishing.images.dataset import Dataset
from deepfishing.networks.network import Network
from deepfishing.search.compare import WITH_PROTOTYPES
from deepfishing.util.progress import Progress, silent

Layers = Mapping[int, str]


def _nothing_else(recipes: Sequence[Recipe], layers: Layers) -> tuple[Recipe, ...]:
    return ()


@dataclass(frozen=True)
class CurveProtocol:
    """A protocol that gives curves.

    `features` are measured where none are named, as far as the network has them. `make_runs` gets
    the experiment, the features and the largest number of training images to time; `needs` names
    features that are extracted beside them.
    """

    features: tuple[str, ...]
    make_runs: Callable[[Experiment, Sequence[Recipe], int], list[Run]]
    needs: Callable[[Sequence[Recipe], Layers], tuple[Recipe, ...]] = _nothing_else


CURVE_PROTOCOLS = {
    "low-shot": CurveProtocol((*FORWARD_KERNELS, AUTO_FORWARD, AUTO), low_shot_runs),
    "knn": CurveProtocol(("x7", "dW7", "best"), neighbour_runs),
    "curate": CurveProtocol(
        ("x7", CLASSIFIER, f"{CLASSIFIER}+x7", OWN_HEAD, "smooth(x7)"),
        curate_runs,
        curate_needs,
    ),
    "search": CurveProtocol(
        (
            "x7",
            "smooth(x7)",
            "dW8+x7",
            *WITH_PROTOTYPES,
            "smooth(dW8+x7+own(x7,64))",
        ),
        search_runs,
    ),
    "approximation": CurveProtocol(("dW8",), approximation_runs),
}


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

    Features are by default those of `CURVE_PROTOCOLS` that the network has; `approximation` takes
    gradients only, and is timed on up to `largest` training images. The points have the keys of
    `curves.jsonl`, docs/statistics.md.
    """
    check_choice("protocol", kind, CURVES)
    if largest < 1:
        raise OptionError(f"largest must be at least 1 image, got {largest}")
    report_progress = progress or silent
    recipes = choose_recipes(kind, features, network.layers)
    curves = Curves(out)
    curve_protocol = CURVE_PROTOCOLS[kind]
    experiment = prepare(
        dataset,
        network,
        curves.folder,
        [*recipes, *curve_protocol.needs(recipes, network.layers)],
        protocol or Protocol(),
        report_progress,
        on_failure,
    )
    experiment.test_labels()  # an error before any work, if there are none
    runs = curve_protocol.make_runs(experiment, recipes, largest)
    points: list[Result] = []
    for done, run in enumerate(runs):
        report_progress(kind, done, len(runs))
        points += _find_or_measure(kind, experiment, run, curves, command)
    report_progress(kind, len(runs), len(runs))
    return points


def choose_recipes(
    kind: str, features: str | Iterable[str] | None, layers: Layers
) -> tuple[Recipe, ...]:
    """Return the recipes that a protocol measures: those named, or its own."""
    if features is None:
        names = CURVE_PROTOCOLS[kind].features
        recipes = tuple(known_recipes(names, layers).values())
        if not recipes:
            raise FeatureError(
                f"this network has none of {', '.join(names)}, which {kind} takes by default; "
                "name the features, x:PATH or dW:PATH with a module's path"
            )
        return recipes
    recipes = parse_recipes(features, layers)
    if kind == "approximation":
        for recipe in recipes:
            if not (recipe.is_plain and recipe.gradients):
                raise FeatureError(
                    "approximation takes whole gradients one by one, such as dW8 or pow(dW8,0.5), "
                    f"got {recipe.title}; pass --features dW8"
                )
    if kind == "low-shot":
        return _with_compared(recipes, layers)
    return recipes


def _with_compared(recipes: tuple[Recipe, ...], layers: Layers) -> tuple[Recipe, ...]:
    """Add the features that `auto` is compared with, if it is among the recipes."""
    names = [recipe.name for recipe in recipes]
    if AUTO not in names:
        return recipes
    compared = known_recipes((*FORWARD_KERNELS, AUTO_FORWARD), layers).values()
    return *(recipe for recipe in compared if recipe.name not in names), *recipes


def _find_or_measure(
    kind: str, experiment: Experiment, run: Run, curves: Curves, command: str
) -> list[Result]:
    """Return the points of a run: those on disk if they are complete, or new ones."""
    line = {"protocol": kind, "feature": run.feature, "series": run.series}
    key = row_key(**line, **run.decided_by, **experiment.decisive)
    points = curves.find(key)
    if points and all(point["y"] is not None for point in points):
        return points
    start = time.perf_counter()
    measured = run.measure()
    measurement = {
        "seconds": round(time.perf_counter() - start, 3),
        "command": command,
        "version": __version__,
        "versions": versions(),
        "key": key,
    }
    points = [
        {**line, **experiment.metadata, **point, **measurement} for point in measured
    ]
    curves.keep(points)
    return points
