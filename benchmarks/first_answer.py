"""What a command takes before its first answer, in seconds of processor time and in memory.

    [BEFORE=/path/to/an/older/checkout/src] python benchmarks/first_answer.py [--quick]

Comes in: a store and a model of a few made photos. Goes out: the processor time (user and system)
of whole commands, against a script that imports torch and scikit-learn and does nothing with them,
and with BEFORE against the same command of an older checkout. The model that `predict` and `search`
keep of the network is made before the clock, unless a row says "first".
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from timing import Ratio, ratios

HERE = Path(__file__).parents[1] / "src"
MAIN = "from deepfishing.cli import main; main()"
IMPORTS = "import torch, sklearn.svm"


def children() -> float:
    """Processor time of all processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def run(quick: bool = False) -> list[Ratio]:
    repetitions, before = 3 if quick else 7, os.environ.get("BEFORE")
    commands = {
        "deepfish --version": ["--version"],
        "deepfish --help": ["--help"],
        "deepfish extract --help": ["extract", "--help"],
        "deepfish predict MODEL PHOTO": ["predict", "model", "query.jpg"],
        "deepfish search STORE PHOTO": ["search", "store", "query.jpg"],
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        photos(place)
        for words in (
            ["extract", "photos", "store"],
            ["train", "store", "model", "--features", "pow(dW8,0.5)+x7"],
            *commands.values(),
        ):
            python(place, HERE, *words)
        mine = {
            f"{name} ({megabytes(place, words)} MB)": partial(
                python, place, HERE, *words
            )
            for name, words in commands.items()
        }
        mine["deepfish predict MODEL PHOTO, first"] = partial(first, place)
        imports = partial(start, place, HERE, IMPORTS)
        rows += ratios(mine, f"`{IMPORTS}`", imports, repetitions, children)
        for name, words in commands.items() if before else ():
            own = {name: partial(python, place, HERE, *words)}
            older = partial(python, place, Path(str(before)), *words)
            rows += ratios(own, "the same before", older, repetitions, children)
    return rows


def photos(place: Path) -> None:
    """Two classes of noise, and one more picture."""
    random = np.random.default_rng(0)
    for name, low in (("dark", 0), ("light", 120)):
        (place / "photos" / name).mkdir(parents=True)
        for number in range(8):
            pixels = random.integers(low, low + 130, (375, 500, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / "photos" / name / f"{number}.jpg")
    pixels = random.integers(60, 190, (375, 500, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(place / "query.jpg")


def start(place: Path, source: Path, code: str, *words: str) -> str:
    """Run Python in a process of its own; what it prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "DEEPFISHING_HOME": str(place / "home"),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code, *words],
        check=True,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
    )
    return ran.stdout


def python(place: Path, source: Path, *words: str) -> None:
    """Run a command of a checkout."""
    start(place, source, MAIN, *words)


def first(place: Path) -> None:
    """A prediction without what an earlier run has kept; that stays for the next ones."""
    home, kept = place / "home", place / "kept"
    home.rename(kept)
    python(place, HERE, "predict", "model", "query.jpg")
    shutil.rmtree(home)
    kept.rename(home)


def megabytes(place: Path, words: list[str]) -> int:
    """The most memory that a command has at a time."""
    most = "open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]"
    code = f"import atexit\natexit.register(lambda: print(int({most}) // 1024))\n{MAIN}"
    return int(start(place, HERE, code, *words).split()[-1])


if __name__ == "__main__":
    for row in run(quick="--quick" in sys.argv):
        print(row)
