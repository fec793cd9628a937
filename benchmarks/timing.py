"""Ratios measured in one run: every repetition runs all contestants in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How long one takes, in units of the baseline: median and spread of the repetitions."""

    name: str
    baseline: str
    median: float
    low: float
    high: float
    repetitions: int
    seconds: float  # median of the contestant itself

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.median:.3f} x {self.baseline} "
            f"({self.low:.3f} to {self.high:.3f}, {self.repetitions} repetitions, "
            f"{self.seconds:.3f} s)"
        )


def ratio(
    name: str,
    contestant: Callable[[], object],
    baseline: str,
    reference: Callable[[], object],
    repetitions: int = 7,
) -> Ratio:
    """Time both in turn; one warm-up of each. The order flips, so drift cancels."""
    reference(), contestant()
    quotients, own = [], []
    for repetition in range(repetitions):
        pair = [reference, contestant]
        times = {}
        for f in pair if repetition % 2 == 0 else pair[::-1]:
            start = time.perf_counter()
            f()
            times[f] = time.perf_counter() - start
        quotients.append(times[contestant] / times[reference])
        own.append(times[contestant])
    return Ratio(
        name,
        baseline,
        statistics.median(quotients),
        min(quotients),
        max(quotients),
        repetitions,
        statistics.median(own),
    )
