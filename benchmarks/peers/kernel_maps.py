"""Peers: scikit-learn's PolynomialCountSketch, SparseRandomProjection and Nystroem.

The first two are those of benchmarks/projections.py. Nystroem of scikit-learn takes explicit
gradients, or any vectors; ours takes the factors. Both have the trace kernel to as many landmarks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from page import interval, lines_of, number, table
from projections import speed
from timing import Ratio, ratio

from deepfishing.core.rank_one import Array, RankOne


def sklearn_nystroem(explicit: Array, m: int) -> Array:
    """What a user writes with scikit-learn."""
    from sklearn.kernel_approximation import Nystroem

    return Nystroem(kernel="linear", n_components=m, random_state=0).fit_transform(
        explicit
    )


def ours(gradients: RankOne, m: int) -> Array:
    """What a user writes with deepfishing."""
    from deepfishing.core.projections import Nystroem

    return Nystroem.fit(gradients, m)(gradients)


def run(options: Any) -> str:
    repetitions = 3 if options.quick else 7
    rows = list(speed(1024, repetitions))
    if not options.quick:
        rows += speed(4096, repetitions)
    rows.append(nystroem(64 if options.quick else 256, repetitions))
    cells = [
        (
            f"{r.baseline} / {r.name}",
            interval(1 / r.median, 1 / r.high, 1 / r.low),
            r.repetitions,
            number(1000 * r.seconds),
        )
        for r in rows
    ]
    return (
        f"{table(('scikit-learn / ours', 'time', 'repetitions', 'ms of ours'), cells)}\n"
        f"Lines for Nystroem: {lines_of(sklearn_nystroem)} with scikit-learn, {lines_of(ours)} "
        "with deepfishing. 256 images, 16 where gradients are explicit."
    )


def nystroem(n: int, repetitions: int, d: int = 320, D: int = 1280) -> Ratio:
    random = np.random.default_rng(0)
    g = RankOne(
        *(random.standard_normal((n, w), dtype=np.float32) for w in (d, D))
    ).normalize()
    explicit = g.dense().reshape(n, -1)
    m = n // 2
    return ratio(
        f"nystroem of factors: d = {d}, D = {D}, {m} landmarks, {n} images",
        lambda: ours(g, m),
        "Nystroem of explicit gradients",
        lambda: sklearn_nystroem(explicit, m),
        repetitions,
    )
