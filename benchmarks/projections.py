"""Cheaper kernels: speed of projections, training on them, and their error against dimension.

`run` gives the ratios. As a script it prints them and a table of error and mAP against dimension,
on synthetic gradients, or on real ones with

    python benchmarks/projections.py --features FILE.npz [--large 50000]

where the file has x, delta, labels of training images, and test_x, test_delta, test_labels.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.random_projection import SparseRandomProjection
from sklearn.svm import LinearSVC
from timing import Ratio, ratio

from deepfishing.classify import train_svm
from deepfishing.kernels import gram
from deepfishing.linear import train_linear
from deepfishing.metrics import evaluate
from deepfishing.projections import KINDS, fit_projection
from deepfishing.rank_one import Array, RankOne, l2_normalize

M = 8192
CHOICES = (("tensor-sketch", M), ("principal", 2048), ("principal", 1024))


@dataclass(frozen=True, eq=False)
class Data:
    """Gradients and labels of training and test images."""

    train: RankOne
    labels: Array
    test: RankOne
    test_labels: Array

    def resample(self, n: int, seed: int = 0) -> tuple[RankOne, Array]:
        """Training images drawn with replacement, every number changed by about a third."""
        random = np.random.default_rng(seed)
        chosen = random.integers(len(self.train), size=n)
        factors = []
        for f in (self.train.x, self.train.delta):
            noise = random.standard_normal((n, f.shape[1]), dtype=np.float32)
            noise *= 0.3
            noise += 1
            noise *= f[chosen]
            factors.append(noise)
        return RankOne(*factors).normalize(), self.labels[chosen]

    def mean_ap(self, scores: Array) -> float:
        """mAP in percent, 11-point, of scores of the test images."""
        names = [str(c) for c in range(scores.shape[1])]
        return evaluate(self.test_labels, scores, names).map["11point"] or 0.0


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
    for kind in ("two-sided", "product", "tensor-sketch"):
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


def training(data: Data, n: int, kind: str, m: int, repetitions: int = 3) -> Ratio:
    """Projecting, training and scoring against the same with the exact kernel."""
    g, labels = data.resample(n)
    return ratio(
        f"{kind} of {m} numbers and linear machines: {n} images",
        lambda: projected(g, labels, data.test, kind, m),
        "exact kernel and kernel machines",
        lambda: train_svm(g, labels).decision_function(data.test),
        repetitions,
    )


def projected(g: RankOne, labels: Array, test: RankOne, kind: str, m: int) -> Array:
    project = fit_projection(kind, g, m)
    svm = train_linear(l2_normalize(project(g)), labels)
    return svm.decision_function(l2_normalize(project(test)))


def solver(data: Data, n: int, repetitions: int, m: int = 2048) -> Ratio:
    """The linear machines of this package against LIBLINEAR's, class by class."""
    g, labels = data.resample(n)
    vectors = fit_projection("tensor-sketch", g, m)(g)

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


def errors(data: Data, sizes: tuple[int, ...] = (1024, 2048, 4096, 8192)) -> Iterator[str]:
    """Markdown rows: error of the kernel between test images, and mAP, for every kind and size."""
    some = data.test[:1000]
    pairs = np.triu_indices(len(some), 1)
    exact = gram(some)[pairs]
    scores = train_svm(data.train, data.labels).decision_function(data.test)
    yield "| projection | numbers | bias | rms error | norm^2 | mAP | mAP, normalised |"
    yield "|---|---|---|---|---|---|---|"
    yield f"| exact kernel | - | 0 | 0 | 1 | {data.mean_ap(scores):.2f} | - |"
    for kind in KINDS:
        for m in sizes:
            project = fit_projection(kind, data.train, m)
            train, test = project(data.train), project(data.test)
            K = test[: len(some)] @ test[: len(some)].T
            error = K[pairs] - exact
            means = []
            for change in (np.asarray, l2_normalize):
                svm = train_linear(change(train), data.labels)
                means.append(f"{data.mean_ap(svm.decision_function(change(test))):.2f}")
            yield (
                f"| {kind} | {train.shape[1]} | {error.mean():+.4f} | "
                f"{np.sqrt(np.mean(error**2)):.4f} | {np.diag(K).mean():.2f} | "
                f"{' | '.join(means)} |"
            )


def synthetic(n: int = 4000, d: int = 1280, D: int = 1000, classes: int = 20) -> Data:
    """Gradients with the structure of real ones: few strong directions, x never negative."""
    random = np.random.default_rng(0)
    labels = np.where(random.random((2 * n, classes)) < 1.5 / classes, 1, -1).astype(np.int8)
    visible = (labels == 1) * random.exponential(1.5, size=labels.shape)  # some hardly are
    factors = []
    for width, level in ((d, 0.5), (D, 0.0)):
        directions = random.normal(size=(classes + 200, width)) / np.sqrt(width)
        strength = 1 / np.sqrt(np.arange(1, 201))
        content = np.hstack([visible, random.normal(size=(2 * n, 200)) * strength])
        noise = random.normal(loc=level, size=(2 * n, width)) / np.sqrt(width)
        factors.append((content @ directions + noise).astype(np.float32))
    g = RankOne(np.maximum(factors[0], 0), factors[1]).normalize()
    return Data(g[:n], labels[:n], g[n:], labels[n:])


def real(path: Path) -> Data:
    with np.load(path) as f:
        train, test = (RankOne(f[p + "x"], f[p + "delta"]).normalize() for p in ("", "test_"))
        return Data(train, f["labels"], test, f["test_labels"])


def large(data: Data, largest: int) -> None:
    """Images, projection, numbers, seconds with scoring, mAP, the peak memory so far in GB."""
    for n in (1000, 2000, 4000, 8000, 16000, largest):
        g, labels = data.resample(n)
        for kind, m in (*CHOICES, ("exact kernel", 0)):
            if not m and n == largest:
                continue  # its Gram matrix has n^2 numbers of 8 bytes
            start = time.perf_counter()
            if m:
                scores = projected(g, labels, data.test, kind, m)
            else:
                scores = train_svm(g, labels).decision_function(data.test)
            seconds = time.perf_counter() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            found = f"{seconds:.1f} | {data.mean_ap(scores):.2f} | {peak:.1f} GB |"
            print(f"| {n} | {kind} | {m} | {found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--features", type=Path, help="an .npz file of real features")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--large", type=int, help="time linear machines at this many images")
    options = parser.parse_args()
    data = real(options.features) if options.features else synthetic()
    if options.large:
        large(data, options.large)
        return
    for row in run(options.quick):
        print(row, flush=True)
    for line in errors(data, (1024,) if options.quick else (1024, 2048, 4096, 8192)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
