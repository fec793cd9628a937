"""The one value that decides the numbers of a factor."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from deepfishing.errors import OptionError, StoreError
from deepfishing.extraction.options import FeatureOptions
from deepfishing.extraction.pipeline import extract_to
from deepfishing.extraction.settings import Settings
from deepfishing.images.preprocess import Preprocess
from deepfishing.networks.reference import NetworkFile, NetworkRef, Source

NETWORK = NetworkRef(
    name="toy",
    weights_sha256="0" * 64,
    layers={7: "fc7", 8: "fc8"},
    preprocess=Preprocess(8, 8, mean=(1.0, 2.0, 3.0), std=(1.0,) * 3),
    source=Source(
        kind="files", files={"weights": NetworkFile(path="/a/w.pth", sha256="1" * 64)}
    ),
)
SETTINGS = Settings(network=NETWORK)
PIXELS = SETTINGS.as_dict()["preprocess"]


def with_network(**changes):
    return dataclasses.replace(
        SETTINGS, network=dataclasses.replace(NETWORK, **changes)
    )


OTHERS = {
    "tau": dataclasses.replace(SETTINGS, tau=3),
    "label": dataclasses.replace(SETTINGS, label=[0.5, 0.25]),
    "views": dataclasses.replace(SETTINGS, views="flip"),
    "name": with_network(name="other"),
    "weights": with_network(weights_sha256="2" * 64),
    "layers": with_network(layers={8: "fc8"}),
    "pixels": with_network(
        preprocess=dataclasses.replace(NETWORK.preprocess, order="BGR")
    ),
    "dtype": with_network(dtype="float64"),
    "head": with_network(head="sigmoid"),
    "scores": with_network(scores="'out'"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_whatever_decides_a_number_changes_the_digest_and_is_written_down(other):
    assert other != SETTINGS
    assert other.digest != SETTINGS.digest
    read = Settings.from_dict(json.loads(json.dumps(other.as_dict())))
    assert read == other
    assert read.digest == other.digest
    assert read.network.source == NETWORK.source


def test_where_the_files_are_decides_nothing():
    moved = with_network(source=Source(kind="published"))
    assert moved == SETTINGS
    assert moved.digest == SETTINGS.digest
    assert moved.as_dict() != SETTINGS.as_dict()


def test_a_label_of_any_kind_of_vector_is_the_same():
    of_array = Settings(network=NETWORK, label=np.array([0.5, 0.25], dtype=np.float32))
    assert of_array == OTHERS["label"]
    assert of_array.digest == OTHERS["label"].digest


@pytest.mark.parametrize("name", ["views", "head", "scores", "source"])
def test_settings_of_version_0_1_are_refused_in_one_line(name):
    old = {key: value for key, value in SETTINGS.as_dict().items() if key != name}
    with pytest.raises(
        StoreError, match=rf"got none of {name}, as in version 0.1; make the store"
    ):
        Settings.from_dict(old)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[
            ("tau", "two"),
            ("tau", float("nan")),
            ("tau", True),
            ("tau", 10**400),
            ("tau", None),
        ],
        *[
            ("label", {}),
            ("label", "even"),
            ("label", ["a"]),
            ("label", True),
            ("views", "flop"),
        ],
        *[("views", 3), ("network", None), ("layers", []), ("preprocess", {"size": 8})],
        *[
            ("preprocess", {**PIXELS, "mean": [1.0]}),
            ("preprocess", {**PIXELS, "order": "GBR"}),
        ],
        *[("preprocess", {**PIXELS, "resample": []}), ("head", 3)],
        *[("source", {"kind": "files"}), ("compute_dtype", 32), ("weights_sha256", 1)],
    ],
)
def test_settings_that_cannot_be_used_are_one_line(key, value):
    with pytest.raises(StoreError, match="make the store or the model again") as caught:
        Settings.from_dict({**SETTINGS.as_dict(), key: value})
    assert "\n" not in str(caught.value)


def test_a_head_that_cannot_be_told_is_not_written_down():
    with pytest.raises(OptionError, match="head of toy must be told from others"):
        with_network(head="?").as_dict()
    with pytest.raises(OptionError, match="logits of toy must be told from others"):
        with_network(scores="?").as_dict()


def test_settings_do_not_load_torch():
    code = (
        "import sys, deepfishing.extraction.options, deepfishing.extraction.settings;"
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"


def test_a_mistyped_option_is_told_with_those_that_exist(tmp_path):
    with pytest.raises(
        OptionError, match=r"network, weights, .*, got 'tua'; did you mean tau\?"
    ):
        extract_to(tmp_path / "store", [], tua=3)


def test_a_class_number_as_text_is_the_number():
    assert FeatureOptions(label="3").label == 3
    assert FeatureOptions(label="uniform").label == "uniform"
