"""How points of benchmarks/growth.py become exponents, and that a run goes on where it stopped."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where a dataclass looks
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def growth():
    return load("growth")


@pytest.fixture(scope="module")
def page():
    pytest.importorskip(
        "matplotlib", reason="no matplotlib: pip install deepfishing[dev]"
    )
    return load("growth_page")


def points(page, power=1.5):
    sizes = (1000, 10_000, 100_000, 1_000_000)
    return [
        {
            "group": "read",
            "stage": "read",
            "n": n,
            "seconds": 1e-6 * n**power,
            "memory": 8 * n**2,
            "machine": "a machine",
            "load": 0.5,
        }
        for n in sizes
    ]


def test_the_exponent_is_numpys_with_its_standard_error(page, rng):
    n = np.array([1e3, 3e3, 1e4, 3e4, 1e5])
    seconds = 2e-5 * n**1.3 * np.exp(rng.normal(size=5) * 0.1)
    (slope, _), covariance = np.polyfit(np.log(n), np.log(seconds), 1, cov=True)
    found = page.exponent(n, seconds)
    assert found.b == pytest.approx(slope)
    assert found.error == pytest.approx(np.sqrt(covariance[0, 0]))


def test_two_points_have_no_exponent(page):
    assert page.exponent([1, 2], [1.0, 2.0]) is None


def test_page_and_plots_are_written(page, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "PAGE", tmp_path / "GROWTH.md")
    monkeypatch.setattr(page, "ASSETS", tmp_path)
    page.write_pages(points(page))
    written = (tmp_path / "GROWTH.md").read_text()
    assert "1.50 ± 0.00" in written
    assert "8,000 kB per image | 2.00 |" in written
    assert (tmp_path / "growth_time.svg").read_text().startswith("<?xml")
    page.write_pages(points(page))
    assert (tmp_path / "GROWTH.md").read_text() == written


def test_points_that_are_there_are_not_measured_again(growth, tmp_path, monkeypatch):
    ran = []

    def run_child(work, data, stage, n):
        ran.append((stage, n))
        return {stage: {"seconds": 1.0}}

    monkeypatch.setattr(growth, "run_child", run_child)
    file = tmp_path / "points.jsonl"
    growth.measure(file, tmp_path, "", ["kernel"], 4000)
    assert ran == [
        ("material", 0),
        ("kernel", 1000),
        ("kernel", 2000),
        ("kernel", 4000),
    ]
    growth.measure(file, tmp_path, "", ["kernel"], 8000)
    assert ran[4:] == [("material", 0), ("kernel", 8000)]
    assert [p["n"] for p in growth.read_points(file)] == [1000, 2000, 4000, 8000]


def test_a_stage_on_a_store_that_is_gone_makes_it_again_without_a_point(
    growth, tmp_path, monkeypatch
):
    ran = []
    monkeypatch.setattr(
        growth, "run_child", lambda *a: ran.append(a[2:]) or {"x": {"seconds": 1}}
    )
    growth.measure(tmp_path / "p.jsonl", tmp_path, "", ["linear"], 1000)
    assert ran == [("material", 0), ("fill", 1000), ("project", 1000), ("linear", 1000)]
    assert len(growth.read_points(tmp_path / "p.jsonl")) == 1
