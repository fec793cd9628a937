"""A session without what Windows lacks, in a process of its own; see `without_posix.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("without_posix.py")


@pytest.mark.skipif(
    sys.platform != "linux", reason="it looks into /proc for files that are open"
)
def test_a_session_runs_without_what_windows_lacks(shapes, tmp_path):
    (shapes / "train").rename(tmp_path / "photos")
    command = [sys.executable, "-X", "warn_default_encoding", SCRIPT, tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
