"""Tasks that the server runs in another process: `python -m deepfishing.web.work`.

    python -m deepfishing.web.work TASK STORE [OPTIONS AS JSON]

Progress and the answer are lines of JSON on standard output, see `apart`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepfishing.errors import DeepFishingError, one_line
from deepfishing.util.progress import Progress

SECONDS = 0.1  # between lines of progress
NICENESS = 5  # the server has priority

# What a task calls: a module and its function of a store's folder, options and progress.
TASKS = {
    "label pool": ("deepfishing.learn.label_pool", "work"),
    "map": ("deepfishing.curate.layout", "work"),
    "duplicates": ("deepfishing.curate.copies_review", "work"),
    "train": ("deepfishing.learn.store_model", "work"),
    "onnx": ("deepfishing.learn.store_model", "export_onnx"),
}

Task = Callable[[Path, dict[str, Any], Progress], dict[str, Any]]


def main(arguments: list[str]) -> int:
    """Do one task; return the exit code."""
    task, store, *rest = arguments
    options = json.loads(rest[0]) if rest else {}
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    with contextlib.suppress(OSError, AttributeError):  # Windows has none
        os.nice(NICENESS)
    try:
        module, name = TASKS[task]
        work: Task = getattr(importlib.import_module(module), name)
        answer = work(Path(store), options, _reporter())
    except DeepFishingError as error:
        _say({"error": str(error)})
        return 1
    except OSError as error:
        _say({"error": one_line(error)})
        return 1
    _say({"answer": answer})
    return 0


def _reporter() -> Progress:
    """Return a progress function that writes a line every `SECONDS` at most."""
    last = 0.0

    def report(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS or done == total:
            last = now
            _say({"stage": stage, "done": done, "total": total})

    return report


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _end_with_the_server() -> None:
    """Wait for the end of standard input, which the server holds open as long as it lives."""
    with contextlib.suppress(OSError, ValueError):
        while sys.stdin.buffer.read(1):
            pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
