"""Experiment: the accuracy that a projection of the trace kernel costs, and the time that it saves.

Measured are the error of the vectors' dot products, the mAP of linear classifiers on them, and the
time of each step, against the exact kernel and its classifiers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from deepfishing.core.kernels import Comparable, gram
from deepfishing.core.metrics import evaluate
from deepfishing.core.projections import KINDS, fit_projection
from deepfishing.core.rank_one import Array, RankOne, l2_normalize
from deepfishing.evaluation.checks import Result, Run, map_axis, point
from deepfishing.images.dataset import DIFFICULT
from deepfishing.learn.linear import train_linear
from deepfishing.learn.svm import train_svm

if TYPE_CHECKING:  # it imports torch, and reports need the names of the axes only
    from deepfishing.evaluation.reproduce import Experiment

# Errors of the kernel are those between all pairs of this many test images.
PAIRED = 1000
# A kernel matrix may take this part of the machine's memory; training needs about as much again.
SHARE = 1 / 3

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

# What a line and what axes are called in `curves.jsonl`.
EXACT = "exact kernel"
BIAS, RMS = "bias of the kernel", "rms error of the kernel"
NUMBERS, TRAINING = "numbers per vector", "training images"
SECONDS, WITH_PROJECTION = (
    "seconds to train and score",
    "seconds to project, train and score",
)


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
        for f in (self.train.x, self.train.delta):
            noise = random.standard_normal((n, *f.shape[1:]), dtype=np.float32)
            noise *= 0.3
            noise += 1
            noise *= f[chosen]
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
    some = data.test[:PAIRED]
    vectors = fit_projection(kind, data.train, m)(some)  # not normalised here
    pairs = np.triu_indices(len(some), 1)
    error = (vectors @ vectors.T)[pairs] - gram(some)[pairs]
    if not error.size:  # a single test image has no pair
        return 0.0, 0.0
    return float(error.mean()), float(np.sqrt(np.mean(error**2)))


def too_large(n: int) -> str:
    """Why the kernel matrix of n images is not computed; empty if it fits into memory."""
    needed = 8 * n * n
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed <= SHARE * memory:
        return ""
    return (
        f"the kernel matrix of {n:,} images needs {needed / 1e9:.1f} GB, more than a third of "
        f"the {memory / 1e9:.1f} GB of this machine"
    )


def approximation_runs(
    experiment: Experiment,
    sides: Callable[[], tuple[Comparable, Comparable]],
    largest: int,
) -> list[Run]:
    """What there is to measure of a gradient, whose features are read when they are needed."""
    method, classes = experiment.dataset.official_ap, experiment.dataset.classes
    protocol = experiment.protocol
    resampled: dict[int, Gradients] = {}  # the last one only: they are large

    def data() -> Gradients:
        # `measure_curves` has seen to it
        train, test = (cast(RankOne, side) for side in sides())
        return Gradients(
            train, experiment.train_labels(), test, protocol.C, protocol.difficult
        )

    def larger(n: int) -> Gradients:
        if n not in resampled:
            resampled.clear()
            resampled[n] = data().resample(n)
        return resampled[n]

    def reached(x_axis: str, x: int | None, found: Scored) -> list[Result]:
        mean = evaluate(experiment.test_labels(), found.scores, classes).map[method]
        figures = {
            map_axis(method): mean,
            SECONDS: found.seconds,
            WITH_PROJECTION: found.projecting + found.seconds,
        }
        n = x if x_axis == TRAINING else None
        return [point(x_axis, x, y_axis, y, n_train=n) for y_axis, y in figures.items()]

    def by_size(kind: str, m: int) -> list[Result]:
        bias, rms = kernel_error(data(), kind, m)
        errors = [point(NUMBERS, m, BIAS, bias), point(NUMBERS, m, RMS, rms)]
        return [*errors, *reached(NUMBERS, m, with_projection(data(), kind, m))]

    def by_images(n: int, kind: str, m: int) -> list[Result]:
        return reached(TRAINING, n, with_projection(larger(n), kind, m))

    def exact_by_images(n: int) -> list[Result]:
        why = too_large(n)
        if why:
            return [point(TRAINING, n, SECONDS, None, n_train=n, note=why)]
        return reached(TRAINING, n, with_kernel(larger(n)))

    runs = [
        Run(EXACT, {"m": None}, lambda: reached(NUMBERS, None, with_kernel(data())))
    ]
    for kind in KINDS:
        runs += [Run(kind, {"m": m}, partial(by_size, kind, m)) for m in SIZES]
    for n in (n for n in IMAGES if n <= largest):
        for kind, m in TIMED:
            runs.append(
                Run(f"{kind}, {m:,}", {"images": n}, partial(by_images, n, kind, m))
            )
        runs.append(Run(EXACT, {"images": n}, partial(exact_by_images, n)))
    return runs
