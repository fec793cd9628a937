"""Beside the stages: what this machine is, for plans, for `deepfish doctor` and for benchmarks.

Comes in: nothing. Goes out: its processor, its cores, and the memory that this process may use.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path

from deepfishing.gradients.batch_size import _cgroup_limits

_CPUS = Path("/proc/cpuinfo")


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its control group's if less."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_cgroup_limits()])


def peak_memory() -> int:
    """The most bytes of memory that this process has had at a time."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # kilobytes elsewhere


def processor() -> str:
    """The processor's name, or at least its kind."""
    lines = _CPUS.read_text().splitlines() if _CPUS.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def describe() -> str:
    """One line: cores, processor and memory.

    Examples
    --------
    >>> describe().split()[1]
    'cores,'
    """
    return f"{cores()} cores, {processor()}, {memory() / 1e9:.0f} GB"
