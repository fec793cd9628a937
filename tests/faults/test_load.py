"""Readers and writers on the page at once, a few seconds of what `python -m fire page` does."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fire.page import Client, check, make_store

from deepfishing.store.label_log import Change, LabelLog

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_readers_and_writers_lose_nothing(tmp_path):
    options = ["--minutes", "0.1", "--readers", "4", "--writers", "3"]
    command = [sys.executable, "-m", "fire.page", str(tmp_path), *options]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [line["wrong"] for line in lines] == [[]] * len(lines)
    assert lines[-1]["acts"] > 5


def test_an_act_that_is_missing_or_too_much_is_reported(tmp_path):
    store = make_store(tmp_path / "store")
    log = LabelLog.open(store.folder)
    writer = Client("", 0, np.random.default_rng(0))
    for number in range(4):
        change = Change(f"{number:064x}", "", ("pear",))
        writer.acts.append(log.append([change], origin="test").id)
    writer.labels = {"00003.jpg": "pear"}
    assert check(store, [writer]) == []
    writer.labels = {"00003.jpg": "apple"}
    assert "apple was confirmed last" in check(store, [writer])[0]
    writer.labels = {}
    whole = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join(whole[:-1]))
    assert check(store, [writer]) == ["lost: 1 acts that were confirmed"]
    log.path.write_bytes(b"".join([whole[1], whole[0], *whole[2:]]))
    assert "not in their order" in check(store, [writer])[0]
    log.path.write_bytes(b"".join(whole))
    writer.acts.pop()
    assert check(store, [writer]) == ["unknown: 1 acts that nobody was told of"]
