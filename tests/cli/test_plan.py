import json
from dataclasses import asdict, replace

import pytest

from deepfishing.extraction import planning
from deepfishing.extraction.planning import Rates

RATES = Rates(
    "efficientnet-lite0",
    "x7,dW8",
    {"x7": (1280,), "delta8": (1000,)},
    *(0.013, 0.0002, 6e-5, 2.0, 600_000_000, 1500.0, 2),
)


@pytest.fixture
def rates(tmp_path):
    path = tmp_path / "r.json"
    RATES.write(path)
    return path


def plan(deepfish, *arguments):
    features = ("--features", "x7,dW8", "--rates", "r.json")
    return deepfish("plan", "--images", *arguments, *features)


def test_a_plan_is_a_table_within_80_columns(deepfish, rates):
    ran = plan(deepfish, "1e9", "--on", "ray", "--workers", "1000", "--cores", "16")
    assert ran.code == 0, ran.err
    assert "1,000,000,000 images, efficientnet-lite0" in ran.out
    assert "ray: 1,000 x 16 cores" in ran.out
    assert "3,906,250 files" in ran.out
    assert "on this machine make" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    assert ran.err == ""


def test_json_has_the_keys_that_the_docs_name(deepfish, rates):
    found = json.loads(plan(deepfish, "10k", "--json").out)
    assert found["images"] == 10_000
    assert found["ray"] is None
    assert found["shards"] == 40
    assert set(found["local"]) == {
        *("workers", "cores", "core_hours", "wall_seconds", "images_per_second"),
        *("written_per_second", "worker_bytes", "index_bytes"),
    }
    assert found["rates"] == json.loads(json.dumps(asdict(RATES)))
    far = json.loads(plan(deepfish, "10k", "--on", "ray", "--json").out)
    assert far["ray"]["workers"] == 1


def test_a_real_extraction_has_the_bytes_and_files_that_were_planned(
    deepfish, rates, shapes, tmp_path
):
    planned = json.loads(plan(deepfish, "24", "--json").out)
    assert deepfish("extract", shapes, "s", "--features", "x7,dW8").code == 0
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert planned["bytes"] == pytest.approx(sum(p.stat().st_size for p in files), rel=0.05)
    assert planned["shards"] == sum(path.name.startswith("shard-") for path in files)


def test_what_is_measured_goes_into_the_file_and_is_used_the_next_time(
    deepfish, monkeypatch, tmp_path
):
    measured = []

    def measure(network, features, *_, **__):
        measured.append(network)
        return replace(RATES, network=network, features=features, core_seconds=len(measured))

    monkeypatch.setattr(planning, "measure_rates", measure)
    first, second = (json.loads(plan(deepfish, "9", "--json").out)["rates"] for _ in range(2))
    assert first == second
    again = json.loads(plan(deepfish, "9", "--measure", "--json").out)["rates"]
    assert again["core_seconds"] == 2
    assert len(measured) == 2
    assert Rates.read(tmp_path / "r.json").core_seconds == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("many",), "images must be a whole number"),
        (("9", "--network", "vgg-16"), "did you mean vgg16"),
        (("9", "--network", "vgg16"), "has rates for --network efficientnet-lite0"),
        (("9", "--on", "spark"), "on must be local or ray"),
        (("9", "--workers", "4"), "workers go with --on ray"),
        (("9", "--on", "ray", "--workers", "0"), "workers must be at least 1"),
        (("9", "--cores", "0"), "cores must be at least 1"),
        (("9", "--precision", "float8"), "precision"),
    ],
)
def test_mistakes_are_one_line(deepfish, rates, arguments, told):
    ran = plan(deepfish, *arguments)
    assert ran.code == 1
    assert told in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""


def test_other_features_than_those_of_the_rates_are_one_line(deepfish, rates):
    ran = deepfish("plan", "--images", "9", "--features", "x7", "--rates", "r.json")
    assert ran.code == 1
    assert "r.json has rates for --features x7,dW8, got --features x7" in ran.err


def test_help_has_an_example(deepfish):
    assert "Example: deepfish plan --images" in deepfish("plan", "--help").out
