"""A lock between processes, the same on Linux, macOS and Windows.

The operating system frees a lock when its process ends, also when it is killed. The lock file
stays on disk: one that is removed could be held by two processes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepfishing.errors import DeepFishingError

FOREVER = -1.0


@contextmanager
def hold_lock(
    path: Path, *, seconds: float = FOREVER, busy: DeepFishingError | None = None
) -> Iterator[None]:
    """Hold the lock of a file while the block runs.

    Parameters
    ----------
    path : Path
        Lock file, made if absent; its folder must exist.
    seconds : float
        How long to wait for another process; 0 for a single attempt, negative for no limit.
    busy : DeepFishingError, optional
        Raised when the time is over. Required unless `seconds` is negative.
    """
    import filelock  # takes a while to load, and most commands write nothing

    lock = filelock.FileLock(str(path), timeout=seconds)
    try:
        lock.acquire()
    except filelock.Timeout:
        if busy is None:
            raise
        raise busy from None
    try:
        yield
    finally:
        lock.release()
