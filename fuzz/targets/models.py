"""Target: model folders, the hash in `model.json` being that of the other file three times of four.

A model that loads is used: its scores of an image, and the check of the network that it names.
"""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.learn.model import Model
from deepfishing.learn.model_files import DOCUMENT, TENSORS
from deepfishing.learn.training import train_model
from deepfishing.networks.load import check_same
from deepfishing.networks.network import Network
from fuzz.formats import mutate_safetensors
from fuzz.made import SETTINGS, arrays
from fuzz.mutate import other_value
from fuzz.parts import join, split
from fuzz.rule import obey
from fuzz.target import Run, Target, one_of, put

_RECIPES = ("dW8", "pow(x7,0.5)+whiten(dW8,0.5)")


def tiny_network() -> Network:
    """A network of two layers for images of 2 pixels."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval().requires_grad_(False)
    preprocess = Preprocess(2, 2, (0.0,) * 3, (1.0,) * 3)
    return Network("tiny", module, {8: "1"}, preprocess, "random-0")


def train(folder: Path, recipe: str = "dW8") -> None:
    """Save a model of two classes."""
    labels = np.array([[1, -1], [-1, 1]] * 3, dtype=np.int8)
    settings = Settings.from_dict(SETTINGS)
    model = train_model(recipe, arrays(), labels, ("cat", "dog"), settings=settings)
    model.save(folder)


def _model(folder: Path) -> Run:
    network = tiny_network()

    def run(data: bytes) -> None:
        facts, tensors = split(data, 2)
        if one_of(data, 4):
            facts = _with_hash(facts, tensors)
        put(folder / DOCUMENT, facts)
        put(folder / TENSORS, tensors)

        def read() -> None:
            model = Model.load(folder)
            model.probabilities(
                {name: values[:1] for name, values in model.support.items()}
            )
            check_same(model.settings.network, network)

        obey(read)

    return run


def _with_hash(facts: bytes, tensors: bytes) -> bytes:
    try:
        read = json.loads(facts)
        read["sha256"][TENSORS] = hashlib.sha256(tensors).hexdigest()
    except (ValueError, KeyError, TypeError, RecursionError, IndexError):
        return facts
    return json.dumps(read).encode()


def _models() -> list[bytes]:
    found = []
    for recipe in _RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder), recipe)
            found.append(
                join([Path(folder, name).read_bytes() for name in (DOCUMENT, TENSORS)])
            )
    return found


def mutate_folder(data: bytes, rng: random.Random) -> bytes:
    """Another value in a JSON file or in the header of a safetensors file."""
    try:
        return json.dumps(other_value(json.loads(data), rng)).encode()
    except (ValueError, RecursionError):
        return mutate_safetensors(data, rng)


TARGETS = {
    "model": Target(
        "model folders, and the scores that they give",
        _model,
        _models,
        parts=2,
        mutate=mutate_folder,
        tokens=(
            b'"dW8"',
            b'"x7"',
            b"whiten(",
            b"factor/",
            b"state/",
            b'"F32"',
            b'"F64"',
            b"[0]",
        ),
    )
}
