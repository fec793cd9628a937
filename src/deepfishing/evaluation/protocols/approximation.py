"""Approximation: accuracy that a projection of the trace kernel costs, and time that it saves.

Measured are the error of the vectors' dot products, the mAP of linear classifiers on them, and the
time of each step, against the exact kernel and its classifiers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np

from deepfishing.core.kernels import Comparable, gram
from deepfishing.core.metrics import evaluate
from deepfishing.core.projections import KINDS, fit_projection
from deepfishing.core.rank_one import Array, RankOne, l2_normalize
from deepfishing.core.recipes import Recipe
from deepfishing.evaluation.experiment import Experiment
from deepfishing.evaluation.protocols.points import Run
from deepfishing.evaluation.record import (
    BIAS,
    EXACT,
    RMS,
    SECONDS,
    WITH_PROJECTION,
    Result,
    map_axis,
    point,
)
from deepfishing.images.dataset import DIFFICULT
from deepfishing.learn.linear import train_linear
from deepfishing.learn.svm import train_svm

# Errors of the kernel are those between all pairs of this many test images.
PAIRED = 1000
# A kernel matrix may take this part of the machine's memory; training needs about as much again.
SHARE = 1 / 3

SIZES = (1024, 2048, 4096, 8192)
IMAGES = (1000, 2000, 4000, 8000, 16_000, 30_000, 50_000)
LARGEST = 4000  # by default; up to the last of IMAGES takes minutes
# timed against the number of images: every kind at one size, and where speed or mAP is best
TIMED = (
    *((kind, 2048) for kind in KINDS),
    ("tensor-sketch", 8192),
    ("principal", 8192),
    ("principal", 1024),
)

# Names of axes in `curves.jsonl`.
NUMBERS, TRAINING = "numbers per vector", "training images"


@dataclass(frozen=True, eq=False)
class Gradients:
    """Normalised gradients of training and test images, and what to train with."""

    train: RankOne
    labels: Array
    test: RankOne
    C: float = 1.0
    difficult: str = DIFFICULT[0]

    def resample(self, n: int, seed: int = 0) -> Gradients:
        """n training images, drawn with replacement, every number changed by about a third."""
        random = np.random.default_rng(seed)
        chosen = random.integers(len(self.train), size=n)
        factors = []
        for factor in (self.train.x, self.train.delta):
            noise = random.standard_normal((n, *factor.shape[1:]), dtype=np.float32)
            noise *= 0.3
            noise += 1
            noise *= factor[chosen]
            factors.append(noise)
        return replace(
            self, train=RankOne(*factors).normalize(), labels=self.labels[chosen]
        )


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores (m, C) of the test images, and the seconds it took to train and to score."""

    scores: Array
    seconds: float
    # seconds before that, for the vectors; 0 for the exact kernel
    projecting: float = 0.0


def with_kernel(data: Gradients) -> Scored:
    """Train classifiers on the exact kernel and score the test images."""
    start = time.perf_counter()
    svm = train_svm(data.train, data.labels, data.C, data.difficult)
    return Scored(svm.decision_function(data.test), time.perf_counter() - start)


def with_projection(data: Gradients, kind: str, m: int) -> Scored:
    """Project, train linear classifiers on the normalised vectors, and score the test images."""
    start = time.perf_counter()
    fitted = fit_projection(kind, data.train, m)
    train, test = fitted(data.train), fitted(data.test)
    for vectors in (train, test):
        l2_normalize(vectors, out=vectors)
    projected = time.perf_counter()
    svm = train_linear(train, data.labels, data.C, data.difficult)
    scores = svm.decision_function(test)
    return Scored(scores, time.perf_counter() - projected, projected - start)


def kernel_error(data: Gradients, kind: str, m: int) -> tuple[float, float]:
    """Approximate minus exact kernel of different test images: mean, and root of mean square."""
    test = data.test[:PAIRED]
    vectors = fit_projection(kind, data.train, m)(test)  # not normalised here
    pairs = np.triu_indices(len(test), 1)
    error = (vectors @ vectors.T)[pairs] - gram(test)[pairs]
    if not error.size:  # a single test image has no pair
        return 0.0, 0.0
    return float(error.mean()), float(np.sqrt(np.mean(error**2)))


