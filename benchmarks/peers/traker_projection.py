"""Peers: random projections of gradients of 4096 x 4096, by traker on a CPU and from the factors.

traker takes explicit gradients. Its matrix of 4096 * 4096 rows does not fit into memory for more
than a few numbers, so its block mode is measured, which draws the matrix again in every call; and,
for few numbers, its best case: a matrix that is drawn once and kept. That the gradients have to be
made first is not in its time. What both give is compared with the exact kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from page import interval, lines_of, megabytes, number, table
from peak import peak
from timing import ratios
from torch import Tensor

from deepfishing.core.kernels import gram
from deepfishing.core.projections import Projection
from deepfishing.core.rank_one import Array, RankOne

D, BLOCK, KEPT = 4096, 8, 32
KINDS = ("tensor-sketch", "two-sided")


def traker(m: int, block: int) -> Any:
    """What a user writes for traker; then `projector.project(gradients, model_id=0)`."""
    from trak.projectors import BasicProjector, ProjectionType

    return BasicProjector(
        D * D, m, 0, ProjectionType.rademacher, torch.device("cpu"), block
    )


def ours(gradients: RankOne, kind: str, m: int) -> Projection:
    """What a user writes for deepfishing; then `project(gradients)`."""
    from deepfishing.core.projections import fit_projection

    return fit_projection(kind, gradients, m)


def run(options: Any) -> str:
    n, m = (4, 16) if options.quick else (16, 512)
    g = gradients(n)
    explicit = torch.from_numpy(g.dense().reshape(n, -1))
    rows = contest(g, explicit, m, BLOCK, f"blocks of {BLOCK}, drawn in each call", 3)
    kept = 8 if options.quick else KEPT
    rows += contest(g, explicit, kept, kept, "one block, drawn before and kept", 7)
    columns = (
        f"{D} x {D}, {n} images",
        "numbers",
        "time of traker / ours",
        "repetitions",
        "ms per image",
        "memory beyond the gradients",
        "rms error of the kernel",
        "bytes stored per image",
        "lines",
    )
    return (
        f"{table(columns, rows)}\n"
        "Ratios: median (lowest to highest). The error is that of the dot products of different "
        "images with the exact kernel, gradients having norm 1."
    )


def contest(
    g: RankOne, explicit: Tensor, m: int, block: int, title: str, repetitions: int
) -> list[tuple[object, ...]]:
    n, projector = len(g), traker(m, block)
    projects = {kind: ours(g, kind, m) for kind in KINDS}
    last: list[Tensor] = []

    def them() -> None:
        last[:] = [projector.project(explicit, model_id=0)]

    by_us = {kind: (lambda p=project: p(g)) for kind, project in projects.items()}
    for f in by_us.values():
        f()  # traker's minutes need no warm-up
    measured = ratios(by_us, "traker", them, repetitions)
    alone = peak(f"traker_projection:case:{n}:{m}:{block}:factors")
    base = peak(f"traker_projection:case:{n}:{m}:{block}:gradients", 1)
    few = min(m, 2 * block)  # one block is in memory at a time, however many there are
    memory = peak(f"traker_projection:case:{n}:{few}:{block}:traker", 1) - base
    rows: list[tuple[object, ...]] = [
        (
            f"traker, {title}",
            m,
            "",
            repetitions,
            number(1000 * measured[0].seconds / measured[0].median / n),
            megabytes(memory),
            number(rms(last[0].numpy() / np.sqrt(m), g)),
            4 * m,
            lines_of(traker),
        )
    ]
    for (kind, f), r in zip(by_us.items(), measured, strict=True):
        factors = peak(f"traker_projection:case:{n}:{m}:{block}:{kind}")
        rows.append(
            (
                f"ours, {kind}",
                m,
                interval(1 / r.median, 1 / r.high, 1 / r.low),
                repetitions,
                number(1000 * r.seconds / n),
                megabytes(factors - alone),
                number(rms(f(), g)),
                4 * projects[kind].shape[0],
                lines_of(ours),
            )
        )
    return rows


def gradients(n: int) -> RankOne:
    random = np.random.default_rng(0)
    x, delta = random.standard_normal((2, n, D), dtype=np.float32)
    # else all kernels are about 0
    common = np.abs(random.standard_normal(D, dtype=np.float32))
    return RankOne(np.maximum(x + common, 0), delta + common).normalize()


def rms(vectors: Array, g: RankOne) -> float:
    pairs = np.triu_indices(len(g), 1)
    return float(np.sqrt(np.mean((vectors @ vectors.T - gram(g))[pairs] ** 2)))


def case(n: str, m: str, block: str, who: str) -> None:
    """One contestant in a process of its own, or what it is given."""
    import trak.projectors  # noqa: F401, all have the same packages in memory

    g = gradients(int(n))
    if who in KINDS:
        ours(g, who, int(m))(g)
    elif who != "factors":
        explicit = torch.from_numpy(g.dense().reshape(int(n), -1))
        if who == "traker":
            traker(int(m), int(block)).project(explicit, model_id=0)
