"""Peers: 20 machines by a loop over scikit-learn's SVC, and on one Gram matrix.

Sizes and features are those of benchmarks/train.py.
"""

from __future__ import annotations

from typing import Any

import train
from page import interval, number, table


def run(options: Any) -> str:
    rows = [
        (
            f"{r.baseline} / {r.name}",
            interval(1 / r.median, 1 / r.high, 1 / r.low),
            r.repetitions,
            number(r.seconds),
        )
        for r in train.run(quick=options.quick)
    ]
    return table(("scikit-learn / ours", "time", "repetitions", "s of ours"), rows)
