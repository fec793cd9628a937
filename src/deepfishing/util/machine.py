"""Processor, cores and memory of this machine, on Linux, macOS and Windows."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_CPUS = Path("/proc/cpuinfo")


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux alone
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Return the bytes of memory that this process may use, limited by its control group."""
    import psutil  # takes a while to load

    limits = [int(psutil.virtual_memory().total)]
    for line in _lines(_OWN_CGROUPS):
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root, name = _CGROUPS, "memory.max"
        elif controllers == "memory":
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            # or "max"
            limits += [int(text) for text in _lines(folder / name) if text.isdecimal()]
    return min(limits)


def peak_memory() -> int:
    """Return the peak of this process's memory in bytes."""
    try:
        import resource
    except ImportError:  # on Windows, where psutil has the peak
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # kilobytes elsewhere


def processor() -> str:
    """Return the processor's name, or at least its kind."""
    for line in _lines(_CPUS):
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            if name:
                return name
    return platform.processor() or platform.machine()


def describe() -> str:
    """Return one line: cores, processor and memory."""
    return f"{cores()} cores, {processor()}, {memory() / 1e9:.0f} GB"


def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines() if file.is_file() else []


def release_pages(content: np.ndarray[Any, Any]) -> None:
    """Release the pages of a file that is mapped into memory, where the system can.

    They stay in the system's cache, and come back when the array is read again.

    Parameters
    ----------
    content : ndarray
        Of the file, which this process never writes to; from its first page on.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        before = content.ctypes.data % mmap.PAGESIZE  # such as the head of a .npy file
        address = ctypes.c_void_p(content.ctypes.data - before)
        size = ctypes.c_size_t(content.nbytes + before)
        _c_library().madvise(address, size, mmap.MADV_DONTNEED)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def release_memory() -> None:
    """Give memory that was freed back to the system, where the C library can.

    After a large piece of work it keeps hundreds of megabytes for the next one.
    """
    import pyarrow as pa  # takes a while to load

    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError, TypeError):
        # another C library than glibc
        _c_library().malloc_trim(0)
