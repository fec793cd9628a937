"""Fixtures that many tests share, and the command line as a user runs it."""

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

# bfloat16 without AMX, which some virtual machines announce but do not allow
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# small tensors: more threads only wait for each other; read by torch, numpy and others on import
os.environ |= dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)

# nothing here imports torch, so that a file of tests without it starts at once
import numpy as np
import pytest
from PIL import Image

from deepfishing.core.rank_one import RankOne
from deepfishing.networks import zoo

PATIENCE = 300_000  # milliseconds for a browser to start: the machine may be busy


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def random_rank_one(rng):
    def make(n, d=7, D=5, P=None, dtype=np.float64):
        middle = () if P is None else (P,)
        return RankOne(
            x=rng.normal(size=(n, *middle, d)).astype(dtype),
            delta=rng.normal(size=(n, *middle, D)).astype(dtype),
        )

    return make


@pytest.fixture(scope="session")
def towers():
    """The functions of text_towers.py, which make tiny models of two towers."""
    path = Path(__file__).with_name("text_towers.py")
    spec = importlib.util.spec_from_file_location("text_towers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _once(compile_):
    """A trunk is compiled once for all commands of a run; more than these are not kept."""
    return (
        compile_ if hasattr(compile_, "cache_info") else lru_cache(maxsize=8)(compile_)
    )


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session", autouse=True)
def engines(tmp_path_factory):
    """Where networks that were made ready for an engine are kept: once for all tests."""
    home = tmp_path_factory.mktemp("home")
    (home / "engines").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        # not that of whoever runs the tests
        patch.setenv("DEEPFISHING_HOME", str(home))
        yield home / "engines"


@pytest.fixture
def small_input(monkeypatch):
    """The default network sees 64 pixels: the same layers and weights, a twelfth of the work."""
    known = zoo.RECORDS[zoo.DEFAULT]
    small = replace(known.preprocess, size=64, short_side=64)
    monkeypatch.setitem(zoo.RECORDS, zoo.DEFAULT, replace(known, preprocess=small))


@pytest.fixture(scope="session")
def toy_network():
    """A network of 16 pixels and four classes, which takes no time."""
    import torch

    from deepfishing import Preprocess, wrap

    torch.manual_seed(0)
    trunk = torch.nn.Conv2d(3, 6, 3, 4), torch.nn.Flatten(), torch.nn.Linear(96, 8)
    pixels = Preprocess(size=16, short_side=16, mean=(127.0,) * 3, std=(64.0,) * 3)
    return wrap(
        torch.nn.Sequential(*trunk, torch.nn.ReLU(), torch.nn.Linear(8, 4)),
        preprocess=pixels,
        name="toy",
    )


@pytest.fixture
def deepfish(monkeypatch, capsys, tmp_path, engines):
    """Run a command in this process: exit code, stdout, stderr."""

    from deepfishing.cli import main

    # made here: a test may fill the disk before it runs a command
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (home / "engines").symlink_to(engines)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["deepfish", *map(str, arguments)])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("DEEPFISHING_HOME", str(home))
        if running := sys.modules.get("deepfishing.extraction.engines"):
            monkeypatch.setattr(running, "_openvino", _once(running._openvino))
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def shapes(rng, tmp_path):
    """A folder of two classes: six light and six dark pictures in each split."""
    root = tmp_path / "shapes"
    for split in ("train", "test"):
        for name, low in (("dark", 0), ("light", 120)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(low, low + 130, (60, 80, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.jpg")
    return root


@pytest.fixture(scope="module")
def browser():
    """Chromium, without a window."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright: pip install deepfishing[dev]"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, names)), None
    )
    if found is None:
        pytest.skip(
            "no Chromium: install the package chromium, or set CHROMIUM to its path"
        )
    with playwright.sync_playwright() as play:
        opened = play.chromium.launch(
            executable_path=found, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield opened
        opened.close()
