"""Work in a process beside the server: it can be stopped at any moment, and its memory is freed.

The process runs `deepfishing.web.work`, which writes its progress as lines of JSON. It ends when
the server does, since its standard input is closed then.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any

from deepfishing.errors import DeepFishingError, StoreError
from deepfishing.util.progress import Progress

MODULE = "deepfishing.web.work"
LOOK_SECONDS = 0.2  # between checks for cancellation
END_SECONDS = 5.0
MAX_ERROR = 2000


class WorkError(DeepFishingError, RuntimeError):
    """Work in another process that failed."""


def run_apart(
    task: str, arguments: Sequence[str], progress: Progress
) -> dict[str, Any]:
    """Run a task of `deepfishing.web.work` in another process and return its answer.

    `progress` is called several times a second and may raise an exception, which ends the work.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", MODULE, task, *arguments],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    ) as process:
        lines: queue.Queue[bytes | None] = queue.Queue()
        complaints: list[bytes] = []
        readers = [
            threading.Thread(
                target=_read_lines, args=(process.stdout, lines), daemon=True
            ),
            threading.Thread(
                target=_read_all, args=(process.stderr, complaints), daemon=True
            ),
        ]
        for reader in readers:
            reader.start()
        try:
            answer = _follow(lines, progress)
            # one that is slow to end has answered all the same
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        finally:
            _end(process)
            for reader in readers:
                reader.join(END_SECONDS)
    if answer is None:
        complaint = b"".join(complaints).decode(errors="replace").strip()[-MAX_ERROR:]
        sys.stderr.write(f"{complaint}\n")
        raise WorkError(
            f"the work ended with code {process.returncode}; the terminal says why"
        )
    if "error" in answer:
        raise StoreError(str(answer["error"]))
    return answer


def _follow(
    lines: queue.Queue[bytes | None], progress: Progress
) -> dict[str, Any] | None:
    """Report progress until the answer comes; None if the process ended without one."""
    last = ("starting", 0, 0)
    answer: dict[str, Any] | None = None
    while True:
        try:
            line = lines.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            progress(*last)
            continue
        if line is None:
            return answer
        document = json.loads(line)
        if "stage" in document:
            last = (document["stage"], document["done"], document["total"])
            progress(*last)
        else:
            answer = document


def _read_lines(file: IO[bytes] | None, lines: queue.Queue[bytes | None]) -> None:
    for line in file or ():
        lines.put(line)
    lines.put(None)


def _read_all(file: IO[bytes] | None, into: list[bytes]) -> None:
    for line in file or ():
        into.append(line)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs."""
    if process.poll() is not None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    process.kill()
