"""Peers, memory: the most that a process has had, one case in each new process.

Comes in: a case, `module:function:argument:argument`. Goes out: bytes. A case imports what the
others import and makes what they make, so that the difference of two is the work alone.
"""

from __future__ import annotations

import importlib
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.py")
TIMES = 3
# large blocks go back to the system when they are freed, so that a peak is what was in use
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}


def peak(case: str, times: int = TIMES) -> float:
    """Median of the peaks of some new processes, in bytes."""
    command = [sys.executable, str(RUN), "--case", case]
    environment = os.environ | ALLOCATOR
    peaks = []
    for _ in range(times):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(
                f"{case} failed: {done.stderr.strip().splitlines()[-1:]}"
            )
        peaks.append(float(done.stdout.split()[-1]))
    return statistics.median(peaks)


def run_case(case: str) -> None:
    """Run it in this process, and print the peak."""
    module, function, *arguments = case.split(":")
    getattr(importlib.import_module(module), function)(*arguments)
    # getrusage would tell the parent's peak if that is higher: it outlives the start of a program
    status = Path("/proc/self/status").read_text()
    print(1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1]))  # type: ignore[index]