def too_large(n: int) -> str:
    """Return why the kernel matrix of n images is not computed; empty if it fits into memory."""
    needed = 8 * n * n
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed <= SHARE * memory:
        return ""
    return (
        f"the kernel matrix of {n:,} images needs {needed / 1e9:.1f} GB, more than a third of "
        f"the {memory / 1e9:.1f} GB of this machine"
    )


def approximation_runs(
    experiment: Experiment, recipes: Sequence[Recipe], largest: int
) -> list[Run]:
    """Return the runs of each gradient: by the length of the vectors, and by training images."""
    sides = lru_cache(maxsize=1)(experiment.sides)
    runs = []
    for recipe in recipes:
        runs += _Approximation(experiment, recipe, sides).runs(largest)
    return runs


class _Approximation:
    """The measurements of one gradient; its features are read when they are needed."""

    def __init__(
        self,
        experiment: Experiment,
        recipe: Recipe,
        sides: Callable[[Recipe], tuple[Comparable, Comparable]],
    ) -> None:
        self.experiment, self.recipe, self.sides = experiment, recipe, sides
        self.resampled: dict[int, Gradients] = {}  # the last one only: they are large

    def runs(self, largest: int) -> list[Run]:
        """Return all runs, with at most this many training images."""
        runs = [self._run(EXACT, {"m": None}, self._exact)]
        for kind in KINDS:
            for m in SIZES:
                measure = partial(self._by_size, kind, m)
                runs.append(self._run(kind, {"m": m}, measure))
        for n in IMAGES:
            if n > largest:
                break
            for kind, m in TIMED:
                measure = partial(self._by_images, n, kind, m)
                runs.append(self._run(f"{kind}, {m:,}", {"images": n}, measure))
            measure = partial(self._exact_by_images, n)
            runs.append(self._run(EXACT, {"images": n}, measure))
        return runs

    def _run(
        self,
        series: str,
        decided_by: Mapping[str, Any],
        measure: Callable[[], list[Result]],
    ) -> Run:
        return Run(self.recipe.name, series, decided_by, measure)

    def _data(self) -> Gradients:
        train, test = self.sides(self.recipe)
        protocol = self.experiment.protocol
        return Gradients(
            # `choose_recipes` has checked that it is a gradient
            train=cast(RankOne, train),
            labels=self.experiment.train_labels(),
            test=cast(RankOne, test),
            C=protocol.C,
            difficult=protocol.difficult,
        )

    def _resample(self, n: int) -> Gradients:
        if n not in self.resampled:
            self.resampled.clear()
            self.resampled[n] = self._data().resample(n)
        return self.resampled[n]

    def _exact(self) -> list[Result]:
        return self._points(NUMBERS, None, with_kernel(self._data()))

    def _by_size(self, kind: str, m: int) -> list[Result]:
        data = self._data()
        bias, rms = kernel_error(data, kind, m)
        return [
            point(NUMBERS, m, BIAS, bias),
            point(NUMBERS, m, RMS, rms),
            *self._points(NUMBERS, m, with_projection(data, kind, m)),
        ]

    def _by_images(self, n: int, kind: str, m: int) -> list[Result]:
        return self._points(TRAINING, n, with_projection(self._resample(n), kind, m))

    def _exact_by_images(self, n: int) -> list[Result]:
        why = too_large(n)
        if why:
            return [point(TRAINING, n, SECONDS, None, n_train=n, note=why)]
        return self._points(TRAINING, n, with_kernel(self._resample(n)))

    def _points(self, x_axis: str, x: int | None, scored: Scored) -> list[Result]:
        """Return mAP and seconds at one point."""
        dataset = self.experiment.dataset
        truth, method = self.experiment.test_labels(), dataset.official_ap
        evaluation = evaluate(truth, scored.scores, dataset.classes)
        figures = {
            map_axis(method): evaluation.map[method],
            SECONDS: scored.seconds,
            WITH_PROJECTION: scored.projecting + scored.seconds,
        }
        n_train = x if x_axis == TRAINING else None
        points = []
        for y_axis, y in figures.items():
            points.append(point(x_axis, x, y_axis, y, n_train=n_train))
        return points
