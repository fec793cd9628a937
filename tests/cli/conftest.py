"""The command line as a user runs it, in this process: exit code, stdout, stderr."""

import sys
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from deepfishing.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def deepfish(monkeypatch, capsys, tmp_path):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["deepfish", *map(str, arguments)])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("DEEPFISHING_HOME", str(tmp_path / "home"))
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
