import json
from dataclasses import asdict

import pytest
from PIL import Image

from deepfishing.errors import ImageError, OptionError, WeightsError
from deepfishing.extraction import planning
from deepfishing.extraction.extract import extract
from deepfishing.extraction.planning import Rates, measure_rates
from deepfishing.networks.load import load_network

RATES = Rates("vgg16", "x7", {"x7": (4096,)}, 0.1, 0.001, 1e-4, 5.0, 2**30, 2000.0, 2, "here")


def test_rates_come_back_from_a_file_as_they_were(tmp_path):
    RATES.write(tmp_path / "r.json")
    assert Rates.read(tmp_path / "r.json") == RATES


@pytest.mark.parametrize(
    "change",
    [
        {"core_seconds": 0},
        {"core_seconds": "fast"},
        {"hash_seconds": -1},
        {"index_seconds": float("nan")},
        {"cores": 1.5},
        {"cores": True},
        {"network": ""},
        {"factors": {}},
        {"factors": {"x7": []}},
        {"factors": {"x7": [0]}},
        {"factors": [4096]},
        {"cores_seconds": 1.0},
    ],
)
def test_a_rate_that_cannot_be_is_refused_and_the_file_named(tmp_path, change):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**asdict(RATES), **change}))
    with pytest.raises(OptionError, match=rf"r\.json.*{next(iter(change))}"):
        Rates.read(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "not json", "\x00"])
def test_a_file_without_rates_is_refused(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=r"r\.json"):
        Rates.read(path)


def test_a_folder_is_neither_read_nor_written(tmp_path):
    with pytest.raises(OptionError, match="cannot be read"):
        Rates.read(tmp_path)
    with pytest.raises(OptionError, match="cannot be written"):
        RATES.write(tmp_path / "absent" / "r.json")


@pytest.mark.usefixtures("small_input")
def test_what_is_measured_has_the_shapes_that_extraction_gives(tmp_path):
    picture = tmp_path / "a.jpg"
    Image.new("RGB", (300, 250), (9, 99, 200)).save(picture)
    found = measure_rates("efficientnet-lite0", "x7,dW8", engine="torch", seconds=0.1)
    expected = extract(load_network(), [picture], "x7,dW8", engine="torch")
    _, d, D = expected["dW8"].shape
    assert found.factors == {"x7": (d,), "delta8": (D,)}
    assert min(found.core_seconds, found.hash_seconds, found.index_seconds) > 0
    assert found.worker_bytes > 10**8
    assert "published weights" in found.measured


def test_images_that_cannot_be_read_are_no_sample(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(ImageError, match=r"a\.jpg"):
        measure_rates("efficientnet-lite0", "x7", engine="torch", sample=str(tmp_path))


def test_a_network_without_weights_here_is_measured_with_random_ones(monkeypatch):
    def absent(record):
        raise WeightsError("no weights")

    monkeypatch.setattr(planning, "find_weights", absent)
    network, which = planning.load("efficientnet-lite0", None)
    assert (network.weights_sha256, which) == ("random-0", "random")
