"""Ratios measured in one run: every repetition runs all contestants in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
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
    """Time both in turn; one warm-up of each."""
    reference(), contestant()
    return ratios({name: contestant}, baseline, reference, repetitions)[0]


def ratios(
    contestants: Mapping[str, Callable[[], object]],
    baseline: str,
    reference: Callable[[], object],
    repetitions: int,
) -> list[Ratio]:
    """Time several against one reference, all of them in turn; the order flips, so drift cancels.

    Nothing is warmed up: call what needs it once before.
    """
    everyone = [reference, *contestants.values()]
    seconds: dict[Callable[[], object], list[float]] = {f: [] for f in everyone}
    for repetition in range(repetitions):
        for f in everyone if repetition % 2 == 0 else everyone[::-1]:
            start = time.perf_counter()
            f()
            seconds[f].append(time.perf_counter() - start)
    rows = []
    for name, f in contestants.items():
        quotients = [a / b for a, b in zip(seconds[f], seconds[reference], strict=True)]
        middle, own = statistics.median(quotients), statistics.median(seconds[f])
        rows.append(Ratio(name, baseline, middle, min(quotients), max(quotients), repetitions, own))
    return rows
