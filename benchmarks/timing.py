"""Ratios measured in one run: every repetition runs all contestants in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Part = Callable[[Any], object]  # does one part of the work


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
    clock: Callable[[], float] = time.perf_counter,
) -> list[Ratio]:
    """Time several against one reference, all of them in turn; the order flips, so drift cancels.

    Nothing is warmed up: call what needs it once before.
    """
    everyone = [reference, *contestants.values()]
    seconds: dict[Callable[[], object], list[float]] = {f: [] for f in everyone}
    for repetition in range(repetitions):
        for f in everyone if repetition % 2 == 0 else everyone[::-1]:
            seconds[f].append(_seconds(f, clock))
    return [
        _row(name, baseline, seconds[f], seconds[reference])
        for name, f in contestants.items()
    ]


def sandwich(
    name: str,
    baseline: str,
    start: Callable[[], tuple[Part, Part, Part]],
    parts: Sequence[object],
    repetitions: int,
) -> list[Ratio]:
    """A small difference: the contestant between two references, part by part; and a control.

    Every repetition starts anew the reference, the contestant and the reference once more, before
    the clock. They take turns at each part, the contestant always in the middle, so that a machine
    that slows down slows all three. The first ratio is to the mean of both references, the second
    is what two references differ by, which do the same.
    """
    seconds: list[list[float]] = [[], [], []]
    for _ in range(repetitions):
        three = start()
        for times in seconds:
            times.append(0.0)
        for number, part in enumerate(parts):
            for i in (0, 1, 2) if number % 2 == 0 else (2, 1, 0):
                seconds[i][-1] += _seconds(partial(three[i], part))
    before, own, after = seconds
    mean = [(a + b) / 2 for a, b in zip(before, after, strict=True)]
    return [
        _row(name, baseline, own, mean),
        _row(f"{name}: control", f"{baseline}, and again", before, after),
    ]


def _seconds(
    f: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    start = clock()
    f()
    return clock() - start


def _row(
    name: str, baseline: str, own: Sequence[float], reference: Sequence[float]
) -> Ratio:
    quotients = [a / b for a, b in zip(own, reference, strict=True)]
    return Ratio(
        name,
        baseline,
        statistics.median(quotients),
        min(quotients),
        max(quotients),
        len(quotients),
        statistics.median(own),
    )
