"""What fuzzing found in the settings of stores and models; each was a traceback before."""

import json

import numpy as np
import pytest

from deepfishing.errors import StoreError, WeightsError
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.learn.model import Model
from deepfishing.learn.training import train_model
from deepfishing.networks.reference import NetworkRef, layers_of
from deepfishing.search.compare import choose_recipe
from deepfishing.store import Store

DAMAGED = [
    None,
    3,
    [],
    {"-1e-400": "fc"},
    {"": "fc"},
    {"9" * 5000: "fc"},
    {"8": None},
    {"8": [1]},
]


@pytest.mark.parametrize("layers", DAMAGED, ids=lambda layers: str(layers)[:20])
def test_layers_that_are_none_are_one_line(tmp_path, layers):
    with pytest.raises(StoreError, match="layers must be"):
        layers_of({"network": "toy", "layers": layers})
    with pytest.raises(StoreError, match="layers must be"):
        layers_of({"network": "toy"})


def test_a_store_without_layers_is_told_before_it_is_searched(tmp_path, rng):
    store = Store(tmp_path, {"network": "toy"})
    store.append(["k"], {"x7": rng.normal(size=(1, 3))})
    with pytest.raises(StoreError, match="layers must be"):
        choose_recipe(store)


@pytest.fixture
def saved(tmp_path, rng):
    network = NetworkRef(
        name="toy",
        weights_sha256="random-0",
        layers={8: "fc"},
        preprocess=Preprocess(8, 8, mean=(0.0,) * 3, std=(1.0,) * 3),
    )
    labels = np.array([[1, -1], [-1, 1]] * 3, dtype=np.int8)
    arrays = {"x7": rng.normal(size=(6, 4)).astype("f4")}
    made = train_model(
        "x7", arrays, labels, ("cat", "dog"), settings=Settings(network=network)
    )
    made.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("settings", "source", 5),
        ("settings", "source", {"kind": "files", "files": {"weights": ["a"]}}),
        (
            "settings",
            "source",
            {"kind": "files", "files": {"mean": {"path": 3, "sha256": ""}}},
        ),
        ("settings", "source", {"kind": "elsewhere", "files": {}}),
        ("settings", "head", None),
        ("settings", "scores", 8),
        ("settings", "compute_dtype", []),
        ("settings", "views", {}),
        ("settings", "tau", "two"),
        ("settings", "tau", float("nan")),
        ("settings", "label", {"a": 1}),
        ("settings", "network", 3),
        ("settings", "weights_sha256", None),
        ("settings", "preprocess", "big"),
    ],
)
def test_a_model_with_facts_of_another_kind_is_damaged(saved, part, name, value):
    assert Model.load(saved).recipe == "x7"
    facts = json.loads((saved / "model.json").read_text())
    facts[part][name] = value
    facts.pop("seal")
    (saved / "model.json").write_text(json.dumps(facts))
    with pytest.raises(WeightsError, match=f"model is damaged.*{name}"):
        Model.load(saved)


@pytest.mark.parametrize("name", ["cost", "ap"])
def test_a_cost_beyond_all_numbers_is_damaged(saved, name):
    facts = json.loads((saved / "model.json").read_text())
    facts[name][0] = 10**400
    facts.pop("seal")
    (saved / "model.json").write_text(json.dumps(facts))
    with pytest.raises(WeightsError, match="model is damaged"):
        Model.load(saved)
