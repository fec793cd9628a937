"""Running work in a process that may be killed at any moment.

Comes in: a function. Goes out: how its process ended. Torch is loaded once: every run is a fork of
this process, in a process group of its own, so that a kill takes all that it has started. Deaths
at the n-th write and the tiny network are those of tests/extraction/kill_points.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class FailedError(Exception):
    """A check that did not come to its end."""


def load_script(name: str) -> ModuleType:
    """A Python file of the project as a module; tests are no package."""
    path = ROOT / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} must be a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def fork(work: Callable[[], Any], log: Path) -> int:
    """Start work in a process group of its own; goes out its number. What it prints is in `log`."""
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):  # it has done so itself, or has ended
            os.setpgid(child, child)
        return child
    code = 1
    try:
        os.setpgid(0, 0)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        work()
        code = 0
    except SystemExit as stop:
        code = (
            stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        )
    except BaseException:  # nothing may get out of a fork
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a process; its exit code, or the negative number of a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_after(child: int, seconds: float) -> int:
    """Kill a process group with -9 at some moment; how the process ended, by that or before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(min(0.0005, max(0.0, end - time.monotonic())))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return ended(child)


def answer(work: Callable[[], Any], log: Path) -> Any:
    """What work gives, as JSON, computed in a fork: this process stays as it is."""
    place = log.with_suffix(".json")
    place.unlink(missing_ok=True)
    code = ended(fork(lambda: place.write_text(json.dumps(work())), log))
    if code:
        raise FailedError(f"a check ended with {code}: {log.read_text()[-1000:]}")
    return json.loads(place.read_text())
