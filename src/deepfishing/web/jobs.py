"""Background jobs with progress and cancellation.

A job calls a progress function regularly, which raises an exception when the job is cancelled. So
results that the job has saved by then are kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepfishing.errors import DeepFishingError
from deepfishing.util.progress import Progress
from deepfishing.web.messages import message_for_page

RUNNING, DONE, CANCELLED, FAILED = "running", "done", "cancelled", "failed"

_log = logging.getLogger("deepfishing.web")


class CancelledError(Exception):
    """Raised inside a job that was cancelled."""


@dataclass
class Job:
    """Work that runs, or has run."""

    name: str
    state: str = RUNNING
    stage: str = ""
    done: int = 0
    total: int = 0
    error: str = ""
    started: float = 0.0
    stage_started: float = 0.0
    is_cancelled: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return what the page shows of it."""
        return {
            "name": self.name,
            "state": self.state,
            "stage": self.stage,
            "done": self.done,
            "total": self.total,
            "error": self.error,
            "seconds": round(time.monotonic() - self.started, 1),
            "stage_seconds": round(time.monotonic() - self.stage_started, 1),
        }


class Jobs:
    """The jobs of a server, by name; may be used from several threads.

    `folders` are words for the folders that a message may name, see `message_for_page`.
    """

    def __init__(self, folders: Mapping[str, Path] | None = None) -> None:
        self._folders = folders
        self._jobs: dict[str, Job] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def start(self, name: str, work: Callable[[Progress], None]) -> Job:
        """Begin work in a thread, or return the job of that name that runs already."""
        with self._lock:
            job = self._jobs.get(name)
            if job is not None and job.state == RUNNING:
                return job
            job = Job(name, started=time.monotonic())
            self._jobs[name] = job
            thread = threading.Thread(target=self._run, args=(job, work), daemon=True)
            self._threads[name] = thread
        thread.start()
        return job

    def get(self, name: str) -> Job | None:
        """Return the last job of a name."""
        with self._lock:
            return self._jobs.get(name)

    def cancel(self, name: str) -> Job | None:
        """Ask a job to stop; it does when it reports its progress next."""
        job = self.get(name)
        if job is not None:
            job.is_cancelled = True
        return job

    def wait(self, name: str, seconds: float | None = None) -> None:
        """Wait until a job has ended."""
        thread = self._threads.get(name)
        if thread is not None:
            thread.join(seconds)

    def close(self, seconds: float = 5.0) -> None:
        """Cancel all jobs and wait a moment for their end."""
        with self._lock:
            names = list(self._jobs)
        for name in names:
            self.cancel(name)
        for name in names:
            self.wait(name, seconds)

    def _run(self, job: Job, work: Callable[[Progress], None]) -> None:
        def progress(stage: str, done: int, total: int) -> None:
            if stage != job.stage:
                job.stage_started = time.monotonic()
            job.stage, job.done, job.total = stage, done, total
            if job.is_cancelled:
                raise CancelledError

        job.stage_started = job.started
        try:
            work(progress)
        except CancelledError:
            job.state = CANCELLED
        except DeepFishingError as error:
            job.error = message_for_page(error, "the work", self._folders)
            job.state = FAILED
        except Exception:
            _log.exception("deepfish: %s failed", job.name)
            job.error = "the work failed; the terminal of the server says why"
            job.state = FAILED
        else:
            job.state = DONE
