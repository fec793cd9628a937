"""A Ray that does not start leaves nothing behind, and is tried again."""

import contextlib
import os
import re
import time
from pathlib import Path

import pytest

from deepfishing.errors import OptionError
from deepfishing.extraction.distributed import start

SECONDS = 600  # by then a machine under load has ended a process
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning"
    ),  # Ray leaves files of its own open
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


def processes():
    """All processes of a Ray that this one has started: their commands name its session."""
    session = re.compile(rb"session_[-_\d]+_%d\b" % os.getpid())
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if session.search(path.read_bytes()):
                found.add(int(path.parent.name))
    return found


def left(of):
    """Which of some processes are left after a while."""
    end = time.monotonic() + SECONDS
    while (more := processes() & of) and time.monotonic() < end:
        time.sleep(0.2)
    return more


@pytest.fixture
def failures(monkeypatch):
    """Let the first n starts fail after their processes were started; what ran at each."""
    from ray._private import services

    ask = services.get_node

    def plan(n):
        seen = []

        def get_node(*arguments):
            seen.append(processes())
            if len(seen) <= n:
                raise ConnectionError("planted\nfailure")
            return ask(*arguments)

        monkeypatch.setattr(services, "get_node", get_node)
        return seen

    return plan


def test_a_start_that_fails_is_told_and_ended_and_the_next_one_works(failures):
    import ray

    seen = failures(1)
    with pytest.warns(
        UserWarning, match=r"^Ray did not start \(planted failure\); it is tried"
    ):
        start("", attempts=20, num_cpus=1)
    try:
        assert len(seen[0]) >= 2
        assert left(seen[0]) == set()
        second = processes()
        assert second
    finally:
        ray.shutdown()
    assert left(second) == set()


@pytest.mark.filterwarnings("ignore:Ray did not start")
def test_a_start_that_fails_every_time_is_one_line_and_leaves_no_process(failures):
    seen = failures(2)
    with pytest.raises(
        OptionError, match=r"^Ray must start on this machine, got planted failure;"
    ):
        start("", attempts=2)
    assert len(seen) == 2
    assert all(len(running) >= 2 for running in seen)
    assert left(processes().union(*seen)) == set()
