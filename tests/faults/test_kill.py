"""Kill -9 of the command line, a few times of what `python -m fire` does some hundred times."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def deaths(part, folder, *options):
    ran = subprocess.run(
        [sys.executable, "-m", f"fire.{part}", folder, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on_to_what_it_would_have_left(tmp_path):
    scenes = ("retrain", "index", "reproduce")
    said = deaths("kills", tmp_path, "--kills=5", "--writes=20", *scenes)
    assert [one for one in said if one["wrong"]] == []
    counted = Counter((one["scene"], type(one["at"])) for one in said)
    assert counted == {
        (scene, kind): n for scene in scenes for kind, n in ((float, 1), (list, 4))
    }


@pytest.mark.slow
def test_labels_that_a_killed_server_confirmed_are_in_the_log(tmp_path):
    said = deaths("labelling", tmp_path, "--kills=4")
    assert [one for one in said if one["wrong"]] == []
    assert sum(one["answers"] for one in said) > 0
