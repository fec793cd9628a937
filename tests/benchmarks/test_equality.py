"""Pixels and embeddings of networks of other libraries are those of the libraries themselves."""

import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "equality.py"
TOLERANCE = 1e-5
TORCHVISION_BACKEND = 0.05  # three grey levels


def load():
    spec = importlib.util.spec_from_file_location("equality", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["equality"] = module  # where a dataclass looks
    spec.loader.exec_module(module)
    return module


equality = load()


@pytest.mark.parametrize("case", equality.CASES, ids="-".join)
def test_pixels_and_embeddings_are_those_of_the_library(case, tmp_path):
    row = equality.measure(*case, tmp_path, engines=False)
    assert row.pixels <= TOLERANCE
    assert row.embedding <= TOLERANCE
    assert row.other_pixels is None or row.other_pixels <= TORCHVISION_BACKEND


IN_ENGINES = [
    ("timm", "ViT"),
    ("timm", "Swin"),
    ("transformers", "SigLIP"),
    ("open_clip", "ViT-B-32"),
    ("torchvision", "ViT"),
]


@pytest.mark.parametrize("case", IN_ENGINES, ids="-".join)
def test_transformers_run_in_engines(case, tmp_path):
    assert equality.measure(*case, tmp_path).engines <= TOLERANCE


def test_other_pixels_are_seen(tmp_path, monkeypatch):
    usual = equality.CASES["timm", "EVA"]

    @contextmanager
    def changed():
        with usual() as case:
            pixels = replace(case.network.preprocess, resample="bilinear")
            yield replace(case, network=replace(case.network, preprocess=pixels))

    monkeypatch.setitem(equality.CASES, ("timm", "EVA"), changed)
    row = equality.measure("timm", "EVA", tmp_path, engines=False)
    assert row.pixels > 100 * TOLERANCE
    assert row.embedding > 10 * TOLERANCE


def test_the_page_has_all_rows():
    page = equality.PAGE.read_text("utf-8")
    for library, name in equality.CASES:
        assert f"| {library} | {name} |" in page
