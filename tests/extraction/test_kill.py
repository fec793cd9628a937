"""Never lose work: whatever the moment of a kill -9, the next run ends with the same store."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_store_killed_at_any_moment_and_resumed_equals_one_that_was_not(tmp_path):
    script = Path(__file__).with_name("kill_points.py")
    ran = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    kills = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sum(kill["died"] == -9 for kill in kills) >= 30
    assert {kill["prune"] for kill in kills if kill["died"] == -9} == {True, False}
    assert not any(kill["problems"] for kill in kills), kills[0]
    assert [kill for kill in kills if not kill["equal"]] == []
