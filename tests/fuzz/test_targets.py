"""The short run: every target on a few hundred inputs, the same each time."""

import importlib
import random
import socket
import sys

import pytest
from fuzz.mutate import Mutator
from fuzz.rule import Watch
from fuzz.targets import GROUPS, NAMES, load

from deepfishing.errors import DeepFishingError
from deepfishing.images import preprocess

INPUTS = 60
WATCH = Watch(".")

# of Pillow, numpy and others; values count
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def target(request, tmp_path, monkeypatch):
    """A target, and what it does with an input; what it changes elsewhere is undone."""
    if request.param == "web-schema":
        pytest.importorskip(
            "schemathesis", reason="pip install -e '.[fuzz]' for web-schema"
        )
    monkeypatch.setattr(preprocess, "MAX_PIXELS", preprocess.MAX_PIXELS)
    monkeypatch.setattr(socket, "create_connection", socket.create_connection)
    monkeypatch.chdir(tmp_path)
    # a module that is first needed now
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(WATCH, "folder", str(tmp_path.resolve()))
    found = load(request.param)
    return found, found.prepare(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", NAMES, indirect=True)
def test_odd_inputs_give_a_value_or_one_line(target):
    described, run = target
    rng, seeds = random.Random(7), described.seeds()
    mutated = Mutator(described, seeds)
    for data in (b"", *seeds):
        WATCH.run(run, data)
    for _ in range(INPUTS):
        data = rng.choice(seeds)
        for _ in range(rng.choice((1, 1, 2, 5))):
            data = mutated(data, rng)
        WATCH.run(run, data)


@pytest.mark.parametrize(
    "target", [n for n in NAMES if n not in ("web-schema", "url")], indirect=True
)
def test_a_sound_input_is_read_to_the_end(target, monkeypatch):
    described, run = target
    group = importlib.import_module(described.prepare.__module__)
    errors = []

    def obey(read):  # the targets' own, which lets errors of the package pass
        try:
            read()
        except DeepFishingError as error:
            errors.append(error)

    if hasattr(group, "obey"):
        monkeypatch.setattr(group, "obey", obey)
    outcomes = []
    for seed in described.seeds():
        errors.clear()
        run(seed)
        outcomes.append(not errors)
    assert any(outcomes), errors


def test_every_target_has_its_place():
    for group, names in GROUPS.items():
        if group != "schema":
            found = importlib.import_module(f"fuzz.targets.{group}").TARGETS
            assert tuple(found) == names
            assert all(target.reads for target in found.values())
    assert len(set(NAMES)) == len(NAMES)
