"""The rule that every input is held to, and what watches over it.

Comes in: a call of a reader. Goes out: nothing, or an exception that is a find. An error of the
package is no find if it is one line. While an input runs, an audit hook keeps it from writing
outside its folder, from starting programs and from the network; time and memory are measured.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepfishing.errors import DeepFishingError

MOST_SECONDS = 5.0  # of processor time, so that other programs do not count
MOST_BYTES = 1 << 31
ADDRESS_SPACE = 6 << 30  # beyond what is taken when fuzzing begins

_PROGRAMS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen")
_NETWORK = (
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.bind",
)
_CHANGES = {
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.chmod",
}
_CHANGES |= {"os.truncate", "os.chown", "os.utime"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class BrokenRuleError(Exception):
    """What an input did that none may do."""


def obey(read: Callable[[], object]) -> None:
    """Call a reader; its own errors are fine if they are one line.

    Examples
    --------
    >>> def read():
    ...     raise DeepFishingError("")
    >>> obey(read)
    Traceback (most recent call last):
    fuzz.rule.BrokenRuleError: an error must be one line, got ''
    """
    try:
        read()
    except DeepFishingError as error:
        text = str(error)
        if text.splitlines() != [text]:
            raise BrokenRuleError(
                f"an error must be one line, got {text[:300]!r}"
            ) from error


class Watch:
    """Runs inputs one at a time and knows what they do.

    Parameters
    ----------
    folder : Path
        The only place where an input may write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self.running = False
        self.broken = ""
        sys.addaudithook(self._hook)

    def run(self, call: Callable[[bytes], None], data: bytes) -> None:
        """Do what a target does with an input; raises if that breaks the rule."""
        begin, memory = time.process_time(), _memory()
        self.broken, self.running = "", True
        try:
            call(data)
        finally:
            self.running = False
        # a reader may have caught what the hook raised
        if self.broken:
            raise BrokenRuleError(self.broken)
        seconds, grown = time.process_time() - begin, _memory() - memory
        if seconds > MOST_SECONDS:
            raise BrokenRuleError(
                f"an input must take at most {MOST_SECONDS} s, got {seconds:.1f}"
            )
        if grown > MOST_BYTES:
            raise BrokenRuleError(
                f"an input must take at most 2 GB of memory, got {grown:,} bytes"
            )

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.running:
            return
        if event == "open":
            if (args[2] or 0) & _WRITING and not self._is_inside(args[0]):
                self._stop(f"must not write {args[0]!r}")
        elif event in _CHANGES:
            places = args[:2] if event in ("os.rename", "os.link") else args[:1]
            places = args[1:2] if event == "os.symlink" else places
            if not all(map(self._is_inside, places)):
                self._stop(f"must not do {event} of {places!r}")
        elif event in _PROGRAMS:
            self._stop(f"must not do {event} of {args[:2]!r}")
        elif event in _NETWORK:
            raise OSError("there is no network while fuzzing")

    def _is_inside(self, place: Any) -> bool:
        if isinstance(place, int) or place in ("/dev/null", b"/dev/null"):
            return True
        folder, name = os.path.split(Path(os.fsdecode(place)).absolute())
        real = str(Path(os.path.realpath(folder), name))  # a link itself may be changed
        return real == self.folder or real.startswith(self.folder + os.sep)

    def _stop(self, what: str) -> None:
        self.broken = f"an input {what}"
        raise BrokenRuleError(self.broken)


def limit_memory() -> None:
    """Let an allocation fail that would hurt the machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _memory() -> int:
    """The most memory that was ever taken, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
