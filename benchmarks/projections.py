"""Cheaper kernels: speed of projections, and of training on them, as ratios.

Error, mAP and time against dimension and number of images are curves on real features:
`deepfish reproduce DATASET --protocol approximation`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.random_projection import SparseRandomProjection
from sklearn.svm import LinearSVC
from timing import Ratio, ratio

from deepfishing.core.projections import fit_projection
from deepfishing.core.rank_one import RankOne
from deepfishing.evaluation.protocols.approximation import (
    Gradients,
    with_kernel,
    with_projection,
)
from deepfishing.learn.linear import train_linear

M = 8192
CHOICES = (("tensor-sketch", M), ("principal", 2048), ("principal", 1024))


def run(quick: bool = False) -> list[Ratio]:
    repetitions = 3 if quick else 7
    rows = []
    for d in (1024,) if quick else (1024, 2048, 4096):
        rows += list(speed(d, repetitions))
    data = synthetic()
    for n in (1000,) if quick else (1000, 2000, 4000, 8000):
        rows += [training(data, n, kind, m) for kind, m in CHOICES]
    rows.append(solver(data, 500 if quick else 2000, 3))
    return rows


def speed(d: int, repetitions: int, n: int = 256) -> Iterator[Ratio]:
    """Vectors of 8,192 numbers from factors of d numbers each."""
    random = np.random.default_rng(0)
    factors = [random.standard_normal((n, d), dtype=np.float32) for _ in range(2)]
    g = RankOne(*factors).normalize()
    theirs = PolynomialCountSketch(degree=2, n_components=M, random_state=0).fit(g.x)
    title = f"{{}}: d = D = {d}, m = {M}"
    for kind in ("two-sided", "tensor-sketch"):
        project = fit_projection(kind, g, M)
        yield ratio(
            title.format(kind),
            lambda project=project: project(g),
            "PolynomialCountSketch of x alone",
            lambda: theirs.transform(g.x),
            repetitions,
        )
    if d > 1024:
        return  # a random matrix of d * D rows does not fit
    few = g[:16]
    dense = SparseRandomProjection(M, random_state=0).fit(few.dense().reshape(16, -1))
    sketch = fit_projection("tensor-sketch", g, M)
    yield ratio(
        title.format("tensor-sketch"),
        lambda: sketch(few),
        "outer product and SparseRandomProjection",
        lambda: dense.transform(few.dense().reshape(16, -1)),
        repetitions,
    )


def training(data: Gradients, n: int, kind: str, m: int, repetitions: int = 3) -> Ratio:
    """Projecting, training and scoring against the same with the exact kernel."""
    more = data.resample(n)
    return ratio(
        f"{kind} of {m} numbers and linear machines: {n} images",
        lambda: with_projection(more, kind, m),
        "exact kernel and kernel machines",
        lambda: with_kernel(more),
        repetitions,
    )


def solver(data: Gradients, n: int, repetitions: int, m: int = 2048) -> Ratio:
    """The linear machines of this package against LIBLINEAR's, class by class."""
    more = data.resample(n)
    labels, vectors = (
        more.labels,
        fit_projection("tensor-sketch", more.train, m)(more.train),
    )

    def liblinear() -> None:
        for column in labels.T:
            machine = LinearSVC(loss="hinge", tol=0.1, max_iter=10_000)
            machine.fit(vectors, np.where(column == 1, 1, -1))

    return ratio(
        f"linear machines: {n} images, {m} numbers, {labels.shape[1]} classes",
        lambda: train_linear(vectors, labels),
        "LinearSVC, tolerance 0.1, class by class",
        liblinear,
        repetitions,
    )


def synthetic(
    n: int = 4000, d: int = 1280, D: int = 1000, classes: int = 20
) -> Gradients:
    """Gradients with the structure of real ones: few strong directions, x never negative."""
    random = np.random.default_rng(0)
    labels = np.where(random.random((2 * n, classes)) < 1.5 / classes, 1, -1).astype(
        np.int8
    )
    # some hardly are
    visible = (labels == 1) * random.exponential(1.5, size=labels.shape)
    factors = []
    for width, level in ((d, 0.5), (D, 0.0)):
        directions = random.normal(size=(classes + 200, width)) / np.sqrt(width)
        strength = 1 / np.sqrt(np.arange(1, 201))
        content = np.hstack([visible, random.normal(size=(2 * n, 200)) * strength])
        noise = random.normal(loc=level, size=(2 * n, width)) / np.sqrt(width)
        factors.append((content @ directions + noise).astype(np.float32))
    g = RankOne(np.maximum(factors[0], 0), factors[1]).normalize()
    return Gradients(g[:n], labels[:n], g[n:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    for row in run(parser.parse_args().quick):
        print(row, flush=True)
